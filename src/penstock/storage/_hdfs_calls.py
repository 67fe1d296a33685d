"""The calls of HDFS that `_hdfs` uses, and nothing else: the interface at which a simulated HDFS can replace the real one.

`_hdfs_native` is the real one. Paths are absolute (`/a/b`), names Unicode. Every call raises `OSError` with a number: ENOENT and
ENOTDIR (not there), EEXIST (taken), ENOTEMPTY, EDQUOT (quota), EACCES, EROFS (safe mode), ESTALE (the lease is lost), EIO (all
else). An error may also mean a *lost reply*: the NameNode has done the call, and the answer is lost.

What survives a power cut, as HDFS promises it. Every change of names (create, rename, delete, mkdir, chmod, the length that a
`hsync` or `close` reports) is in the NameNode's edit log when the call returns, and survives a crash of NameNode, DataNodes or
client. Written bytes are durable after `hsync`, in the block in which it is called. Bytes that were written by `close` alone are
on the DataNodes, in memory or on disk; they survive crashes of processes but not a power cut of all DataNodes that have them. A
file whose writer dies stays open until its lease ends, with what was synced, or more.
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

    `size` of an open file is the length that its writer last synced or, before that, the bytes of its full blocks. `replicas` is
    how many replicas a block of the file should have. `being_written`: the file is known to be open; a listing does not say so.
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
        """Tell whether the size is a whole number of blocks, as it is while the last block is written and no length was published."""
        return not self.is_directory and self.block_size > 0 and self.size % self.block_size == 0


class HdfsWriter(Protocol):
    """An open file that only grows; this process has its lease."""

    def write(self, data: Data, /) -> int:
        """Append all of `data`; return its length. An error may belong to bytes written before."""

    def hsync(self, seconds: float, /) -> None:
        """Return when all DataNodes of the current block have it on disk, and the NameNode its length; ETIMEDOUT after `seconds`."""

    def close(self) -> None:
        """Return when the file is complete and its lease is given back. ENOENT or ESTALE if file or lease are gone."""


class HdfsReader(Protocol):
    """The blocks that a file had when it was opened. May be used by several threads."""

    size: int

    def read(self, offset: int, length: int, /) -> bytes:
        """Return exactly these bytes, which lie within `size`; EIO if the blocks are gone, never other bytes."""


class Hdfs(Protocol):
    """A connection of this process to one HDFS."""

    def create(self, path: str, mode: int, replicas: int = 0, /) -> HdfsWriter:
        """Create a file and open it, with so many replicas (0: the configured number).

        EEXIST if the name is taken, ENOENT without a parent.
        """

    def append(self, path: str, /) -> HdfsWriter:
        """Open a closed file to append to it. EEXIST if any writer has it open."""

    def recover_lease(self, path: str, /) -> bool:
        """Take the lease from its holder, whose writer then fails. Returns True once the file is closed; until then, call again."""

    def open(self, path: str, /) -> HdfsReader:
        """Open the file for reading, as far as its blocks are complete."""

    def stat(self, path: str, /) -> Status:
        """Return the file or directory at the path."""

    def list(self, path: str, /) -> Iterable[Status]:
        """Yield the entries of the directory; ENOTDIR if it is a file."""

    def rename(self, source: str, target: str, /) -> None:
        """Move a file, in one step. EEXIST if the name is taken, ENOENT if the source or the target's directory is not there."""

    def delete(self, path: str, /) -> None:
        """Remove the file, open or not, or the empty directory; no error if nothing is there."""

    def mkdir(self, path: str, mode: int, /) -> None:
        """Make the directory and its missing parents; no error if it exists. EEXIST if it is a file."""

    def set_replicas(self, path: str, replicas: int, /) -> None:
        """Have the NameNode bring each block of the file to so many replicas, in the background."""

    def chmod(self, path: str, mode: int, /) -> None:
        """Set the permissions of a file."""
