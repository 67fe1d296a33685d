"""`python -m tests.soak.reader DST SEED`: an independent reader lists and reads the output all the time, until stdin ends.

It knows nothing of ledgers. It reads what every engine would: all files whose names and directories do not begin with `.`
or `_`. A finished file is read once, as soon as it is seen, and must not change; a growing file is read every time.
"""

from __future__ import annotations

import json
import os
import select
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from tests.soak.settings import Settings, settings

if TYPE_CHECKING:
    from collections.abc import Iterator

_POLL_SECONDS = 0.05
_WRONG_MAX = 20


class Reader:
    """What has been seen of an output so far; `wrong` lists what must not have been seen."""

    def __init__(self, dst: Path, drawn: Settings) -> None:
        self._dst = dst
        self._drawn = drawn
        self._known: dict[str, tuple[int, ...]] = {}
        self._seen: Counter[str] = Counter()
        self.polls = self.files = self.rows = 0
        self.wrong: list[str] = []

    @property
    def ids(self) -> set[str]:
        """Return the ids of all records that are visible."""
        return set(self._seen)

    def poll(self) -> None:
        """Look once."""
        self.polls += 1
        if self._drawn.growing:
            self._seen.clear()
        found = dict(visible(self._dst))
        for path in self._known.keys() - found.keys():
            self.wrong.append(f"{path} is gone")
        for path, identity in found.items():
            if self._known.get(path) != identity:
                self._look(path, identity)
        self.files, self.rows = len(found), self._seen.total()

    def _look(self, path: str, identity: tuple[int, ...]) -> None:
        if path in self._known and not self._drawn.growing:
            self.wrong.append(f"{path} was {self._known[path]} and is {identity}")
        if not self._drawn.growing:
            self._known[path] = identity
        try:
            rows = self._drawn.records.read(path, (self._dst / path).read_bytes(), growing=self._drawn.growing)
        except Exception as error:  # noqa: BLE001 - whatever makes a file unreadable
            self.wrong.append(f"{path} cannot be read: {type(error).__name__}: {error}")
            return
        for row in rows:
            self._check(path, row)

    def _check(self, path: str, row: tuple[object, ...]) -> None:
        records = self._drawn.records
        name = records.id_of(row)
        self._seen[name] += 1
        if self._seen[name] > 1:
            self.wrong.append(f"{name} in {path} is there {self._seen[name]} times")
        if row != records.row(name):
            self.wrong.append(f"{path} has {row!r}, expected {records.row(name)!r}")
        if "k={k}" in self._drawn.sink.get("bucketBy", "") and not path.startswith(f"k={records.bucket_of(row)}/"):
            self.wrong.append(f"{path} has {row!r}, of another bucket")


def visible(dst: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the visible files below `dst`, by relative path, with a value that distinguishes a file's versions."""
    for folder, folders, names in os.walk(dst):
        folders[:] = [name for name in folders if name[0] not in "._"]
        for name in names:
            if name[0] not in "._":
                info = os.stat(f"{folder}/{name}")
                yield os.path.relpath(f"{folder}/{name}", dst), (info.st_ino, info.st_size, info.st_mtime_ns)


def main(dst: str, seed: str) -> None:
    """Look until stdin ends or something is wrong; print what was seen."""
    reader = Reader(Path(dst), settings(int(seed)))
    while not reader.wrong and not select.select([sys.stdin], [], [], _POLL_SECONDS)[0]:
        reader.poll()
    print(json.dumps({"polls": reader.polls, "rows": reader.rows, "wrong": reader.wrong[:_WRONG_MAX]}))  # noqa: T201 - the answer


if __name__ == "__main__":
    main(*sys.argv[1:])
