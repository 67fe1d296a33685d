"""Small files of CSV and JSON whole: what Spark's readers made of each of them, recorded once, compared with ours."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from penstock.formats.ddl import parsed
from penstock.source.schemas import BAD
from tests.soak.reads import rows_at, rows_of
from tests.support.effort import effort

FILES: dict[str, Any] = json.loads(Path(__file__).with_name("spark_files.json").read_text(encoding="utf-8"))
ASIDE = {"badRecords": "quarantine", "badFiles": "quarantine", "badRecordColumn": "_bad"}


@pytest.mark.parametrize("form", ["csv", "json"])
def test_each_file_has_the_rows_that_spark_reads(form: str, tmp_path: Path) -> None:
    """With each of the options the same records have the same values, and as many are bad. A gate run reads a third of the files."""
    wrong = []
    for kept in random.sample(FILES[form], len(FILES[form]) // effort(3, 1)):
        path = tmp_path / f"a.{form}"
        path.write_bytes(kept["text"].encode())
        os.utime(path, (1e9, 1e9))
        given = {**kept.get("options", {}), **ASIDE, "format": form, "timeZone": kept.get("zone", "UTC")}
        schema = parsed(f"{kept['schema']}, _bad {BAD}")
        assert schema is not None
        rows = rows_of(rows_at(path, schema, given))
        good = json.loads(json.dumps([row[:-1] for row in rows if row[-1] is None], default=str))
        if (good, len(rows) - len(good)) != (kept["rows"], kept["bad"]):
            wrong.append((kept, good, len(rows) - len(good)))
    assert wrong == []
