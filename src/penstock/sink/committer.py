"""Carries out a decision: puts its record, publishes the files that the record names, and forgets what is no longer needed.

The put is the commit. It may fail in ways that do not show whether it was done: a reply is lost, another driver was faster, or
the process dies after it. So every driver first publishes what the last record names before it decides anything (failures 4, 6
and 7 of `sink.sink`), and every step here may be repeated.
"""

from __future__ import annotations

import re
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from penstock import failpoints, unique
from penstock.errors import AlreadyThere, DamagedState, NotThere, StorageError
from penstock.query import fence
from penstock.query.fence import Claim
from penstock.sink.publish import publish
from penstock.sink.segments import check_staged
from penstock.storage import TEMPORARY, entry_at, names_at, try_move

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.sink.ledger import Ledger, Look, State
    from penstock.storage import Storage

_STAGED = re.compile(r"(\d{12})-.*\.(part|pack)")


@dataclass(frozen=True)
class Committer:
    """Puts and publishes the records of one sink, which messages call `name`, in the output `root` with its `staging` files."""

    name: str
    storage: Storage
    root: str
    staging: str
    ledger: Ledger

    def check_linked(self) -> None:
        """Raise `StorageError` if the staged files are behind a link, and cannot be moved from there to the output.

        Otherwise the first batch would show that, when it is committed and cannot be published.
        """
        output, staging = (self.storage.resolve(path).rstrip("/") for path in (self.root, self.staging))
        if staging.startswith(f"{output}/"):
            return
        trial = f"{self.staging}/{TEMPORARY}{unique.token()}"
        with self.storage.create(trial) as file:
            file.sync()
        try:
            try_move(self.storage, trial, self.root)
        except StorageError as error:
            msg = (
                f"{self.staging!r} leads to {staging!r}, from where files cannot be moved to {self.root!r} ({error.message}); expected a "
                "directory on the file system of the output: put it in place of the link, with all that is in it, and start again"
            )
            raise StorageError(msg) from error

    def check(self, head: State, claim: Claim) -> None:
        """Raise `Fenced` unless the sink still belongs to `claim`; `DamagedState` if the ledger is older than the claim."""
        if claim.epoch is not None and head.epoch < claim.epoch:
            self._gone(head)
        fence.check(self.name, _claim(head), claim)

    def carry_out(self, state: State) -> State:
        """Put a decision, which commits it, publish what it names, and forget what is no longer needed.

        Returns the decision with the names that its files really have (see `renamed`).
        """
        look = self.put(state)
        published = self.publish(state, look) or state
        failpoints.hit("sink.forget")
        self.sweep(state, published=True)
        self.ledger.forget(look)
        return published

    def put(self, state: State) -> Look:
        """Put the record and return a look at the ledger after it; raise `Fenced` if another driver was faster."""
        try:
            self.ledger.put(state)
        except AlreadyThere:
            if not self._mine(state):
                self._fenced(self.ledger.head(), state.epoch)
            self.ledger.persist(state.n)
        except StorageError:
            if not self._mine(state):
                head = self.ledger.head()
                if head.n >= state.n:  # the driver that took the number has also removed the temporary file
                    self._fenced(head, state.epoch)
                raise
            self.ledger.persist(state.n)
        look = self.ledger.look()
        if not self.ledger.counts(state, look):
            self._fenced(self.ledger.head(), state.epoch)
        return look

    def _mine(self, state: State) -> bool:
        return state.n in self.ledger.numbers() and self.ledger.read(state.n).write == state.write

    def _fenced(self, head: State, epoch: int) -> NoReturn:
        raise fence.overtaken(self.name, _claim(head), Claim(epoch=epoch))

    def publish_owed(self, head: State, look: Look) -> State | None:
        """Publish what the record names that this driver found.

        The record may not be durable yet, and its staged files may have changed, so this checks both first.
        """
        if not look.is_published(head):
            self.ledger.persist(head.n)
            for file in head.finished:
                check_staged(self.storage, self.staging, file)
        return self.publish(head, look)

    def publish(self, state: State, look: Look) -> State | None:
        """Publish what a record names; return it with the names that its files really have.

        `None`: it was published before, or there is a newer record. The driver that put the newer one has published this one
        first, and swept.
        """
        if look.is_published(state):
            return None
        try:
            return publish(self.storage, self.root, self.staging, self.ledger, state)
        except DamagedState:
            if self.ledger.head().n == state.n:
                raise
            return None

    @contextmanager
    def reading_of(self, base: int, epoch: int) -> Iterator[None]:
        """Raise `Fenced` in place of an error about missing files if they are missing because another driver has overtaken this one.

        The files are those that record `base` names, or that this driver has staged. On HDFS also one that it still writes may be
        gone, and then the next call for it fails: whatever fails is `Fenced` if a later epoch has begun.
        """
        try:
            yield
        except (DamagedState, StorageError) as error:
            if not isinstance(error, DamagedState | NotThere):
                self._check_epoch(epoch)
                raise
            head = self.ledger.head()
            if head.n == base:
                self._check_staging(head, error)
                raise
            if head.n < base:
                self._gone(head)
            self._fenced(head, epoch)

    def _check_staging(self, head: State, error: Exception) -> None:
        """Raise an error in place of `error` if the directory of staged files is gone, as the cause of it.

        If the head names nothing in it, the directory is made again, and the batch can be written again: `NotThere`. Otherwise rows are
        lost that were committed: `DamagedState`.
        """
        if entry_at(self.storage, self.staging) is not None:
            return
        if head.open.rows:
            msg = (
                f"{self.staging!r} is gone, the ledger has {head.open.rows} rows in it that no reader sees yet; put it back from a copy "
                "and start again; without a copy begin anew, with a new checkpoint and an empty directory, and an input that still has "
                "these rows"
            )
            raise DamagedState(msg) from error
        self.storage.make_directory(self.staging, private=True)
        msg = (
            f"{self.staging!r} was removed while the query ran; it had no rows that are committed, and is there again: start again, and "
            "this batch is written again"
        )
        raise NotThere(msg) from error

    def _check_epoch(self, epoch: int) -> None:
        """Raise `Fenced` if a later epoch has begun, as far as the ledger can be read."""
        with suppress(DamagedState, StorageError):
            head = self.ledger.head()
            if head.epoch > epoch:
                self._fenced(head, epoch)

    def _gone(self, head: State) -> NoReturn:
        """Raise `DamagedState`: the ledger is older than it was before, and no other driver was faster."""
        now = f"ends with record {head.n}" if head.n else "is gone"
        msg = (
            f"the ledger of {self.name} {now}, but this driver continued from a later record: the directory was removed, moved, or "
            "restored from an older copy while it ran; put it back as it was and start again: this batch is then written again"
        )
        raise DamagedState(msg)

    def sweep(self, head: State, *, published: bool) -> None:
        """Delete the staged files that `unnamed` yields."""
        for name in self.unnamed(head, published=published):
            self.storage.delete(f"{self.staging}/{name}")

    def unnamed(self, head: State, *, published: bool) -> Iterator[str]:
        """Yield staged files that no record can name any more: they were begun before the head, and the head does not name them.

        The staged files of a batch write that is under way begin with the number of its claim, which the head holds (see
        `keyed`), so they stay. `published`: what the head names is visible, so growing files no longer need staged bytes.
        """
        named = {*head.open.files, *(file.staged for file in head.finished)}
        named |= {table.file for table in (*head.tables, *head.written_tables)}
        if not published:
            named |= {s.file for growth in head.grown for s in growth.segments}
        for name in names_at(self.storage, self.staging):
            match = _STAGED.fullmatch(name)
            if match and name not in named and not head.may_name(int(match[1])):
                yield name


def _claim(head: State) -> Claim:
    return Claim(head.owner, head.epoch)
