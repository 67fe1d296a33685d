"""A stream of a function that can be read only once, as a program that can be crashed anywhere: an engine, and an upstream."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from penstock.testing import Crashable, Program, compare
from penstock.windows import WindowStore
from penstock.windows.replay import Replay
from penstock.windows.store import artifact_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.storage import Storage

ROOT = "/windows"


class World(NamedTuple):
    """State that survives a crash elsewhere: what upstream may forget, the engine's offsets, the rows of each batch in the sink."""

    acknowledged: int = 0
    offsets: tuple[str, ...] = ()
    sunk: tuple[str, ...] = ()


class ReplayProgram(Program):
    """A query over a queue that delivers again whatever was not acknowledged.

    A restart reads the last batch again, also a finished one, as when the engine's commit log lost its entry: the rows must be
    the same, although upstream has new items by then.
    """

    memory: World

    def __init__(self, items: int, kind: type[Replay] = Replay) -> None:
        self.memory = World()
        self._items = items
        self._kind = kind

    def run(self, disk: Crashable, rest: Callable[[], None]) -> None:
        """Act as the engine: ask for an offset, log it, read."""
        storage = disk.storage()
        with WindowStore(ROOT, segment_size=300, storage=storage) as store:
            stream = self._kind(store, self._read, self._acknowledge)
            if self.memory.offsets:
                self._batch(storage, stream, len(self.memory.offsets) - 1)
            while True:
                rest()
                offsets = self.memory.offsets
                start = json.loads(offsets[-1]) if offsets else stream.initial()
                end = stream.latest(start)
                if end == start:
                    return
                self.memory = self.memory._replace(offsets=(*offsets, json.dumps(end)))
                self._batch(storage, stream, len(offsets))

    def _read(self, last: bytes | None) -> bytes | None:
        """Return upstream's items: each stage cuts the same items differently, and none of them was acknowledged."""
        assert (last or b"").decode() == (self.memory.sunk[-1] if self.memory.sunk else "")
        first = self.memory.acknowledged
        items = range(first, min(first + 1 + (len(self.memory.offsets) + first) % 3, self._items))
        return b",".join(b"%d" % item for item in items) * bool(items) or None

    def _acknowledge(self, window: bytes) -> None:
        done = {int(item) for rows in self.memory.sunk for item in rows.split(",")}
        items = [int(item) for item in window.split(b",")]
        assert done.issuperset(items), f"{items} are acknowledged, and only {done} are done"
        self.memory = self.memory._replace(acknowledged=max(self.memory.acknowledged, items[-1] + 1))

    def _batch(self, storage: Storage, stream: Replay, number: int) -> None:
        at = stream.position(json.loads(self.memory.offsets[number]))
        rows = artifact_at(ROOT, at, storage=storage).decode()
        sunk = self.memory.sunk
        if number < len(sunk):
            assert rows == sunk[number], f"batch {number} was {sunk[number]}, and is {rows} when it is replayed"
        else:
            self.memory = self.memory._replace(sunk=(*sunk, rows))

    def check(self, disk: Crashable, *, final: bool) -> list[str]:
        """Compare the sink with upstream: no item is there twice; in the end all items are there and acknowledged."""
        items = [str(item) for item in range(self._items)]
        seen = [item for rows in self.memory.sunk for item in rows.split(",")]
        found = compare(seen, acknowledged=items, offered=items).complaints(final=final)
        if final and self.memory.acknowledged != self._items:
            found.append(f"acknowledged are {self.memory.acknowledged} items")
        return found
