"""Finds out which sink of an output directory has committed a file."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.errors import NotThere
from penstock.sink.existing import sink_ids
from penstock.sink.ledger import STAGING, STATE_DIRECTORY, Ledger
from penstock.sink.lengths import LengthTables

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.storage import Storage

_TRIES = 5


def paths_of(storage: Storage, root: str, sink: str) -> set[str]:
    """Return every path, below `root`, that the output's sink has ever decided. O(history). `DamagedState`, `NotThere`."""
    state = f"{root}/{STATE_DIRECTORY}/{sink}"
    ledger = Ledger(storage, f"{state}/ledger", sink)
    lengths = LengthTables(storage, f"{state}/{STAGING}")
    return {file.path for file in ledger.history()} | lengths.all_of(ledger.head()).keys()


def taker(storage: Storage, root: str, sink: str, path: str) -> str | None:
    """Return the sink other than `sink` that has decided a file `path`; `None` if no sink has. `DamagedState`."""
    others = (other for other in sink_ids(storage, f"{root}/{STATE_DIRECTORY}") if other != sink)
    return next((other for other in others if path in _paths_now(storage, root, other)), None)


def undecided(storage: Storage, root: str, paths: Iterable[str]) -> list[str]:
    """Return those of the paths that no sink of the output has ever decided, sorted. `DamagedState`."""
    left = set(paths)
    for sink in sink_ids(storage, f"{root}/{STATE_DIRECTORY}"):
        left -= _paths_now(storage, root, sink)
    return sorted(left)


def _paths_now(storage: Storage, root: str, sink: str) -> set[str]:
    """Return what `paths_of` does, for a sink that may be written to meanwhile, or removed."""
    for _ in range(_TRIES):
        with suppress(NotThere):  # a record was folded during the reading
            return paths_of(storage, root, sink)
    return set()
