"""Batch writes: each has a key and counts once. First try and repetition take the same path as the batches of a stream.

Problem. A batch writer (`df.write`, a function of `foreachBatch`, a nightly job) may be killed at any step and repeats its write,
and Spark keeps nothing by which the second try could be recognised. Two writes may run at once, for the same key (the first was
thought dead) or for different keys (two jobs write to one output). A stream has one driver, batch numbers, and a checkpoint; a
batch write has none of these.

Idea. **The key is an owner of its own**: a *claim* to a key is to a batch write what a driver with its epoch is to a stream. A
write begins with a record that holds its claim under its key; the claim is the number of this very record. A driver that begins
the same key again replaces the claim. The names of files that are staged for a write begin with the number of its claim, so the
sweep leaves alone the files of a claim that holds. The record that commits a write removes its claim and adds its key (`keys`).
It is put after the present head, whichever that is: writes of other keys may have put records in between. So a driver that loses
the race for a number decides again after the new head. A write leaves no part open: the record that commits it finishes all its
files.

The failures, and the rule against each:

1. *The same key again.* The write was committed, and its driver died before it could say so. Rule: a key that the ledger has is
   not written again: nothing is staged, no record is put, and only what the last record still owes is published.
2. *Twins.* Two drivers write one key at once. Rule: the second claim replaces the first. A commit whose claim no longer holds is
   `Fenced`, unless the key is done by then: then its rows are there, and the commit is a repetition.
3. *Neighbours.* Drivers of two keys are between begin and commit; each puts records, and sweeps. Rule: a sweep leaves files whose
   names begin with the number of a claim that the head has. A driver that finds its number taken looks again, and decides again.
4. *Neighbours that publish.* One driver publishes the record that the other has just put and is also publishing. A consumer takes
   a file away before the record is noted as published. Rule: a driver that misses a file checks whether the record is noted as
   published by now.
5. *A claim that nobody will use.* A driver was killed, and its key is never tried again. Rule: the claim stays until `penstock
   finish`; it costs a line in the record and the staged files. It is never dropped by age, because a driver may stall for any
   length of time.
6. *A lost reply, a record seen and not durable, half a put.* As for streams; see `sink`, failures 4, 7 and 8. Only temporary
   files of the ledger are removed, because a neighbour may be noting its options.
7. *A stream in the ledger of batch writes, or the reverse.* Their rules of who may commit differ. Rule: the owner in the head
   shows which kind of ledger it is, and the other kind is refused.
"""

from __future__ import annotations

import logging
import os
import socket
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock import clock, failpoints, unique
from penstock.errors import CommitError, Fenced, OptionError, PublishConflict
from penstock.formats.account import Account
from penstock.formats.aside import Aside
from penstock.sink.batch import DRIVER, Begun, Committed, TaskResult
from penstock.sink.decide import successor
from penstock.sink.existing import note_options
from penstock.sink.keys import KeyTables
from penstock.sink.openparts import OpenParts
from penstock.sink.sink import KEYED, STATE_DIRECTORY, Sink
from penstock.storage import check_fit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from penstock.sink.batches import Conversion
    from penstock.sink.ledger import Look, State

_log = logging.getLogger("penstock.sink")
ONCE = "\0"  # first character of the key that a write without a key claims; such a key is not kept
_TRIES = 1000  # tries of a put; each fails only because another driver has put a record
_LOOKS = 50
_LOOK_SECONDS = 0.1


class KeyedSink:
    """The batch writes of one sink. Picklable; holds no state: all state is in the ledger."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.keys = KeyTables(sink.storage, sink.staging)

    def begin(self, key: str, driver: str) -> Begun:
        """Claim the key, unless its write is done; return what tasks must know.

        Raises `OptionError` if the ledger belongs to a query, `DamagedState`, `PublishConflict`, `CommitError`.
        """
        sink = self.sink
        recipients = sink.cipher.recipients()
        for _ in range(_TRIES):
            look, head = self._looked()
            done = self.keys.has(head, key)
            if not done:
                claimed = self._claim(head, look, key, driver)
                if claimed is None:
                    continue
                head = claimed
            token, now = unique.token(), clock.now_ns()
            known = {key: 0} if done else {}
            return Begun(
                token, head.n, head.epoch, now, head.ratio, known, OpenParts(), final=True, recipients=recipients
            )
        raise _busy(sink)

    def _claim(self, head: State, look: Look, key: str, driver: str) -> State | None:
        """Put a claim to the key after `head`; `None` if another driver was faster."""
        sink = self.sink
        check_fit(sink.storage, f"{sink.root}/{STATE_DIRECTORY}")
        ledger = f"{sink.state}/ledger"
        for directory in (sink.state, sink.staging, ledger):
            sink.storage.make_directory(directory, private=True)
        left = [f"{directory}/{name}" for directory, name in sink.temporaries() if directory == ledger]
        claims = {**head.writing, key: (head.n + 1, driver)}
        claimed = successor(
            head, epoch=head.epoch + 1, owner=KEYED, write=unique.token(), time_ns=clock.now_ns(), writing=claims
        )
        try:
            look = sink.committer.put(claimed)
        except Fenced:
            return None
        note_options(sink.storage, sink.state, claimed.epoch, sink.options.given)
        sink.committer.sweep(claimed, published=look.is_published(claimed))
        for path in left:
            sink.storage.delete(path)
        return claimed

    def commit(self, key: str, begun: Begun, results: Sequence[TaskResult]) -> Committed:
        """Decide the write and publish its files. `repeated`: the write was done before, by this driver or another one.

        Raises `Fenced` if another driver has claimed the key in the meantime; then this call has changed nothing.
        """
        failpoints.hit("sink.keyed.commit")
        for _ in range(_TRIES):
            _, head = self._looked()
            if self.keys.has(head, key):
                self.sink.ledger.persist(head.n)
                return Committed(0, repeated=True)
            if begun.has(key, 0):
                msg = (
                    f"batchKey={key!r} was done when this write began and is not in the ledger any more: that was put back from a copy; "
                    "write the batch again"
                )
                raise CommitError(msg)
            self._check_claim(head, key, begun)
            try:
                state = self._decided(head, key, begun, results)
                failpoints.hit("sink.keyed.decided")
                state = self._carry_out(state)
            except Fenced:  # the next look shows by whom
                continue
            return Committed(0, sum(result.rows for result in results), state.finished)
        raise _busy(self.sink)

    def _carry_out(self, state: State) -> State:
        try:
            return self.sink.committer.carry_out(state)
        except PublishConflict:
            self._published_by_another(state.n)
            return state

    def _decided(self, head: State, key: str, begun: Begun, results: Sequence[TaskResult]) -> State:
        template = begun.write, begun.base, head.epoch, begun.time_ns, begun.final
        now = [replace(result, epoch=head.epoch) for result in results] or [TaskResult(*template, DRIVER)]
        state = self.sink.decided(head, None, now, base=begun.base)
        claims = {other: claim for other, claim in head.writing.items() if other != key}
        written = head.written if key.startswith(ONCE) else self.keys.with_key(head, key)
        return self.keys.in_record(replace(state, writing=claims, written=written), 0)

    def _check_claim(self, head: State, key: str, begun: Begun) -> None:
        base, driver = head.writing.get(key, (0, ""))
        if base != begun.base:
            since = f"was claimed by {driver!r} since" if driver else "was given up since (penstock finish)"
            msg = (
                f"batchKey={key!r} {since}: this write has changed nothing; let it begin again, and it is written once"
            )
            raise Fenced(msg)

    def release(self, key: str, begun: Begun) -> None:
        """Give up the claim of a failed write, if it still holds, and remove what was staged for it."""
        for _ in range(_TRIES):
            look = self.sink.ledger.look()
            head = self.sink.ledger.head(look)
            if head.writing.get(key, (0, ""))[0] != begun.base:
                return
            self._publish_owed(head, look)
            claims = {other: claim for other, claim in head.writing.items() if other != key}
            state = successor(head, write=unique.token(), time_ns=clock.now_ns(), writing=claims)
            try:
                self.sink.committer.carry_out(state)
            except Fenced:
                continue
            return

    def _looked(self) -> tuple[Look, State]:
        """Return a look at the ledger and its head, after publishing what the head names."""
        look = self.sink.ledger.look()
        head = self.sink.ledger.head(look)
        if head.n and head.owner != KEYED:
            msg = (
                f"sinkId={self.sink.sink_id!r} in {self.sink.root!r} belongs to a query; a batch write needs a separate ledger: "
                "leave sinkId out, or take another one"
            )
            raise OptionError(msg)
        self._publish_owed(head, look)
        return look, head

    def _publish_owed(self, head: State, look: Look) -> None:
        """Publish what the head names, unless another driver does it at the same time (failure 4)."""
        try:
            self.sink.committer.publish_owed(head, look)
        except PublishConflict:
            self._published_by_another(head.n)

    def _published_by_another(self, n: int) -> None:
        """Wait until another driver has published record `n`; raise the conflict that is being handled if none does."""
        for _ in range(_LOOKS):
            look = self.sink.ledger.look()
            if n in look.notes or max(look.numbers, default=0) > n:
                return
            clock.sleep(_LOOK_SECONDS)
        raise  # noqa: PLE0704 - called where it is handled


def _busy(sink: Sink) -> CommitError:
    return CommitError(f"{sink.state!r} changes faster than it can be decided; run the same command again")


class KeyedBatch:
    """One batch of rows of one schema, written once, with the methods that Spark calls on its driver and in its tasks. Picklable.

    `converts` makes rows of what Spark hands to a task. Without a `key` the write claims a unique one, which is not kept.
    """

    def __init__(self, sink: Sink, schema: pa.Schema, converts: Conversion, key: str | None) -> None:
        self.keyed = KeyedSink(sink)
        self.key = key
        self._schema = schema
        self._converts = converts
        self._claim = key if key is not None else f"{ONCE}{unique.token()}"

    def check(self) -> None:
        """Raise `UsageError` unless rows of this schema can be written as the options say."""
        self.keyed.sink.check(self._schema)

    def begin(self) -> Begun:
        """Claim the key, on the driver. If its write is done, nothing is written, and a warning says so."""
        begun = self.keyed.begin(self._claim, f"{socket.gethostname()}:{os.getpid()}")
        if begun.has(self._claim, 0):
            self._say_done()
        return begun

    def write(self, begun: Begun, partition: int, attempt: int, rows: Iterator[pa.RecordBatch]) -> TaskResult | None:
        """Stage a task's rows; if the write is done, read and stage nothing."""
        if begun.has(self._claim, 0):
            return None
        account, aside = Account(), Aside(restarts=True)
        given = self._converts(rows, account, aside)
        names = self._claim, 0, partition
        return self.keyed.sink.write(begun, *names, self._schema, given, account, aside=aside, attempt=attempt)

    def commit(self, begun: Begun, results: Sequence[TaskResult]) -> Committed:
        """Commit the batch, on the driver."""
        done = self.keyed.commit(self._claim, begun, results)
        if done.repeated and not begun.has(self._claim, 0):
            self._say_done()
        return done

    def abort(self, begun: Begun) -> None:
        """Give up the claim; what was staged for it is swept."""
        if not begun.has(self._claim, 0):
            self.keyed.release(self._claim, begun)

    def _say_done(self) -> None:
        _log.warning("batchKey=%r is in %r already: nothing is written", self.key, self.keyed.sink.root)
