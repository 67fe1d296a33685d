"""The demo's input: the Python sources of the running interpreter, its standard library and the installed packages.

They are copied into a directory of the demo, where nobody changes them while it runs. Two kinds are left out, and
counted: files that are not UTF-8 (the text source refuses these by design, naming file and byte; Python's own test
suite has a few), and names that no Penstock source ever reads (`__init__.py` begins with an underscore, which marks a
hidden file here). Files beyond what the demo needs are left out, too.
"""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING

from penstock.errors import AlreadyThere, StorageError
from penstock.source.scan import hidden
from penstock.storage import LocalStorage
from penstock.verify.files import entries_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.storage import Storage

_FILES_MAX = 8_000
_BYTES_MAX = 96 << 20
_COPIES = 16  # at a time, if that makes the storage faster
NOT_UTF8 = "not UTF-8"
HIDDEN = "name is hidden (begins with _ or .)"
ENOUGH = "more than the demo needs"
UNREADABLE = "cannot be read"


@dataclass
class Gathered:
    """The result of copying: what was copied, and how many files were left out for which reason."""

    files: int = 0
    bytes: int = 0
    left_out: dict[str, int] = field(default_factory=dict)


def gather(storage: Storage, target: str) -> Gathered:
    """Copy the sources of this machine below `target`, into one directory for each place that they come from."""
    done, here = Gathered(), LocalStorage()
    with storage.workers(_COPIES) as pool:
        copies = []
        for label, root in _places().items():
            for path, size in _python_files(here, root):
                data = _take(here, f"{root}/{path}", path, size, done)
                if isinstance(data, str):
                    done.left_out[data] = done.left_out.get(data, 0) + 1
                else:
                    copies.append(pool.submit(_copy, storage, data, f"{target}/{label}/{path}"))
        for copy in copies:
            copy.result()
    return done


def _places() -> dict[str, str]:
    """Return the directories to copy from, each once, by the name that the copy gets."""
    paths = sysconfig.get_paths()
    labels: dict[str, str] = {}
    for label, name in (("stdlib", "stdlib"), ("site-packages", "purelib"), ("platform", "platlib")):
        labels.setdefault(paths[name], label)
    return {label: path for path, label in labels.items()}


def _python_files(storage: Storage, root: str) -> Iterator[tuple[str, int]]:
    """Yield path (below `root`) and size of all files `*.py`; each directory is entered once, even if several links lead to it."""
    waiting, entered = [""], {storage.stat(root).identity}
    while waiting:
        for path, entry in sorted(entries_of(storage, root, waiting.pop()), key=itemgetter(0)):
            if entry.is_directory and entry.identity not in entered:
                entered.add(entry.identity)
                waiting.append(path)
            elif not entry.is_directory and entry.name.endswith(".py"):
                yield path, entry.size


def _take(here: Storage, file: str, path: str, size: int, done: Gathered) -> bytes | str:
    """Return the contents of one file, and count it; or the reason to leave it out. Files beyond the demo's limit are not read."""
    if any(hidden(name) for name in path.split("/")):
        return HIDDEN
    if done.files >= _FILES_MAX or done.bytes + size > _BYTES_MAX:
        return ENOUGH
    try:
        data = here.read(file)
    except StorageError:
        return UNREADABLE
    if not _is_utf8(data):
        return NOT_UTF8
    done.files += 1
    done.bytes += len(data)
    return data


def _copy(storage: Storage, data: bytes, path: str) -> None:
    storage.make_directory(path.rpartition("/")[0])
    try:
        with storage.create(path) as file:
            file.write(data)
    except AlreadyThere:
        # Two names may differ only in case, and be one place on a file system that ignores case.
        return


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
