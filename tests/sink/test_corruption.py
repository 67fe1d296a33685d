"""Whatever becomes of a state file: an error that names it, or exactly the right rows. Never others, never fewer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import failpoints
from penstock.errors import DamagedState, PenstockError
from penstock.sink import parts
from penstock.sink.sink import Batch, Sink
from penstock.verify import verify
from tests.support.damage import damages, put_back, tree, unsynced
from tests.support.output import QUERY, Output

ROWS = [
    {0: ["a", "b", "c"]},
    {0: ["d"], 1: ["e"]},
    {0: ["f", "g", "h"], 1: ["i"]},
    {0: ["j"]},
]  # batches: writer -> lines
EXPECTED = Counter(line for batch in ROWS for lines in batch.values() for line in lines)


@pytest.fixture(autouse=True)
def disarm() -> Iterator[None]:
    yield
    failpoints.arm("")


@dataclass
class Scene:
    """An output in mid life: files that are finished, one that is owed, parts that are open with segments of one form."""

    output: Output
    options: dict[str, str]

    def begin(self) -> None:
        """Run three batches, the last of which dies between its commit and publishing."""
        sink = self.sink()
        for batch in range(2):
            self.output.batch(sink, batch, ROWS[batch], mark=f"m{batch}")
        failpoints.arm("sink.publish.one=error,sink.publish.grow=error")
        with pytest.raises(OSError, match="failpoint"):
            self.output.batch(sink, 2, ROWS[2], mark="m2")
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

    def attempt(self, step: Callable[[], object], name: str, *, ends: bool = True) -> PenstockError | None:
        """Do a step on damaged state. Readers may gain right rows and lose none; an error must name the file.

        Returns the error. Without one, a step that `ends` has made all rows visible.
        """
        before = self.visible()
        found = None
        try:
            step()
        except PenstockError as error:
            found = error
        assert found is None or Path(name).name in str(found)
        after = self.visible()
        if after != before:
            assert {path: after[path][: len(data)] for path, data in before.items()} == before
            assert not rows(after) - EXPECTED
        assert found or not ends or rows(after) == EXPECTED
        return found


def rows(files: dict[str, bytes]) -> Counter[str]:
    """Return the rows that readers of these files see."""
    found: Counter[str] = Counter()
    for name, data in files.items():
        if name.endswith(".parquet"):
            found.update(pq.read_table(pa.BufferReader(data)).column(0).to_pylist())
        else:
            codec = {".gz": "gzip", ".zst": "zstd"}.get(Path(name).suffix)
            with pa.input_stream(pa.BufferReader(data), compression=codec) as stream:
                found.update(stream.read().decode().splitlines())
    return found


FORMS = {
    "bytes": {},
    "gzip": {"compression": "gzip"},
    "zstd": {"compression": "zstd"},
    "arrow": {"format": "parquet"},
    "own file of bytes": {},
    "own file of parquet": {"format": "parquet"},
    "growing": {"growing": "true", "fileName": "all.txt"},
}


@pytest.fixture
def scene(request: pytest.FixtureRequest, output: Output, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """Return the scene of a form, ready to be damaged."""
    form = request.param
    rolls = {} if form == "growing" else {"rollRows": "3", "fileName": "p{writer}-{seq}"}
    if form.startswith("own file"):
        monkeypatch.setattr(parts.BytePart, "stage_bytes", 1)
        monkeypatch.setattr(parts.ArrowPart, "stage_bytes", 1)
    output.storage = unsynced()
    made = Scene(output, rolls | FORMS[form])
    made.begin()
    return made


every_form = pytest.mark.parametrize("scene", FORMS, indirect=True)


@every_form
def test_staged_file_that_changed_after_its_commit(scene: Scene) -> None:
    """Any change of the bytes that a record names is `DamagedState`, and no row is seen wrongly; bytes behind them do not count.

    `verify` tells it before anybody needs the file. In the larger files of Parquet every eleventh byte stands for all:
    what is compared is bytes, whatever they mean.
    """
    root = scene.output.root
    head = scene.sink().ledger.head()
    held = [part.segments for part in head.open] + [growth.segments for growth in head.grown]
    named = {segment.file for some in held for segment in some} | {file.staged for file in head.finished}
    assert {f"_penstock/s/staging/{name}" for name in named} <= tree(root).keys()
    for name in named:
        path = f"_penstock/s/staging/{name}"
        data = (root / path).read_bytes()
        for what, broken in damages(data, every=1 if len(data) < 200 else 11):
            with put_back(root):
                (root / path).write_bytes(broken)
                report = verify(str(root)).output
                error = scene.attempt(scene.sink().finish, path, ends=False)
                assert (type(error) is DamagedState) == bool(report.problems), what
                assert error or "doubled" in what
