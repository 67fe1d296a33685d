"""A file system in memory with all the times of a real one, and everything that may happen to files without the source's knowledge."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import Any

from penstock import clock
from penstock.errors import NotThere, StorageError
from penstock.storage import Entry, LocalStorage


@dataclass
class Node:
    """A file, or a directory with `names`. Times are nanoseconds."""

    inode: int
    modified_ns: int
    changed_ns: int
    data: bytes = b""
    names: dict[str, Node] | None = None


@dataclass
class Opened:
    """An open file."""

    tree: Tree
    node: Node

    def info(self) -> Entry:
        return self.tree.entry("", self.node)

    def read(self, offset: int, length: int) -> bytes:
        return self.node.data[offset : offset + length]

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *exc: object) -> None:
        """Close."""


class Tree(LocalStorage):
    """The storage. With `plain` it acts like an HDFS: no inodes, and only the one time that users can set.

    `broken` is a directory that cannot be listed.
    """

    def __init__(self, *, plain: bool) -> None:
        super().__init__()
        self._plain = plain
        self._inodes = count(1)
        self._root = self._node({})
        self.broken = ""

    def _node(self, names: dict[str, Node] | None, data: bytes = b"", modified_ns: int | None = None) -> Node:
        now = clock.now_ns()
        return Node(next(self._inodes), now if modified_ns is None else modified_ns, now, data, names)

    def find(self, path: str) -> Node | None:
        """Return the node at a path, which begins with a slash."""
        node: Node | None = self._root
        for name in filter(None, path.split("/")):
            node = node.names.get(name) if node and node.names is not None else None
        return node

    def entry(self, name: str, node: Node) -> Entry:
        """Return the node as a listing shows it."""
        is_directory = node.names is not None
        size = 0 if is_directory else len(node.data)
        identity, arrived_ns = ("", None) if self._plain else (str(node.inode), node.changed_ns)
        return Entry(name, is_directory, size, node.modified_ns, identity, arrived_ns, not is_directory)

    # -- the source's calls ------------------------------------------------------------------------------------------

    def stat(self, path: str) -> Entry:
        node = self.find(path)
        if node is None:
            raise NotThere(path)
        return self.entry(path.rpartition("/")[2], node)

    def names(self, path: str) -> dict[str, Any]:
        node = self.find(path)
        if node is None or node.names is None:
            raise NotThere(path)
        if self.broken and path.endswith(self.broken):
            raise StorageError(path)
        return {n: self.entry(n, each) if self._plain else each.inode for n, each in node.names.items()}

    def open(self, path: str) -> Any:
        node = self.find(path)
        if node is None or node.names is not None:
            raise NotThere(path)
        return Opened(self, node)

    def resolve(self, path: str) -> str:
        return path

    # -- what happens ------------------------------------------------------------------------------------------------

    def files(self) -> dict[str, Node]:
        """Return all files, by their paths below the root."""
        found: dict[str, Node] = {}
        waiting = [("", self._root)]
        while waiting:
            path, node = waiting.pop()
            for name, below in (node.names or {}).items():
                waiting.append((f"{path}/{name}", below))
            if node.names is None:
                found[path[1:]] = node
        return found

    def _folder(self, path: str) -> tuple[Node, str]:
        folder, _, name = path.rpartition("/")
        node = self.find(folder)
        if node is None:
            above, last = self._folder(folder)
            node = self._link(above, last, self._node({}))
        return node, name

    def _link(self, folder: Node, name: str, node: Node) -> Node:
        assert folder.names is not None
        folder.names[name] = node
        node.changed_ns = folder.modified_ns = folder.changed_ns = clock.now_ns()
        return node

    def write(self, path: str, data: bytes, modified_ns: int, *, in_place: bool = False) -> None:
        """Write a file, under a new inode or into the existing one."""
        node = self.find(path)
        if node is not None and in_place:
            node.data, node.modified_ns, node.changed_ns = data, modified_ns, clock.now_ns()
            return
        self._link(*self._folder(path), self._node(None, data, modified_ns))

    def put(self, path: str, node: Node) -> None:
        """Give a file or a directory this name, as a rename does."""
        self._link(*self._folder(path), node)

    def lose(self, path: str) -> Node:
        """Remove a name, and return the node that had it."""
        folder, name = self._folder(path)
        assert folder.names is not None
        node = folder.names.pop(name)
        node.changed_ns = folder.modified_ns = folder.changed_ns = clock.now_ns()
        return node

    def touch_back(self, path: str, modified_ns: int) -> None:
        """Set the modification time of a node."""
        node = self.find(path)
        assert node is not None
        node.modified_ns, node.changed_ns = modified_ns, clock.now_ns()

    def change_mode(self, path: str) -> None:
        """Change an attribute other than times, size and name."""
        node = self.find(path)
        assert node is not None
        node.changed_ns = clock.now_ns()
