"""A sink in the middle of its life, with everything its state can hold: for tests that damage it, and as a sample of its formats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

from penstock import failpoints
from penstock.errors import PenstockError
from penstock.sink import folds, ledger
from penstock.sink.byteparts import BytePart
from penstock.sink.sink import Batch, Sink
from penstock.sink.tableparts import ArrowPart
from tests.support.damage import tree
from tests.support.extras import WITH_AVRO, avro_rows
from tests.support.keys import ENCRYPTED, READER, STAGING_KEY, STAGING_VARIABLE, opened
from tests.support.output import QUERY, Output

# What the batches write: writer -> lines.
ROWS = [{0: ["a", "b", "c"]}, {0: ["d"], 1: ["e"]}, {0: ["f", "g", "h"], 1: ["i"]}, {0: ["j"]}]
EXPECTED = Counter(line for batch in ROWS for lines in batch.values() for line in lines)
_ROLLS = {"rollRows": "3", "fileName": "p{writer}-{seq}"}
_CSV = {"format": "csv", "header": "true", "escape": "\\"}
FORMS = {
    "bytes": _ROLLS,
    "gzip": _ROLLS | {"compression": "gzip"},
    "zstd": _ROLLS | {"compression": "zstd"},
    "arrow": _ROLLS | {"format": "parquet"},
    "own-file-of-bytes": _ROLLS,
    "own-file-of-parquet": _ROLLS | {"format": "parquet"},
    "own-file-of-orc": _ROLLS | {"format": "orc"},
    **{f"own-file-of-{form}": _ROLLS | {"format": form} for form in WITH_AVRO},
    "growing": {"growing": "true", "fileName": "all.txt"},
    "csv": _ROLLS | _CSV,
    "encrypted": _ROLLS | _CSV | ENCRYPTED,
    "encrypted-from-clear": _ROLLS | {"format": "parquet", "encryptTo": READER, "encryptionKey": "none"},
    "growing-csv": {"growing": "true", "fileName": "all.csv", "compression": "gzip"} | _CSV,
}


@dataclass
class Scene:
    """An output in the middle of its life: finished files, one still to be published, and open parts with segments of one form."""

    output: Output
    options: dict[str, str]

    def begin(self) -> None:
        """Run three batches; the last one dies between its commit and publishing."""
        sink = self.sink()
        for batch in range(2):
            self.output.batch(sink, batch, ROWS[batch], mark=f"m{batch}")
        failpoints.arm("sink.publish.one=error,sink.publish.grow=error")
        try:
            with pytest.raises(OSError, match="failpoint"):
                self.output.batch(sink, 2, ROWS[2], mark="m2")
        finally:
            failpoints.arm("")

    def sink(self) -> Sink:
        """Return the sink."""
        return self.output.sink(**self.options)

    def go_on(self) -> None:
        """Be the next driver, whose checkpoint has batch 2: run batch 3, the last one."""
        sink, batch = self.sink(), Batch(QUERY, 3, "m3", final=True)
        results = self.output.write(sink, sink.begin("d2", batch), 3, ROWS[3])
        sink.commit(batch, results)

    def visible(self) -> dict[str, bytes]:
        """Return what is not hidden, by path."""
        return {name: data for name, data in tree(self.output.root).items() if not name.startswith("_penstock")}

    def repeat(self) -> None:
        """Be the next driver, whose checkpoint lacks the end of batch 2: run it again, then batch 3."""
        self.output.batch(self.sink(), 2, ROWS[2], owner="d2", mark="m2")
        self.go_on()

    def state(self) -> list[str]:
        """Return the paths of all state files."""
        return sorted(name for name in tree(self.output.root) if name.startswith("_penstock"))

    def attempt(self, step: Callable[[], object], *names: str, ends: bool = True) -> PenstockError | None:
        """Do a step on damaged state. It may publish more rows, but only right ones, and lose none; an error must name a file or its place.

        Returns the error. If there is none, a step that `ends` must have made all rows visible.
        """
        before = self.visible()
        found = None
        try:
            step()
        except PenstockError as error:
            found = error
        assert found is None or any(
            place in str(found) for place in [*(Path(n).name for n in names), self.sink().state]
        )
        after = self.visible()
        if after != before:
            assert {path: after[path][: len(data)] for path, data in before.items()} == before
            assert not rows(after) - EXPECTED
        assert found or not ends or rows(after) == EXPECTED
        return found


def rows(files: dict[str, bytes]) -> Counter[str]:
    """Return the rows that a reader of these files sees."""
    found: Counter[str] = Counter()
    for name, data in (
        (name.removesuffix(".age"), opened(data) if name.endswith(".age") else data) for name, data in files.items()
    ):
        if name.endswith(".parquet"):
            found.update(pq.read_table(pa.BufferReader(data)).column(0).to_pylist())
        elif name.endswith(".avro"):
            found.update(row["value"] for row in avro_rows(data))
        elif name.endswith(".orc"):
            found.update(orc.ORCFile(pa.BufferReader(data)).read().column(0).to_pylist())
        else:
            codec = {".gz": "gzip", ".zst": "zstd"}.get(Path(name).suffix)
            with pa.input_stream(pa.BufferReader(data), compression=codec) as stream:
                found.update(stream.read().decode().splitlines()[".csv" in name :])
    return found


@contextmanager
def small(form: str) -> Iterator[None]:
    """Fold after few records, merge two folds and, for the forms that ask for it, give a few bytes a file of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger, "FOLD", 1)
        patch.setattr(folds, "MERGED", 2)
        patch.setenv(STAGING_VARIABLE, STAGING_KEY)
        if form.startswith("own-file"):
            patch.setattr(BytePart, "stage_bytes", 1)
            patch.setattr(ArrowPart, "stage_bytes", 1)
        yield
