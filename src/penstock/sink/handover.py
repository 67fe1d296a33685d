"""Takes over what the ingest of another ledger reads: ends the driver of that ledger, by a record in it.

Two ingests under two checkpoints have two ledgers, and the put of a record decides only in its own ledger. So an ingest that is
about to read what another one reads puts a record into the ledger of the other: the next one, with the next epoch. If that put
succeeds, the other driver can no longer commit, whether it lives or not: its next record has a number that is taken, and its
epoch is over (`Fenced`). If the put fails, the other one has put a record, and this one looks again. `ingestion.oneinput` has the
failures that this is made for, and says when it is done.

The record decides nothing else. What the ledger has committed stays, and its open parts stay open: the keys of their staged bytes
may be with their own ingest alone. That ingest publishes them when it is started again, or `penstock finish` does.

If the ledger has batches, its records name the query that has taken over (`State.taken_by`) until its own query has taken back
what it reads. A ledger without batches needs no such name, because a query without a batch in the ledger asks in any case.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock import unique
from penstock.sink.decide import successor

if TYPE_CHECKING:
    from penstock.sink.ledger import Look, State
    from penstock.sink.sink import Sink

_OWNER = "taken:"


def take(sink: Sink, head: State, look: Look, query: str) -> None:
    """End the driver that has this sink, in favour of the ingest `query`, which has another ledger.

    First publishes what `head`, the last record as of `look`, still owes. Raises `Fenced` if there is a newer record by now.
    """
    sink.committer.publish_owed(head, look)
    taken = {"taken_by": query} if head.batches else {}
    after = successor(head, epoch=head.epoch + 1, owner=f"{_OWNER}{query}", write=unique.token(), **taken)
    sink.committer.put(after)  # the next claim sweeps what that driver's tasks have staged


def take_back(sink: Sink, head: State) -> None:
    """Note in its own ledger that a query has what it reads again. Raises `Fenced` if `head` is not the last record any more."""
    sink.committer.put(successor(head, write=unique.token(), taken_by=""))


def is_taken(head: State) -> bool:
    """Tell whether the last record is that of a `take`: no driver has claimed the sink since."""
    return head.owner.startswith(_OWNER)


def taker(head: State) -> str:
    """Return the query that has taken over what this ledger's query reads; `""` if none has."""
    return head.owner.removeprefix(_OWNER) if is_taken(head) else head.taken_by
