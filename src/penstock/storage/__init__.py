"""The one seam between Penstock and file systems.

Every durable step goes through a `Storage`; nothing above this layer opens, renames or removes a file
itself. A back end keeps the promises written on the verbs of `Storage`, and `tests/support/storage_contract.py`
is the suite that every back end passes.
"""

from __future__ import annotations

from penstock.storage._base import TEMPORARY, Entry, Hold, Link, ReadHandle, Storage, WriteHandle
from penstock.storage._file import SeekableFile
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
    temporary_directory,
)
from penstock.storage._in_turn import InTurn
from penstock.storage._local import LocalStorage
from penstock.storage._locate import locate
from penstock.storage._probe import Probe, probe

__all__ = [
    "TEMPORARY",
    "Entry",
    "HdfsStorage",
    "Hold",
    "HostFact",
    "InTurn",
    "Link",
    "LocalStorage",
    "Probe",
    "ReadHandle",
    "SeekableFile",
    "Storage",
    "WriteHandle",
    "cache_directory",
    "cached",
    "can_write",
    "free_bytes",
    "is_file",
    "listening",
    "locate",
    "no_longer_listening",
    "probe",
    "temporary_directory",
]
