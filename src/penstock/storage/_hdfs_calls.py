"""What `_hdfs` calls of HDFS, and nothing else: the place where a simulated HDFS stands in for the real one.

`_hdfs_native` is the real one. Paths are absolute (`/a/b`), names Unicode. Every call raises `OSError` with a number: ENOENT
and ENOTDIR (not there), EEXIST (taken), ENOTEMPTY, EDQUOT (quota), EACCES, EROFS (safe mode), ESTALE (the lease is
lost), EIO (all else). An error may also mean a *lost reply*: the NameNode has done what was asked, and the answer is gone.

What a power cut leaves, as HDFS promises it. Every change of names (create, rename, delete, mkdir, chmod, the length that a
`hsync` or `close` reports) is in the NameNode's edit log when the call returns: a crash of NameNode, DataNodes or
client keeps it. Bytes that were written are durable behind `hsync`, up to the block in which it is called; what `close`
alone has written is on the DataNodes, in memory or on disk, and outlives crashes of processes but not a power cut of all
DataNodes that have it. A file whose writer dies stays open until its lease ends, with what was synced, or more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.storage._base import Data


@dataclass(frozen=True)
class Status:
    """One file or directory.

    `size` of an open file is what its writer last synced or, before that, the bytes of its full blocks. `replicas` is how many a
    block of the file should have. `being_written`: it is known to be open; a listing does not say so.
    """

    name: str
    is_directory: bool
    size: int
    modified_ms: int
    block_size: int
    replicas: int
    being_written: bool = False

    @property
    def may_be_open(self) -> bool:
        """Tell whether the size is that of full blocks alone, as it is while the last one is written and no length was published."""
        return not self.is_directory and self.block_size > 0 and self.size % self.block_size == 0


class HdfsWriter(Protocol):
    """An open file that only grows; its lease is this process's."""

    def write(self, data: Data, /) -> int:
        """Append all of `data`; return its length. An error may belong to bytes written before."""

    def hsync(self, seconds: float, /) -> None:
        """Return when all DataNodes of the current block have it on disk, and the NameNode its length; ETIMEDOUT after `seconds`."""

    def close(self) -> None:
        """Return when the file is complete and its lease is given back. ENOENT or ESTALE if file or lease are gone."""


class HdfsReader(Protocol):
    """The blocks that a file had when it was opened. Used by several threads."""

    size: int

    def read(self, offset: int, length: int, /) -> bytes:
        """Return exactly these bytes, which lie within `size`; EIO if the blocks are gone, never other bytes."""


class Hdfs(Protocol):
    """One HDFS, as this process sees it."""

    def create(self, path: str, mode: int, replicas: int = 0, /) -> HdfsWriter:
        """Create the file, open, with so many replicas (0: as is configured). EEXIST if the name is taken, ENOENT if there is no parent."""

    def append(self, path: str, /) -> HdfsWriter:
        """Open a closed file to append to it. EEXIST if it is open, by whomever."""

    def recover_lease(self, path: str, /) -> bool:
        """Take the lease from whoever has it; his writer then fails. True once the file is closed, else ask again."""

    def open(self, path: str, /) -> HdfsReader:
        """Open the file for reading, as far as its blocks are complete."""

    def stat(self, path: str, /) -> Status:
        """Return what is at the path."""

    def list(self, path: str, /) -> Iterable[Status]:
        """Yield what is in the directory; ENOTDIR if it is a file."""

    def rename(self, source: str, target: str, /) -> None:
        """Move a file, in one step. EEXIST if the name is taken, ENOENT if the source or the way is not there."""

    def delete(self, path: str, /) -> None:
        """Remove the file, open or not, or the empty directory; nothing there is no error."""

    def mkdir(self, path: str, mode: int, /) -> None:
        """Make the directory and its missing parents; there already is no error. EEXIST if it is a file."""

    def set_replicas(self, path: str, replicas: int, /) -> None:
        """Have the NameNode see to it that each block of the file has so many replicas, by and by."""

    def chmod(self, path: str, mode: int, /) -> None:
        """Set the permissions of a file."""
