"""Plans a batch again that was planned and never committed: an ingest does it by itself, for other queries it is a command.

A batch is its plan, and the plan names versions of files. That makes a replay exact, but it also makes a bad file a dead end. The
failures, and the rules:

1. Batch 7 is planned; it has a bad record, or a file that is corrupt or gone. The mended file is another version than the planned
   one, and each start replays the plan. Rule: the entry of a batch that was never committed is removed from Spark's offset log;
   Spark then asks the source for another plan after batch 6.
2. Batch 7 is committed in the sink, and its driver died before Spark noted that. Without its entry, batch 7 would have other
   rows: our sinks refuse them, a sink that skips batches that it has would lose them, and any other sink could have rows twice.
   Rule: the ledger of the output must show that the batch is not committed. If no ledger knows the query, the user has to confirm
   that nothing of the batch is written.
3. The driver of batch 7 lives. Rule: it must have ended, as far as this host can tell; if it was on another host, the user has to
   confirm that. (If it lives all the same and has our sink, it is fenced there.) It may have committed batch 7, and others, before it
   ended, while it was waited for. Rule: what is committed is looked at again after that.
4. The command dies half way, or was a mistake. Rule: the entry is kept beside the log before it is removed.
5. The file was cut over batches 5 to 8, and its beginning is no longer what batches 5 and 6 have read; or the file is gone. So a
   plan after batch 6 cannot read its rest (`source.plan`, failure 10). Rule: the rest is given up only if the user says so: batch
   7 becomes a batch without rows, and no file is cut at its end.
"""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock import clock
from penstock.errors import Locked, OptionError, UsageError
from penstock.query import driver as drivers
from penstock.query.offset import summed
from penstock.query.offsetlog import NOTHING
from penstock.source.cursor import Split

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.query.checkpoint import Checkpoint
    from penstock.sink.ledger import State
    from penstock.sink.sink import Sink

_ENDING_SECONDS = 3.0  # how long a JVM may take to end after its program


@dataclass(frozen=True)
class Replanned:
    """What was removed from Spark's offset log: the batch (`None`: all were committed), the number of its files, where the entry is kept.

    `given_up` are the files whose rest is not read, each with the byte from which on.
    """

    batch: int | None
    files: int
    kept: str | None
    given_up: tuple[tuple[str, int], ...] = ()


def in_flight(checkpoint: Checkpoint) -> int | None:
    """Return the batch that is planned and that Spark has not noted as committed, if there is one."""
    planned = checkpoint.numbers("offsets")
    return planned[-1] if planned and planned[-1] not in checkpoint.numbers("commits") else None


def replan(
    checkpoint: Checkpoint, sinks: Sequence[Sink] | None, *, nothing_written: bool = False, give_up_rest: bool = False
) -> Replanned:
    """Have the next start of a query plan its batch in flight again.

    `sinks` are those of its output, `None` if the output is unknown. With `nothing_written` the user confirms that nothing of the
    batch is in the output and that the query does not run, in case neither can be found out here. Raises `UsageError` if the
    batch is committed, `Locked` if the query's application runs, `OptionError` if the confirmation is needed and not given.
    """
    query = checkpoint.query_id()
    if query is None:
        msg = f"{checkpoint.location!r} is no checkpoint of a query: it has no metadata; name the one given as checkpointLocation"
        raise OptionError(msg)
    for check in (_Flight.check_ended, _Flight.check_undecided):
        number = in_flight(checkpoint)
        if number is None and not give_up_rest:
            return Replanned(None, 0, None)
        flight = _Flight(checkpoint, query, _next(checkpoint) if number is None else number)
        check(flight, sinks, nothing_written=nothing_written)
    return flight.without_rest() if give_up_rest else flight.abandoned()


def _next(checkpoint: Checkpoint) -> int:
    return max(checkpoint.numbers("offsets"), default=-1) + 1


def _count(offset: dict[str, Any]) -> int:
    plan = offset.get("plan", [])
    files: int = plan["splits"] if isinstance(plan, dict) else len({Split.from_json(entry).file.path for entry in plan})
    return files


@dataclass(frozen=True)
class _Flight:
    """A batch of a query that is planned but not noted by Spark as committed, or the query's next batch."""

    checkpoint: Checkpoint
    query: str
    number: int

    def check_ended(self, sinks: Sequence[Sink] | None, *, nothing_written: bool) -> None:
        """Raise unless the query has ended, as far as it is known here, or as the user confirms."""
        if not nothing_written:
            for sink, head in self._written(sinks):
                check_ended(sink, head.owner)

    def check_undecided(self, sinks: Sequence[Sink] | None, *, nothing_written: bool) -> None:
        """Raise unless it is certain that nobody has committed the batch."""
        ours = self._written(sinks)
        for sink, head in ours:
            self._check_not_committed(sink, head)
        if not ours and not nothing_written:
            raise self._unknown_output(sinks)

    def _written(self, sinks: Sequence[Sink] | None) -> list[tuple[Sink, State]]:
        """Return those of the sinks that the query has written, with what they have now."""
        return [(sink, head) for sink, head in _heads(sinks or ()) if self._has_written(sink, head)]

    def _has_written(self, sink: Sink, head: State) -> bool:
        """Tell whether the query writes to the sink, by the sink's id, its batches or its driver."""
        return self.query in {*head.batches, sink.sink_id, drivers.query_of(head.owner)}

    def _check_not_committed(self, sink: Sink, head: State) -> None:
        if head.last_batch(self.query) >= self.number:
            msg = (
                f"batch {self.number} of the checkpoint {self.checkpoint.location!r} is committed in {sink.root!r}: nothing of it "
                "is planned anew; start the query again, which goes on after it and reads nothing of it"
            )
            raise UsageError(msg)

    def _unknown_output(self, sinks: Sequence[Sink] | None) -> OptionError:
        place = "is not known" if sinks is None else f"is not {_named(sinks)}, which has had no batch of it"
        return OptionError(
            f"where the query of the checkpoint {self.checkpoint.location!r} writes to {place}, so it is unknown whether batch "
            f"{self.number} is written: rows could then be there twice, or a sink that takes the batch for done could skip them; "
            "name the output directory as DST if penstock writes it; else see that the query has ended and that nothing of "
            f"batch {self.number} is in its output, and say --nothing-written"
        )

    def abandoned(self, given_up: tuple[tuple[str, int], ...] = ()) -> Replanned:
        """Remove the batch's entry from the offset log, and keep it beside the log."""
        files = sum(_count(offset) for offset in self.checkpoint.offsets(self.number) if offset)
        return Replanned(self.number, files, self.checkpoint.abandon(self.number), given_up)

    def without_rest(self) -> Replanned:
        """Replace the batch by one without rows, after which no file is cut. Raises `OptionError` if no file was cut."""
        entry = self.checkpoint.entry(self.number - 1)
        offsets = self.checkpoint.offsets(self.number - 1) if self.number else []
        cuts = _cuts(offsets)
        if not cuts:
            msg = (
                f"no file of the checkpoint {self.checkpoint.location!r} was cut over batches: leave --give-up-rest out"
            )
            raise OptionError(msg)
        left = iter(offsets)
        ends = {name: line if line == NOTHING else _uncut(line, next(left)) for name, line in entry.sources.items()}
        replanned = self.abandoned(cuts)
        self.checkpoint.put(f"offsets/{self.number}", entry.written(ends))
        return replanned


def _heads(sinks: Sequence[Sink]) -> list[tuple[Sink, State]]:
    return [(sink, sink.ledger.head()) for sink in sinks]


def check_ended(sink: Sink, driver: str, word: str = "--nothing-written") -> None:
    """Raise `Locked` if the application that last wrote the sink runs, `OptionError` if that is unknown here.

    `word` is the option by which a user who knows better confirms that it has ended.
    """
    host, process = drivers.place(driver)
    if _goes_on(driver):
        msg = (
            f"the application that last wrote {sink.root!r} runs, as process {process}: end it; or, if the query has ended and "
            f"only its session lives, say {word}"
        )
        raise Locked(msg)
    if host not in {None, socket.gethostname()}:
        msg = (
            f"the application that last wrote {sink.root!r} ran on the host {host!r}, and this host cannot find out whether it "
            f"has ended; run this there, or see that it has ended and say {word}"
        )
        raise OptionError(msg)


def _goes_on(driver: str) -> bool:
    """Tell whether the driver's application runs and is not just ending."""
    until = clock.monotonic() + _ENDING_SECONDS
    while lives := drivers.lives(driver):
        if clock.monotonic() >= until:
            break
        clock.sleep(0.2)
    return lives


def _named(sinks: Sequence[Sink]) -> str:
    return repr(sinks[0].root) if sinks else "a directory that penstock has written"


def _cuts(offsets: Sequence[dict[str, Any] | None]) -> tuple[tuple[str, int], ...]:
    """Return the files that were cut, each with the byte from which on it is not read yet."""
    return tuple((offset["cut"][0], offset["cut"][1]) for offset in offsets if offset and "cut" in offset)


def _uncut(line: bytes, offset: dict[str, Any] | None) -> bytes:
    if offset is None or "cut" not in offset:
        return line
    dropped = {"cut", "cut_digest", "last", "sum"}
    form = {name: value for name, value in offset.items() if name not in dropped} | {"plan": []}
    return json.dumps(summed(form), separators=(",", ":")).encode()
