"""Where a file may be cut: between two batches, and between two tasks of one batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from penstock.options import Options
    from penstock.source.cursor import FileVersion, Split

OPEN_COST = 64 << 10  # the weight of opening a file when splits are packed into tasks
_TASK_WEIGHT_MAX = 512 << 20  # of a task that is larger than `splitSize`: what a failed task has done is done again


@dataclass(frozen=True)
class Dividing:
    """The rule of one source; see `plan.Planner` for `divisible` and `boundary`. Sizes and positions are in bytes."""

    divisible: Callable[[str], bool]
    boundary: Callable[[FileVersion, int, int], int] | None

    def end(self, file: FileVersion, start: int, room: int | None) -> int:
        """Return where a split of the file from `start` ends that should have at most `room` bytes; `None`: no limit.

        It is longer if the file can only be cut further on, or not at all.
        """
        if room is None or file.size - start <= room or not self.divisible(file.path):
            return file.size
        return self._cut(file, start, start + room)

    def tasks(self, splits: Iterable[Split], target: int) -> Iterator[list[Split]]:
        """Yield tasks of about `target` weight: neighbours together, large files cut where a task is full.

        What a task has left the next one has more, so splits of n times `target` in all make at most n tasks.
        """
        task: list[Split] = []
        room = target
        for split in splits:
            rest: Split | None = split
            while rest is not None:
                if task and room < min(weight(rest), OPEN_COST * 2):
                    yield task
                    task, room = [], target + max(room, 0)
                head, rest = self._divide(rest, room)
                task.append(head)
                room -= weight(head)
        if task:
            yield task

    def _divide(self, split: Split, room: int) -> tuple[Split, Split | None]:
        """Return the part of the split that goes into a task with `room` left, and the rest."""
        room = max(room, 1)
        if split.end - split.start <= room or not self.divisible(split.file.path):
            return split, None
        at = self._cut(split.file, split.start, split.start + room)
        if at >= split.end:
            return split, None
        return split._replace(end=at), split._replace(start=at)

    def _cut(self, file: FileVersion, anchor: int, target: int) -> int:
        return self.boundary(file, anchor, target) if self.boundary else target


def task_weight(splits: Sequence[Split], options: Options) -> int:
    """Return what each task of a batch should weigh.

    That is an equal share if `tasks` says how many there are, and otherwise `splitSize`. But where it is known how many tasks run at a
    time, and the user has not asked for a size, all of them get equal shares, as often as it takes. With 1 GB of text by `readStream`
    and `writeStream` on two cores, two tasks took 2.8 to 3.1 s and 31 tasks 3.8 to 4.1: these cost the JVM a processor second more, and
    what they leave in files of 32 MB is copied into parts of 128.
    """
    total = sum(map(weight, splits))
    size: int = options["splitSize"]
    count: int | None = options["tasks"]
    at_a_time: int | None = options["sessionCores"]
    if count is not None:
        return max(-(-total // count), 1)
    if at_a_time is None or "splitSize" in options.given:
        return size
    rounds = -(-total // (at_a_time * _TASK_WEIGHT_MAX))
    return max(-(-total // max(at_a_time * rounds, 1)), size)


def weight(split: Split) -> int:
    """Return what reading a split costs, in bytes."""
    return split.end - split.start + OPEN_COST
