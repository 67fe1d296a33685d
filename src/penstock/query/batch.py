"""Identifies a batch of a query, and a task of a batch: values that travel, and are never written to disk as such."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Batch:
    """The batch that is being written: Spark's numbers, and a fingerprint of the offsets that define it (`""`: unknown).

    `final`: no batch follows, the query ends with this one. `read_until_ns`: once this batch is written, all files that were modified
    before this time are read; 0 if nothing was read, `None` if some source does not know. `plans` has the end offsets of our own
    sources, and for sources of published files the positions at which the batch begins (`before`) and ends. Only the process that has
    read the checkpoint has `plans`; they do not travel. `follows` is the fingerprint of the batch before it (`""`: unknown).
    """

    query: str
    number: int
    fingerprint: str = ""
    final: bool = False
    read_until_ns: int | None = None
    follows: str = field(default="", compare=False, repr=False)
    plans: tuple[Mapping[str, Any], ...] = field(default=(), compare=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the plans: otherwise all of them would be sent to each task."""
        return {name: value for name, value in vars(self).items() if name != "plans"}


class Task(NamedTuple):
    """A task of a batch: the query's id, the batch's number, the partition whose rows it has, and the number of its attempt."""

    query: str
    batch: int
    partition: int
    attempt: int = 0
