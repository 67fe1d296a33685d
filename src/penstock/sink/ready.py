"""When a bucket of time is complete (`partitionReady`): a decision, as part of the next record.

A *bucket of time* is a directory that holds the rows of one span of time: `dt=2026-01-31` of `dt={ts:%Y-%m-%d}/country={country}`, with
all below it. The *watermark* is the largest time in rows that are committed or, with `partitionReadyBy=cursor`, the modification time up to
which the source has read its files. A bucket is complete when the watermark is past its end by
`partitionReadyDelay`; its parts, which may be open, end with that decision, and behind them stands `ready`: an entry of the record,
an event, and, once all files of the record are visible, a file `_SUCCESS`.

The failures, and the rule that kills each:

1. *Ready before its rows.* A bucket is said to be complete while rows that were read lie in open parts, or in files that are not
   visible. Rule: the decision that says it has closed every part of the bucket; and an entry of a record counts, and `_SUCCESS` is
   made, when the files of that record are visible.
2. *Late rows.* Rows come for a bucket whose time was over before their batch. Rule: the record that commits them says `reopened`, in
   front of its files, and takes `_SUCCESS` away before it shows any of them; the bucket waits again, its parts roll as others do, and
   the record that closes the last of them says `ready` once more.
3. *One row of the year 2999* would end every bucket. Rule: no watermark is later than the clock of the batch's driver. And if that clock
   was in the year 2999, too, and was set right: what comes from then on is told late, since the watermark of rows never goes back, but
   nothing is complete before the clock of the batch, or of the roll, is past its end in the first zone of the earth.
4. *A restart forgets what waits.* Files of a bucket were closed by their size; nothing open tells of it. Rule: what waits is in the
   record: O(buckets of time that are not complete).
5. *A stalled driver and `_SUCCESS`.* A puts a record that says ready, and stands still; B publishes it, and commits late rows, which
   take `_SUCCESS` away; A goes on and makes it again. Rule: whoever has made or taken one looks at the last record behind that, and undoes
   what that says otherwise. If A is killed between the two, the file is wrong until the bucket is ready again: no storage can
   make a file on the condition that a record is the last. The events are exact.
6. *Other options.* A day was said to be complete; a run with a longer delay, or with another zone, has it end later, and takes rows that
   come for it for rows in time: it is written to and never reopened. The same behind a run without the option. Rule: a record says
   up to which end buckets have been said to be complete; rows of one that ends no later are late, whatever the options. Where ends are
   reckoned otherwise than they were, all that a record says of ends is moved by 26 hours, as far as zones are apart.
7. *Finer buckets.* A day was said to be complete, or waits; a run whose `bucketBy` shows hours puts rows into directories below it. Rule:
   what is open below a bucket keeps it waiting; and with a bucket that is reopened all that it lies in loses its `_SUCCESS`, which no
   record makes again, as it is no bucket any more.
8. *A source that is read again* from its beginning (`penstock reset`): by the cursor of before, each day would be complete as soon as its
   first rows are visible again. Rule: that watermark is where the source is, also where it goes back.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

READY, REOPENED = "ready", "reopened"
SUCCESS = "_SUCCESS"
_HOUR_US = 3_600_000_000
ZONES_AHEAD_US = 14 * _HOUR_US  # a local time may be that far ahead of UTC
_ZONES_APART_US = 26 * _HOUR_US  # one local time of two zones


@dataclass(frozen=True)
class Announced:
    """What the options say of buckets that are complete: by what it is told, and how long after their end, in microseconds.

    `by_cursor`: it is the source that is past their end, whatever the times of rows are. `zone`: of the times that name them.
    """

    delay_us: int
    file: bool
    event: bool
    by_cursor: bool = False
    zone: str = "UTC"

    @property
    def reckoned(self) -> str:
        """What the end of a bucket depends on, beside its rows."""
        return f"{self.zone} by {'cursor' if self.by_cursor else 'data'}"


@dataclass(frozen=True)
class Progress:
    """What a task saw of time: the largest, and the buckets of time it wrote to, with their ends, in microseconds."""

    watermark: int | None = None
    ends: Mapping[str, int] = field(default_factory=dict)


class Mark(NamedTuple):
    """An entry of a record about a bucket of time: `ready` or `reopened`. `file`: with `_SUCCESS`; `event`: readers are shown it."""

    kind: str
    bucket: str
    file: bool
    event: bool


class Waiting(NamedTuple):
    """A bucket of time that has rows and is not said to be complete: when it ends, and whether rows came behind that."""

    end_us: int
    late: bool


@dataclass(frozen=True)
class Ready:
    """What a record says of buckets of time. `total` is how many marks there are in all records up to this one.

    `said_us` is the latest end of a bucket that was ever said to be complete; `reckoned` tells how ends were reckoned, "" if nobody knows.
    """

    watermark: int | None = None
    waiting: Mapping[str, Waiting] = field(default_factory=dict)
    marks: tuple[Mark, ...] = ()
    total: int = 0
    said_us: int | None = None
    reckoned: str = ""

    @property
    def reopened(self) -> tuple[Mark, ...]:
        """The marks that come before the record's files."""
        return tuple(mark for mark in self.marks if mark.kind == REOPENED)

    @property
    def ready(self) -> tuple[Mark, ...]:
        """The marks that come behind them."""
        return tuple(mark for mark in self.marks if mark.kind == READY)

    def quiet(self) -> Ready:
        """Return what a record says that adds nothing."""
        return replace(self, marks=())

    def seeing(self, tasks: Iterable[Progress], announced: Announced | None, cursor_us: int | None = None) -> Ready:
        """Return it with what the tasks of a batch saw, late rows marked; without `announced` nothing waits any more.

        `cursor_us`: how far the source is.
        """
        if announced is None:
            return Ready(total=self.total, said_us=self.said_us, reckoned=self.reckoned)
        if announced.reckoned != self.reckoned:
            return self._reckoned_as(announced.reckoned).seeing(tasks, announced, cursor_us)
        tasks = list(tasks)
        ends = {bucket: end for task in tasks for bucket, end in task.ends.items() if bucket not in self.waiting}
        added = {bucket: Waiting(end, self._is_late(end, announced)) for bucket, end in sorted(ends.items())}
        marks = tuple(Mark(REOPENED, bucket, announced.file, announced.event) for bucket, w in added.items() if w.late)
        total, watermark = self.total + len(marks), self._come_to(tasks, announced, cursor_us)
        return Ready(watermark, {**self.waiting, **added}, marks, total, self.said_us, self.reckoned)

    def _come_to(self, tasks: Iterable[Progress], announced: Announced, cursor_us: int | None) -> int | None:
        """Return the watermark behind a batch: that of the cursor goes back where the source is read from its beginning again."""
        if announced.by_cursor:
            return self.watermark if cursor_us is None else cursor_us
        times = (self.watermark, *(task.watermark for task in tasks))
        return max((time for time in times if time is not None), default=None)

    def _reckoned_as(self, reckoned: str) -> Ready:
        """Return it for a run that reckons ends so: of what it says no bucket ends later then."""
        later_us = _ZONES_APART_US if self.reckoned else 0
        waiting = {bucket: Waiting(w.end_us + later_us, w.late) for bucket, w in self.waiting.items()}
        said_us = None if self.said_us is None else self.said_us + later_us
        return replace(self, waiting=waiting, said_us=said_us, reckoned=reckoned)

    def _is_late(self, end_us: int, announced: Announced) -> bool:
        """Tell whether the bucket that ends then is over, or may have been said to be complete."""
        return self._over(end_us, announced) or (self.said_us is not None and end_us <= self.said_us)

    def _over(self, end_us: int, announced: Announced, now_us: int | None = None) -> bool:
        """Tell whether what ends then is over: by the watermark, and by the clock if that is given."""
        if self.watermark is None:
            return False
        latest_us = self.watermark if now_us is None else min(self.watermark, now_us + ZONES_AHEAD_US)
        return end_us + announced.delay_us <= latest_us

    def ends(self, bucket: str, announced: Announced | None, now_us: int) -> bool:
        """Tell whether a part in this bucket ends because its bucket of time is over; one that late rows came to rolls by itself."""
        time = None if announced is None else self._time_of(bucket)
        if announced is None or time is None:
            return False
        return not self.waiting[time].late and self._over(self.waiting[time].end_us, announced, now_us)

    def settled(self, open_buckets: Iterable[str], announced: Announced | None, now_us: int) -> Ready:
        """Return it with those buckets ready whose time is over, and of which no part is open."""
        if announced is None:
            return self
        held = {time for bucket in open_buckets for time in paths_to(bucket)}
        over = [b for b, w in self.waiting.items() if b not in held and self._over(w.end_us, announced, now_us)]
        marks = tuple(Mark(READY, bucket, announced.file, announced.event) for bucket in sorted(over))
        waiting = {bucket: w for bucket, w in self.waiting.items() if bucket not in over}
        ends = [self.waiting[bucket].end_us for bucket in over] + ([] if self.said_us is None else [self.said_us])
        said_us, total = max(ends, default=None), self.total + len(marks)
        return replace(self, waiting=waiting, marks=self.marks + marks, total=total, said_us=said_us)

    def _time_of(self, bucket: str) -> str | None:
        """Return the bucket of time that waits and is this one, or that this one lies in."""
        return next((time for time in paths_to(bucket) if time in self.waiting), None)

    def to_json(self) -> dict[str, Any]:
        """Return it as a record has it, without what is empty."""
        form = {
            "watermark": self.watermark,
            "waiting": {bucket: list(waiting) for bucket, waiting in self.waiting.items()},
            "marks": [list(mark) for mark in self.marks],
            "total": self.total,
            "said": self.said_us,
            "reckoned": self.reckoned,
        }
        return {name: value for name, value in form.items() if value or (value == 0 and name in {"watermark", "said"})}

    @staticmethod
    def from_json(form: Mapping[str, Any]) -> Ready:
        """Return what a record has. Raises `TypeError` and its like for what is none."""
        waiting = {bucket: Waiting(*entry) for bucket, entry in form.get("waiting", {}).items()}
        marks, said_us = marks_of(form.get("marks", ())), form.get("said")
        return Ready(form.get("watermark"), waiting, marks, form.get("total", 0), said_us, form.get("reckoned", ""))


def paths_to(bucket: str) -> Iterator[str]:
    """Yield a bucket and the directories that it lies in, below the output."""
    while bucket:
        yield bucket
        bucket = bucket.rpartition("/")[0]


def marks_of(form: Iterable[Any] = ()) -> tuple[Mark, ...]:
    """Return the marks that a record or a fold has. Raises `TypeError` and its like for what is none."""
    return tuple(Mark(*entry) for entry in form)
