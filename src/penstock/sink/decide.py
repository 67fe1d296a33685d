"""Decides what the next record says, as a function of the last record and of what the tasks have reported.

There is no I/O here, no clock and no randomness, so a decision can be tested by itself, and taken again with the same outcome.
The `Sink` around it reads the last record, prepares what the decision needs (it assembles the parts that are `due`, and finds out
which names are taken), asks for the decision, and puts it. A batch, a roll between two batches and the end of a query are decided
by the same rules; the last two belong to no batch and have no rows.

    parts that are open in the last record,        consumed by a task ----> gone: they live on in what that task reports
    and those that the tasks leave open            due                ----> assembled by the driver, and closed
                                                   all others         ----> open in the next record
    parts that are closed, by tasks and driver                        ----> finished files, each with a name of its own

**Every row is accounted for**: each row that was in an open part before, or is written now, is afterwards in an open part, in a
finished file, or in a growing file. If the numbers do not add up, there is no decision but an error.

The work is linear in what was reported and in the number of open parts; of most open parts only the age is looked at.
"""

from __future__ import annotations

import base64
import unicodedata
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.errors import CommitError
from penstock.formats.account import Account
from penstock.formats.aside import Tally
from penstock.sink.ledger import FinishedFile, Growth, is_aside
from penstock.sink.names import NameTemplate

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from penstock.query.batch import Batch
    from penstock.sink.batch import ClosedPart, TaskResult
    from penstock.sink.ledger import Destination, Kind, OpenPart, State
    from penstock.sink.openparts import Key, OpenParts
    from penstock.sink.ready import Announced, Ready
    from penstock.sink.rolling import Limits


_Part = TypeVar("_Part", "OpenPart", "ClosedPart")
# People and `penstock retry` read what is set aside, so its files are named in one way, whatever the `fileName` of the
# output.
ASIDE_NAMES = NameTemplate("aside-{sink}-{writer}-{seq}", "UTC")


@dataclass(frozen=True)
class Rules:
    """The options of a sink that decisions depend on. `growing`: files of rows are not closed, they grow.

    `announced` is `partitionReady`; `aside` is the user's directory for files of what is set aside.
    """

    sink: str
    limits: Limits
    names: NameTemplate
    growing: bool = False
    announced: Announced | None = None
    aside: str = ""

    def path(self, place: Destination, kind: Kind, **numbers: object) -> str:
        """Return the path of a file of this place and kind, below the output; `numbers` are the values of the name's fields."""
        name = self._names_of(place).render(kind.extension, sink=self.sink, **numbers)
        return f"{place.bucket}/{name}" if place.bucket else name

    def tells_writer(self, place: Destination) -> bool:
        """Tell whether the names of this place's files say which writer they come from."""
        return self._names_of(place).tells("writer")

    def _names_of(self, place: Destination) -> NameTemplate:
        return ASIDE_NAMES if is_aside(place.bucket) else self.names.of_part(place.name)


def due(head: State, batch: Batch | None, results: Sequence[TaskResult], rules: Rules) -> list[OpenPart]:
    """Return the parts that end with this decision and that no task has closed; the driver has to assemble them first.

    `results` come from the tasks. There is at least one: the driver's own if no task has written. Without `batch` the decision is
    a roll, or, if the results are final, the end of the query.
    """
    return _parted(head, batch, results, rules).ending


def decide(
    head: State,
    batch: Batch | None,
    results: Sequence[TaskResult],
    rules: Rules,
    *,
    owner: str | None = None,
    taken: AbstractSet[str] = frozenset(),
    lengths: Mapping[str, int] | None = None,
) -> State:
    """Return the record that follows `head`.

    `results` are those that `due` was given, followed by the driver's result for the parts that were due. `owner` takes the sink
    over. `taken` are paths below the output that no file may get. `lengths` are the lengths of all growing files, if the record
    does not hold them all. May be called any number of times.

    Raises `CommitError` if the record would lose or double rows.
    """
    common = _summed(head, batch, results) | {"owner": head.owner if owner is None else owner}
    growths, lengths = _growths(head, results, rules, lengths) if _grows(batch, rules) else ((), head.lengths)
    left = _parted(head, batch, results, rules).left(head)
    common["ready"] = _settled(head, batch, results, left, rules)
    closed = [part for result in results for part in result.closed]
    _check_rows(head, results, sum(growth.rows for growth in growths) + left.rows + _rows(closed))
    numbers = _numbers_now(head, rules) if results[0].ends else {}
    promised = {key: numbers[key] for key in results[0].ends if key in numbers}
    files, floor, sequences = _named(head, closed, left, _Numbering(head, rules, taken, promised))
    common["aside"] = common["aside"].finished([file.bytes for file in files if file.is_aside])
    numbering = {"floor": floor, "sequences": sequences, "ratio": _ratio(head.ratio, closed)}
    return successor(head, open=left, finished=files, grown=growths, lengths=lengths, **numbering, **common)


def _summed(head: State, batch: Batch | None, results: Sequence[TaskResult]) -> dict[str, Any]:
    """Return the fields of the record that are copied from the first result, or that are sums over all results."""
    first = results[0]
    return {
        "epoch": first.epoch,
        "write": first.write,
        "time_ns": first.time_ns,
        "batches": head.batches | ({batch.query: (batch.number, batch.fingerprint)} if batch else {}),
        "total_rows": head.total_rows + sum(result.rows for result in results),
        "account": head.account.followed_by(reduce(Account.beside, (result.account for result in results))),
        "aside": reduce(Tally.plus, (result.aside for result in results), head.aside),
    }


def names_now(head: State, rules: Rules) -> dict[Key, str]:
    """Return the paths, below the output, that the files of all open parts would get if the parts ended now, in the order of their numbers.

    `penstock finish` gives a file this path, whether it finishes one part or all, unless the name is taken or small parts become
    one file.
    """
    parts = {part.key: part for part in head.open}
    return {key: _path(parts[key], number, rules) for key, number in _numbers_now(head, rules).items()}


def _numbers_now(head: State, rules: Rules) -> dict[Key, int]:
    """Return the number that each open part would get if all ended now, in the order in which the numbers are given."""
    numbering = _Numbering(head, rules)
    return {part.key: numbering.give(part)[1] for part in _in_order(sorted(head.open, key=lambda part: part.key))}


def parts_named(head: State, name: str, rules: Rules) -> tuple[OpenPart, ...]:
    """Return the open parts that a name means: their bucket (`.` for no bucket), or the path that a part's file would get now."""
    name, names = name.rstrip("/"), names_now(head, rules)
    return tuple(part for part in head.open if name in {part.bucket or ".", names[part.key]})


def successor(head: State, **changes: Any) -> State:  # noqa: ANN401 - fields of State
    """Return the record that follows `head`: with the next number, parent and totals, and otherwise only `changes` different."""
    finished = changes.get("finished", ())
    following: dict[str, Any] = {
        "n": head.n + 1,
        "parent": head.write,
        "finished": (),
        "grown": (),
        "ready": head.ready.quiet(),
        "total_files": head.total_files + len(finished),
        "total_bytes": head.total_bytes + sum(file.bytes for file in finished),
    }
    return replace(head, **(following | changes))


def groups(parts: Iterable[OpenPart], limits: Limits) -> Iterator[OpenPart]:
    """Yield the parts to assemble: neighbours of the same place and kind are merged into one while they stay within the limits."""
    group: _Neighbours | None = None
    for part in sorted(parts, key=lambda part: (part.place, part.kind.schema, part.writer)):
        if group is None:
            group = _Neighbours(part)
        elif not group.take(part, limits):
            yield group.merged()
            group = _Neighbours(part)
    if group is not None:
        yield group.merged()


class _Neighbours:
    """Parts that are assembled as one part, with the sum of their bytes (including one header) and of their rows."""

    def __init__(self, first: OpenPart) -> None:
        self._parts = [first]
        self._size = len(first.kind.header_bytes) + first.size  # bytes before encryption
        self._rows = first.rows

    def take(self, part: OpenPart, limits: Limits) -> bool:
        """Take the part if it has the place and kind of the others and fits; tell whether it was taken."""
        first = self._parts[0]
        if (first.place, first.kind) != (part.place, part.kind):
            return False
        size, rows = self._size + part.size, self._rows + part.rows
        if size > first.kind.room(limits.size) or (limits.rows is not None and rows > limits.rows):
            return False
        self._parts.append(part)
        self._size, self._rows = size, rows
        return True

    def merged(self) -> OpenPart:
        """Return the merged part.

        Its host, time and first batch are those of the part that was opened first, so its name shows one opening.
        """
        return replace(
            min(self._parts, key=lambda part: (part.first_batch, part.opened_ns)),
            segments=tuple(segment for part in self._parts for segment in part.segments),
            last_batch=max(part.last_batch for part in self._parts),
        )


@dataclass
class _Parted:
    """What becomes of the parts.

    `gone` are the record's parts that end or continue in a task's parts. `ending` are the parts that end now. `reported` are the
    tasks' parts that stay open. All other parts of the record stay open unchanged.
    """

    gone: set[Key]
    ending: list[OpenPart]
    reported: list[OpenPart]

    def left(self, head: State) -> OpenParts:
        """Return the parts that stay open, in the order of the record, and new ones after them."""
        return head.open.changed(self.gone, self.reported)


def _parted(head: State, batch: Batch | None, results: Sequence[TaskResult], rules: Rules) -> _Parted:
    """Separate the parts that end, by their batch, kind or age, from those that stay open."""
    first = results[0]
    consumed = {(*place, result.writer) for result in results for place in result.consumed}
    reported = _reported(results, grows=_grows(batch, rules))
    # If the record's part of such a key was not consumed, it is of another kind, or its time is up.
    continued = {part.key for part in reported}
    seen, parted = _seen(head, batch, results, rules), _Parted(consumed, [], [])
    expired = rules.limits.expiring(first.time_ns)
    for key, part in head.open.items():
        if key not in consumed and (
            expired(part) or key in continued or _ends_now(key, part, batch, first, rules, seen)
        ):
            parted.ending.append(part)
    parted.gone = consumed | {part.key for part in parted.ending}
    for part in reported:
        ends = _ends_now(part.key, part, batch, first, rules, seen)
        (parted.ending if ends else parted.reported).append(part)
    return parted


def _reported(results: Sequence[TaskResult], *, grows: bool) -> list[OpenPart]:
    """Return the parts that tasks leave open. Where files grow, only what is set aside is kept in parts."""
    return [part for result in results for part in result.open if part.is_aside or not grows]


def _settled(
    head: State, batch: Batch | None, results: Sequence[TaskResult], left: Iterable[OpenPart], rules: Rules
) -> Ready:
    """Return what the record says about buckets of time if these parts stay open."""
    return _seen(head, batch, results, rules).settled(
        (part.bucket for part in left), rules.announced, results[0].time_ns // 1000
    )


def _seen(head: State, batch: Batch | None, results: Sequence[TaskResult], rules: Rules) -> Ready:
    """Return what is known about buckets of time after the tasks have reported."""
    until_ns = batch.read_until_ns if batch else None
    # A file that was modified at this very time may not have been read yet.
    cursor_us = min(until_ns, results[0].time_ns) // 1000 - 1 if until_ns else None
    return head.ready.seeing((result.progress for result in results), rules.announced, cursor_us)


def _grows(batch: Batch | None, rules: Rules) -> bool:
    """Tell whether rows that the tasks leave open go into growing files. A roll and the end of a query close parts in any case."""
    return rules.growing and batch is not None


def _ends_now(key: Key, part: OpenPart, batch: Batch | None, first: TaskResult, rules: Rules, seen: Ready) -> bool:
    """Tell whether a part ends with this decision for another reason than its age."""
    if first.final or key in first.ends or seen.ends(part.bucket, rules.announced, first.time_ns // 1000):
        return True
    return batch is not None and rules.limits.ends_with(part.first_batch, batch.number)


def _growths(
    head: State, results: Sequence[TaskResult], rules: Rules, all_lengths: Mapping[str, int] | None
) -> tuple[tuple[Growth, ...], dict[str, int]]:
    """Return what each growing file gains, in the order of the writers, and the record's lengths after that.

    Parts are grouped by the path of their file, because different column values could give the same name.
    """
    gains: dict[str, list[OpenPart]] = {}
    reported = (part for result in results for part in result.open if not part.is_aside)
    for part in sorted(reported, key=lambda part: part.key):
        gains.setdefault(rules.path(part.place, part.kind), []).append(part)
    lengths = dict(head.lengths)
    before_all = head.lengths if all_lengths is None else all_lengths
    growths = []
    for path, parts in gains.items():
        before = before_all.get(path, 0)
        header = b"" if before else parts[0].kind.header_bytes
        segments = tuple(segment for part in parts for segment in part.segments)
        lengths[path] = before + len(header) + sum(segment.size for segment in segments)
        begins = base64.b64encode(header).decode()
        growths.append(Growth(path, before, lengths[path], _rows(parts), segments, begins))
    return tuple(growths), lengths


def _named(
    head: State, closed: list[ClosedPart], left: OpenParts, numbering: _Numbering
) -> tuple[tuple[FinishedFile, ...], int, dict[str, int]]:
    """Give each closed part a unique name; return the files, and the floor and sequences for the next record."""
    files = []
    for part in _in_order(closed):
        place = numbering.rules.aside if is_aside(part.bucket) else ""
        origin_of = part.first_batch, part.last_batch, part.staged, place
        path, _ = numbering.give(part)
        files.append(FinishedFile(path, part.bucket, part.rows, part.bytes, part.digest, *origin_of, part.name))
    sequences, writers = numbering.sequences, {str(part.writer) for part in left}
    floor = max([head.floor, *(number for writer, number in sequences.items() if writer not in writers)])
    if floor > head.floor:  # for other writers: those with open parts keep the numbers that `names_now` has shown
        sequences = dict.fromkeys(writers, head.floor) | sequences
    return tuple(files), floor, {writer: n for writer, n in sequences.items() if writer in writers}


def _in_order(parts: Iterable[_Part]) -> list[_Part]:
    """Return parts in the order in which they are numbered."""
    return sorted(parts, key=lambda part: (part.bucket, part.writer, part.first_batch))


class _Numbering:
    """Numbers the files of the next record. Each writer counts its files one by one, and no file gets a name that is `taken`.

    If a template leaves the writer out, all writers count together: a number that one of them used does not come back with
    another, though its file may have been taken away. `_begun` has the next number for names that differ in nothing else. If a user
    ends a part by its name, the part gets the number that this name has `promised`.

    Names that differ only in case, or in how an accent is composed, count as one: some file systems take them for one.
    """

    def __init__(
        self,
        head: State,
        rules: Rules,
        taken: AbstractSet[str] = frozenset(),
        promised: Mapping[Key, int] | None = None,
    ) -> None:
        self.rules = rules
        self.sequences = dict(head.sequences)
        self._floor = head.floor
        self._next = max([head.floor, *head.sequences.values()])  # after every number that was ever used
        self._taken = taken
        self._promised = promised or {}
        self._begun: dict[str, int] = {}  # next number, by the path that number 0 would have
        self._given: set[str] = set()

    def give(self, part: OpenPart | ClosedPart) -> tuple[str, int]:
        """Return the path of the next part's file, and its number."""
        writer, origin = str(part.writer), _folded(_path(part, 0, self.rules))
        promised = self._promised.get((*part.place, part.writer), 0)
        counted = self.sequences.get(writer, self._floor) if self.rules.tells_writer(part.place) else self._next
        number = max(counted, self._begun.get(origin, 0), promised)
        while (path := _path(part, number, self.rules)) in self._taken or _folded(path) in self._given:
            number += 1
        self.sequences[writer] = self._begun[origin] = number + 1
        self._next = max(self._next, number + 1)
        self._given.add(_folded(path))
        return path, number


def _folded(path: str) -> str:
    return path if path.isascii() and path.islower() else unicodedata.normalize("NFC", path.casefold())


def _path(part: OpenPart | ClosedPart, number: int, rules: Rules) -> str:
    return rules.path(
        part.place,
        part.kind,
        writer=part.writer,
        seq=number,
        batch=part.first_batch,
        host=part.host,
        pid=part.pid,
        attempt=part.attempt,
        time=part.opened_ns,
    )


def _rows(parts: Iterable[OpenPart | ClosedPart]) -> int:
    return sum(part.rows for part in parts)


def _check_rows(head: State, results: Sequence[TaskResult], after: int) -> None:
    """Raise `CommitError` unless `after` is the number of rows that were open before plus those that were written now."""
    before, come = head.open.rows, sum(result.rows + result.aside.lines for result in results)
    if before + come != after:
        msg = (
            f"{before} rows are open and {come} were written, and the next record would account for {after}: nothing was "
            f"committed; this is a fault of Penstock: keep the output's state, and report it with record {head.n}"
        )
        raise CommitError(msg)


def _ratio(before: float, closed: list[ClosedPart]) -> float:
    """Return the number of Parquet bytes for each byte of Arrow, measured in the files that are finished now."""
    arrow = sum(part.arrow_bytes for part in closed)
    return round(sum(part.bytes for part in closed if part.arrow_bytes) / arrow, 4) if arrow else before
