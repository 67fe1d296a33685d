"""Decides when a bucket of time is complete (`partitionReady`), as part of the next record.

A *bucket of time* is a directory that holds the rows of one span of time, with everything below it: `dt=2026-01-31` for
`dt={ts:%Y-%m-%d}/country={country}`. The *watermark* is the largest time in committed rows or, with `partitionReadyBy=cursor`,
the modification time up to which the source has read its files. A bucket is complete when the watermark is past the bucket's end
by `partitionReadyDelay`. Its open parts end with that decision, and after them the record has the entry `ready`, which is an
event, and becomes a file `_SUCCESS` once all files of the record are visible.

The failures, and the rule against each:

1. *Ready before its rows.* A bucket is reported complete while rows that were read are still in open parts, or in files that are
   not visible. Rule: the decision that reports it closes every part of the bucket. An entry of a record counts, and `_SUCCESS` is
   made, only when the files of that record are visible.
2. *Late rows.* Rows come for a bucket whose time was over before their batch. Rule: the record that commits them says `reopened`
   before its files, and `_SUCCESS` is removed before any of the files becomes visible. The bucket waits again, its parts roll as
   others do, and the record that closes the last of them says `ready` once more.
3. *One row of the year 2999* would end every bucket. Rule: no watermark is later than the clock of the batch's driver. If that
   clock was in the year 2999, too, and was set right afterwards, all later rows count as late, since the watermark of rows never
   goes back. But no bucket is complete before the clock of the batch, or of the roll, is past the bucket's end in the first time
   zone of the earth.
4. *A restart forgets what waits.* The files of a bucket were closed by their size, so no open part shows that the bucket still
   waits. Rule: the record has the buckets that wait: O(buckets of time that are not complete).
5. *A stalled driver and `_SUCCESS`.* A puts a record that says ready, and stalls; B publishes it, and commits late rows, which
   remove `_SUCCESS`; A continues and makes it again. Rule: a driver that has made or removed the file afterwards looks at the
   last record, and undoes what that record contradicts. If A is killed between the two, the file is wrong until the bucket is
   ready again: no storage can make a file on the condition that a record is the last. The events are exact.
6. *Other options.* A day was reported complete. For a run with a longer delay, or with another zone, the day ends later, so the
   run would take further rows for rows in time: it would write to the day and never reopen it. The same happens after a run
   without the option. Rule: a record has the latest end of a bucket that was ever reported complete; rows of a bucket that ends
   no later are late, whatever the options. If a run computes ends in another way, all ends in the record are moved by 26 hours,
   the largest difference between zones.
7. *Finer buckets.* A day was reported complete, or waits; a run whose `bucketBy` shows hours puts rows into directories below it.
   Rule: open parts below a bucket keep it waiting. When a bucket is reopened, all directories above it lose their `_SUCCESS`,
   too; no record makes that again, because they are no longer buckets.
8. *A source that is read again* from its beginning (`penstock reset`): by the earlier cursor, each day would be complete as soon
   as its first rows are visible again. Rule: the watermark of the cursor follows the source, even if the source goes back.
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
_ZONES_APART_US = 26 * _HOUR_US  # the largest distance between the moments that two zones give one local time


@dataclass(frozen=True)
class Announced:
    """The options for complete buckets: how they are announced, and how long after their end, in microseconds.

    `by_cursor`: the position of the source decides, not the times of rows. `zone` is the zone of the times in bucket names.
    """

    delay_us: int
    file: bool
    event: bool
    by_cursor: bool = False
    zone: str = "UTC"

    @property
    def reckoned(self) -> str:
        """The options that the end of a bucket depends on, as a text."""
        return f"{self.zone} by {'cursor' if self.by_cursor else 'data'}"


@dataclass(frozen=True)
class Progress:
    """What a task saw of time: the largest time, and the ends of the buckets of time that it wrote to, in microseconds."""

    watermark: int | None = None
    ends: Mapping[str, int] = field(default_factory=dict)


class Mark(NamedTuple):
    """An entry of a record about a bucket of time: `ready` or `reopened`. `file`: it controls `_SUCCESS`; `event`: readers see it."""

    kind: str
    bucket: str
    file: bool
    event: bool


class Waiting(NamedTuple):
    """A bucket of time that has rows and is not reported complete: when it ends, and whether rows came after it was over."""

    end_us: int
    late: bool


@dataclass(frozen=True)
class Ready:
    """What a record says about buckets of time. `total` is the number of marks in all records up to this one.

    `said_us` is the latest end of a bucket that was ever reported complete; `reckoned` says how ends were computed, "" if
    unknown.
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
        """The marks that come after the record's files."""
        return tuple(mark for mark in self.marks if mark.kind == READY)

    def quiet(self) -> Ready:
        """Return the same for a record without marks of its own."""
        return replace(self, marks=())

    def seeing(self, tasks: Iterable[Progress], announced: Announced | None, cursor_us: int | None = None) -> Ready:
        """Return the state after what the tasks of a batch saw, with marks for late rows; without `announced` no bucket waits any more.

        `cursor_us` is how far the source has read.
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
        """Return the watermark after a batch; that of the cursor goes back if the source is read again from its beginning."""
        if announced.by_cursor:
            return self.watermark if cursor_us is None else cursor_us
        times = (self.watermark, *(task.watermark for task in tasks))
        return max((time for time in times if time is not None), default=None)

    def _reckoned_as(self, reckoned: str) -> Ready:
        """Return the state for a run that computes ends as `reckoned` says: ends are moved so far that none of its buckets ends later."""
        later_us = _ZONES_APART_US if self.reckoned else 0
        waiting = {bucket: Waiting(w.end_us + later_us, w.late) for bucket, w in self.waiting.items()}
        said_us = None if self.said_us is None else self.said_us + later_us
        return replace(self, waiting=waiting, said_us=said_us, reckoned=reckoned)

    def _is_late(self, end_us: int, announced: Announced) -> bool:
        """Tell whether a bucket with this end is over, or may have been reported complete."""
        return self._over(end_us, announced) or (self.said_us is not None and end_us <= self.said_us)

    def _over(self, end_us: int, announced: Announced, now_us: int | None = None) -> bool:
        """Tell whether a bucket with this end is over: by the watermark, and by the clock if `now_us` is given."""
        if self.watermark is None:
            return False
        latest_us = self.watermark if now_us is None else min(self.watermark, now_us + ZONES_AHEAD_US)
        return end_us + announced.delay_us <= latest_us

    def ends(self, bucket: str, announced: Announced | None, now_us: int) -> bool:
        """Tell whether a part in this bucket ends because its bucket of time is over. After late rows, parts roll as usual instead."""
        time = None if announced is None else self._time_of(bucket)
        if announced is None or time is None:
            return False
        return not self.waiting[time].late and self._over(self.waiting[time].end_us, announced, now_us)

    def settled(self, open_buckets: Iterable[str], announced: Announced | None, now_us: int) -> Ready:
        """Return the state with `ready` marks for the buckets whose time is over and that have no open part."""
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
        """Return the waiting bucket of time that is this bucket or contains it."""
        return next((time for time in paths_to(bucket) if time in self.waiting), None)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form for a record, without empty fields."""
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
        """Return the state from the JSON form of a record. Raises `TypeError` or a similar error for a malformed form."""
        waiting = {bucket: Waiting(*entry) for bucket, entry in form.get("waiting", {}).items()}
        marks, said_us = marks_of(form.get("marks", ())), form.get("said")
        return Ready(form.get("watermark"), waiting, marks, form.get("total", 0), said_us, form.get("reckoned", ""))


def paths_to(bucket: str) -> Iterator[str]:
    """Yield a bucket and the directories above it, below the output."""
    while bucket:
        yield bucket
        bucket = bucket.rpartition("/")[0]


def marks_of(form: Iterable[Any] = ()) -> tuple[Mark, ...]:
    """Return the marks from the JSON form of a record or a fold. Raises `TypeError` or a similar error for a malformed form."""
    return tuple(Mark(*entry) for entry in form)
