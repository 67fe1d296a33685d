"""The sink as a program that can be crashed anywhere: Spark's calls to it, and what a restart repeats."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock import clock
from penstock.formats.encryption import MAGIC
from penstock.options import SINK, parse
from penstock.sink.ledger import STATE_DIRECTORY, Ledger
from penstock.sink.sink import Batch, Begun, Sink, TaskResult
from penstock.testing import Crashable, Program, compare, visible
from tests.support.keys import opened

if TYPE_CHECKING:
    from collections.abc import Callable

TEXT = pa.schema([("value", pa.string())])
BUCKETED = pa.schema([("value", pa.string()), ("k", pa.string())])
ROOT = "/out"
QUERY = "q"
_STEP_SECONDS = 40


@dataclass(frozen=True)
class Step:
    """The driver's next action: a batch with this many rows for each writer, a roll, or the end of the query.

    `final` is a batch that ends the query; `finish` publishes the open parts, as `penstock finish` does: it knows of the
    sink only what is on the disk.
    """

    rows: tuple[int, ...] = ()
    what: str = "batch"

    @property
    def is_batch(self) -> bool:
        """Tell whether Spark's offset log has the step."""
        return self.what in {"batch", "final"}


class SinkProgram(Program):
    """Runs the steps. Its memory is the last batch that began, as in Spark's offset log: a restart repeats that batch.

    So a committed batch comes again, as when Spark's commit log lost its entry, and must change nothing.
    `abandoned`: after a crash nobody starts the query again; a user runs `penstock finish`.
    """

    memory: int  # the number of a step

    def __init__(
        self, steps: list[Step], options: dict[str, str], *, row_bytes: int = 12, abandoned: bool = False
    ) -> None:
        self.memory = -1
        self._steps = steps
        self._row_bytes = row_bytes
        self._schema = BUCKETED if "{k}" in options.get("bucketBy", "") + options.get("fileName", "") else TEXT
        self._abandoned = abandoned
        self._growing = "growing" in options
        self._header = b"value\n" if "header" in options else b""
        self._made: dict[tuple[int, int], bytes | pa.RecordBatch] = {}  # the same in each run
        self._options = parse(SINK, {"path": ROOT, "format": "text"} | options, what="sink")

    def run(self, disk: Crashable, rest: Callable[[], None]) -> None:
        """Act as a driver that starts and runs to the end."""
        storage = disk.storage()
        sink = Sink(storage, ROOT, self._options, "s")
        storage.make_directory(ROOT)
        if self._abandoned and self.memory >= 0 and sink.ledger.head().n:
            Sink.existing(storage, ROOT, "s").finish()
            return
        owner = f"driver-{clock.now_ns()}"  # the same for each start: it only has to take the sink over
        for number in range(max(self.memory, 0), len(self._steps)):
            if self._steps[number].is_batch:
                self.memory = number
            self._move_clock(number)
            rest()
            self._step(sink, number, owner)

    def _step(self, sink: Sink, number: int, owner: str) -> None:
        step = self._steps[number]
        if step.what == "roll":
            if sink.ledger.head().owner == owner:
                sink.roll(owner)
            return
        if step.what == "finish":
            Sink.existing(sink.storage, ROOT, "s").finish()
            return
        batch = Batch(QUERY, sum(s.is_batch for s in self._steps[:number]), final=step.what == "final")
        begun = sink.begin(owner, batch)
        writers = [writer for writer, rows in enumerate(step.rows) if rows]
        results = [
            self._write(sink, begun, batch.number, number, writer) for writer in writers or [0]
        ]  # at least one task
        sink.commit(batch, results)

    def _write(self, sink: Sink, begun: Begun, batch: int, number: int, writer: int) -> TaskResult:
        if (number, writer) not in self._made:
            self._made[number, writer] = self._rows(number, writer)
        return sink.write(begun, QUERY, batch, writer, self._schema, iter([self._made[number, writer]]))

    @staticmethod
    def _move_clock(number: int) -> None:
        behind = 1_000_000 + number * _STEP_SECONDS - clock.now_ns() / clock.SECOND_NS
        if behind > 0:
            clock.sleep(behind)

    def _rows(self, number: int, writer: int) -> bytes | pa.RecordBatch:
        rows = [self._row(number, writer, row) for row in range(sum(self._steps[number].rows[writer : writer + 1]))]
        if self._options["format"] == "text" and self._schema is TEXT:
            return b"".join(rows)
        values = [row.decode().removesuffix("\n") for row in rows], [str(n % 2) for n in range(len(rows))]
        return pa.RecordBatch.from_arrays([*map(pa.array, values)][: len(self._schema)], schema=self._schema)

    def _row(self, number: int, writer: int, row: int) -> bytes:
        return b"%d-%d-%d" % (number, writer, row) + b"." * (self._row_bytes - 6) + b"\n"

    def expected(self, steps: int) -> list[bytes]:
        """Return the rows of the first steps."""
        return [
            self._row(number, writer, row)
            for number, step in enumerate(self._steps[:steps])
            for writer, rows in enumerate(step.rows)
            for row in range(rows)
        ]

    def _visible(self, disk: Crashable) -> dict[str, bytes]:
        return visible(disk.storage(), ROOT)

    def check(self, disk: Crashable, *, final: bool) -> list[str]:
        """Look at the output as `cat` would: no row twice or in part, none that was not decided; at the end all rows.

        A header must be at the beginning of each file; anywhere else it counts as a row that nobody wrote.
        """
        files = {path: _unpacked(data) for path, data in self._visible(disk).items()}
        headless = [path for path, data in files.items() if data and not data.startswith(self._header)]
        lines = [line for data in files.values() for line in data.removeprefix(self._header).splitlines(keepends=True)]
        if self._growing and not final:  # its readers may see an incomplete last record, or zeros in place of a block
            lines = [line for line in lines if line.endswith(b"\n") and b"\0" not in line]
            headless = []
        begins = self._options["fileName"].partition("{")[0]
        found = [f"misnamed {path}" for path in files if not path.rpartition("/")[2].startswith(begins)]
        found += [f"without a header {path}" for path in headless]
        decided = _decided(disk) if lines or final else -1
        numbers = [number for number, step in enumerate(self._steps) if step.is_batch]
        committed = self.expected(numbers[decided] + 1 if decided >= 0 else 0)
        wanted = self.expected(len(self._steps))
        if final and not self._abandoned:
            found += [f"never committed {row!r}" for row in wanted[len(committed) :]]
        return found + compare(lines, acknowledged=committed, offered=wanted).complaints(final=final)


def _unpacked(data: bytes) -> bytes:
    data = opened(data) if data.startswith(MAGIC) else data
    return gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data


def _decided(disk: Crashable) -> int:
    """Return the last batch that has a record on the disk, as the ledger itself says."""
    return Ledger(disk.storage(), f"{ROOT}/{STATE_DIRECTORY}/s/ledger", "s").head().last_batch(QUERY)
