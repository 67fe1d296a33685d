"""The cursor (how far files are planned), and the offset that holds it.

Files are read in the order (modification time, path), paths compared as bytes. The cursor is the last file that was planned to its end;
a file that is cut by a byte limit is kept beside it until its last byte is planned. An offset is::

    {"v": 1,
     "cursor": [1767225600000000000, "logs/a.json"],     nanoseconds, path relative to the source's path
     "cut": [path, at, size, modified_ns, identity],     a file planned up to `at`, or absent
     "cut_digest": "8da1b3b1aa9b1f5f",                   of bytes before `at`, see `plan`, or absent
     "floor": 1767225600000000000,                       startingFrom: older files are not read, or absent
     "root": "55ef8ad1c8c5de36",                         hash of the source's path
     "listed": 1767225700000000000,                      the storage's time when the listing that it is based on began
     "sure": [1767225700000000000, "c8d1ce35a6e94b1f"],  all arrivals up to this time are decided, see `plan`
     "recent": {...},                                    see `recent`
     "read": [files, bytes], "left": [files, bytes]      planned since the query began; known and not (wholly) planned yet
     "oldest": 1767225600000000000,                      modification time of the oldest file in `left`, or absent
     "plan": [[path, start, end, size, modified_ns, identity], ...]   or {"file": name, "digest": ..., "splits": n}
     "last": true,                                       the last batch of an AvailableNow or Once run, or absent
     "unkept": true,                                     start of startingFrom=latest, not in an offset log yet, or absent
     "sum": "8da1b3b1aa9b1f5f"}                          of all the rest

Spark writes the offset to its offset log before the batch runs: it is the write-ahead record of the batch. A replay reads `plan` from
it and never looks at the directory. Its size is O(1) plus the batch's own plan.

The checksum that protects an offset is in `query.offset`.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import xxhash

from penstock.errors import DamagedState, OptionError
from penstock.query.offset import check

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.storage import Entry, Storage

KEY_BYTES = 12
_ENTRY = 6  # fields of a plan entry; entries of files that grow have two more
_NAMES, _ODD_NAMES = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()


class FileVersion(NamedTuple):
    """One version of one file as it was listed; `path` is relative to the source's path ("" if that is the file).

    `identity` is given by the storage; see `is_version`. It is a tuple because one look at a directory may make 100,000.
    """

    path: str
    size: int
    modified_ns: int
    identity: str

    @property
    def order(self) -> tuple[int, bytes]:
        """Return the sort key of the order of files."""
        return self.modified_ns, os.fsencode(self.path)

    @property
    def key(self) -> bytes:
        """Return the key of this version in `recent`: 96 bits, so that 10^5 files collide once in 10^18 directories."""
        # Encoded below as `os.fsencode` does it, which takes twice as long.
        text = f"{self.path}\0{self.modified_ns}\0{self.size}"
        return xxhash.xxh3_128_digest(text.encode(_NAMES, _ODD_NAMES))[:KEY_BYTES]


def sort(files: list[FileVersion], *, reverse: bool = False) -> None:
    """Sort files by their `order`, in place."""
    try:
        "".join(map(itemgetter(0), files)).encode("utf-8")
    except UnicodeEncodeError:  # a surrogate stands for a byte that is not text, and sorts differently
        as_text = False
    else:
        as_text = _NAMES == "utf-8"  # in UTF-8, text sorts as its bytes do
    files.sort(key=itemgetter(2, 0) if as_text else attrgetter("order"), reverse=reverse)


@dataclass(frozen=True)
class Followed:
    """What a plan has of a file that grows, in addition to its `size`, which then is where the plan ends: see `source.follow`.

    A record begins at `base`, whatever comes before it; `digest` is `follow.seen` up to the planned size.
    """

    base: int
    digest: str


class Split(NamedTuple):
    """Bytes [start, end) of one version of a file: the records that begin there. Picklable, travels to tasks.

    It is a tuple because a batch may have 100,000.
    """

    file: FileVersion
    start: int
    end: int
    followed: Followed | None = None

    def to_json(self) -> list[Any]:
        """Return the plan entry of the offset."""
        (path, size, modified_ns, identity), start, end, followed = self
        entry = [path, start, end, size, modified_ns, identity]
        return entry if followed is None else [*entry, followed.base, followed.digest]

    @staticmethod
    def from_json(entry: list[Any]) -> Split:
        """Return the split of a plan entry; `DamagedState` if its path leads out of the source's path."""
        path, start, end, size, modified_ns, identity = entry[:_ENTRY]
        if ".." in path and ".." in path.split("/"):
            msg = f"the plan names {path!r}, which is not in the source; restore the checkpoint from a copy"
            raise DamagedState(msg)
        version = FileVersion(path, size, modified_ns, identity)
        return Split(version, start, end, None if len(entry) == _ENTRY else Followed(*entry[_ENTRY:]))


@dataclass(frozen=True)
class Cursor:
    """A place in the order of files. `at` is how far the file `cut` is planned; both are `None`/0 between files.

    `digest` is the digest of bytes of `cut` before `at`; `None` if they could not be read.
    """

    order: tuple[int, bytes] | None = None
    cut: FileVersion | None = None
    at: int = 0
    floor: int | None = None
    files: int = 0
    bytes: int = 0
    digest: str | None = None

    @property
    def latest_ns(self) -> int:
        """Return the latest modification time of all files that were planned, wholly or in part; 0 if there are none."""
        planned = [] if self.order is None else [self.order[0]]
        return max(planned if self.cut is None else [*planned, self.cut.modified_ns], default=0)

    def passed(self, file: FileVersion) -> bool:
        """Tell whether the file lies at or before the cursor."""
        last = self.order
        if last is None:
            return False
        return file.modified_ns < last[0] or (file.modified_ns == last[0] and file.order <= last)

    def concerns(self, file: FileVersion) -> bool:
        """Tell whether the cursor decides for the file: not for files older than `floor`, nor for any version of `cut`."""
        if self.floor is not None and file.modified_ns < self.floor:
            return False
        return self.cut is None or file.path != self.cut.path

    def newer(self, settled_ns: int) -> Callable[[FileVersion], bool]:
        """Return a test whether a file is newer than all planned files, and old enough to be read."""
        latest_ns = self.latest_ns
        return lambda file: latest_ns < file.modified_ns <= settled_ns and self.concerns(file)

    def advance(self, splits: Sequence[Split]) -> Cursor:
        """Return the cursor after ordered `splits`, of which only the last may end inside a file; it never moves back for late files."""
        last = splits[-1]
        size = self.bytes + sum(split.end - split.start for split in splits)
        whole, cut = (splits, None) if last.end == last.file.size else (splits[:-1], last.file)
        order = max(self.order or whole[-1].file.order, whole[-1].file.order) if whole else self.order
        return Cursor(order, cut, last.end if cut else 0, self.floor, self.files + len(whole), size)

    def to_json(self) -> dict[str, Any]:
        """Return the cursor's fields of the offset."""
        form: dict[str, Any] = {"cursor": None, "read": [self.files, self.bytes]}
        if self.order is not None:
            form["cursor"] = [self.order[0], os.fsdecode(self.order[1])]
        if self.cut is not None:
            form["cut"] = [self.cut.path, self.at, self.cut.size, self.cut.modified_ns, self.cut.identity]
        if self.digest is not None:
            form["cut_digest"] = self.digest
        if self.floor is not None:
            form["floor"] = self.floor
        return form

    @staticmethod
    def from_json(form: dict[str, Any]) -> Cursor:
        """Return the cursor of an offset; `DamagedState` if it is not one, `OptionError` if it belongs to followed files."""
        check(form)
        if "follow" in form:
            msg = "the checkpoint is that of a source with follow=true, found follow=false: set it as it was, or take a new checkpoint"
            raise OptionError(msg)
        order = None if form["cursor"] is None else (int(form["cursor"][0]), os.fsencode(form["cursor"][1]))
        cut, at = None, 0
        if "cut" in form:
            path, at, size, modified_ns, identity = form["cut"]
            cut = FileVersion(path, size, modified_ns, identity)
        files, size = form["read"]
        return Cursor(order, cut, at, form.get("floor"), files, size, form.get("cut_digest"))


def is_version(storage: Storage, entry: Entry | FileVersion, file: FileVersion) -> bool:
    """Tell whether the file at the path of `file` is that version: by size, time and, where tags follow from the contents, tag.

    An inode does not count: a file that is restored from a copy has another one.
    """
    alike = (entry.size, entry.modified_ns) == (file.size, file.modified_ns)
    return alike and (entry.identity == file.identity or not storage.tags_contents)
