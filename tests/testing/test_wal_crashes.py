"""The log on a disk that loses power at every call: acknowledged records survive, and a reader gets a prefix."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.testing import Crashable, CrashDisk, CrashHdfs, ObjectStore, Program
from tests.testing.crashes import crashed
from tests.testing.syncs import not_missed, places_of_syncs
from tests.testing.wal_program import OperatorProgram, RepairProgram, StreamProgram, WalProgram

if TYPE_CHECKING:
    from collections.abc import Callable

GROUPS = [1, 3, 2, 1, 4, 1]
PROGRAMS: dict[str, Callable[[], Program]] = {
    "writer": lambda: WalProgram(GROUPS),
    "purging": lambda: WalProgram(GROUPS, segment_size=400, purge=True),
    "whole": lambda: WalProgram([1, 3, 2], whole=True),
    "killed": lambda: WalProgram([1, 2, 3, 1], killed=True),
    "operator": lambda: OperatorProgram(6),
    "stream": lambda: StreamProgram(3),
}
REPAIRS: dict[str, Callable[[], Program]] = {
    "repair": lambda: RepairProgram(3),
    "repair of the first record": lambda: RepairProgram(0),
    "repair of a header": lambda: RepairProgram(5, header=True),
    "repair of the first header": lambda: RepairProgram(0, header=True),
}


@pytest.mark.slow
@pytest.mark.parametrize("profile", [CrashDisk, CrashHdfs, ObjectStore])
@pytest.mark.parametrize("name", PROGRAMS)
def test_crash_anywhere_and_again_in_the_recovery(name: str, profile: type[Crashable]) -> None:
    """Groups, rolls, purges and windows are crashed at each call, and so is each recovery, on every kind of storage."""
    assert crashed(PROGRAMS[name], profile).states > 3


@pytest.mark.slow
@pytest.mark.parametrize("name", REPAIRS)
def test_crash_anywhere_in_a_repair(name: str) -> None:
    """A repair is crashed at each call, and done again: the intact records before the damage are there at every moment."""
    assert crashed(REPAIRS[name]).states > 200


@pytest.mark.slow
def test_every_sync_is_needed() -> None:
    """Without any one sync of the log, an acknowledged record is lost or damaged: no sync is superfluous or untested."""
    everything = [*PROGRAMS.values(), *REPAIRS.values()]
    places = [
        place for place in places_of_syncs(everything) if " < " in place
    ]  # the others are in the programs themselves
    assert len(places) > 3
    of_the_log = [*REPAIRS.values(), PROGRAMS["purging"]]
    chosen = {place: of_the_log if "log.py" in place else list(PROGRAMS.values()) for place in places}
    assert not_missed(chosen, states_max=3000) == []
