"""Two ingests of the same files under two checkpoints, in any order of their steps: no row is there twice, and none is lost."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from penstock import clock, unique
from penstock.ingestion.earlier import ingests_of
from penstock.ingestion.oneinput import OneInput
from penstock.sink import handover
from penstock.sink.sink import Sink
from penstock.testing import (
    Crashable,
    CrashDisk,
    CrashHdfs,
    FakeClock,
    Fault,
    FaultySystem,
    ObjectStore,
    SimulatedCrash,
)
from tests.support.effort import effort
from tests.testing.actors import Actor, Stop
from tests.testing.actors import storage as actors_storage
from tests.testing.crashes import crashed
from tests.testing.rivals_program import SRC, Rivals, RivalsProgram, complaints, put, simulated

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

PROFILES = [CrashDisk, CrashHdfs, ObjectStore]
SCENES: dict[str, dict[str, Any]] = {
    "first runs": {},
    "one sink id": {"sink_id": "s"},
    "beside a run that goes on": {"cleaned": True},
}


@pytest.fixture(autouse=True)
def on_simulated_storages() -> Iterator[None]:
    """Have both ingests look for their input on the simulated storage."""
    with simulated():
        yield


@contextmanager
def same_each_time() -> Iterator[None]:
    """Have the same times and names as in each other run."""
    tokens = count(1)
    with clock.use(FakeClock()), unique.use(lambda: f"{next(tokens):032d}"):
        yield


class Meets(FaultySystem):
    """The functions of a system; before call number `at` something else happens there, and ends."""

    def __init__(self, system: Any, at: int, meanwhile: Callable[[], None]) -> None:
        super().__init__(system, Fault(None), at)
        self._meanwhile = meanwhile

    def _failing(self, name: str, function: Any, arguments: Any, named: Any) -> Any:
        self._meanwhile()
        return function(*arguments, **named)


class Dies(FaultySystem):
    """The functions of a system, of a process that dies before call number `at`, and can do nothing from then on."""

    def __init__(self, system: Any, at: int) -> None:
        super().__init__(system, Fault(None), at)

    def counted(self, name: str, function: Any) -> Any:
        counted = super().counted(name, function)

        def call(*arguments: Any, **named: Any) -> Any:
            if self.calls >= self._at - 1 and name != "close":
                raise SimulatedCrash
            return counted(*arguments, **named)

        return call


def _scene(
    profile: Callable[[], Crashable], *, sink_id: str | None = None, cleaned: bool = False
) -> tuple[Crashable, Rivals, list[str]]:
    """Return a storage with an input, two ingests of it, and the files that the output should have at the end."""
    disk, rivals = profile(), Rivals(sink_id)
    storage = disk.storage()
    if cleaned:
        put(storage, "f0")
        assert rivals.begins(0, storage) == ""
        storage.delete(f"{SRC}/f0")
    put(storage, "f1")
    return disk, rivals, ["f0", "f1"] if cleaned else ["f1"]


def _settled(disk: Crashable, rivals: Rivals, wanted: list[str], settled: set[Hashable]) -> None:
    """Start both until neither can do more; each row is there once. What has `settled` to its end before is not followed again."""
    state = disk.state(), rivals.memory
    if state in settled:
        return
    settled.add(state)
    storage = disk.storage()
    assert complaints(storage, wanted, final=False) == []
    for which in (0, 1, 0, 1):
        rivals.begins(which, storage)
        assert complaints(storage, wanted, final=False) == []
    assert complaints(storage, wanted, final=True) == []


def met_at_each_call(
    profile: Callable[[], Crashable],
    scene: dict[str, Any],
    settled: set[Hashable],
    dies: int | None = None,
) -> tuple[int, int]:
    """Stop the first ingest before each of its calls, and run the second meanwhile, which may die; return how many calls, and deaths."""
    deaths: list[int] = []
    for number in count(1):
        with same_each_time():
            disk, rivals, wanted = _scene(profile, **scene)

            def meanwhile(disk: Crashable = disk, rivals: Rivals = rivals, number: int = number) -> None:
                try:
                    rivals.begins(1, disk.storage() if dies is None else Dies(disk, dies).storage())
                except SimulatedCrash:
                    deaths.append(number)

            system = Meets(disk, number, meanwhile)
            rivals.begins(0, system.storage())
            _settled(disk, rivals, wanted, settled)
        if system.failed is None:
            return number - 1, len(deaths)
    raise AssertionError


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("profile", PROFILES)
def test_a_whole_run_of_another_at_each_call(profile: Callable[[], Crashable], scene: str) -> None:
    """While an ingest stands before any call to its storage, another one of the same files runs from its start to its end."""
    assert met_at_each_call(profile, SCENES[scene], set())[0] > 20


@pytest.mark.slow
@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("profile", PROFILES)
def test_another_that_dies_at_each_call(profile: Callable[[], Crashable], scene: str) -> None:
    """The same, and the other one dies at one of its calls: what it leaves holds up neither, and no row is there twice."""
    settled: set[Hashable] = set()
    for dies in range(1, 200, effort(37, 1)):
        calls, deaths = met_at_each_call(profile, SCENES[scene], settled, dies)
        assert calls > 20
        if not deaths:
            break
    assert dies > 1


def _begins(rivals: Rivals, which: int) -> None:
    rivals.begins(which, actors_storage())


def stopped_at_two_calls(scene: dict[str, Any], *, step: int) -> int:
    """Stop each of two ingests before one of its calls, end the first, and then the second; return how often both were stopped."""
    both = 0
    settled: set[Hashable] = set()
    for first, second in ((n, m) for n in range(1, 200, step) for m in range(1, 200, step)):
        with same_each_time():
            disk, rivals, wanted = _scene(CrashDisk, **scene)
            assert isinstance(disk, CrashDisk)
            actors = [Actor(str(which), disk, partial(_begins, rivals, which)) for which in (0, 1)]
            for actor, number in zip(actors, (first, second), strict=True):
                actor.run(Stop("", number))
            both += not any(actor.done for actor in actors)
            for actor in actors:
                if not actor.done:
                    actor.run()
                if actor.error is not None:
                    raise actor.error
            _settled(disk, rivals, wanted, settled)
    return both


@pytest.mark.slow
@pytest.mark.parametrize("scene", SCENES)
def test_both_stand_still_and_go_on(scene: str) -> None:
    """Both begin, each stands before one of its calls, and then the first ends before the second."""
    assert stopped_at_two_calls(SCENES[scene], step=effort(17, 2)) > 20


@pytest.mark.slow
@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("profile", PROFILES)
def test_crash_anywhere(profile: Callable[..., Crashable], scene: str) -> None:
    """The storage loses power before any call of either, and again in what follows."""
    report = crashed(lambda: RivalsProgram(**SCENES[scene]), profile, states_max=300)
    assert report.states >= 25


# -- without a rule, a check fails ---------------------------------------------------------------------------------


def _look_at_nobody(patch: pytest.MonkeyPatch) -> None:
    """Check before the run only, as it was."""
    patch.setattr(OneInput, "_take_over", lambda *_, **__: None)


def _end_nobody(patch: pytest.MonkeyPatch) -> None:
    """Refuse if others have rows, and leave those alone that have none."""
    patch.setattr(handover, "take", lambda *_: None)


def _look_first(patch: pytest.MonkeyPatch) -> None:
    """Look at the others, and claim after that."""
    begin, take_over = OneInput.begin, OneInput._take_over

    def changed(self: OneInput, driver: str, batch: Any) -> Any:
        patch.setattr(OneInput, "_take_over", take_over)
        for other, _, _ in list(ingests_of(self.sink.storage, self.sink.root)):
            if other.sink_id != self.sink.sink_id:
                self._take_over(other, was_taken=self.query in self.sink.ledger.head().batches)
        patch.setattr(OneInput, "_take_over", lambda *_, **__: None)
        return begin(self, driver, batch)

    patch.setattr(OneInput, "begin", changed)


def _forget_who_took_over(patch: pytest.MonkeyPatch) -> None:
    """Let a driver whose input was taken over claim its ledger and go on."""
    begun = Sink.begin

    def changed(self: Sink, *given: Any) -> Any:
        return replace(begun(self, *given), taken_by="")

    patch.setattr(Sink, "begin", changed)


def _look_at_the_ledger_before(patch: pytest.MonkeyPatch) -> None:
    """Look at a ledger that both have, and claim it later, after whatever record is the last one then."""
    begin, shared = Sink.begin, OneInput._check_shared

    def changed(self: Sink, owner: str, batch: Any = None, may_claim: Any = None) -> Any:
        if may_claim is not None:
            may_claim(self.ledger.head())
        return begin(self, owner, batch)

    patch.setattr(Sink, "begin", changed)
    patch.setattr(OneInput, "_check_shared", shared)


RULES = [
    (_look_at_nobody, "first runs"),
    (_end_nobody, "first runs"),
    (_look_first, "first runs"),
    (_end_nobody, "beside a run that goes on"),
    (_forget_who_took_over, "beside a run that goes on"),
    (_look_at_the_ledger_before, "one sink id"),
]


@pytest.mark.parametrize(("change", "scene"), RULES)
def test_every_rule_is_needed(
    change: Callable[[pytest.MonkeyPatch], None], scene: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without any one rule, two ingests read the same."""
    change(monkeypatch)
    with pytest.raises(AssertionError, match="doubled"):
        met_at_each_call(CrashDisk, SCENES[scene], set())
