"""Which batch a sink may take: the one after its last one, or its last one again. Pure: the sink reads and writes, this decides.

A sink keeps three facts about its last batch: the query, the number, and the fingerprint. Spark's checkpoint has the same facts about
the batch that it runs. If they agree, the batch is the next one, or it is the last one again, because Spark had not noted that it was
done. The failures, and how each is recognised:

1. *Deleted checkpoint.* The query begins anew, with a new id and batch 0. By numbers alone, all that the new query writes would be
   silently skipped as already written. Recognised by: another query.
2. *The sink was restored, emptied, or is another one.* Batches between its last one and this one are missing. Recognised by: the number
   is larger than the next one.
3. *The checkpoint was restored.* Its numbers were used before, and mean other rows now. Recognised by: the number is smaller than the
   last one.
4. *The checkpoint was restored, and Spark read on.* The number is the last one, with other offsets. Recognised by: another fingerprint.
   (If one side could not read the offset log there is no fingerprint, and the numbers must suffice.)
5. *Both were restored and read on, and then one of them was put back as it was before.* The number is the next one, and the last one is
   another batch in the checkpoint than in the sink: its rows would be missing, or there twice. Recognised by: another fingerprint of the
   batch before this one.

All five are `CheckpointMismatch`. A driver that stood still while another one continued sees failure 3, too: the caller, which knows
the checkpoint, tells the two apart (`query.writing`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NoReturn

from penstock.errors import CheckpointMismatch

if TYPE_CHECKING:
    from penstock.query.batch import Batch


class Standing(Enum):
    """The position of a batch relative to what a sink has: it is the last one there, again, or it follows that one."""

    APPLIED = "applied"
    NEXT = "next"


@dataclass(frozen=True)
class Last:
    """The last batch that a sink has; number -1 if it has none. `query` is the query that wrote it."""

    query: str
    number: int = -1
    fingerprint: str = ""


@dataclass(frozen=True)
class Nouns:
    """How messages name the things of a sink.

    `state` has the last batch, for example "the ledger of '/out'". `whole` is what must be copied and restored as one, for example "the
    output directory". `anew` is what a query that begins anew needs, for example "a new checkpoint and an empty directory". `remedy` is
    how another query can append its rows to those that are there.
    """

    state: str
    whole: str
    anew: str
    remedy: str = "take another sinkId"


def place(last: Last, batch: Batch, nouns: Nouns) -> Standing:
    """Return the position of `batch` relative to the last batch of a sink; `CheckpointMismatch` if the two contradict each other."""
    if last.number >= 0 and last.query != batch.query:
        _refuse_query(last, batch, nouns)
    if batch.number > last.number + 1:
        cause = f"{nouns.whole} was emptied, moved, put back from an older copy, or is another one"
        if last.number < 0:
            cause += "; or the query had another sinkId, which can be set again"
        _refuse_number(last, batch, nouns, cause)
    if batch.number < last.number:
        _refuse_number(last, batch, nouns, "the checkpoint was restored from an older copy, or is another one")
    is_next = batch.number > last.number
    planned = batch.follows if is_next else batch.fingerprint
    if last.number >= 0 and last.fingerprint and planned and last.fingerprint != planned:
        cause = "and Spark's offset log has other offsets for it: the checkpoint was restored from an older copy and read on"
        msg = f"{nouns.state} has batch {last.number} of query {batch.query}, {cause}; {_remedy(nouns)}"
        raise CheckpointMismatch(msg)
    return Standing.NEXT if is_next else Standing.APPLIED


def _refuse_query(last: Last, batch: Batch, nouns: Nouns) -> NoReturn:
    msg = (
        f"{nouns.state} was written by query {last.query} up to batch {last.number}, and this is query {batch.query}, batch "
        f"{batch.number}: its checkpoint was deleted, or is another one. Put the checkpoint back; or, if the rows of this "
        f"query are to come after those, {nouns.remedy}"
    )
    raise CheckpointMismatch(msg)


def _refuse_number(last: Last, batch: Batch, nouns: Nouns, cause: str) -> NoReturn:
    has = "has none of it" if last.number < 0 else f"ends with batch {last.number}"
    msg = f"batch {batch.number} of query {batch.query}, but {nouns.state} {has}: {cause}; {_remedy(nouns)}"
    raise CheckpointMismatch(msg)


def _remedy(nouns: Nouns) -> str:
    return f"restore both from the same time; or begin anew, with {nouns.anew}"
