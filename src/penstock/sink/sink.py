"""Runs one batch of one sink: begin, write, commit, publish, forget. First try and replay take the same path.

The driver runs `begin` when a batch starts, and its result travels to the tasks. The tasks run `write`. The driver runs `commit`,
perhaps in another process, with the results of the tasks. Between batches `roll` closes parts by age and idleness; `finish`
closes all open parts when the query is over. Both are commits without rows.

The failures that this order is made for (see also `ledger`):

1. *Half a batch.* A task dies, or the driver dies before its put. No record names what was staged, and the replay writes it again
   under other names. Rule: as soon as there is a next record, the base of the left-over files is below the head's number. No
   later record can name such a file unless the head does, so it is swept.
2. *Twin tasks.* A speculative twin, or a zombie of an attempt that was given up, stages the same rows under other names. Rule:
   the record has only the names in the messages that Spark accepted.
3. *Roll against batch.* The idle close decides about a part while a batch extends it. Rule: the record numbers make one of them
   lose; the keeper and the batch are kept apart (see `keeper`), so that the batch never loses.
4. *Lost notification.* The put is done, publishing is not. Rule: the next driver publishes before it begins anything else.
5. *Lost records.* The ledger, or its last records, are gone or were restored from an older copy, while the checkpoint is
   complete. Rule: every batch has a record, even one without rows, and a batch that does not follow the last of its query is
   refused.
6. *Failed commit that counts.* The put is done, and publishing fails. So the commit fails, and Spark aborts the batch with the
   very results that the record names. Rule: `abort` removes nothing once there is a record after the one that the batch began
   from.
7. *Commit seen, not durable.* The process that commits is killed between the link and the sync of its put. The batch is run again
   in the same JVM and finds itself committed, and Spark takes it for done. Then the power fails, and the record is gone. Rule: a
   driver that repeats a commit makes the record durable first.
8. *Half a put.* A driver is killed in the middle of putting a record, and its temporary file stays; on HDFS it also stays open.
   Rule: a driver that claims the sink lists the temporary files, puts its record, and removes the files that it listed. Each of
   these belongs to a driver that wanted a number that is taken now, so it can never become a record. A file that was not listed
   may belong to a successor.
9. *Keeper of a dead driver.* A driver is killed, and its keeper publishes what it left while the next driver claims the sink:
   both want the same number, and the claim loses. Rule: if the winner belongs to the driver that the sink is taken over from, the
   claim begins again after that record, since it has staged nothing yet. If the winner is another claim, this driver is `Fenced`;
   otherwise the two would take turns.
10. *Both restored, but not the files.* Ledger and checkpoint are put back from copies of one time, so they agree, and files that were
   finished after the copy stay in the output. Their rows are read again. Rule: a sink counts its files and never gives a number twice.
   So a file with the next name, if only this sink gives such names and no record has decided it, shows that there were later records,
   and the decision is refused. (A file in another bucket, or of another task, is seen once its name would come again.)
"""

from __future__ import annotations

import logging
import os
import socket
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from shlex import quote
from typing import TYPE_CHECKING

from penstock import clock, unique
from penstock.errors import (
    CommitError,
    DamagedState,
    Fenced,
    OptionError,
    PublishConflict,
    UsageError,
)
from penstock.formats import encoder, file_extension
from penstock.formats.account import Account
from penstock.formats.aside import LINES_WRITTEN, Aside, BeginAgain, Tally, stamped
from penstock.formats.encryption import EXTENSION
from penstock.formats.families import RecordFormat
from penstock.options import SINK, parse
from penstock.query.batch import Batch
from penstock.query.fence import Claim
from penstock.query.order import Last, Nouns, Standing, place
from penstock.sink.batch import DRIVER, Begun, Committed, TaskResult
from penstock.sink.cipher import Cipher, check_none_clear
from penstock.sink.committer import Committer
from penstock.sink.decide import Rules, decide, due, groups, parts_named, successor
from penstock.sink.existing import NOTHING_NOTED, STAGE, are_noted, namesakes, note_options, noted
from penstock.sink.headers import check_headers
from penstock.sink.layout import Layout
from penstock.sink.ledger import STAGING, STATE_DIRECTORY, Destination, Kind, Ledger, aside_bucket, is_aside
from penstock.sink.lengths import LengthTables
from penstock.sink.parts import Desk, Origin
from penstock.sink.publish import check_growths
from penstock.sink.ready import Progress
from penstock.sink.rivals import undecided
from penstock.sink.rolling import Limits
from penstock.sink.room import room
from penstock.sink.sparklog import check_apart, check_no_log
from penstock.sink.staging import Staging
from penstock.sink.tableparts import unwritable
from penstock.sink.taken import TakenNames
from penstock.sink.writer import AsideParts, TaskWriter, new_part
from penstock.storage import TEMPORARY, check_fit, locate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import pyarrow as pa

    from penstock.options import Options
    from penstock.sink.existing import Noted
    from penstock.sink.ledger import OpenPart, State
    from penstock.storage import Storage

__all__ = ["STATE_DIRECTORY", "Batch", "Begun", "Committed", "Sink", "TaskResult"]

KEYED = "batchKey"  # the owner of a ledger of batch writes, instead of a driver; see `keyed`
_log = logging.getLogger("penstock.sink")
_TOLD = 3  # files that an error names
_ASSEMBLERS = 4  # threads at a time: they copy, hash and encode without Python's lock


class Sink:
    """A sink in one output directory. Picklable; holds no state but its options: all state is in the ledger.

    `note` is set if the sink is rebuilt without its query: what an ingest noted of its stage, and which options have changed.
    """

    def __init__(
        self, storage: Storage, root: str, options: Options, sink_id: str, note: Noted = NOTHING_NOTED
    ) -> None:
        self.storage = storage
        self.root = root
        self.options = options
        self.sink_id = sink_id
        self.note = note
        self.limits = Limits.of(options)
        self.layout = Layout(options, root, goes_on=storage.goes_on, takes_colons=storage.takes_colons)
        self.state = f"{root}/{STATE_DIRECTORY}/{sink_id}"
        place = options["quarantineLocation"]
        aside = locate(place, name="quarantineLocation")[1] if place else ""
        self.rules = Rules(
            sink_id,
            self.limits,
            self.layout.names,
            growing=options["growing"],
            announced=self.layout.announced,
            aside=aside,
        )
        self.aside = aside or f"{root}/{aside_bucket(sink_id)}"
        self.staging = f"{self.state}/{STAGING}"
        self.ledger = Ledger(storage, f"{self.state}/ledger", sink_id)
        name = f"sink {sink_id!r} in {root!r}"
        self.cipher = Cipher(options)
        self.lengths = LengthTables(storage, self.staging)
        self.committer = Committer(name, storage, root, self.staging, self.ledger)
        self._nouns = Nouns(
            f"the ledger of {self.state!r}", "the output directory", "a new checkpoint and an empty directory"
        )

    @staticmethod
    def existing(storage: Storage, root: str, sink_id: str) -> Sink:
        """Return the sink `sink_id` of the output `root` with the options of its last driver. `DamagedState`."""
        state = f"{root}/{STATE_DIRECTORY}/{sink_id}"
        note = noted(storage, state)
        try:
            options = parse(SINK, {**note.options, "path": root}, what="sink", noted=True)
            return Sink(storage, root, options, sink_id, note)
        except UsageError as error:  # the options come from a note, not from the user of a command
            msg = (
                f"the options noted in {state!r} are not what this Penstock could have noted: {error.message}; restore them "
                "from a copy, or use the Penstock that wrote them"
            )
            raise DamagedState(msg) from error

    # -- begin ---------------------------------------------------------------------------------------------------

    def begin(self, owner: str, batch: Batch | None = None, may_claim: Callable[[State], None] | None = None) -> Begun:
        """Start a batch: publish what the last record still owes, claim the sink if another driver had it, return what tasks must know.

        `owner` identifies the driver and its query; a second call by the same owner, with the same options, claims nothing. `batch` is
        `None` if it is not known before the tasks run. `may_claim` is called with the record that a claim would follow, and may raise.

        Raises `CheckpointMismatch`, `DamagedState`, `PublishConflict`, and `OptionError` if files are to grow while parts are open.
        """
        look = self.ledger.look()
        head = self.ledger.head(look)
        _check_taken_over(self, head)
        if batch is not None:
            self.place(head, batch)
        self.layout.check_progress(batch)
        recipients = self.cipher.recipients()
        if recipients:
            check_none_clear(head, self.root)
        self.committer.publish_owed(head, look)
        if not _is_owned(self, head, owner):
            if may_claim is not None:
                may_claim(head)
            try:
                head = self._claim(head, owner)
            except Fenced:
                now = self.ledger.head()
                if now.n == head.n or now.owner != head.owner:
                    raise
                return self.begin(owner, batch, may_claim)  # failure 9
        final = batch is not None and batch.final and not self.options["growing"]
        done = {query: number for query, (number, _) in head.batches.items()}
        known = head.ratio, done, head.open, final, recipients, head.taken_by
        return Begun(unique.token(), head.n, head.epoch, clock.now_ns(), *known)

    def _claim(self, head: State, owner: str) -> State:
        check_fit(self.storage, f"{self.root}/{STATE_DIRECTORY}")
        for directory in (self.state, self.staging, f"{self.state}/ledger"):
            self.storage.make_directory(directory, private=True)
        self.committer.check_linked()
        left = [f"{directory}/{name}" for directory, name in self.temporaries()]
        claimed = successor(head, epoch=head.epoch + 1, owner=owner, write=unique.token())
        look = self.committer.put(claimed)
        # The next driver may have swept the half-written note.
        with self.committer.reading_of(claimed.n, claimed.epoch):
            note_options(self.storage, self.state, claimed.epoch, _notable(self))
        self.committer.sweep(claimed, published=look.is_published(claimed))
        for path in left:
            self.storage.delete(path)
        _tell_namesakes(self)
        _tell_unannounced(self, claimed)
        return claimed

    def temporaries(self) -> Iterator[tuple[str, str]]:
        """Yield directory and name of temporary files of puts, in progress or left by a dead process."""
        for directory in (self.state, f"{self.state}/ledger"):
            for name in self.storage.names(directory):
                if name.startswith(TEMPORARY):
                    yield directory, name

    def place(self, head: State, batch: Batch) -> Standing:
        """Return whether a batch is the next one of its query or is applied already; `CheckpointMismatch` if it is neither."""
        number, mark = head.batches.get(batch.query, (-1, ""))
        return place(Last(batch.query, number, mark), batch, self._nouns)

    # -- write ---------------------------------------------------------------------------------------------------

    def write(
        self,
        begun: Begun,
        query: str,
        batch: int,
        writer: int,
        schema: pa.Schema,
        rows: Iterable[pa.RecordBatch | bytes],
        account: Account | None = None,
        *,
        aside: Aside | None = None,
        attempt: int = 0,
    ) -> TaskResult:
        """Write a task's rows to staged files; nothing becomes visible. Called on executors.

        `rows` are Arrow batches of `schema`, or, for text without buckets, lines as bytes. A batch that the ledger has is drained
        and not written. The producer of the rows counts them in `account`, and puts what it sets aside into `aside`: that is
        staged beside the rows, and is committed with them. Whenever the producer raises `BeginAgain`, everything staged is
        dropped and the rows are read again from the start. `attempt` is the task's. After an error the files staged here mean
        nothing, and are swept later.
        """
        template = begun.write, begun.base, begun.epoch, begun.time_ns, begun.final, writer
        if begun.has(query, batch):
            with suppress(BeginAgain):  # rows after a new beginning would not count either
                for _ in rows:
                    pass
            return TaskResult(*template)
        aside = aside or Aside()
        with self.committer.reading_of(begun.base, begun.epoch):
            before = self.ledger.open_of(begun.open, writer)
        while True:
            task = self._task(begun, batch, writer, schema, attempt, before)
            aside.begin(partial(_stamped, task, batch, begun.time_ns))
            try:
                count = 0
                with self.committer.reading_of(begun.base, begun.epoch):
                    for piece in rows:
                        aside.hand_on()
                        count += _fed(task, piece)
                    aside.hand_on()
                    closed, left, consumed = task.finish()
            except BeginAgain as error:
                task.discard(error)
                if account is not None:
                    account.clear()
                continue
            except BaseException as error:  # also for a simulated crash: release what is open, then let it pass
                task.discard(error)
                raise
            counts = count, account or Account(), aside.tally, task.progress
            return TaskResult(*template, tuple(closed), tuple(left), tuple(consumed), *counts).beyond(before)

    def _task(
        self, begun: Begun, batch: int, writer: int, schema: pa.Schema, attempt: int, before: list[OpenPart]
    ) -> TaskWriter:
        places = self.layout.places(schema)
        data_schema, drop = self.layout.data_schema(schema)
        fmt, form = self.layout.format(data_schema), self.layout.form
        encode = form.encoder(fmt) if isinstance(form, RecordFormat) else None
        origin = Origin(writer, batch, begun.base, begun.time_ns, socket.gethostname(), os.getpid(), attempt)
        staging = Staging(
            self.storage, self.staging, base=begun.base, batch=batch, writer=writer, keys=self.cipher.keys()
        )
        desk = Desk(
            staging,
            origin,
            self.limits,
            begun.ratio,
            self.root,
            begun.final,
            self._merge_below,
            growing=self.options["growing"],
        )
        to = begun.recipients
        kind, aside = self.layout.kind(data_schema, to), _aside_parts(self.sink_id, to)
        return TaskWriter(
            desk,
            kind,
            before=before,
            places=places,
            drop=drop,
            encode=encode,
            aside=aside,
            times=self.layout.time_buckets(schema),
            check_name=_room(self, origin, kind),
        )

    def check(self, schema: pa.Schema) -> None:
        """Raise `UsageError` unless data of this schema can be written as the options say, and readers see it. Touches nothing."""
        check_no_log(self.storage, self.root)
        check_apart(self.storage, self.root, self.options["checkpointLocation"])
        self.layout.check(schema)
        self.cipher.check()
        self._check_room(schema)

    def _check_room(self, schema: pa.Schema) -> None:
        """Raise `TemplateError` if later numbers would make names too long. Names with columns are checked when their rows come."""
        if self.layout.names.columns:
            return
        kind = self.layout.kind(self.layout.data_schema(schema)[0], ("",) if self.options["encryptTo"] else ())
        _room(self, Origin(0, 0, 0, 0, socket.gethostname(), os.getpid()), kind)(Destination(""))

    @property
    def _merge_below(self) -> int:
        below = self.options["mergeBelow"]
        return int(self.limits.size // 2 if below is None else below)

    # -- commit --------------------------------------------------------------------------------------------------

    def commit(self, batch: Batch, results: list[TaskResult]) -> Committed:
        """Decide the batch and publish what it finished.

        If the batch was committed before, returns with `repeated`. Raises `Fenced` if a newer driver owns the sink, `CommitError`
        if the head has moved for another reason; then this call has changed nothing that counts.
        """
        look = self.ledger.look()
        head = self.ledger.head(look)
        if results:
            self.committer.check(head, Claim(epoch=results[0].epoch))
        if self.place(head, batch) is Standing.APPLIED:
            self.ledger.persist(head.n)  # the driver that put it may have died before that (failure 7)
            self.committer.publish(head, look)
            return Committed(batch.number, repeated=True, open=head.open)
        if not results:  # a driver without results has written nothing, so it cannot be stale
            results = [self._step(head, head.epoch, final=batch.final)]
        if any(result.base != head.n for result in results):
            msg = (
                f"record {head.n} of {self.state!r} was put while batch {batch.number} was written; it is written again"
            )
            raise CommitError(msg)
        now_ns = clock.now_ns()
        results = [result.written_until(now_ns) for result in results]
        state = self.committer.carry_out(self.decided(head, batch, results))
        return Committed(batch.number, sum(r.rows for r in results), state.finished, open=state.open)

    @staticmethod
    def _step(head: State, epoch: int, *, final: bool) -> TaskResult:
        """Return the driver's own result, if there are none of tasks: no rows, with the present time and `head` as its base."""
        return TaskResult(unique.token(), head.n, epoch, clock.now_ns(), final, DRIVER)

    def decided(
        self,
        head: State,
        batch: Batch | None,
        results: list[TaskResult],
        *,
        owner: str | None = None,
        as_text: bool = False,
        base: int | None = None,
    ) -> State:
        """Return the next record: assembles the parts that are due, and makes sure that the chosen names are free.

        The names of staged files begin with `base`, or with the number of `head` if it is not given.
        """
        results = [result.whole(head.open) for result in results]
        ending = due(head, batch, results, self.rules)
        number = batch.number if batch else max((part.last_batch for part in ending), default=0)
        base = head.n if base is None else base
        results = results + self._assembled(head, ending, results[0], number, base, as_text=as_text)
        names, lengths = TakenNames(self.storage, self.root), self.lengths.known(head)
        if batch is not None and self.options["growing"]:
            check_headers(self.storage, self.root, self.rules, results, lengths)
        while True:
            state = decide(head, batch, results, self.rules, owner=owner, taken=names.taken, lengths=lengths)
            if not names.meets(state.finished):
                break
        _check_known(self, names.met)
        check_growths(self.storage, self.root, state.grown, lengths)
        return self.ledger.in_record(self.lengths.in_record(state, number), number)

    def _assembled(
        self, head: State, parts: list[OpenPart], first: TaskResult, batch: int, base: int, *, as_text: bool
    ) -> list[TaskResult]:
        """Assemble parts that end, small ones of one place together; return the driver's result in a list, empty without parts."""
        if not parts:
            return []
        origin = Origin(DRIVER, batch, base, clock.now_ns(), socket.gethostname(), os.getpid())
        keys = self.cipher.keys()
        staging = Staging(self.storage, self.staging, base=base, batch=batch, writer=DRIVER, keys=keys)
        desk = Desk(staging, origin, self.limits, head.ratio, self.root, as_text=as_text)
        try:
            with self.committer.reading_of(head.n, head.epoch), self.storage.workers(_ASSEMBLERS) as pool:
                for _ in pool.map(lambda g: new_part(desk, g.place, g.kind, g).close(), groups(parts, self.limits)):
                    pass
                staging.finish()
            # Sorted by place, and not by which thread was done first, because names are numbered in this order.
            described = (describe() for describe in desk.closed)
            closed = tuple(sorted(described, key=lambda part: (part.place, part.writer, part.first_batch)))
        except BaseException as error:  # also for a simulated crash: release what is open, then let it pass
            staging.discard(error)
            raise
        nothing = replace(
            first, writer=DRIVER, open=(), consumed=(), rows=0, account=Account(), aside=Tally(), progress=Progress()
        )
        return [replace(nothing, closed=closed)]

    def abort(self, results: Iterable[TaskResult]) -> None:
        """Remove what the tasks of a failed batch staged, as far as it is known; the rest is swept later.

        Removes nothing of a batch that began before the last record, because that record may be the batch's own (failure 6).
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

    def roll(self, owner: str, named: Iterable[str] = ()) -> Committed | None:
        """Close the parts whose time is up, and the `named` ones (see `decide.parts_named`); a name without an open part is ignored.

        Called while no batch is in flight. Returns `None` if no part is due. Raises `Fenced` if `owner` does not own the sink.
        """
        look = self.ledger.look()
        head = self.ledger.head(look)
        self.committer.check(head, Claim(owner))
        ends = frozenset(part.key for name in named for part in parts_named(head, name, self.rules))
        step = replace(self._step(head, head.epoch, final=False), ends=ends)
        self.committer.publish_owed(head, look)  # of an earlier roll that failed in the middle
        return self._closed(head, step, owner) if due(head, None, [step], self.rules) else None

    def finish(self, owner: str | None = None, *, as_text: bool = False, only: str | None = None) -> Committed | None:
        """Publish everything that is committed and still open. With `owner`, only if the sink still belongs to this driver.

        `as_text`: write columns as JSON text that an earlier version accepted and the files cannot hold; otherwise they raise
        `Unwritable`. `only`: close only the open parts of this name (see `decide.parts_named`); the others stay open.

        Without `owner` the open parts are taken from any driver that has the sink: if it still runs, it ends with `Fenced`.
        Returns `None` if there was nothing to do, and nothing has changed.
        """
        look = self.ledger.look()
        head = self.ledger.head(look)
        if owner is not None:
            self.committer.check(head, Claim(owner))
        published = self.committer.publish_owed(head, look)
        ends = head.open if only is None else parts_named(head, only, self.rules)
        if ends:
            step = self._step(head, head.epoch + 1, final=only is None)
            step = replace(step, ends=frozenset(part.key for part in ends))
            return self._closed(head, step, owner or f"finish:{unique.token()}", as_text=as_text)
        if head.writing and only is None:  # a batch write that still runs ends with `Fenced`
            self.committer.carry_out(successor(head, epoch=head.epoch + 1, write=unique.token(), writing={}))
        shown = published is not None and bool(published.finished or published.grown)
        return Committed(-1, files=published.finished) if published and shown else None

    def _closed(self, head: State, step: TaskResult, owner: str, *, as_text: bool = False) -> Committed:
        """Decide without a batch, put the decision, and publish it."""
        state = self.committer.carry_out(self.decided(head, None, [step], owner=owner, as_text=as_text))
        return Committed(-1, sum(file.rows for file in state.finished), state.finished, open=state.open)

    def unwritable(self, head: State) -> Iterator[tuple[OpenPart, tuple[str, ...]]]:
        """Yield each open part with columns that its format cannot hold, and these columns; they are looked up once for each kind."""
        columns: dict[Kind, tuple[str, ...]] = {}
        for part in head.open:
            if part.kind not in columns:
                keys = self.cipher.keys()
                staging = Staging(self.storage, self.staging, base=head.n, batch=0, writer=DRIVER, keys=keys)
                columns[part.kind] = unwritable(staging, part)
            if columns[part.kind]:
                yield part, columns[part.kind]


def _check_taken_over(sink: Sink, head: State) -> None:
    """Raise `OptionError` for a ledger of batch writes, or for one with open parts if files are to grow."""
    if head.owner == KEYED:
        msg = f"sinkId={sink.sink_id!r} in {sink.root!r} belongs to batch writes; a query needs a separate ledger: take another sinkId"
        raise OptionError(msg)
    if sink.options["growing"] and (parts := [part for part in head.open if not part.is_aside]):
        msg = (
            f"growing=true, but sink {sink.sink_id!r} has {len(parts)} open parts of a run without it; publish them "
            f"first: penstock finish {quote(sink.root)}"
        )
        raise OptionError(msg)


def _tell_namesakes(sink: Sink) -> None:
    """Log a warning about other sinks of the directory that may choose the same names for files."""
    names = sink.layout.names
    if names.tells("sink"):
        return
    for other in namesakes(sink.storage, f"{sink.root}/{STATE_DIRECTORY}", sink.sink_id, sink.options.given):
        message = (
            "sink %r of %r names its files as sink %r does, %s: if both write at one time they may choose the same name, and one "
            "of the files then gets another one; put {sink} into fileName"
        )
        _log.warning(message, other, sink.root, sink.sink_id, names.where)


def _check_known(sink: Sink, met: Mapping[str, str]) -> None:
    """Raise `PublishConflict` if a taken name is one that only this sink gives, and no record has decided such a file (failure 10)."""
    ours = {path for path in met if sink.layout.names.tells("sink") or is_aside(path.rpartition("/")[0])}
    unknown = undecided(sink.storage, sink.root, ours) if ours else []
    if unknown:
        named = ", ".join(repr(met[path]) for path in unknown[:_TOLD])
        more = f" and {len(unknown) - _TOLD} more" if len(unknown) > _TOLD else ""
        msg = (
            f"{named}{more}: only sink {sink.sink_id!r} names files like this, expected no such file, since its ledger has none: the "
            "ledger was removed or put back from an older copy, and files that were finished after it were left there. Their rows would be "
            f"there twice, so nothing was committed: move these, and what 'penstock verify {quote(sink.root)}' calls foreign, to another "
            "place and run the same command again; files that are to stay need another name"
        )
        raise PublishConflict(msg)


def _tell_unannounced(sink: Sink, head: State) -> None:
    """Warn in the log if nothing is announced any more, though it was before: a directory that was complete may get more rows."""
    if head.ready.said_us is not None and sink.layout.announced is None:
        message = (
            "partitionReady was set for sink %r of %r, and is not now: rows for a directory that was announced as complete become "
            "visible silently, beside its _SUCCESS if it has one; set it again, or remove these files"
        )
        _log.warning(message, sink.sink_id, sink.root)


def _is_owned(sink: Sink, head: State, owner: str) -> bool:
    """Tell whether the driver owns the sink with these options, and note them if its claim was not noted.

    A query that is started again in the same process, with other options, claims the sink anew: each epoch has one note.
    """
    if head.owner != owner:
        return False
    same = are_noted(sink.storage, sink.state, head.epoch, _notable(sink))
    if same is None:
        note_options(sink.storage, sink.state, head.epoch, _notable(sink))
    return same is not False


def _notable(sink: Sink) -> dict[str, str]:
    """Return the options to note for a sink; a rebuilt sink keeps the stage of its note."""
    stage = sink.note.stage
    return {**sink.options.given, **({} if stage is None else {STAGE: stage.text})}


@lru_cache(maxsize=4)  # the same for each task of a sink
def _aside_parts(sink_id: str, recipients: tuple[str, ...]) -> AsideParts:
    """Return the place and the kind of a sink's files of what is set aside; they do not depend on the format of the output.

    They hold records, so they are encrypted like the output.
    """
    extension = file_extension(LINES_WRITTEN) + (EXTENSION if recipients else "")
    kind = Kind(LINES_WRITTEN.name, LINES_WRITTEN.compression, extension, "", recipients=recipients)
    return AsideParts(Destination(aside_bucket(sink_id)), kind, encoder(LINES_WRITTEN))


def _room(sink: Sink, origin: Origin, kind: Kind) -> Callable[[Destination], None]:
    return room(sink.root, sink.storage.bytes_below(sink.root), sink.rules, origin, kind)


def _fed(task: TaskWriter, some: pa.RecordBatch | bytes) -> int:
    """Give rows to a task; return how many there are."""
    if isinstance(some, bytes):
        return task.write_text(some)
    task.write(some)
    return int(some.num_rows)


def _stamped(task: TaskWriter, batch: int, time_ns: int, lines: pa.RecordBatch) -> None:
    """Have a task stage lines about what is set aside, stamped with the batch and its time."""
    task.set_aside(stamped(lines, batch, time_ns))
