"""`docs/features.md`: each feature that users of other systems know has a name here, and a test that shows it."""

from __future__ import annotations

import re

from tests.docs.markdown import REPOSITORY

ROW = re.compile(r"^\| (?!Its users had|---)(.+) \|$", re.MULTILINE)


def test_no_cell_of_ours_is_empty() -> None:
    """Every row says what Penstock has, and names a test that shows it; a test for all documents checks that the named test exists."""
    page = (REPOSITORY / "docs/features.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in row.split(" | ")] for row in ROW.findall(page)]
    assert len(rows) > 40
    for row in rows:
        assert len(row) == 3, row
        assert all(row), row
        assert "`tests/" in row[2], row
