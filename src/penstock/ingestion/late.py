"""`penstock late`: lists the files that a query has not read, and accepts files that came too late.

Late files are in the offset (`source.late`); files that came since are found as the next start of the query would find them. A
file is accepted by an entry in Spark's offset log: the next batch of the query, without rows, whose offset is the last offset
with the file added to those that wait. The failures, and the rules:

1. The command dies. Rule: the entry is one put under a free number, so it is completely there or not at all. A list that lies
   beside the offset is put before it, under a name that follows from its text; alone the list means nothing.
2. The query runs, and is about to put its own offset for that batch. One of the two puts would fail: no row is lost or doubled,
   but the query ends. Rule: the command is refused while the query's driver lives, or if that is unknown here.
3. A batch is planned and not committed. Its offset can no longer change, and the next offset must not be there yet. Rule: the
   command is refused; the query must be started first. If that batch accepts exactly these files, there is nothing left to do.
4. A file changes between the listing and the plan. Rule: a version of a file is accepted. Another version is a new file, which is
   late again or is not.
5. The same files are accepted twice. Rule: the entries make it one acceptance (`source.late`).
"""

from __future__ import annotations

import fnmatch
import json
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.arguments import named
from penstock.errors import AlreadyThere, DamagedState, NotThere, OptionError, StorageError, UsageError
from penstock.ingestion.replan import check_ended, in_flight
from penstock.options import SOURCE, parse
from penstock.options.topics import is_topics
from penstock.query.checkpoint import Checkpoint
from penstock.query.offset import summed
from penstock.query.offsetlog import NOTHING
from penstock.sink.existing import sink_ids
from penstock.sink.sink import STATE_DIRECTORY, Sink
from penstock.sink.sparklog import no_output
from penstock.source.late import LateFiles
from penstock.source.plan import Planner, mark
from penstock.source.sides import LATE, SideRecords
from penstock.source.where import where
from penstock.storage import locate

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from penstock.options import Options
    from penstock.sink.ledger import State
    from penstock.source.cursor import FileVersion
    from penstock.source.late import LateFile
    from penstock.source.plan import NotReadYet
    from penstock.storage import Storage

HELD = "held"  # changed more recently than `settle`
FUTURE = "future"  # its modification time is in the future


@dataclass(frozen=True)
class NotRead:
    """A file that a query has not read, and why: `late`, `unsure` (late, or read and then away), `accepted`, `held` or `future`.

    `since_ns` is when the file came if that is known, otherwise when it was first seen; for `held` and `future`, it is the
    modification time.
    """

    path: str
    size: int
    modified_ns: int
    why: str
    since_ns: int


@dataclass(frozen=True)
class Late:
    """The result of `late`: the files that are not read, and the paths that this call has accepted or dismissed."""

    files: tuple[NotRead, ...]
    accepted: tuple[str, ...] = ()
    dismissed: tuple[str, ...] = ()
    dropped: int = 0


@named
def late(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    accept: bool | str | Sequence[str] = False,
    dismiss: bool | str | Sequence[str] = False,
    checkpoint: str | os.PathLike[str] | None = None,
    source: Mapping[str, Any] | None = None,
    query_ended: bool = False,
) -> Late:
    """Return the files below `src` that the query which writes `dst` has not read: too late, held back, in the future.

    `accept`: the next start of the query reads late files, each once: all of them (True), or those that match paths or globs
    relative to `src`. `dismiss` takes them off the list for good. Neither touches a file. `checkpoint` and `source` (options) are
    needed for a query that is not an ingest and has its checkpoint elsewhere, or that has options that select files. With
    `query_ended` the user confirms that the query does not run, if only its session lives or nobody can tell here. Needs neither
    Spark nor Java.

    Raises `OptionError` if no query of `dst` has read `src`, or no late file matches; `Locked` if the query runs; `UsageError`
    while a batch is planned and not committed.
    """
    wanted, unwanted = _patterns(accept, "accept"), _patterns(dismiss, "dismiss")
    if wanted and unwanted:
        msg = "accept and dismiss are two decisions; expected one of them in each call"
        raise OptionError(msg)
    reading = ReadingQuery.find(os.fspath(src), os.fspath(dst), checkpoint, source)
    if not wanted and not unwanted:
        return reading.report()
    return reading.decided(wanted or unwanted, accepts=bool(wanted), query_ended=query_ended)


def told(sink: Sink, head: State) -> dict[str, int]:
    """Return how many files the query of a sink has not read, by its last offset: late, accepted, held, future; empty if unknown.

    Never raises for a checkpoint that is missing or cannot be read.
    """
    plan = last_plan(sink, head)
    return counts(plan.offset) if plan is not None else {}


@dataclass(frozen=True)
class LastPlan:
    """The last plan of a sink's query: the batch, and its offset of our source."""

    checkpoint: Checkpoint
    query: str
    batch: int
    offset: dict[str, Any]

    @property
    def amount(self) -> tuple[int, int | None]:
        """Return how many splits the batch reads, and their bytes, `None` if the plan lies beside its offset."""
        plan = self.offset.get("plan", [])
        if isinstance(plan, dict):
            return plan["splits"], None
        return len(plan), sum(end - start for _, start, end, *_ in plan)

    def late_files(self) -> list[LateFile]:
        """Return the files that came too late, by the offset; some may be gone by now. `DamagedState`, `StorageError`."""
        beside = SideRecords(locate(f"{self.checkpoint.location}/penstock", name="checkpoint"))
        return LateFiles.recalled(self.offset, beside.load).entries(lambda _: True)


def last_plan(sink: Sink, head: State) -> LastPlan | None:
    """Return the last plan of a sink's query, `None` if it is unknown here.

    Never raises for a checkpoint that is missing or cannot be read.
    """
    for place in _places(sink.root, sink):
        with suppress(DamagedState, StorageError):
            checkpoint = Checkpoint(place)
            query = checkpoint.query_id()
            if query is not None and query in head.batches:
                batch, offset = _last_offset(checkpoint)
                if offset:
                    return LastPlan(checkpoint, query, batch, offset)
    return None


def counts(offset: Mapping[str, Any]) -> dict[str, int]:
    """Return an offset's counts of files that are not read, and of followed files that were lost before they were read to their end."""
    late_files, held = offset.get("late", {}), offset.get("held", [0, 0])
    return {
        "late_files": late_files.get("count", [0, 0])[0],
        "accepted_files": late_files.get("accepted", 0),
        "held_files": held[0] - held[1],
        "future_files": held[1],
    } | dict(zip(("lost_files", "lost_bytes"), offset.get("follow", {}).get("lost", ()), strict=False))


def _patterns(given: bool | str | Sequence[str], name: str) -> tuple[str, ...]:  # noqa: FBT001 - what the user gave
    if isinstance(given, bool):
        return ("*",) if given else ()
    patterns = (given,) if isinstance(given, str) or given is None else tuple(given)
    if not patterns or not all(map(_is_text, patterns)):
        msg = f"{name}={given!r}; expected True, or paths and globs relative to SRC, such as 'logs/*.json'"
        raise OptionError(msg)
    return patterns


def _places(root: str, sink: Sink) -> Iterable[str]:
    """Return where the checkpoint of a sink's query may be: its noted place, and the default place in DST, in case DST was moved."""
    return dict.fromkeys(filter(None, [sink.options["checkpointLocation"], f"{root}/{STATE_DIRECTORY}/checkpoint"]))


def _last_offset(checkpoint: Checkpoint) -> tuple[int, dict[str, Any] | None]:
    """Return the last planned batch, and its offset of our source, `None` unless exactly one source is ours."""
    numbers = checkpoint.numbers("offsets")
    if not numbers:
        return -1, None
    ours = [offset for offset in checkpoint.offsets(numbers[-1]) if offset is not None]
    return numbers[-1], ours[0] if len(ours) == 1 else None


@dataclass(frozen=True)
class ReadingQuery:
    """A query that has read a source, found by its checkpoint; `sinks` are the sinks of DST that it writes, with their heads."""

    storage: Storage
    root: str
    options: Options
    checkpoint: Checkpoint
    sinks: tuple[tuple[Sink, State], ...]

    @staticmethod
    def find(
        src: str, dst: str, checkpoint: str | os.PathLike[str] | None, source: Mapping[str, Any] | None
    ) -> ReadingQuery:
        """Return the query of DST that has read SRC; `OptionError` if there is none."""
        if is_topics(src):
            msg = (
                f"SRC={src!r} is a topic: no record of it is late or held back, and its query is not set back here; to read it "
                "again give the ingest another DST, or a new checkpoint with startingOffsets as JSON"
            )
            raise OptionError(msg)
        _, root = locate(src, name="SRC")
        output, out = locate(dst, name="DST")
        heads = _heads(output, out)
        given = [] if checkpoint is None else [locate(os.fspath(checkpoint), name="checkpoint")[1]]
        places = [place for sink, _ in heads for place in given or _places(out, sink)]
        query = next(_reading(root, places, heads, source), None)
        if query is not None:
            return query
        msg = (
            f"no query that writes {out!r} and has its checkpoint here has read {root!r}; expected SRC as the query has it, "
            "and, if its checkpoint was moved, its new place as --checkpoint"
        )
        raise OptionError(msg)

    def report(self, accepted: tuple[str, ...] = (), dismissed: tuple[str, ...] = ()) -> Late:
        """Return the files that are not read now."""
        offset = self._offset()[1]
        standing = self._standing(offset)
        files = [NotRead(e.file.path, e.file.size, e.file.modified_ns, e.why, e.since_ns) for e in standing.late]
        for why, held in ((HELD, standing.held), (FUTURE, standing.future)):
            files += [NotRead(file.path, file.size, file.modified_ns, why, file.modified_ns) for file in held]
        return Late(tuple(files), accepted, dismissed, offset.get("late", {}).get("dropped", 0))

    def decided(self, patterns: tuple[str, ...], *, accepts: bool, query_ended: bool) -> Late:
        """Accept the late files that match these paths or globs for the next start, or take them off the list."""
        self._check_ended(query_ended=query_ended)
        number, offset = self._offset()
        entries = self._standing(offset).late
        chosen = [entry for entry in entries if _fits(entry.file, patterns)]
        _check_fit(patterns, entries, self.root)
        ours = LateFiles.recalled(offset, self._side.load)
        ours.note(entries)
        changed = ours.accept(chosen) if accepts else ours.dismiss(chosen)
        if changed:
            self._check_committed(number)
            self._put(number, offset, ours)
        paths = tuple(entry.file.path for entry in changed)
        return self.report(*((paths, ()) if accepts else ((), paths)))

    def last_offset(self) -> dict[str, Any]:
        """Return the last offset of the query."""
        return self._offset()[1]

    def standing(self) -> NotReadYet:
        """Return what the query has not read now; only for a source that does not follow files."""
        return self._standing(self._offset()[1])

    def put_next(self, form: dict[str, Any], *, query_ended: bool) -> int:
        """Put a batch without rows that ends at this offset, and return its number. Raises what `late` raises."""
        self._check_ended(query_ended=query_ended)
        number, _ = self._offset()
        self._check_committed(number)
        self._put_offset(number, form | {"plan": []})
        return number + 1

    def _check_ended(self, *, query_ended: bool) -> None:
        """Raise unless the query has ended, as far as it is known here, or as the user confirms."""
        if not query_ended:
            for sink, head in self.sinks:
                check_ended(sink, head.owner, "--query-ended")

    def _put(self, number: int, offset: dict[str, Any], entries: LateFiles) -> None:
        """Put the next batch, without rows and with these entries."""
        form = {name: value for name, value in offset.items() if name not in {"late", "last", "unkept", "sum"}}
        side = self._side.resume(offset)
        form |= (
            entries.to_json(lambda _: True, 0, lambda items: side.store(items, LATE)) | side.to_json() | {"plan": []}
        )
        self._put_offset(number, form)

    def _put_offset(self, number: int, form: dict[str, Any]) -> None:
        """Put the next batch, which ends at this offset."""
        entry = self.checkpoint.entry(number)
        ours = iter(self.checkpoint.offsets(number))
        ends = {
            name: line if line == NOTHING or next(ours) is None else _line(form) for name, line in entry.sources.items()
        }
        try:
            self.checkpoint.put(f"offsets/{number + 1}", entry.written(ends))
        except AlreadyThere as error:
            msg = (
                f"batch {number + 1} of the checkpoint {self.checkpoint.location!r} was planned meanwhile: the query runs, or another "
                "command has accepted files or set it back; nothing was changed; run this again when it has ended"
            )
            raise UsageError(msg) from error
        self.checkpoint.persist(number + 1)

    def _check_committed(self, number: int) -> None:
        if in_flight(self.checkpoint) is not None:
            msg = (
                f"batch {number} of the checkpoint {self.checkpoint.location!r} is planned and not committed, by a query that was "
                "stopped or by an acceptance before this one; start the query once, which ends it, and run this again"
            )
            raise UsageError(msg)

    def _offset(self) -> tuple[int, dict[str, Any]]:
        number, offset = _last_offset(self.checkpoint)
        assert offset is not None  # noqa: S101 - `find` has seen it
        return number, offset

    @property
    def _side(self) -> SideRecords:
        state, place = locate(f"{self.checkpoint.location}/penstock", name="checkpoint")
        beside = any(sink.note.stage is not None for sink, _ in self.sinks)
        return SideRecords((state, place) if beside else None)

    def _standing(self, offset: dict[str, Any]) -> NotReadYet:
        state = locate(f"{self.checkpoint.location}/penstock", name="checkpoint")
        planner = Planner(self.storage, self.root, self.options, divisible=lambda _: False, state=state, dry=True)
        return planner.standing(offset)


def _heads(output: Storage, out: str) -> list[tuple[Sink, State]]:
    """Return the sinks of an output with the last record of each; `UsageError` if it is not an output of Penstock."""
    try:
        sinks = [Sink.existing(output, out, name) for name in sink_ids(output, f"{out}/{STATE_DIRECTORY}")]
    except NotThere as error:
        raise no_output(output, out) from error
    return [(sink, sink.ledger.head()) for sink in sinks]


def _reading(
    root: str, places: Iterable[str], heads: list[tuple[Sink, State]], source: Mapping[str, Any] | None
) -> Iterator[ReadingQuery]:
    """Yield the queries of these checkpoints that have read the source, and write one of these sinks."""
    for checkpoint in map(Checkpoint, places):
        query = checkpoint.query_id() or ""
        writes = tuple((sink, head) for sink, head in heads if query in head.batches)
        options = _options(root, [sink for sink, _ in writes], source)
        if writes and _is_of(checkpoint, options, [sink for sink, _ in writes]):
            read = where(options)
            yield ReadingQuery(read.storage, read.root, options, checkpoint, writes)


def _is_of(checkpoint: Checkpoint, options: Options, sinks: list[Sink]) -> bool:
    """Tell whether the last offset of a checkpoint belongs to this source; offsets of older versions do not say.

    `DamagedState` if there is no offset of a source of files although an ingest, which has no other source, writes these sinks.
    """
    number, offset = _last_offset(checkpoint)
    if (
        offset is None
        and number >= 0
        and any(sink.note.stage and not is_topics(sink.note.stage.source["path"]) for sink in sinks)
    ):
        offset = checkpoint.only_offset(number)
    return offset is not None and offset.get("root", mark(options)) == mark(options)


def _options(root: str, sinks: list[Sink], source: Mapping[str, Any] | None) -> Options:
    """Return the options of the source: those that an ingest noted, overridden by those that are given."""
    noted = next((sink.note.stage.source for sink in sinks if sink.note.stage is not None), {})
    if "files" in noted:
        msg = f"rows name the files that are read below {root!r}: none of them is late or held back, and their stream is not set back here"
        raise OptionError(msg)
    given = {name: str(value) for name, value in (source or {}).items()}
    # Given names may be in any case; noted names are those of the table.
    fixed = {name.lower() for name in given} | {"path", "toolate", "schema"}
    options = {name: value for name, value in noted.items() if name.lower() not in fixed}
    return parse(SOURCE, {**options, **given, "path": root, "tooLate": "report"}, what="source", noted=True)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _fits(file: FileVersion, patterns: tuple[str, ...]) -> bool:
    return any(file.path == pattern or fnmatch.fnmatchcase(file.path, pattern) for pattern in patterns)


def _check_fit(patterns: tuple[str, ...], entries: tuple[LateFile, ...], root: str) -> None:
    """Raise `OptionError` for a path or glob that matches no late file; `*` may match none."""
    for pattern in patterns:
        if pattern != "*" and not any(_fits(entry.file, (pattern,)) for entry in entries):
            names = ", ".join(repr(entry.file.path) for entry in entries[:3]) or "none"
            msg = f"{pattern!r} is neither a late file of {root!r} nor a glob that matches one; there are: {names}"
            raise OptionError(msg)


def _line(form: dict[str, Any]) -> bytes:
    return json.dumps(summed(form), separators=(",", ":")).encode()
