"""The offset of a query over topics, in the form of Spark's own connector, and the ranges between two of them.

::

    {
      "orders": {"0": 23, "1": 40},
      "@penstock": {
        "v": 1, "ids": {"orders": "2gkNq4RqQ5qrCnZyGkKx1g"}, "from": {"orders": {"1": 12}}, "epochs": {"orders": {"0": 3, "1": 3}}
      }
    }

`orders` has the next offset of each partition. `@penstock`, which cannot be the name of a topic, is missing in offsets of Spark's
connector, and is optional:

- `ids` are the ids of topics (none if brokers have no ids).
- `from` is where the batch that ends here begins, for partitions where that is neither the offset before nor 0, and for every partition
  of a first batch.
- `epochs` are the epochs of the leaders that reported where the batch ends: everything before that offset was written in that epoch or
  an earlier one, so a record there with a later epoch is another record (none if brokers have no epochs, and in offsets of older
  versions).
- `unasked` has the next offset of each partition that was read and is no longer asked for: it goes on there if it is asked for again.
- `begin` marks the offset before the first batch, which Spark does not keep and asks for again at each start: the end of the first
  batch says in `from` where each partition began.
- `read` and `left`, for people and monitors: how many offsets were planned since the query began, and how many were left. `behind` is
  how many are left in each partition, for the hundred that have most.
- For an ingest, `zone` is the zone for times without one in its batch, and `sum` is a checksum of everything else, because Spark does
  not check its log: a changed digit would silently mean other records.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import xxhash

from penstock.errors import DamagedState
from penstock.query.records import canonical

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

VERSION = 1
OURS = "@penstock"
UNKNOWN_EPOCH = -1  # as brokers report it


class Partition(NamedTuple):
    """One partition of a topic."""

    topic: str
    number: int

    def __str__(self) -> str:
        """Return the name as in messages."""
        return f"{self.topic}-{self.number}"


class OffsetCounts(NamedTuple):
    """How many offsets were planned since a query began, how many are left, and how many in the partitions that have most left."""

    read: int
    left: int
    behind: Mapping[Partition, int] = {}


@dataclass(frozen=True)
class Range:
    """The offsets of a partition from `begin` up to `end`, of the topic with this id ("": unknown).

    Everything before `end` was written in `epoch` or before. `before` is the same for `begin`, if that was planned in an earlier epoch
    and has not been checked since.
    """

    partition: Partition
    begin: int
    end: int
    id: str = ""
    epoch: int = UNKNOWN_EPOCH
    before: int = UNKNOWN_EPOCH

    @property
    def offsets(self) -> int:
        """The number of offsets."""
        return self.end - self.begin

    def to_json(self) -> list[Any]:
        """Return the form in which it is carried to a task."""
        return [*self.partition, self.begin, self.end, self.id, self.epoch, self.before]

    def piece(self, begin: int, end: int) -> Range:
        """Return a part of it."""
        return replace(self, begin=begin, end=end, before=self.before if begin == self.begin else UNKNOWN_EPOCH)

    @staticmethod
    def from_json(form: list[Any]) -> Range:
        """Return the range of a form that was carried."""
        topic, number, *rest = form
        return Range(Partition(topic, number), *rest)


@dataclass(frozen=True)
class Positions:
    """An offset as values: the next offset of each partition, the ids of topics, and where its batch did not begin at the last end.

    `epochs` are the leaders' epochs when `next` was found; `begins` if this is the offset before the first batch. `unasked` are the next
    offsets of partitions that are no longer asked for. `zone` is for the times of an ingest, whose offsets are `sealed`: they have a sum.
    """

    next: Mapping[Partition, int]
    ids: Mapping[str, str] = field(default_factory=dict)
    begun: Mapping[Partition, int] = field(default_factory=dict)
    counts: OffsetCounts | None = None
    zone: str | None = None
    epochs: Mapping[Partition, int] = field(default_factory=dict)
    sealed: bool = False
    begins: bool = False
    unasked: Mapping[Partition, int] = field(default_factory=dict)

    @staticmethod
    def of(offset: Mapping[str, Any]) -> Positions:
        """Return the values of an offset, ours or that of Spark's connector. `DamagedState`."""
        try:
            own = offset.get(OURS, {"v": VERSION, "ids": {}, "from": {}})
            if own["v"] != VERSION:
                raise ValueError  # noqa: TRY301 - it is reported like everything else that is not an offset
            named = {topic: numbers for topic, numbers in offset.items() if topic != OURS}
            ids = {str(topic): str(name) for topic, name in own["ids"].items()}
            _check_sum(offset, own)
            counts = (
                OffsetCounts(int(own["read"]), int(own["left"]), _flat(own.get("behind", {})))
                if "read" in own
                else None
            )
            epochs = _flat(own.get("epochs", {}))
            begun, zone, sealed = _flat(own["from"]), own.get("zone"), "sum" in own
            begins, unasked = own.get("begin") is True, _flat(own.get("unasked", {}))
            return Positions(_flat(named), ids, begun, counts, zone, epochs, sealed, begins, unasked)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            msg = (
                f'the checkpoint has the offset {offset!r}, expected one such as {{"orders": {{"0": 23}}}} of version {VERSION}; '
                "restore it from a copy"
            )
            raise DamagedState(msg) from error

    def form(self) -> dict[str, Any]:
        """Return the offset, with its keys in a fixed order."""
        ids = {topic: name for topic, name in sorted(self.ids.items()) if name}
        own: dict[str, Any] = {"v": VERSION, "ids": ids, "from": _nested(self.begun)}
        if epochs := _nested({name: epoch for name, epoch in self.epochs.items() if epoch != UNKNOWN_EPOCH}):
            own["epochs"] = epochs
        if self.unasked:
            own["unasked"] = _nested(self.unasked)
        if self.begins:
            own["begin"] = True
        if self.counts is not None:
            own |= {"read": self.counts.read, "left": self.counts.left}
            own |= {"behind": _nested(self.counts.behind)} if self.counts.behind else {}
        if self.sealed:
            own["zone"] = self.zone
            own["sum"] = _sum({**_nested(self.next), OURS: own})
        return {**_nested(self.next), OURS: own}


def ranges(start: Mapping[str, Any], end: Mapping[str, Any], at_least: int | None = None) -> list[Range]:
    """Return the ranges between two offsets, from these alone, one for each partition; or `at_least` pieces if there are enough offsets."""
    before, after = Positions.of(start), Positions.of(end)
    whole = []
    for partition, upto in after.next.items():
        begin = after.begun.get(partition, before.next.get(partition, 0))
        if begin < upto:
            epoch, known = after.epochs.get(partition, UNKNOWN_EPOCH), _known_before(before, after, partition)
            name = after.ids.get(partition.topic, "")
            whole.append(Range(partition, begin, upto, name, epoch, UNKNOWN_EPOCH if known == epoch else known))
    if at_least is None or len(whole) >= at_least:
        return whole
    total = sum(each.offsets for each in whole)
    return [piece for each in whole for piece in _cut(each, round(at_least * each.offsets / total))]


def _known_before(before: Positions, after: Positions, partition: Partition) -> int:
    """Return the known epoch of the records before a range, if it continues in the same topic where the last range ended."""
    topic = partition.topic
    goes_on = partition not in after.begun and before.ids.get(topic) == after.ids.get(topic)
    return before.epochs.get(partition, UNKNOWN_EPOCH) if goes_on else UNKNOWN_EPOCH


def shared_out(pieces: Sequence[Range], tasks: int) -> list[list[Range]]:
    """Return the ranges shared out to `tasks` tasks, each with at most its part of all offsets; fewer tasks if there are fewer offsets."""
    total = sum(each.offsets for each in pieces)
    tasks = min(tasks, total)
    bounds = [total * number // tasks for number in range(1, tasks)] if tasks else []
    ends = list(accumulate(each.offsets for each in pieces))
    shares: list[list[Range]] = [[] for _ in range(tasks)]
    for piece, upto in zip(pieces, ends, strict=True):
        before = upto - piece.offsets
        cuts = [before, *(bound for bound in bounds if before < bound < upto), upto]
        for low, high in pairwise(cuts):
            begin = piece.begin + low - before
            shares[bisect_right(bounds, low)].append(piece.piece(begin, begin + high - low))
    return shares


def _cut(whole: Range, pieces: int) -> list[Range]:
    """Return a range in `pieces` pieces whose lengths differ by one at most; at least one piece, and no empty one."""
    size = whole.end - whole.begin
    pieces = max(1, min(pieces, size))
    bounds = [whole.begin + size * number // pieces for number in range(pieces + 1)]
    return [whole.piece(begin, end) for begin, end in pairwise(bounds)]


def _check_sum(offset: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Raise `ValueError` for an offset with a wrong sum."""
    if "sum" in own:
        rest = {name: value for name, value in own.items() if name != "sum"}
        if _sum({**offset, OURS: rest}) != own["sum"]:
            raise ValueError


def _sum(form: dict[str, Any]) -> str:
    return xxhash.xxh3_64_hexdigest(canonical(form))


def _flat(nested: Mapping[str, Mapping[str, Any]]) -> dict[Partition, int]:
    return {
        Partition(str(topic), int(number)): int(at) for topic, each in nested.items() for number, at in each.items()
    }


def _nested(flat: Mapping[Partition, int]) -> dict[str, dict[str, int]]:
    nested: dict[str, dict[str, int]] = {}
    for (topic, number), at in sorted(flat.items()):
        nested.setdefault(topic, {})[str(number)] = at
    return nested
