"""A task needs its staged rows again before it ends: also on storages that read a file only after its writer has closed it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.sink import parts
from penstock.sink.byteparts import BytePart
from penstock.sink.sink import Batch
from penstock.sink.tableparts import ArrowPart
from penstock.storage import LocalStorage, Storage
from penstock.testing import CrashHdfs, ObjectStore, visible
from tests.support.extras import WITH_AVRO
from tests.support.keys import ENCRYPTED, READER, STAGING_KEY, STAGING_VARIABLE
from tests.support.output import QUERY, Output
from tests.support.scene import rows

STORAGES: dict[str, Callable[[], Storage]] = {
    "disk": LocalStorage,
    "hdfs": lambda: CrashHdfs().storage(),
    "objects": lambda: ObjectStore().storage(),
}
_CLEAR = {"encryptTo": READER, "encryptionKey": "none"}


_WAYS: dict[str, tuple[dict[str, str], int]] = {
    "own": ({}, 64),
    "packed": ({}, 0),
    "age": (ENCRYPTED, 64),
    "clear": (_CLEAR, 64),
}
CASES = [
    *((name, way) for name in ("text", "parquet") for way in _WAYS),
    *((name, "own") for name in ("orc", *WITH_AVRO)),
]


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize(("name", "way"), CASES)
def test_a_part_that_fills_with_what_its_task_has_put_on_disk(
    output: Output,
    monkeypatch: pytest.MonkeyPatch,
    storage: str,
    name: str,
    way: str,
) -> None:
    """An open part gets many rows in one batch, piece by piece, and fills: its file has everything that was staged, on each storage."""
    options, own_files = _WAYS[way]
    monkeypatch.setenv(STAGING_VARIABLE, STAGING_KEY)
    monkeypatch.setattr(BytePart, "stage_bytes", 1)
    monkeypatch.setattr(ArrowPart, "stage_bytes", 1)
    monkeypatch.setattr(parts, "_OWN_FILES_MAX", own_files)
    output.storage = STORAGES[storage]()
    output.root = output.root if storage == "disk" else Path("/out")
    sink = output.sink(format=name, rollRows="4", **options)
    for number, lines in enumerate(["a", "bcdefg", "hi"]):
        batch = Batch(QUERY, number, "", final=number == 2)
        pieces = (pa.record_batch({"value": [line]}) for line in lines)
        sink.commit(batch, [sink.write(sink.begin("d", batch), QUERY, number, 0, output.schema, pieces)])
    assert rows(visible(output.storage, str(output.root))) == Counter("abcdefghi")
    assert [file.rows for file in sink.ledger.history()] == [4, 4, 1]
