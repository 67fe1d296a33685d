"""The follower: adds the files that an output publishes to a table, each exactly once.

The failures, and the rule against each:

1. *Killed between commit and note.* Files 5 to 9 are added, and the follower dies before it notes how far it has got; the next
   follower adds them again. Rule: the note is in the table, and the commit that adds the files also writes it. Nothing is noted
   elsewhere.
2. *Two followers.* Both read that 4 files are in the table, and both add 5 to 9. Rule: a commit succeeds only if nobody else has
   noted a position since its follower looked; a follower that is refused looks again and finds less to do.
3. *Lost reply.* A commit is reported as failed but was done. Rule: after any failure the follower looks at the table; if the
   table has the note that was to be written, the commit was done.
4. *Another ledger.* The output was emptied, or restored from a copy and written to again: number 9 is another file than the
   table's. Rule: the note has the mark of the event before it (failure 6 of `sink.events`): `EventsLost`.
5. *Event before its file*, *folds*, *a sink that comes later*: as for every reader of events, see `sink.events`.
6. *Somebody else changes the table*: adds, deletes or joins files, adds columns. Rule: their changes do not touch the note. If a
   commit was refused because of theirs, it is made again from the present table.
7. *A file that cannot be in the table* (gone, altered, of another type). Rule: an error that names the file, and nothing of that
   commit is in the table. The file is passed over only if the user names it (`skip`), and is counted.

A table that is dropped and made again has no note, and gets everything that the ledgers have. One commit has at most 1,000 files,
so memory does not grow with the history. After a crash, the follower repeats at most one commit, and no more than the look if it
was done.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from penstock import clock, failpoints
from penstock.arguments import named
from penstock.catalogs.footers import TableFile, table_file
from penstock.catalogs.table import Overtaken, Unfit
from penstock.errors import CatalogError, DependencyError, NotThere, OptionError, PenstockError, without_credentials
from penstock.options.parsers import identifier
from penstock.sink.events import PUBLISHED, EventLog, EventPosition
from penstock.sink.existing import sink_ids
from penstock.sink.ledger import STATE_DIRECTORY, Ledger
from penstock.storage import entry_at, locate

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

    from penstock.catalogs.table import Table
    from penstock.sink.events import Event
    from penstock.storage import Storage

_COMMIT_FILES = 1000
_TRIES = 20  # tries of one commit while other writers are faster
# Pause after a refusal, times the number of refusals; one of the competing commits always succeeds.
_PAUSE_SECONDS = 0.05
_FOOTERS = 16  # footers that are read in parallel
_REMEDY = "restore the ledger from a copy, or begin a new table, which gets all that the ledger has"
_LIBRARIES = {"iceberg": ("pyiceberg", "sqlalchemy"), "delta": ("deltalake",)}


@named
@dataclass(frozen=True)
class Catalogued:
    """What was added to a table: how many files, with how many rows, in how many commits; and which files were passed over."""

    table: str
    kind: str
    files: int = 0
    rows: int = 0
    commits: int = 0
    skipped: tuple[str, ...] = ()
    version: str | None = None


class Follower:
    """Adds what an output has published to one table. Holds no state that the table does not have."""

    def __init__(
        self, storage: Storage, root: str, table: Table, *, only: str | None = None, skip: Sequence[str] = ()
    ) -> None:
        self._storage = storage
        self._root = root
        self._table = table
        self._only = only
        self._skip = tuple(skip)
        self._logs: dict[str, EventLog] = {}
        self._unfit: set[str] = set()
        self._read: dict[
            str, tuple[EventPosition, EventPosition]
        ] = {}  # by sink: the table's position, and the position up to which events were read

    def take(self) -> Catalogued:
        """Add everything that is published now and not in the table. Raises `CatalogError`, `EventsLost`, and what a storage raises."""
        files, rows, commits, skipped = 0, 0, 0, list[str]()
        for sink in self._sinks():
            for added, passed in self._commits(sink):
                files, commits = files + len(added), commits + bool(added)
                rows += sum(file.rows for file in added)
                skipped += passed
        return Catalogued(
            self._table.name,
            self._table.kind,
            files,
            rows,
            commits,
            tuple(skipped),
            self._asked(lambda: self._table.version),
        )

    def _sinks(self) -> list[str]:
        try:
            sinks = sink_ids(self._storage, f"{self._root}/{STATE_DIRECTORY}")
        except NotThere:
            return []
        return [sink for sink in sinks if self._only in {None, sink}]

    def _commits(self, sink: str) -> Iterator[tuple[list[TableFile], list[str]]]:
        """Yield the files of each commit, and the paths that were passed over, until nothing is new."""
        refused = 0
        self._look()
        while True:
            at = self._asked(lambda: self._table.position(sink))
            end, events = self._ahead(sink, at)
            if not events:
                return
            files, passed = self._table_files(events)
            try:
                if files:
                    self._add(sink, at, end, files)
                else:
                    self._read[sink] = at, end
            except Unfit as unfit:
                self._pass_over(unfit)
            except Overtaken as conflict:
                refused += 1
                if refused == _TRIES:
                    msg = (
                        f"the table {self._table.name!r} was changed by others {refused} times while {len(files)} files were brought in "
                        f"({_first_line(conflict)}); run this again when they have done"
                    )
                    raise CatalogError(msg) from conflict
                clock.sleep(_PAUSE_SECONDS * refused)
            else:
                refused = 0
                yield files, passed

    def _ahead(self, sink: str, at: EventPosition) -> tuple[EventPosition, list[Event]]:
        """Return the position after a sink's next files, and these files, from a position on; none if nothing is new."""
        known, end = self._read.get(sink, (at, at))
        if known != at:
            end = at
        while events := self._log(sink).after(end, _COMMIT_FILES):
            end = events[-1].position_after
            if files := [event for event in events if event.is_shown and event.kind == PUBLISHED]:
                return end, files
            self._read[sink] = at, end
        return end, []

    def _table_files(self, events: Sequence[Event]) -> tuple[list[TableFile], list[str]]:
        """Return what a table needs to know about files, and the paths that are passed over."""
        with self._storage.workers(_FOOTERS) as workers:
            known = list(workers.map(self._known, events))
        return [file for file in known if isinstance(file, TableFile)], [
            file for file in known if isinstance(file, str)
        ]

    def _known(self, event: Event) -> TableFile | str:
        path = str(event.path)
        if path in self._unfit:
            return path
        try:
            return table_file(self._storage, self._root, event)
        except (NotThere, CatalogError) as error:
            if self._is_skipped(path):
                return path
            if isinstance(error, CatalogError):
                raise
            msg = (
                f"{self._root}/{path} is gone, and was published but is not in the table {self._table.name!r} yet; restore it, or pass "
                "over it: --skip PATH below the output, or a pattern such as 'dt=2026-01-*' (skip=[...] in Python)"
            )
            raise CatalogError(msg) from error

    def _is_skipped(self, path: str) -> bool:
        return any(fnmatchcase(path, pattern) for pattern in self._skip)

    def _pass_over(self, unfit: Unfit) -> None:
        """Pass over a file that cannot be in the table now. Raises `CatalogError` unless the user has named it in `skip`."""
        if not self._is_skipped(unfit.path):
            msg = (
                f"{_first_line(unfit)}; have it written as it was (the schema, bucketBy), or under another name; or pass over the file "
                f"(--skip), or begin a new table; {self._table.name!r} has the rows that it had"
            )
            raise CatalogError(msg) from unfit
        self._unfit.add(unfit.path)

    def _add(self, sink: str, start: EventPosition, end: EventPosition, files: Sequence[TableFile]) -> None:
        """Commit, and look at the table. Raises `Overtaken` if another writer was faster."""
        failpoints.hit("catalog.commit")
        try:
            self._table.add(sink, start, end, files)
        except Overtaken:
            self._look()
            raise
        except (CatalogError, Unfit):
            raise
        except Exception as error:  # it is unknown whether the commit was done, so look
            self._look()
            if self._asked(lambda: self._table.position(sink)) == end:
                return
            raise self._refusal(error) from error
        failpoints.hit("catalog.committed")
        self._look()

    def _look(self) -> None:
        self._asked(self._table.look)

    def _asked(self, ask: Any) -> Any:  # noqa: ANN401 - a call of the table, and what it returns
        """Return the result of a call of the table's library; raises its errors as `CatalogError`."""
        try:
            return ask()
        except PenstockError:
            raise
        except Exception as error:  # the two libraries may raise anything
            raise self._refusal(error) from error

    def _refusal(self, error: Exception) -> CatalogError:
        return _refused(f"table {self._table.name!r}", error)

    def _log(self, sink: str) -> EventLog:
        if sink not in self._logs:
            directory = f"{self._root}/{STATE_DIRECTORY}/{sink}/ledger"
            place = f"the ledger {directory!r}, which the table {self._table.name!r} follows,"
            self._logs[sink] = EventLog(Ledger(self._storage, directory, sink), sink, place, _REMEDY)
        return self._logs[sink]


def _refused(what: str, error: Exception) -> CatalogError:
    """Return our own error for an error that a library raises about a table, or the catalogue that has it."""
    msg = (
        f"the {what} cannot be read or written: {type(error).__name__}: {_first_line(error)}; see to that, and run this again: what is in "
        "the table is not brought in twice"
    )
    return CatalogError(msg)


def _first_line(error: Exception) -> str:
    """Return the first line of a library's error, without a stack and without secrets."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return without_credentials(lines[0].strip()) if lines else "no message"


@named
def catalog(
    dst: str | os.PathLike[str],
    *,
    iceberg: str | None = None,
    delta: bool = False,
    catalog: Any = None,  # noqa: ANN401 - a name, or a catalogue of pyiceberg's
    sink: str | None = None,
    skip: Sequence[str] = (),
) -> Catalogued:
    """Add the finished files of the output `dst` to a table, each exactly once. A second call adds what was published since.

    The table is an Iceberg or a Delta table. `iceberg` is its name, such as `logs.events`, in `catalog`: a name of pyiceberg's
    configuration, `sqlite:////data/catalog.db`, or a catalogue object of pyiceberg; by default pyiceberg's own default, or a
    SQLite file below the output. With `delta`, the log of the table is in `dst` itself. With `sink`, only the files of that sink
    are added. `skip` has patterns of paths below the output that are passed over if they cannot be in the table. Needs neither
    Spark nor Java; any number of callers may call it at any time.

    Raises `CatalogError`, `EventsLost`, `DependencyError`, `OptionError`.
    """
    return follower(dst, iceberg=iceberg, delta=delta, catalog=catalog, sink=sink, skip=skip).take()


def follower(
    dst: str | os.PathLike[str],
    *,
    iceberg: str | None,
    delta: bool,
    catalog: Any,  # noqa: ANN401 - a name, or a catalogue of pyiceberg's
    sink: str | None,
    skip: Sequence[str],
) -> Follower:
    """Return the follower that `catalog` uses, whose `take` may be called repeatedly."""
    if (iceberg is None) == (not delta):
        msg = "expected one kind of table: iceberg='logs.events' or delta=True (--iceberg logs.events, --delta)"
        raise OptionError(msg)
    if delta and catalog is not None:
        msg = "catalog is for iceberg: a table of Delta is where the output is; leave it out"
        raise OptionError(msg)
    if sink is not None:
        identifier(sink, "sink")
    storage, root = locate(dst, name="DST")
    entry = entry_at(storage, root)
    if entry is None or not entry.is_directory:
        msg = (
            f"path={root!r} is {'not there' if entry is None else 'no directory'}; expected the directory of an output"
        )
        raise OptionError(msg)
    return Follower(storage, root, _table(storage, root, iceberg, catalog), only=sink, skip=skip)


def _table(storage: Storage, root: str, iceberg: str | None, catalog: Any) -> Table:  # noqa: ANN401 - a name, or a catalogue of pyiceberg's
    _check_libraries("delta" if iceberg is None else "iceberg")
    if iceberg is None:
        from penstock.catalogs.delta import Delta

        return Delta(root)
    from penstock.catalogs.iceberg import Iceberg, check_name, opened

    name = check_name(iceberg)
    try:
        return Iceberg(opened(catalog, storage, root), name)
    except PenstockError:
        raise
    except Exception as error:  # what a library raises about a catalogue that is not there, or is damaged
        place = f"catalogue of the table {name!r}"
        raise _refused(place, error) from error


def _check_libraries(extra: str) -> None:
    """Raise `DependencyError` unless the libraries of an extra are installed."""
    lacking = [library for library in _LIBRARIES[extra] if importlib.util.find_spec(library) is None]
    if lacking:
        msg = f"tables of {extra} need the library {lacking[0]}; install it: pip install 'penstock[{extra}]'"
        raise DependencyError(msg)
