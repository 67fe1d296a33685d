"""A decision carried out: its record put, what it names published, what is no longer needed forgotten.

The put is the commit, and may go wrong in ways that do not tell whether it was one: a reply is lost, somebody else was
faster, the process dies behind it. So whoever comes next publishes first what the last record names (failures 4, 6 and 7 of
`sink.sink`), and everything here may be done again.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from penstock import failpoints
from penstock.errors import AlreadyThere, DamagedState, NotThere, StorageError
from penstock.query import fence
from penstock.query.fence import Claim
from penstock.sink.publish import publish
from penstock.sink.segments import check_staged
from penstock.storage import names_at

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

    def check(self, head: State, claim: Claim) -> None:
        """Raise `Fenced` unless the sink is still as `claim` says; `DamagedState` where it is as it was before the claim."""
        if claim.epoch is not None and head.epoch < claim.epoch:
            self._gone(head)
        fence.check(self.name, _claim(head), claim)

    def carry_out(self, state: State) -> State:
        """Put a decision, which commits it, publish what it names, and forget what is no longer needed.

        Returns it with the names that its files have, see `renamed`.
        """
        look = self.put(state)
        published = self.publish(state, look) or state
        failpoints.hit("sink.forget")
        self.sweep(state, published=True)
        self.ledger.forget(look)
        return published

    def put(self, state: State) -> Look:
        """Put the record, or find out who was faster; return what is there now."""
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
        look = self.ledger.look()
        if not self.ledger.counts(state, look):
            self._fenced(self.ledger.head(), state.epoch)
        return look

    def _mine(self, state: State) -> bool:
        return state.n in self.ledger.numbers() and self.ledger.read(state.n).write == state.write

    def _fenced(self, head: State, epoch: int) -> NoReturn:
        raise fence.overtaken(self.name, _claim(head), Claim(epoch=epoch))

    def publish_owed(self, head: State, look: Look) -> State | None:
        """Publish what a record that was found names; it may never have become durable, and its files may have changed."""
        if not look.is_published(head):
            self.ledger.persist(head.n)
            for file in head.finished:
                check_staged(self.storage, self.staging, file)
        return self.publish(head, look)

    def publish(self, state: State, look: Look) -> State | None:
        """Publish what a record names; return it with the names that its files have.

        `None`: there is a newer one, and who put that has done it first, and swept; or it is done.
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
        """Say that this driver was overtaken, where that is why what record `base` names, or what it stages itself, is gone."""
        try:
            yield
        except (DamagedState, NotThere):
            head = self.ledger.head()
            if head.n == base:
                raise
            if head.n < base:
                self._gone(head)
            self._fenced(head, epoch)

    def _gone(self, head: State) -> NoReturn:
        """Raise what a ledger is that has gone back: nobody was faster."""
        now = f"ends with record {head.n}" if head.n else "is gone"
        msg = (
            f"the ledger of {self.name} {now}, which this driver has gone on from: the directory was removed, moved, or put back from an "
            "older copy while it ran; put it back as it was and start again, what this batch wrote is written anew"
        )
        raise DamagedState(msg)

    def sweep(self, head: State, *, published: bool) -> None:
        """Remove what `unnamed` yields."""
        for name in self.unnamed(head, published=published):
            self.storage.delete(f"{self.staging}/{name}")

    def unnamed(self, head: State, *, published: bool) -> Iterator[str]:
        """Yield staged files that no record can name any more: begun before the head, and not named by it.

        What a batch write that is under way has staged begins with the number of its claim, which the head has (see `keyed`).
        `published`: what the head names is visible, so that growing files need no staged bytes any more.
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
