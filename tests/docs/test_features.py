"""`docs/features.md`: each thing that users of other systems had has a name here, and something that shows it."""

from __future__ import annotations

import re

from tests.docs.markdown import REPOSITORY

ROW = re.compile(r"^\| (?!Its users had|---)(.+) \|$", re.MULTILINE)


def test_no_cell_of_ours_is_empty() -> None:
    """Every row says what is here, and names a test that shows it; that it exists is asked of all documents."""
    page = (REPOSITORY / "docs/features.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in row.split(" | ")] for row in ROW.findall(page)]
    assert len(rows) > 40
    for row in rows:
        assert len(row) == 3, row
        assert all(row), row
        assert "`tests/" in row[2], row
