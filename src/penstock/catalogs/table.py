"""What the follower needs of a table, of whatever kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.catalogs.footers import TableFile
    from penstock.sink.events import EventPosition


class Overtaken(Exception):
    """Somebody else has changed the table since it was looked at; nothing of the commit is in it, or all of it."""


class Unfit(Exception):
    """A file that cannot be in the table, for its columns or directories; nothing of its commit is in it."""

    def __init__(self, file: TableFile, why: str) -> None:
        super().__init__(f"{file.place!r} {why}")
        self.path = file.path


class Table(Protocol):
    """A table that holds how far it has got with each sink."""

    kind: ClassVar[str]
    name: str

    def look(self) -> None:
        """Take the table as it is now, also if it is not there."""

    def position(self, sink: str) -> EventPosition:
        """Return how far it had got with a sink when it was looked at; the begin where it is not there, or has nothing of it."""

    def add(self, sink: str, start: EventPosition, end: EventPosition, files: Sequence[TableFile]) -> None:
        """Add files, at least one, and note `end` in place of `start`, in one step that fails if anybody else has noted a position.

        The table is made if it is not there, and gets the columns that it lacks: steps that may be repeated, and behind which rivals may
        have been faster. So the position is compared once more in the very version that the commit is made from. Raises
        `Overtaken`, `Unfit`, and what the library raises, of which nobody knows whether it was done: look.
        """

    @property
    def version(self) -> str | None:
        """Return the version, or snapshot, of the table when it was looked at; `None` if it is not there."""


def check_required(file: TableFile, name: str, in_file: str | None) -> None:
    """Raise `Unfit` where a file has null in a column that the table must not have null in; `in_file` is its name there, if it is there."""
    if in_file is None or file.nulls.get(in_file):
        raise Unfit(file, f"has null in the column {name!r}, in which the table takes none")


def check_start(table: Table, sink: str, start: EventPosition) -> None:
    """Raise `Overtaken` unless a table, as it was last looked at, has got as far with a sink as its follower saw."""
    if table.position(sink) != start:
        msg = f"the files of {sink!r} behind event {start.number} were brought in by another follower"
        raise Overtaken(msg)
