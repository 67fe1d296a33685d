"""The interface of a table of any kind for the follower."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.catalogs.footers import TableFile
    from penstock.sink.events import EventPosition


class Overtaken(Exception):
    """Another writer has changed the table since the last look; the commit is in it completely or not at all."""


class Unfit(Exception):
    """A file cannot be in the table because of its columns or directories; nothing of its commit is in the table."""

    def __init__(self, file: TableFile, why: str) -> None:
        super().__init__(f"{file.place!r} {why}")
        self.path = file.path


class Table(Protocol):
    """A table that notes how far it has got with each sink."""

    kind: ClassVar[str]
    name: str

    def look(self) -> None:
        """Load the present version of the table; no error if it is not there."""

    def position(self, sink: str) -> EventPosition:
        """Return how far the table had got with a sink at the last look.

        The beginning if the table is not there, or has nothing of the sink.
        """

    def add(self, sink: str, start: EventPosition, end: EventPosition, files: Sequence[TableFile]) -> None:
        """Add files, at least one, and note `end` instead of `start`, in one step that fails if anybody else has noted a position.

        The table is made if it is not there, and gets the columns that it lacks. These steps may be repeated, and after them
        rivals may have been faster. So the position is compared once more in the version from which the commit is made. Raises
        `Overtaken`, `Unfit`, and errors of the library, after which it is unknown whether the commit was done: look.
        """

    @property
    def version(self) -> str | None:
        """Return the version, or snapshot, of the table at the last look; `None` if it is not there."""


def check_required(file: TableFile, name: str, in_file: str | None) -> None:
    """Raise `Unfit` if a file lacks, or has null in, a column that must not be null; `in_file` is the column's name in the file, if any."""
    if in_file is None or file.nulls.get(in_file):
        raise Unfit(file, f"has null in the column {name!r}, in which the table takes none")


def check_start(table: Table, sink: str, start: EventPosition) -> None:
    """Raise `Overtaken` unless a table, at its last look, is at the position of a sink that its follower saw."""
    if table.position(sink) != start:
        msg = f"the files of {sink!r} after event {start.number} were brought in by another follower"
        raise Overtaken(msg)
