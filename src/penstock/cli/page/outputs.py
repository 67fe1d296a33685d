"""The facts of one sink's output: its ledger as `penstock status` shows it, finished files by bucket, the newest of what was set aside.

The page looks at it now and again, and never gets in the way of the query: it reads files, and writes and locks none.
The history of finished files is read once, a bounded piece per look, and after that only what is new (`sink.events`).
Of it only sums per bucket are kept, for `BUCKETS` buckets at most.
"""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock import clock
from penstock.cli.state import sink_facts, verdict_facts
from penstock.cli.verified import last
from penstock.errors import EventsLost, PenstockError
from penstock.formats.encryption import is_encrypted
from penstock.ingestion.ingested import standing
from penstock.ingestion.late import last_plan
from penstock.query.checkpoint import Checkpoint
from penstock.sink.events import EventLog, EventPosition
from penstock.sink.ledger import STATE_DIRECTORY, FinishedFile
from penstock.sink.sink import Sink
from penstock.storage import entry_at, locate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.ingestion.ingested import Ingested
    from penstock.sink.events import Event
    from penstock.sink.ledger import State
    from penstock.storage import Storage

BUCKETS = 5000
_EVENTS = 5000  # of the history, per look
_ASIDE_FILES = 5
_ASIDE_LINES = 10
_TAIL_BYTES = 64 << 10
_LATE_FILES = 10


@dataclass
class BucketSum:
    """The sum of what was finished in one bucket since the sink began."""

    files: int = 0
    rows: int = 0
    bytes: int = 0
    time_ns: int = 0


@dataclass(frozen=True)
class OutputLook:
    """The result of one look. `problem` says why nothing could be seen; then everything else is empty, or from the previous look.

    `plan` is the last planned batch, with its splits and bytes. `buckets` are those that were written last, out of
    `all_buckets`. `aside` are the newest lines about what was set aside, as dictionaries. `late` are the last files
    that came too late: path, bytes, and since when.
    """

    at_ns: int = 0
    problem: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    state: Ingested | None = None
    read_by_us: bool = False
    plan: tuple[int, int, int | None] | None = None
    buckets: tuple[tuple[str, BucketSum], ...] = ()
    all_buckets: int = 0
    counting: bool = False
    aside: tuple[dict[str, Any], ...] = ()
    late: tuple[tuple[str, int, int], ...] = ()
    verified: dict[str, Any] | None = None
    source: str = ""


class History:
    """The finished files of a sink, as sums by bucket, and the last files about what was set aside."""

    def __init__(self, sink: Sink) -> None:
        self._log = EventLog(sink.ledger, sink.sink_id, f"the ledger of {sink.state!r}")
        self._at = EventPosition()
        self._sums: dict[str, BucketSum] = {}
        self.aside_files: deque[FinishedFile] = deque(maxlen=_ASIDE_FILES)
        self.counting = True
        self.all_buckets = 0

    def read_on(self) -> None:
        """Take in a bounded piece of what is new."""
        try:
            events = self._log.after(self._at, _EVENTS)
        except EventsLost:  # the ledger lost its oldest records, or was restored: count what comes from now on
            self._sums.clear()
            self.all_buckets = 0
            self._at, self.counting = self._log.end(), False
            return
        for event in events:
            self._take(event)
        self._at = events[-1].position_after if events else self._at
        self.counting = len(events) >= _EVENTS
        self._forget()

    def _take(self, event: Event) -> None:
        file = event.entry
        if not isinstance(file, FinishedFile):
            return
        if file.is_aside:
            self.aside_files.append(file)
            return
        known = self._sums.pop(file.bucket, None)  # move it to the end: the order is that of the last write
        if known is None:
            known = BucketSum()
            self.all_buckets += 1
        known.files += 1
        known.rows += max(file.rows, 0)
        known.bytes += file.bytes
        known.time_ns = event.time_ns or known.time_ns
        self._sums[file.bucket] = known

    def _forget(self) -> None:
        for bucket in list(self._sums)[: max(len(self._sums) - BUCKETS, 0)]:
            del self._sums[bucket]

    def latest(self, count: int) -> tuple[tuple[str, BucketSum], ...]:
        """Return the buckets that were written last, the last one first."""
        return tuple(list(self._sums.items())[: -count - 1 : -1])


class WatchedOutput:
    """One output, and one of its sinks: the one with this id, or the one that the query writes, or the one of the checkpoint."""

    def __init__(self, dst: str, sink_id: str | None = None, checkpoint: str | None = None) -> None:
        self._dst = dst
        self._sink_id = sink_id
        self._checkpoint = checkpoint
        self._history: History | None = None
        self._of = ""
        self.newest = OutputLook(problem="not looked at yet")

    def look(self, query: str = "", *, buckets: int = 12) -> OutputLook:
        """Look, and return what was seen. Never raises, whatever is wrong with the storage or the ledger."""
        try:
            self.newest = self._look(query, buckets)
        except PenstockError as error:
            self.newest = OutputLook(at_ns=clock.now_ns(), problem=str(error))
        return self.newest

    def _look(self, query: str, buckets: int) -> OutputLook:
        storage, root = locate(self._dst, name="DST")
        sink_id = self._sink_id or query or self._query()
        if not sink_id or entry_at(storage, f"{root}/{STATE_DIRECTORY}/{sink_id}/ledger") is None:
            return OutputLook(at_ns=clock.now_ns(), problem="nothing was written here yet")
        sink = Sink.existing(storage, root, sink_id)
        if self._history is None or self._of != sink_id:
            self._history, self._of = History(sink), sink_id
        self._history.read_on()
        head = sink.ledger.head()
        return self._seen(storage, sink, head, self._history, buckets)

    def _query(self) -> str:
        """Return the query of the checkpoint, which this command may not have started yet."""
        return (Checkpoint(self._checkpoint).query_id() or "") if self._checkpoint is not None else ""

    def _seen(self, storage: Storage, sink: Sink, head: State, history: History, buckets: int) -> OutputLook:
        plan = last_plan(sink, head)
        facts = sink_facts(sink)
        query = plan.query if plan is not None else next(iter(head.batches), "")
        state = standing(
            sink, head, query=query, batch=head.last_batch(query), offset={} if plan is None else plan.offset
        )
        late = () if plan is None or not facts.get("late_files") else plan.late_files()
        return OutputLook(
            at_ns=clock.now_ns(),
            facts=facts,
            state=state,
            read_by_us=plan is not None,
            plan=None if plan is None else (plan.batch, *plan.amount),
            buckets=history.latest(buckets),
            all_buckets=history.all_buckets,
            counting=history.counting,
            aside=tuple(latest_aside(sink, head, history.aside_files)),
            late=tuple((entry.file.path, entry.file.size, entry.since_ns) for entry in late[-_LATE_FILES:][::-1]),
            verified=verdict_facts(last(storage, sink.root)),
            source=sink.note.stage.source.get("path", "") if sink.note.stage is not None else "",
        )


def latest_aside(sink: Sink, head: State, finished: deque[FinishedFile]) -> list[dict[str, Any]]:
    """Return the newest lines about what was set aside, the newest first; none of encrypted files."""
    lines: list[dict[str, Any]] = []
    for path, start, end in _places(sink, head, finished):
        lines += _tail(sink.storage, path, start, end)[: _ASIDE_LINES - len(lines)]
        if len(lines) == _ASIDE_LINES:
            break
    return lines


def _places(sink: Sink, head: State, finished: deque[FinishedFile]) -> Iterator[tuple[str, int, int]]:
    """Yield where the lines about what was set aside are, the newest first: file, first byte, and end (exclusive)."""
    for part in head.open:
        if part.is_aside:
            clear = [segment for segment in part.segments if not segment.key]
            yield from ((f"{sink.staging}/{each.file}", each.start, each.end) for each in reversed(clear))
    for file in reversed(finished):
        if not is_encrypted(file.path):
            yield file.at(sink.root), 0, file.bytes


def _tail(storage: Storage, path: str, start: int, end: int) -> list[dict[str, Any]]:
    """Return the last lines of a range of a file, the last one first; none if the file is gone by now."""
    begin = max(start, end - _TAIL_BYTES)
    try:
        with storage.open(path) as file:
            lines = file.read(begin, end - begin).split(b"\n")
    except PenstockError:
        return []
    whole = lines if begin == start else lines[1:]
    return [line for text in reversed(whole[-_ASIDE_LINES - 1 :]) if (line := _object(text)) is not None]


def _object(text: bytes) -> dict[str, Any] | None:
    try:
        form = json.loads(text)
    except ValueError:
        return None
    return form if isinstance(form, dict) else None
