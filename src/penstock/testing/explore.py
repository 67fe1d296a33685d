"""Crash a program at every step, in every way, restart it, and crash the restart too.

A `Program` is what runs on the disk: from nothing, or from whatever a crash has left. `explore` runs it once to its end. Before every
call that changes the disk it takes all images of a crash at that moment (`CrashDisk.images`), checks each as it is, starts the program
on it, and so on, to a depth of crashes within the recovery. Each (moment, image) is a *state*.

There are many states, but few different futures. Two states with the same image, the same memory and the same number of crashes left
have the same future, because the program is deterministic: time stands still (`FakeClock`) and `penstock.unique` counts. So each future
is explored once. A program can also say that it is at rest (by `rest`, which is passed to `run`): then two runs whose disks and
memories agree there have the same future from there on, and the second one stops. Because of this a hundred thousand states take a
minute. It is the only thing on which the explorer relies.

    report = explore(MyProgram(), depth=2)
    assert not report.complaints, report.first
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol

from penstock import clock, unique
from penstock.testing.choices import IMAGES_MAX
from penstock.testing.clock import FakeClock
from penstock.testing.disk import CrashDisk, SimulatedCrash

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from penstock.storage import Storage


# Of the moments at which a run is crashed, every `_SPREAD`-th is continued first: so if `states_max` ends an exploration, it has seen what
# comes after crashes from the beginning of the run to its end.
_SPREAD = 16


class Crashable(Protocol):
    """A system that can lose power: `CrashDisk`, `CrashHdfs`, `ObjectStore`. Made from nothing, or from an image of its own kind."""

    calls: int

    def storage(self) -> Storage:
        """Return a storage on it."""

    def images(self, seed: int | str = 0, *, limit: int = ...) -> Iterator[Any]:
        """Yield what a crash at this moment may leave; `key()` of two is the same if no program can tell them apart."""

    def state(self) -> Hashable:
        """Return a value that two systems share if no program can tell them apart, now or after a crash."""


class Program(ABC):
    """The program that is crashed. `memory` outlives a crash elsewhere: what was acknowledged, what a checkpoint says.

    It is a value (hashable, compared): `run` replaces it, and never changes it in place.
    """

    memory: Hashable = None

    @abstractmethod
    def run(self, disk: Crashable, rest: Callable[[], None]) -> None:
        """Start, on an empty disk or on what a crash has left, and run to the end.

        Called again on each image with the memory as it was at the crash. `rest()` may be called whenever everything that matters from
        then on is on the disk and in `memory`.
        """

    @abstractmethod
    def check(self, disk: Crashable, *, final: bool) -> list[str]:
        """Return what is wrong with the disk, as a reader sees it: at any moment, or (`final`) when `run` has ended."""


@dataclass
class Report:
    """The result: the number of `states` in all, the number of different `futures`, and what was found wrong."""

    states: int = 0
    futures: int = 0
    complaints: list[str] = field(default_factory=list)

    @property
    def first(self) -> str:
        """Return the first complaint, with the steps that lead to it."""
        return self.complaints[0] if self.complaints else "nothing is wrong"


@dataclass
class Known:
    """What was explored already: images of crashes, and rests, each with the memory and the number of crashes that were left."""

    images: set[Hashable] = field(default_factory=set)
    rests: set[Hashable] = field(default_factory=set)


@dataclass
class _Explorer:
    program: Program
    profile: Callable[..., Crashable]
    depth: int
    seed: int
    images_max: int
    complaints_max: int
    states_max: int | None
    omit: Callable[[str], bool] | None
    known: Known
    report: Report = field(default_factory=Report)

    def explore(self, image: Any, memory: Hashable, crashes: int, way: tuple[str, ...]) -> None:  # noqa: ANN401 - the profile's
        """Run the program on the image; explore each crash on the way if there are crashes left; check the end."""
        self.report.futures += 1
        waiting: list[tuple[Any, Hashable, tuple[str, ...]]] = []
        program, step = self.program, count(1)

        def watch(disk: Crashable, call: str) -> None:
            number = next(step)
            if crashes:
                self._branch(disk, crashes, (*way, f"{call} {number}"), waiting)

        def rest() -> None:
            key = disk.state(), program.memory, crashes
            if key in self.known.rests:
                raise SimulatedCrash
            self.known.rests.add(key)

        program.memory = memory
        disk = self.profile(image, watch=watch, omit=self.omit)
        tokens = count(1)
        try:
            with clock.use(FakeClock()), unique.use(lambda: f"{len(way)}{next(tokens):031d}"):
                program.run(disk, rest)
                self._note(program.check(disk, final=True), (*way, "the end"))
        except SimulatedCrash:  # by `rest` or `_branch`: what follows is known, or there are enough complaints
            if self._over():
                raise
        except Exception as error:  # noqa: BLE001 - whatever the program raises is a finding
            self._note([f"{type(error).__name__}: {error}"], way)
        for first in range(_SPREAD):
            for left, remembered, path in waiting[first::_SPREAD]:
                self.explore(left, remembered, crashes - 1, path)

    def _branch(
        self,
        disk: Crashable,
        crashes: int,
        way: tuple[str, ...],
        waiting: list[tuple[Any, Hashable, tuple[str, ...]]],
    ) -> None:
        """Take the images of a crash at this moment: check each, and keep those whose future is not known."""
        memory = self.program.memory
        for image in disk.images(f"{self.seed} {len(way)} {disk.calls}", limit=self.images_max):
            self.report.states += 1
            key = image.key(), memory, crashes
            if key in self.known.images:
                continue
            self.known.images.add(key)
            self._note(self.program.check(self.profile(image), final=False), (*way, "crash"))
            waiting.append((image, memory, (*way, "crash")))
        if self._over():
            raise SimulatedCrash

    def _note(self, complaints: list[str], way: tuple[str, ...]) -> None:
        self.report.complaints += [f"{complaint} (after {' > '.join(way) or 'the start'})" for complaint in complaints]

    def _over(self) -> bool:
        enough = self.states_max is not None and self.report.states >= self.states_max
        return enough or len(self.report.complaints) >= self.complaints_max


def explore(
    program: Program,
    *,
    profile: Callable[..., Crashable] = CrashDisk,
    depth: int = 2,
    seed: int = 0,
    images_max: int = IMAGES_MAX,
    complaints_max: int = 1,
    states_max: int | None = None,
    omit: Callable[[str], bool] | None = None,
    known: Known | None = None,
) -> Report:
    """Explore the program to `depth` crashes, one in the recovery from the other; return what was found.

    `profile` is the system on which it runs: `CrashDisk`, `CrashHdfs` or `ObjectStore`. `images_max` limits the images of one moment:
    if there are more, `seed` draws them. Ends early after `complaints_max` complaints, or after `states_max` states, which are spread
    over crashes from all over the run. `omit` leaves out syncs, to find out whether they are needed: it is called with the place of
    each (`disk.call_site`). `known` has what earlier explorations of the same program have explored, and this one adds to it; what a
    less deep exploration has explored is not explored again. Use it only with explorations that came to their end, and with at least as
    many images of a moment.
    """
    explorer = _Explorer(program, profile, depth, seed, images_max, complaints_max, states_max, omit, known or Known())
    with suppress(SimulatedCrash):
        explorer.explore(None, program.memory, depth, ())
    return explorer.report
