"""All directories of an output are checked on every storage: not all storages give directories an identity."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.cli.demo.reader import source_hashes
from penstock.options import SINK, parse
from penstock.sink.sink import Batch, Sink
from penstock.storage import LocalStorage, ObjectStorage, Storage
from penstock.testing import CrashHdfs, ObjectStore
from penstock.verify.files import check_files, walk

STORAGES: dict[str, Callable[[], Storage]] = {
    "local": LocalStorage,
    "hdfs": lambda: CrashHdfs().storage(),
    "objects": lambda: ObjectStorage(system=ObjectStore()),
}


@pytest.mark.parametrize("kind", STORAGES)
def test_every_bucket_is_verified(kind: str, tmp_path: Path) -> None:
    """If a storage has no identity for directories, `verify` once entered only the first directory: it missed foreign files in others."""
    storage, root = STORAGES[kind](), str(tmp_path / "out")
    storage.make_directory(root)
    options = {"path": root, "bucketBy": "day={a}/hour={b}", "format": "json", "rollBatches": "1"}
    sink = Sink(storage, root, parse(SINK, options, what="sink"), "sink")
    rows = pa.RecordBatch.from_pylist([{"a": a, "b": b, "c": 1} for a in "xyz" for b in "123"])
    batch = Batch("query", 0, "")
    sink.commit(batch, [sink.write(sink.begin("driver", batch), "query", 0, 0, rows.schema, iter([rows]))])
    output, _ = check_files(storage, root, lambda *_: None)
    assert (output.problems, output.sinks[0].files) == ((), 9)
    assert len(list(walk(storage, root))) == 9
    assert len(source_hashes(storage, root)) == 9
    with storage.create(f"{root}/day=z/hour=3/foreign.json") as file:
        file.write(b"{}\n")
    problems = check_files(storage, root, lambda *_: None)[0].problems
    assert [problem.path for problem in problems] == ["day=z/hour=3/foreign.json"]
