"""Two sinks of one directory name their files alike: neither takes a file of the other, whichever dies when."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from penstock.errors import DamagedState, PublishConflict
from penstock.options import SINK, parse
from penstock.query.records import signed
from penstock.sink.renamed import OtherNames
from penstock.sink.sink import Batch, Sink
from penstock.storage import LocalStorage
from penstock.testing import Crashable, CrashDisk, CrashHdfs, ObjectStore, Program, compare, visible
from tests.testing.crashes import crashed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.storage import Storage

ROOT = "/out"
TEXT = pa.schema([("value", pa.string())])
FINISHED = {"fileName": "p-{seq}", "rollBatches": "1"}
GROWING = {"growing": "true", "fileName": "all.log"}
OWN_NAME = {"fileName": "{sink}.log"}


class Rivals(Program):
    """Queries `a` and `b`. `b` decides on a name and pauses until `a` has decided on it too and published; then both continue."""

    memory: int  # the number of a step

    def __init__(self, options: dict[str, str], *, batches: int) -> None:
        self.memory = 0
        self._options = self._first = parse(SINK, {"path": ROOT, "format": "text"} | options, what="sink")
        self._batches = batches

    def _sink(self, storage: Storage, name: str) -> Sink:
        return Sink(storage, ROOT, self._options, name)

    def run(self, disk: Crashable, rest: Callable[[], None]) -> None:
        """Continue with the first unfinished step."""
        storage = disk.storage()
        storage.make_directory(ROOT)
        steps = [("b", 0, False), ("a", 0, True), ("b", 0, True)]
        steps += [(name, number, True) for number in range(1, self._batches) for name in "ab"]
        for at in range(self.memory, len(steps)):
            self.memory = at
            rest()
            self._options = self._first
            try:
                self._step(storage, *steps[at])
            except PublishConflict as error:
                if "cannot grow; set another fileName" not in error.message:
                    raise
                self._options = parse(SINK, {"path": ROOT, "format": "text"} | GROWING | OWN_NAME, what="sink")
                self._step(storage, *steps[at])

    def _step(self, storage: Storage, name: str, number: int, publishes: bool) -> None:
        sink, batch = self._sink(storage, name), Batch(name, number)
        begun = sink.begin(f"driver-{name}", batch)
        result = sink.write(begun, name, number, 0, TEXT, iter([f"{name}{number}\n".encode()]))
        if publishes:
            sink.commit(batch, [result])
        elif (head := sink.ledger.head()).last_batch(name) < number:
            sink.committer.put(sink.decided(head, batch, [result]))

    def check(self, disk: Crashable, *, final: bool) -> list[str]:
        """Return rows that occur twice, in part, or at the end not at all, and files that differ from what their ledger says."""
        files = visible(disk.storage(), ROOT)
        lines = [line for data in files.values() for line in data.splitlines(keepends=True)]
        if not final:  # readers may see a growing file end in the middle of a record, or with a block of zeros
            lines = [line for line in lines if line.endswith(b"\n") and b"\0" not in line]
        rows = {(name, number): f"{name}{number}\n".encode() for name in "ab" for number in range(self._batches)}
        last = {name: self._sink(disk.storage(), name).ledger.head().last_batch(name) for name in "ab"}
        decided = [row for (name, number), row in rows.items() if number <= last[name]]
        found = compare(lines, acknowledged=decided, offered=[*rows.values()]).complaints(final=final)
        if not final:
            return found
        found += [f"never decided {row!r}" for row in rows.values() if row not in decided]
        sizes = {path: len(data) for path, data in files.items()}
        for name in "ab":
            sink = self._sink(disk.storage(), name)
            told = {file.path: file.bytes for file in sink.ledger.history()} | dict(
                sink.lengths.all_of(sink.ledger.head())
            )
            found += [
                f"{name} has {path} of {size} bytes" for path, size in told.items() if sizes.pop(path, -1) != size
            ]
        return found + [f"of nobody: {path}" for path in sizes]


@pytest.mark.slow
@pytest.mark.parametrize("profile", [CrashDisk, CrashHdfs, ObjectStore])
def test_no_crash_takes_a_file_from_the_other_sink(profile: Callable[..., Crashable]) -> None:
    """Each step of both queries and of the recovery crashes: each row is there once, and each file is in one ledger, with its size."""
    report = crashed(lambda: Rivals(FINISHED, batches=2), profile, states_max=300)
    assert report.states > 100


@pytest.mark.slow
@pytest.mark.parametrize("profile", [CrashDisk, CrashHdfs])
def test_no_crash_takes_a_growing_file_from_the_other_sink(profile: Callable[..., Crashable]) -> None:
    """The same for one growing file that both queries begin."""
    report = crashed(lambda: Rivals(GROWING, batches=1), profile, states_max=300)
    assert report.states > 50


@pytest.mark.parametrize(
    ("path", "renamed"),
    [
        ("p-0.json", "p-0-b.json"),
        ("d=1/e=2/v1.2-0.json.gz.age", "d=1/e=2/v1.2-0-b.json.gz.age"),
        ("2024-01-01.0", "2024-01-01.0-b"),
        ("f0", "f0-b"),
        (f"{'x' * 246}-0.parquet", "b-ae4e8d634aa94d00.parquet"),
    ],
)
def test_names_keep_what_readers_go_by(path: str, renamed: str, tmp_path: Path) -> None:
    """The name of the sink goes before the file extensions, and a name that has no room for it is shortened."""
    sink = Sink(LocalStorage(), str(tmp_path), parse(SINK, {"path": str(tmp_path)}, what="sink"), "b")
    names, head = OtherNames(LocalStorage(), str(tmp_path), "b"), sink.ledger.head()
    assert names.of(head, path) is None
    assert names.give(head, path) == names.give(head, path) == names.of(head, path) == renamed


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ({"write": "other"}, "about another record"),
        ({"n": 7}, "about another record"),
        ({"sink": "a"}, "about another record"),
        ({"renamed": "../../etc/passwd"}, "names the path"),
        ({"renamed": "sub/p"}, "in another directory"),
    ],
)
def test_a_note_of_another_name_leads_nowhere_else(form: dict[str, object], said: str, tmp_path: Path) -> None:
    """A note that was copied from elsewhere, or made by hand, is damaged state, and no path is taken from it."""
    sink = Sink(LocalStorage(), str(tmp_path), parse(SINK, {"path": str(tmp_path)}, what="sink"), "b")
    names, head = OtherNames(LocalStorage(), str(tmp_path), "b"), sink.ledger.head()
    names.give(head, "p")
    (note,) = tmp_path.iterdir()
    note.write_bytes(signed({"sink": "b", "n": 0, "write": "", "path": "p", "renamed": "p-b"} | form))
    with pytest.raises(DamagedState, match=said):
        names.of(head, "p")
