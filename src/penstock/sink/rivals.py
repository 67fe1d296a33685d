"""Finds out which sink of an output directory has committed a file."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.errors import NotThere
from penstock.sink.existing import sink_ids
from penstock.sink.ledger import STAGING, STATE_DIRECTORY, Ledger
from penstock.sink.lengths import LengthTables

if TYPE_CHECKING:
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
    for other in sink_ids(storage, f"{root}/{STATE_DIRECTORY}"):
        for _ in range(_TRIES if other != sink else 0):
            with suppress(NotThere):  # a record was folded during the reading
                if path in paths_of(storage, root, other):
                    return other
                break
    return None
