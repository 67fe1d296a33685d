"""One interface to all file systems, `Storage`; no other code opens, renames or removes files.

*What lives here.* The verbs of a `Storage` with their promises (`_base`). One file for each back end: `_local`; `_hdfs`, with its
library in `_hdfs_native`; `_objects`, for stores of objects, with their library in `_objects_native`, their addresses and keys in
`_objects_place`, and their answers in `_objects_errors`. The way from a user's address to a back end (`_locate`). Trials of what a back end
can do (`_probe`, `_contest`). And the few facts of this host that are kept in files (`_host`).

*What may be touched.* Every durable step goes through a `Storage`: nothing above this layer opens, renames or removes a
file itself, and nothing asks which back end it has. Each back end passes the suite `tests/support/storage_contract.py`.

*What it may know.* Errors, clocks, the names of options, and failpoints. It knows neither records nor formats, nor what a file is for.
"""

from __future__ import annotations

from penstock.storage._base import (
    TEMPORARY,
    DirectoryWatch,
    Entry,
    Hold,
    Link,
    OpenedOneByOne,
    Opener,
    ReadHandle,
    ShownInListings,
    Storage,
    WriteHandle,
    entry_at,
    names_at,
)
from penstock.storage._contest import check_fit, contest, mark_fit
from penstock.storage._file import MemoryFile, ReadableFile, SeekableFile
from penstock.storage._hdfs import HdfsStorage
from penstock.storage._host import (
    HostFact,
    cache_directory,
    cached,
    can_write,
    free_bytes,
    is_file,
    listening,
    no_longer_listening,
    passing_path,
    temporary_directory,
    user_cache,
)
from penstock.storage._in_turn import InTurn
from penstock.storage._local import LocalStorage
from penstock.storage._locate import check_names, locate
from penstock.storage._objects import ObjectStorage
from penstock.storage._probe import Probe, probe, try_move
from penstock.storage._refusal import refuse
from penstock.storage._scratch import Scratch
from penstock.storage._secret import secret

__all__ = [
    "TEMPORARY",
    "DirectoryWatch",
    "Entry",
    "HdfsStorage",
    "Hold",
    "HostFact",
    "InTurn",
    "Link",
    "LocalStorage",
    "MemoryFile",
    "ObjectStorage",
    "OpenedOneByOne",
    "Opener",
    "Probe",
    "ReadHandle",
    "ReadableFile",
    "Scratch",
    "SeekableFile",
    "ShownInListings",
    "Storage",
    "WriteHandle",
    "cache_directory",
    "cached",
    "can_write",
    "check_fit",
    "check_names",
    "contest",
    "entry_at",
    "free_bytes",
    "is_file",
    "listening",
    "locate",
    "mark_fit",
    "names_at",
    "no_longer_listening",
    "passing_path",
    "probe",
    "refuse",
    "secret",
    "temporary_directory",
    "try_move",
    "user_cache",
]
