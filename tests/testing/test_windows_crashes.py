"""The window store on storage that loses power at every call: what somebody has seen of a window stays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.testing import Crashable, CrashDisk, CrashHdfs, ObjectStore, Program, explore
from tests.testing.syncs import not_missed, places_of_syncs
from tests.testing.windows_program import WindowProgram

if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAMS: dict[str, Callable[[], Program]] = {
    "one owner": lambda: WindowProgram([1] * 5),
    "fewer and more owners": lambda: WindowProgram([2, 2, 1, 3]),
    "killed": lambda: WindowProgram([1] * 3, killed=True),
}


@pytest.mark.parametrize("profile", [CrashDisk, CrashHdfs, ObjectStore])
@pytest.mark.parametrize("name", PROGRAMS)
def test_crash_anywhere_and_again_in_the_recovery(name: str, profile: type[Crashable]) -> None:
    """Saves, rolls and purges, crashed at each call, and each recovery too: no window that was seen changes or goes."""
    report = explore(PROGRAMS[name](), profile=profile, images_max=12, states_max=3000)
    assert not report.complaints, report.first
    assert report.states > 10


def test_every_sync_is_needed() -> None:
    """Without any one sync, or purge that is made durable, a window that was seen is lost, changed or in the way."""
    programs = list(PROGRAMS.values())
    places = places_of_syncs(programs)
    assert len(places) > 3
    assert not_missed(dict.fromkeys(places, programs), states_max=3000) == []
