"""The window store on storage that loses power at every call: what a reader has seen of a window stays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.testing import Crashable, CrashDisk, CrashHdfs, ObjectStore, Program, explore
from penstock.windows.replay import Replay
from tests.testing.crashes import crashed
from tests.testing.replay_program import ReplayProgram
from tests.testing.syncs import not_missed, places_of_syncs
from tests.testing.windows_program import WindowProgram

if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAMS: dict[str, Callable[[], Program]] = {
    "one owner": lambda: WindowProgram([1] * 5),
    "fewer and more owners": lambda: WindowProgram([2, 2, 1, 3]),
    "killed": lambda: WindowProgram([1] * 3, killed=True),
}


@pytest.mark.slow
@pytest.mark.parametrize("profile", [CrashDisk, CrashHdfs, ObjectStore])
@pytest.mark.parametrize("name", PROGRAMS)
def test_crash_anywhere_and_again_in_the_recovery(name: str, profile: type[Crashable]) -> None:
    """Saves, rolls and purges are crashed at each call, and so is each recovery: no window that was seen changes or goes."""
    assert crashed(PROGRAMS[name], profile, states_max=500).states > 10


def test_every_sync_is_needed() -> None:
    """Without any one sync or durable purge, a window that was seen is lost, changed or in the way."""
    programs = list(PROGRAMS.values())
    places = places_of_syncs(programs)
    assert len(places) > 3
    assert not_missed(dict.fromkeys(places, programs), states_max=3000) == []


@pytest.mark.slow
@pytest.mark.parametrize("profile", [CrashDisk, CrashHdfs, ObjectStore])
def test_a_replayable_stream_is_crashed_anywhere(profile: type[Crashable]) -> None:
    """Each item of a queue is in one batch, also when the batch is replayed, and is acknowledged when the batch is done."""
    assert crashed(lambda: ReplayProgram(6), profile, states_max=500).states > 10


class AcknowledgedWhenRead(Replay):
    """Failure 3: a window is acknowledged upstream when it is saved."""

    def latest(self, start: dict[str, Any]) -> dict[str, Any]:
        end = super().latest(start)
        if end != start and self._acknowledge is not None:
            self._acknowledge(self._store.load(end["window"]) or b"")
        return end


class ForgottenTooEarly(Replay):
    """Failure 3: a window is forgotten when its batch is committed."""

    def _commit(self, window: int) -> None:
        super()._commit(window)
        self._store.committed(window + 1)


class ReadOn(Replay):
    """Failure 4: the next window is read although upstream was not told about the last one."""

    def _commit(self, window: int) -> None:
        self._last, self._committed = self._store.load(window), window


@pytest.mark.parametrize("kind", [AcknowledgedWhenRead, ForgottenTooEarly, ReadOn])
def test_every_rule_is_needed(kind: type[Replay]) -> None:
    """The exploration finds a stream that breaks one of the rules."""
    assert explore(ReplayProgram(6, kind), images_max=12, states_max=2000).complaints
