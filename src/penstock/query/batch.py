"""Which batch of which query it is, and which task of it: values that travel, and are never written to disk as such."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Batch:
    """Which batch is being written: Spark's numbers, and a fingerprint of the offsets that define it (`""`: unknown).

    `final`: no batch follows, the query ends with this one. `read_until_ns`: with it all files are read that were modified before that,
    0 where nothing was read; `None` if that is not known of all sources. `plans` are the end offsets of those sources that are ours, in the
    process that has read the checkpoint, and of published files from where on (`before`) they go to where; they do not travel.
    """

    query: str
    number: int
    fingerprint: str = ""
    final: bool = False
    read_until_ns: int | None = None
    plans: tuple[Mapping[str, Any], ...] = field(default=(), compare=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the plans behind: each task would be sent all of them."""
        return {name: value for name, value in vars(self).items() if name != "plans"}


class Task(NamedTuple):
    """Which task of a batch it is: the query's id, the batch's number, the partition whose rows it has, and which attempt of it."""

    query: str
    batch: int
    partition: int
    attempt: int = 0
