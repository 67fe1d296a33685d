"""Two ingests of the same files into one output, under two checkpoints: what each start of either does."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING
from unittest import mock

import pyarrow as pa

from penstock import clock
from penstock.errors import CheckpointMismatch, Fenced
from penstock.formats.schema import to_spark
from penstock.ingestion.earlier import Earlier
from penstock.ingestion.oneinput import IngestBatches, OneInput
from penstock.ingestion.stage import LIVE_SINK, Stage
from penstock.options import parse
from penstock.query.checkpoint import Checkpoint
from penstock.sink import keeper
from penstock.sink.existing import STAGE
from penstock.sink.sink import Batch, Sink
from penstock.testing import Crashable, Program, compare, visible

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.options import Options
    from penstock.storage import Storage

SRC, ROOT = "/in", "/out"
TEXT = pa.schema([("value", pa.string())])
SOURCE = {"path": SRC}
NAMES = "ab"
REFUSED = (CheckpointMismatch, Fenced)
_STEP_SECONDS = 10


@dataclass(frozen=True)
class Plans:
    """What the checkpoint of one ingest says: the files of each batch, and how many batches are noted as done."""

    batches: tuple[tuple[str, ...], ...] = ()
    done: int = 0

    @property
    def files(self) -> set[str]:
        """The files of all batches."""
        return {name for batch in self.batches for name in batch}


@dataclass(frozen=True)
class Memory:
    """What a crash of the output's storage leaves: how many starts there were, and the checkpoints."""

    starts: int = 0
    plans: tuple[Plans, ...] = tuple(Plans() for _ in NAMES)

    def noted(self, which: int, plans: Plans) -> Memory:
        """Return the memory with another checkpoint for one ingest."""
        return replace(self, plans=tuple(plans if n == which else old for n, old in enumerate(self.plans)))


@dataclass
class Rivals:
    """The two ingests, and their input. `sink_id` if they have the same one; `remember` is told each new memory."""

    sink_id: str | None = None
    memory: Memory = field(default_factory=Memory)
    remember: Callable[[Memory], None] = lambda _: None

    def begins(self, which: int, storage: Storage) -> str:
        """Start an ingest: it plans what is there, unless a plan is not done, and runs it; return "" or the error that refused it."""
        name, life = NAMES[which], self.memory.starts
        self._note(replace(self.memory, starts=life + 1))
        plans = self.memory.plans[which]
        if plans.done == len(plans.batches):
            new = tuple(sorted({name for name in storage.names(SRC) if not name.startswith(".")} - plans.files))
            if not new:
                return ""
            plans = replace(plans, batches=(*plans.batches, new))
            self._note(self.memory.noted(which, plans))
        number = plans.done
        batch = Batch(name, number, f"{name}{number}")
        batches = IngestBatches(self._sink(name, storage), TEXT, lambda *_: iter(()))
        try:
            owner = f"host:{life}:0:{name}"
            begun = batches.begin(owner, batch)
            rows = b"".join(map(lines_of, plans.batches[number]))
            result = batches.sink.write(begun, name, number, 0, TEXT, iter([rows]))
            batches.commit(owner, batch, [result])
        except REFUSED as error:
            return error.message
        self._note(self.memory.noted(which, replace(self.memory.plans[which], done=number + 1)))
        return ""

    def _note(self, memory: Memory) -> None:
        self.memory = memory
        self.remember(memory)

    def _sink(self, name: str, storage: Storage) -> Sink:
        return Sink(storage, ROOT, _options(name), self.sink_id or name)


@cache
def _options(name: str) -> Options:
    """Return the options of an ingest's sink, which are the same at each start."""
    stage = Stage.describe(SOURCE, to_spark(TEXT), None)
    given = {"path": ROOT, "format": "text", "rollBatches": "1", "checkpointLocation": f"/no/checkpoint/{name}"}
    return parse(LIVE_SINK, {**given, STAGE: stage.text}, what="sink")


def lines_of(name: str) -> bytes:
    """Return what is in a file of the input."""
    return b"".join(b"%b-%d\n" % (name.encode(), row) for row in range(2))


def put(storage: Storage, name: str) -> None:
    """Put a file into the input, unless it is there, later than everything before."""
    storage.make_directory(SRC)
    storage.make_directory(ROOT)
    if name not in storage.names(SRC):
        clock.sleep(_STEP_SECONDS)
        storage.put_if_absent(f"{SRC}/{name}", lines_of(name))
    clock.sleep(2 * _STEP_SECONDS)


@contextmanager
def simulated() -> Iterator[None]:
    """Have ingests look for their input on the storage of their output, and have no keepers; nothing stays open.

    It is entered once for all ingests of a test, because these stand still and end in any order.
    """

    def earlier(self: OneInput) -> Earlier:
        storage = self.sink.storage
        return Earlier(storage, SOURCE, storage, ROOT, Checkpoint(self.sink.options["checkpointLocation"]))

    with (
        mock.patch.object(OneInput, "earlier", property(earlier)),
        mock.patch.object(keeper, "batch_begins", return_value=None),
        mock.patch.object(keeper, "batch_ends", return_value=None),
    ):
        yield


def complaints(storage: Storage, wanted: list[str], *, final: bool) -> list[str]:
    """Compare the output with the files that it should have."""
    found = [line for data in visible(storage, ROOT).values() for line in data.splitlines(keepends=True)]
    lines = [line for name in wanted for line in lines_of(name).splitlines(keepends=True)]
    return compare(found, acknowledged=lines, offered=lines).complaints(final=final)


class RivalsProgram(Program):
    """Each start is one of the other ingest; `cleaned`: the first has read a file that is gone when the second begins."""

    memory: Memory
    _STARTS = 6

    def __init__(self, *, sink_id: str | None = None, cleaned: bool = False) -> None:
        self.memory = Memory()
        self._sink_id = sink_id
        self._cleaned = cleaned

    def run(self, disk: Crashable, rest: Callable[[], None]) -> None:
        """Start both in turn, until there were enough starts; a crash ends the one that runs."""
        storage = disk.storage()
        rivals = Rivals(self._sink_id, self.memory, self._remember)
        clock.sleep(10 * _STEP_SECONDS * self.memory.starts)  # time begins anew at each start of the program
        if self._cleaned and not rivals.memory.plans[0].done:
            put(storage, "f0")
            rivals.begins(0, storage)
        if self._cleaned:
            storage.delete(f"{SRC}/f0")
        put(storage, "f1")
        while rivals.memory.starts < self._STARTS:
            rest()
            rivals.begins(rivals.memory.starts % 2, storage)

    def _remember(self, memory: Memory) -> None:
        self.memory = memory

    def check(self, disk: Crashable, *, final: bool) -> list[str]:
        """Look at the output."""
        return complaints(disk.storage(), ["f0", "f1"] if self._cleaned else ["f1"], final=final)
