"""One sink, one batch: begin, write, commit, publish, forget. First try and replay take the same path.

Who runs what: `begin` on the driver when a batch starts; its result travels to the tasks; `write` there; `commit` on the
driver, perhaps in another process, with what the tasks returned. Between batches `roll` closes what age and idleness
close, and `finish` what is left when the query is over; both are commits without rows.

The failures that this order answers (see also `ledger`):

1. *Half a batch.* A task dies, or the driver before its put. No record names what was staged; the replay writes anew
   under other names. The leftovers have a base below the head's number as soon as there is a next record, and such
   a file, unless the head names it, can never be named again: it is swept.
2. *Twin tasks.* A speculative twin, or a zombie of an attempt that was given up, stages the same rows: other names, and
   only the names in the messages that Spark accepted are in the record.
3. *Roll against batch.* The idle close decides about a part while a batch extends it. Rule: the record numbers make one
   of them lose; the spark layer keeps them apart so that it is never the batch.
4. *Lost notification.* The put is done, publishing is not. Rule: whoever begins next publishes first.
5. *Lost records.* The ledger, or its last records, are gone or were put back from an older copy, and the checkpoint goes
   on. Rule: every batch has a record, without rows too, and one that does not follow the last of its query is refused.
6. *Failed commit that was one.* The put is done, publishing fails; so does the commit, and Spark has the batch aborted,
   with the very results that the record names. Rule: `abort` removes nothing once there is a record behind the one that
   the batch began from.
7. *Commit seen, not durable.* The process that commits is killed between the link and the sync of its put. The batch is
   run again in the same JVM, finds itself committed, and Spark takes it for done; then the power fails, and the record
   is gone. Rule: whoever repeats a commit makes the record durable first.
8. *Half a put.* A driver is killed in the middle of putting a record, and its temporary stays; on HDFS it stays open, too.
   Rule: who claims the sink lists the temporaries, puts its record, and removes those. Each belongs to somebody who wanted
   a number that is taken now, so it can become nothing any more. One that is not listed may be a successor's.
"""

from __future__ import annotations

import base64
import os
import re
import socket
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import xxhash

from penstock import clock, failpoints, unique
from penstock.errors import (
    AlreadyThere,
    CheckpointMismatch,
    CommitError,
    DamagedState,
    Fenced,
    NotThere,
    OptionError,
    PublishConflict,
    StorageError,
)
from penstock.formats import WriteFormat, encoder, file_header
from penstock.formats.format import CSV_OPTIONS, Dialect
from penstock.options import SINK, parse
from penstock.sink.buckets import BucketTemplate
from penstock.sink.existing import note_options, noted_options
from penstock.sink.ledger import FinishedFile, Growth, Kind, Ledger, OpenPart, State
from penstock.sink.names import NameTemplate
from penstock.sink.parts import ClosedPart, Desk, Origin, Staging, TaskWriter, new_part
from penstock.sink.publish import publish
from penstock.sink.rolling import Limits
from penstock.sink.segments import check_staged
from penstock.storage import TEMPORARY

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.options import Options
    from penstock.storage import Storage

STATE_DIRECTORY = "_penstock"
_STAGED = re.compile(r"(\d{12})-.*\.(part|pack)")
_DRIVER = -1  # the writer number of files that the driver assembles
_ROLLING = ("rollSize", "rollRows", "rollInterval", "rollInactivity", "rollBatches")
_ASSEMBLERS = 4  # at a time: they copy, hash and encode without Python's lock


@dataclass(frozen=True)
class Batch:
    """Which batch is being written: Spark's numbers, and a fingerprint of the offsets that define it (`""`: unknown).

    `final`: no batch follows, the query ends with this one.
    """

    query: str
    number: int
    fingerprint: str = ""
    final: bool = False


@dataclass(frozen=True)
class Begun:
    """What the driver knew when a batch began; travels to the tasks and back in their results."""

    write: str
    base: int
    epoch: int
    time_ns: int
    ratio: float
    done: dict[str, int]
    open: tuple[OpenPart, ...]
    final: bool

    def has(self, query: str, batch: int) -> bool:
        """Tell whether the ledger has the batch already."""
        return batch <= self.done.get(query, -1)


@dataclass(frozen=True)
class TaskResult:
    """What a task did: `consumed` are the buckets of this writer whose earlier open part its parts continue."""

    write: str
    base: int
    epoch: int
    time_ns: int
    final: bool
    writer: int
    closed: tuple[ClosedPart, ...] = ()
    open: tuple[OpenPart, ...] = ()
    consumed: tuple[str, ...] = ()
    rows: int = 0


@dataclass(frozen=True)
class Committed:
    """What a commit, a roll or a finish did."""

    number: int
    rows: int = 0
    files: tuple[FinishedFile, ...] = ()
    repeated: bool = False
    open: tuple[OpenPart, ...] = field(default=(), repr=False)


class Sink:
    """A sink in one output directory. Picklable; holds no state but its options: all state is in the ledger."""

    def __init__(self, storage: Storage, root: str, options: Options, sink_id: str) -> None:
        self.storage = storage
        self.root = root
        self.options = options
        self.sink_id = sink_id
        self.limits = Limits.of(options) if not options["growing"] else Limits.never()
        self._names = NameTemplate.of(options["fileName"], zone=options["timeZone"], growing=options["growing"])
        self.state = f"{root}/{STATE_DIRECTORY}/{sink_id}"
        self.staging = f"{self.state}/staging"
        self.ledger = Ledger(storage, f"{self.state}/ledger", sink_id)

    @staticmethod
    def existing(storage: Storage, root: str, sink_id: str) -> Sink:
        """Return the sink `sink_id` of the output `root` with the options of its last driver. `DamagedState`."""
        given = noted_options(storage, f"{root}/{STATE_DIRECTORY}/{sink_id}")
        return Sink(storage, root, parse(SINK, given | {"path": root}, what="sink"), sink_id)

    # -- begin ---------------------------------------------------------------------------------------------------

    def begin(self, owner: str, batch: Batch | None = None) -> Begun:
        """Start a batch: finish what is owed, claim the sink if another driver had it, return what tasks must know.

        `owner` identifies the driver and its query; called again by the same owner it claims nothing. `batch` is `None`
        where it is not known before the tasks run. Raises `CheckpointMismatch`, `DamagedState`, `PublishConflict`, and
        `OptionError` if files shall grow while parts are open.
        """
        head = self.ledger.head()
        if batch is not None:
            self._check_order(head, batch)
        if head.open and self.options["growing"]:
            msg = (
                f"growing=true, but sink {self.sink_id!r} has {len(head.open)} open parts of a run without it; publish them "
                f"first: penstock finish {self.root}"
            )
            raise OptionError(msg)
        self._publish_owed(head)
        if head.owner != owner:
            head = self._claim(head, owner)
        final = batch is not None and batch.final and not self.options["growing"]
        done = {query: number for query, (number, _) in head.batches.items()}
        return Begun(unique.token(), head.n, head.epoch, clock.now_ns(), head.ratio, done, head.open, final)

    def _claim(self, head: State, owner: str) -> State:
        for directory in (self.state, self.staging, f"{self.state}/ledger"):
            self.storage.make_directory(directory, private=True)
        left = [f"{directory}/{name}" for directory, name in self.temporaries()]
        claimed = self._next(head, epoch=head.epoch + 1, owner=owner, write=unique.token())
        self._put(claimed)
        note_options(self.storage, self.state, claimed.epoch, self.options.given)
        self._sweep(claimed)
        for path in left:
            self.storage.delete(path)
        return claimed

    def temporaries(self) -> Iterator[tuple[str, str]]:
        """Yield directory and name of what is being put, or was when somebody died."""
        for directory in (self.state, f"{self.state}/ledger"):
            for name in self.storage.names(directory):
                if name.startswith(TEMPORARY):
                    yield directory, name

    def _check_order(self, head: State, batch: Batch) -> None:
        last, mark = head.batches.get(batch.query, (-1, ""))
        if batch.number > last + 1:
            has = f"ends with batch {last}" if last >= 0 else "has none of it" if head.n else "has no record"
            msg = (
                f"batch {batch.number} of query {batch.query}, but the ledger of {self.state!r} {has}: the output directory "
                "was emptied, moved, put back from an older copy, or is another one; restore it, or start with a new checkpoint"
            )
            raise CheckpointMismatch(msg)
        if batch.number < last:
            msg = (
                f"the checkpoint is at batch {batch.number} of query {batch.query}, the ledger of {self.root!r} has batch "
                f"{last}: the checkpoint was restored from an older copy; restore the output with it, or start with a "
                "new checkpoint"
            )
            raise CheckpointMismatch(msg)
        if batch.number == last and mark and batch.fingerprint and mark != batch.fingerprint:
            msg = (
                f"batch {batch.number} of query {batch.query} was committed to {self.root!r} with other offsets: the "
                "checkpoint was restored from a copy and read on; restore the output with it, or start with a new one"
            )
            raise CheckpointMismatch(msg)

    # -- write ---------------------------------------------------------------------------------------------------

    def write(
        self,
        begun: Begun,
        query: str,
        batch: int,
        writer: int,
        schema: pa.Schema,
        rows: Iterable[pa.RecordBatch | bytes],
    ) -> TaskResult:
        """Write a task's rows to staged files; nothing becomes visible. Called on executors.

        `rows` are Arrow batches of `schema`, or, for text without buckets, lines as bytes. A batch that the ledger has
        is drained and not written. After an error nothing staged here counts, and it will be swept.
        """
        template = begun.write, begun.base, begun.epoch, begun.time_ns, begun.final, writer
        if begun.has(query, batch):
            for _ in rows:
                pass
            return TaskResult(*template)
        task = self._task(begun, batch, writer, schema)
        try:
            count = 0
            with self._reading_of(begun.base, begun.epoch):
                for some in rows:
                    count += self._feed(task, some)
                closed, left, consumed = task.finish(final=begun.final, merge_below=self._merge_below())
        except BaseException:  # also a simulated crash: release what is open, then let it pass
            task.discard()
            raise
        return TaskResult(*template, tuple(closed), tuple(left), tuple(consumed), count)

    def _task(self, begun: Begun, batch: int, writer: int, schema: pa.Schema) -> TaskWriter:
        bucket_by = self.bucket_by(schema)
        data_schema, drop = self.data_schema(schema)
        form = self.format(data_schema)
        encode = None if form.name == "parquet" else encoder(form)
        origin = Origin(writer, batch, begun.base, begun.time_ns, socket.gethostname(), os.getpid())
        staging = Staging(self.storage, self.staging, base=begun.base, batch=batch, writer=writer)
        desk = Desk(staging, origin, self.limits, begun.ratio)
        before = [part for part in begun.open if part.writer == writer]
        return TaskWriter(desk, self.kind(data_schema), before=before, bucket_by=bucket_by, drop=drop, encode=encode)

    @staticmethod
    def _feed(task: TaskWriter, some: pa.RecordBatch | bytes) -> int:
        if isinstance(some, bytes):
            return task.write_text(some)
        task.write(some)
        return int(some.num_rows)

    def bucket_by(self, schema: pa.Schema) -> BucketTemplate | None:
        """Return the checked `bucketBy` for data of this schema."""
        template = self.options["bucketBy"]
        return BucketTemplate.of(template, schema, zone=self.options["timeZone"]) if template else None

    def data_schema(self, schema: pa.Schema) -> tuple[pa.Schema, tuple[str, ...]]:
        """Return the schema of what is written, and the columns left out (`dropBucketColumns`)."""
        bucket_by = self.bucket_by(schema)
        if bucket_by is None or not self.options["dropBucketColumns"]:
            return schema, ()
        kept = [field for field in schema if field.name not in bucket_by.columns]
        if not kept:
            msg = f"dropBucketColumns=true leaves no column of {', '.join(schema.names)}"
            raise OptionError(msg)
        return pa.schema(kept), bucket_by.columns

    def check(self, schema: pa.Schema) -> None:
        """Raise `UsageError` unless data of this schema can be written as the options say. Touches nothing."""
        rolling = [name for name in _ROLLING if name in self.options.given]
        if self.options["growing"] and rolling:
            msg = f"growing=true never closes a file, and {rolling[0]} says when to close one; leave one of them out"
            raise OptionError(msg)
        if self.options["growing"] and not self.storage.goes_on:
            msg = f"growing=true appends to a file, and files in {self.root!r} can only be put whole; leave growing out"
            raise OptionError(msg)
        data_schema, _ = self.data_schema(schema)
        form = self.format(data_schema)
        if form.name != "parquet":
            encoder(form)
        elif self.options["growing"]:
            msg = "growing=true is for text, json and csv: a Parquet file cannot grow under its readers"
            raise OptionError(msg)

    def kind(self, schema: pa.Schema) -> Kind:
        """Return what the files of this sink are."""
        form = self.format(schema)
        extension = ".parquet" if form.name == "parquet" else encoder(form).extension
        described = schema.to_string(show_field_metadata=False)
        if form.csv != Dialect(comment=form.csv.comment):  # else it is spelt as it always was
            described += str(form.csv)
        digest = xxhash.xxh3_64_hexdigest(described.encode())
        return Kind(form.name, form.compression, extension, digest, file_header(form).decode())

    def format(self, schema: pa.Schema) -> WriteFormat:
        """Return how data of this schema is written. Raises `OptionError`."""
        name, compression = self.options["format"], self.options["compression"]
        if compression is None:
            compression = "snappy" if name == "parquet" else "none"
        if compression == "snappy" and name != "parquet":
            msg = f"compression=snappy is for format=parquet, found format={name}; expected none, gzip or zstd"
            raise OptionError(msg)
        other = [option for option in CSV_OPTIONS if option in self.options.given]
        if other and name != "csv":
            msg = f"{other[0]} is for format=csv, found format={name}"
            raise OptionError(msg)
        return WriteFormat(name, schema, compression, Dialect.of(self.options) if name == "csv" else Dialect())

    def _merge_below(self) -> int:
        below = self.options["mergeBelow"]
        return int(self.limits.size // 2 if below is None else below)

    # -- commit --------------------------------------------------------------------------------------------------

    def commit(self, batch: Batch, results: list[TaskResult]) -> Committed:
        """Decide the batch and publish what it finished.

        Returns also when the batch was committed before (`repeated`). Raises `Fenced` when a newer driver owns the
        sink, `CommitError` when the head moved otherwise; then this call has changed nothing that counts.
        """
        head = self.ledger.head()
        if results and head.epoch != results[0].epoch:
            self._fenced(head, results[0].epoch)
        self._check_order(head, batch)
        if batch.number <= head.last_batch(batch.query):
            self.ledger.persist(head.n)  # who put it may not have come to that (failure 7)
            self._publish(head)
            return Committed(batch.number, repeated=True, open=head.open)
        if not results:  # who has written nothing cannot be stale
            results = [TaskResult(unique.token(), head.n, head.epoch, clock.now_ns(), batch.final, _DRIVER)]
        if any(result.base != head.n for result in results):
            msg = (
                f"record {head.n} of {self.state!r} was put while batch {batch.number} was written; it is written again"
            )
            raise CommitError(msg)
        state = self._decide(head, batch, results)
        self._put(state)
        self._publish(state)
        self._forget(state)
        return Committed(batch.number, sum(r.rows for r in results), state.finished, open=state.open)

    def _decide(self, head: State, batch: Batch, results: list[TaskResult]) -> State:
        """Return the record of the batch; one without rows has a record too, or its absence would pass for a loss."""
        first = results[0]
        consumed = {(bucket, r.writer) for r in results for bucket in r.consumed}
        kept = [part for part in head.open if part.key not in consumed]
        grown = [part for result in results for part in result.open]
        begun = {part.key for part in grown}  # one that is kept beside them is of another kind, and would be lost
        due = [p for p in kept if p.key in begun or self._due(p, first.time_ns, batch.number, final=first.final)]
        due += [p for p in grown if first.final or self.limits.ends_with(p.first_batch, batch.number)]
        batches = head.batches | {batch.query: (batch.number, batch.fingerprint)}
        total = head.total_rows + sum(result.rows for result in results)
        if self.options["growing"]:
            growths, lengths = self._growths(head, grown)
            return self._next(
                head, write=first.write, time_ns=first.time_ns, batches=batches, total_rows=total, grown=growths, lengths=lengths,
            )  # fmt: skip
        closed = [part for result in results for part in result.closed] + self._merge(head, due, batch.number)
        left = tuple(part for part in kept + grown if part not in due)
        named, floor, sequences = self._named(head, closed, left)
        return self._next(
            head, write=first.write, time_ns=first.time_ns, batches=batches, open=left, finished=named,
            total_rows=total, floor=floor, sequences=sequences, ratio=_ratio(head.ratio, closed),
        )  # fmt: skip

    def _growths(self, head: State, grown: list[OpenPart]) -> tuple[tuple[Growth, ...], dict[str, int]]:
        """Return what each growing file gains, in the order of the writers, and all lengths after that."""
        lengths = dict(head.lengths)
        growths = []
        for bucket in sorted({part.bucket for part in grown}):
            parts = sorted((p for p in grown if p.bucket == bucket), key=lambda p: p.writer)
            name = self._names.render(parts[0].kind.extension, sink=self.sink_id)
            path = f"{bucket}/{name}" if bucket else name
            if path not in lengths and self._exists(f"{self.root}/{path}"):
                msg = f"{path!r} in {self.root!r} is not of this sink and cannot grow; move it away, or set another fileName"
                raise PublishConflict(msg)
            before = lengths.get(path, 0)
            header = b"" if before else parts[0].kind.header_bytes
            segments = tuple(segment for part in parts for segment in part.segments)
            lengths[path] = before + len(header) + sum(part.size for part in parts)
            rows, begins = sum(p.rows for p in parts), base64.b64encode(header).decode()
            growths.append(Growth(path, before, lengths[path], rows, segments, begins))
        return tuple(growths), lengths

    def _due(self, part: OpenPart, time_ns: int, batch: int, *, final: bool) -> bool:
        return final or self.limits.expired(part, time_ns) or self.limits.ends_with(part.first_batch, batch)

    def _merge(self, head: State, parts: list[OpenPart], batch: int) -> list[ClosedPart]:
        """Assemble parts whose end has come; those of one bucket are merged up to the size limit."""
        if not parts:
            return []
        origin = Origin(_DRIVER, batch, head.n, clock.now_ns(), socket.gethostname(), os.getpid())
        staging = Staging(self.storage, self.staging, base=head.n, batch=batch, writer=_DRIVER)
        desk = Desk(staging, origin, self.limits, head.ratio)
        try:
            with self._reading_of(head.n, head.epoch), self.storage.workers(_ASSEMBLERS) as pool:
                for _ in pool.map(lambda g: new_part(desk, g.bucket, g.kind, g).close(), _groups(parts, self.limits)):
                    pass
            staging.finish()
            return [describe() for describe in desk.closed]
        except BaseException:  # also a simulated crash: release what is open, then let it pass
            staging.discard()
            raise

    def _named(
        self, head: State, closed: list[ClosedPart], left: tuple[OpenPart, ...]
    ) -> tuple[tuple[FinishedFile, ...], int, dict[str, int]]:
        """Give each closed part a name that nobody has; return the files, and the numbering to go on with."""
        sequences = dict(head.sequences)
        taken: set[str] = set()
        files = []
        for part in sorted(closed, key=lambda p: (p.bucket, p.writer, p.first_batch)):
            path, sequence = self._free_name(part, sequences.get(str(part.writer), head.floor), taken)
            taken.add(path)
            sequences[str(part.writer)] = sequence + 1
            files.append(
                FinishedFile(
                    path,
                    part.bucket,
                    part.rows,
                    part.bytes,
                    part.digest,
                    part.first_batch,
                    part.last_batch,
                    part.staged,
                )
            )
        writers = {str(part.writer) for part in left}
        floor = max([head.floor, *(n for w, n in sequences.items() if w not in writers)])
        return tuple(files), floor, {w: n for w, n in sequences.items() if w in writers}

    def _free_name(self, part: ClosedPart, sequence: int, taken: set[str]) -> tuple[str, int]:
        while True:
            name = self._names.render(
                part.kind.extension, sink=self.sink_id, writer=part.writer, seq=sequence, batch=part.first_batch,
                host=part.host, pid=part.pid, time=part.opened_ns,
            )  # fmt: skip
            path = f"{part.bucket}/{name}" if part.bucket else name
            if path not in taken and not self._exists(f"{self.root}/{path}"):
                return path, sequence
            sequence += 1

    def _exists(self, path: str) -> bool:
        try:
            self.storage.stat(path)
        except NotThere:
            return False
        return True

    def abort(self, results: Iterable[TaskResult]) -> None:
        """Remove what the tasks of a failed batch staged, as far as it is known; the rest is swept later.

        Nothing of a batch that began before the last record: that record may be its own (failure 6).
        """
        base = self.ledger.head().n
        for result in results:
            if result.base != base:
                continue
            names = [p.staged for p in result.closed]
            prefix = f"{result.base:012d}-"
            names += [s.file for p in result.open for s in p.segments if s.file.startswith(prefix)]
            for name in names:
                self.storage.delete(f"{self.staging}/{name}")

    # -- between batches and at the end --------------------------------------------------------------------------

    def roll(self, owner: str) -> Committed | None:
        """Close the parts whose time is up. Called while no batch is in flight; `Fenced` if `owner` is not."""
        head = self.ledger.head()
        if head.owner != owner:
            self._fenced(head, head.epoch)
        now = clock.now_ns()
        return self._close(head, [p for p in head.open if self.limits.expired(p, now)], owner, head.epoch)

    def finish(self, owner: str | None = None) -> Committed | None:
        """Publish everything that is committed and still open. `owner`: only if the sink is still this driver's.

        Without `owner` parts that are open are taken from whoever has the sink: a driver that still runs ends with
        `Fenced`. `None`: there was nothing, and nothing has changed.
        """
        head = self.ledger.head()
        if owner is not None and head.owner != owner:
            self._fenced(head, head.epoch)
        if owner is None:
            owner = f"finish:{unique.token()}"
        published = self._publish_owed(head)
        done = self._close(head, list(head.open), owner, head.epoch + 1)
        return done or (Committed(-1, files=head.finished) if published else None)

    def _close(self, head: State, parts: list[OpenPart], owner: str, epoch: int) -> Committed | None:
        if not parts:
            return None
        self._publish_owed(head)
        closed = self._merge(head, parts, max(p.last_batch for p in parts))
        left = tuple(p for p in head.open if p not in parts)
        named, floor, sequences = self._named(head, closed, left)
        state = self._next(
            head, epoch=epoch, owner=owner, write=unique.token(), time_ns=clock.now_ns(), open=left,
            finished=named, floor=floor, sequences=sequences, ratio=_ratio(head.ratio, closed),
        )  # fmt: skip
        self._put(state)
        self._publish(state)
        self._forget(state)
        return Committed(-1, sum(f.rows for f in named), named, open=left)

    # -- records -------------------------------------------------------------------------------------------------

    @staticmethod
    def _next(head: State, **changes: Any) -> State:  # noqa: ANN401 - fields of State
        fresh: dict[str, Any] = {"n": head.n + 1, "parent": head.write, "finished": (), "grown": ()}
        finished = changes.get("finished", ())
        totals = {
            "total_files": head.total_files + len(finished),
            "total_bytes": head.total_bytes + sum(file.bytes for file in finished),
        }
        return replace(head, **(fresh | totals | changes))

    def _put(self, state: State) -> None:
        """Put the record, or find out who was faster."""
        try:
            self.ledger.put(state)
        except AlreadyThere:
            if not self._mine(state):
                self._fenced(self.ledger.head(), state.epoch)
            self.ledger.persist(state.n)
        except StorageError:
            if not self._mine(state):
                head = self.ledger.head()
                if head.n >= state.n:  # who took the number has removed the temporary, too
                    self._fenced(head, state.epoch)
                raise
            self.ledger.persist(state.n)
        if not self.ledger.counts(state):
            self._fenced(self.ledger.head(), state.epoch)

    def _mine(self, state: State) -> bool:
        return state.n in self.ledger.numbers() and self.ledger.read(state.n).write == state.write

    def _fenced(self, head: State, epoch: int) -> None:
        msg = (
            f"sink {self.sink_id!r} in {self.root!r} belongs to {head.owner!r} (epoch {head.epoch}); this driver has epoch "
            f"{epoch} and has changed nothing; stop it, or let it start again to take the sink over"
        )
        raise Fenced(msg)

    def _publish_owed(self, head: State) -> int:
        """Publish what a record that was found names; it may never have become durable, and its files may have changed."""
        if (head.finished or head.grown) and not self.ledger.is_published(head.n):
            self.ledger.persist(head.n)
            for file in head.finished:
                check_staged(self.storage, self.staging, file)
        return self._publish(head)

    def _publish(self, state: State) -> int:
        """Publish what a record names, unless there is a newer one: who put that has done it first, and swept."""
        try:
            return publish(self.storage, self.root, self.staging, self.ledger, state)
        except DamagedState:
            if self.ledger.head().n == state.n:
                raise
            return 0

    @contextmanager
    def _reading_of(self, base: int, epoch: int) -> Iterator[None]:
        """Say that this driver was overtaken, rather than that what record `base` names is gone, where that is so."""
        try:
            yield
        except DamagedState:
            head = self.ledger.head()
            if head.n == base:
                raise
            self._fenced(head, epoch)

    def _forget(self, head: State) -> None:
        failpoints.hit("sink.forget")
        self._sweep(head)
        self.ledger.forget()

    def _sweep(self, head: State) -> None:
        for name in self.unnamed(head):
            self.storage.delete(f"{self.staging}/{name}")

    def unnamed(self, head: State) -> Iterator[str]:
        """Yield staged files that no record can name any more: begun before the head, and not named by it."""
        named = {s.file for part in head.open for s in part.segments} | {f.staged for f in head.finished}
        if not self.ledger.is_published(head.n):
            named |= {s.file for growth in head.grown for s in growth.segments}
        for name in self.storage.names(self.staging):
            match = _STAGED.fullmatch(name)
            if match and int(match[1]) < head.n and name not in named:
                yield name


def _groups(parts: list[OpenPart], limits: Limits) -> Iterator[OpenPart]:
    """Yield parts to be assembled as one: neighbours of a bucket and kind, as long as they stay within the limits."""
    group: OpenPart | None = None
    for part in sorted(parts, key=lambda p: (p.bucket, p.kind.schema, p.writer)):
        if group is not None and (group.bucket, group.kind) == (part.bucket, part.kind) and _fit(group, part, limits):
            group = replace(
                group,
                segments=group.segments + part.segments,
                opened_ns=min(group.opened_ns, part.opened_ns),
                first_batch=min(group.first_batch, part.first_batch),
                last_batch=max(group.last_batch, part.last_batch),
            )
            continue
        if group is not None:
            yield group
        group = part
    if group is not None:
        yield group


def _fit(group: OpenPart, part: OpenPart, limits: Limits) -> bool:
    fits = len(group.kind.header_bytes) + group.size + part.size <= limits.size
    return fits and (limits.rows is None or group.rows + part.rows <= limits.rows)


def _ratio(before: float, closed: list[ClosedPart]) -> float:
    """Return Parquet bytes a byte of Arrow, as the latest finished files show it."""
    arrow = sum(part.arrow_bytes for part in closed)
    return round(sum(p.bytes for p in closed if p.arrow_bytes) / arrow, 4) if arrow else before
