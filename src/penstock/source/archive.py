"""Which files an archive of read files holds, and under which names; used to move files there and to read them.

A file has the same path below the archive that it had below the source's path: `2026/a.json`. If another file already has that name,
perhaps of an earlier day, it is `2026/a~1767225600000000000.json`, with its modification time in nanoseconds, and if that name is
taken, too, `2026/a~1767225600000000000~2.json`. Nothing in an archive is ever replaced, changed or removed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from penstock.source.cursor import FileVersion, is_version
from penstock.source.scan import Scan
from penstock.storage import entry_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.storage import Storage

_NAMES_MAX = 10
_AGAIN = re.compile(r"(?P<stem>[^/]*?)~(?P<time>-?\d+)(~\d)?(?P<ending>(?:\.[^/]*)?)", re.DOTALL)


def names_of(file: FileVersion) -> Iterator[str]:
    """Yield the paths below the archive that the file may have, in the order in which they are tried."""
    yield file.path
    folder, slash, name = file.path.rpartition("/")
    stem, dot, ending = name.partition(".")
    for number in range(1, _NAMES_MAX):
        again = "" if number == 1 else f"~{number}"
        yield f"{folder}{slash}{stem}~{file.modified_ns}{again}{dot}{ending}"


def archived_version(storage: Storage, archive: str, file: FileVersion) -> str | None:
    """Return where in the archive this version of the file is, `None` if it is not there."""
    for name in names_of(file):
        entry = entry_at(storage, f"{archive}/{name}")
        if entry is None:
            return None
        if entry.is_file and is_version(storage, entry, file) and entry.identity == file.identity:
            return f"{archive}/{name}"
    return None


def archived_files(storage: Storage, archive: str) -> list[FileVersion]:
    """Return the files in the archive, each by the path that it had below the source's path. `StorageError`."""
    if entry_at(storage, archive) is None:
        return []
    scan = Scan(storage, archive, recursive=True, follow=False, accept=lambda _: True, partitions=True)
    return [_original(arrival.file) for arrival in scan.refresh().came]


def _original(file: FileVersion) -> FileVersion:
    """Return the version by its original path; a time in its name was added here only if it is the file's own modification time."""
    folder, slash, name = file.path.rpartition("/")
    again = _AGAIN.fullmatch(name)
    if again is None or int(again["time"]) != file.modified_ns:
        return file
    return FileVersion(f"{folder}{slash}{again['stem']}{again['ending']}", file.size, file.modified_ns, file.identity)
