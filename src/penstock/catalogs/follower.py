"""The follower: what an output publishes, brought into a table, each file exactly once.

The failures, and the rule that kills each:

1. *Killed between commit and note.* Files 5 to 9 are added, the follower dies before it notes how far it has got; the next one adds them
   again. Rule: the note is in the table, and is written by the commit that adds the files. Nothing is noted elsewhere.
2. *Two followers.* Both read that 4 files are in, both add 5 to 9. Rule: a commit goes through only if nobody else has noted anything
   since its follower looked; whoever is refused looks again and finds less to do.
3. *Lost reply.* A commit is reported as failed and was done. Rule: after any failure the table is looked at; where it says what was to be
   noted, that was done.
4. *Another ledger.* The output was emptied, or put back from a copy and written on: number 9 is another file than the table's. Rule:
   the note has the mark of the event before it (failure 6 of `sink.events`): `EventsLost`.
5. *Event before its file*, *folds*, *a sink that comes later*: as for every reader of events, see `sink.events`.
6. *Somebody else changes the table*: adds, deletes, joins files, adds columns. Rule: the note lies beside what they change, and is kept by
   them. A commit that was refused for theirs is made again from what is there.
7. *A file that cannot be in the table* (gone, altered, of another type). Rule: an error, by its name, and nothing of that commit; passed
   over only if it is named (`skip`), and counted.

A table that is dropped and made anew has no note, and gets all that the ledgers know. One commit has at most 1,000 files, so memory
does not follow the history; it is the unit of what a crash repeats, which is nothing but the look.
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
_TRIES = 20  # of one commit that others are faster than
_PAUSE_SECONDS = 0.05  # behind a refusal, times their number; one of those that compete is always done
_FOOTERS = 16  # read side by side
_REMEDY = "restore the ledger from a copy, or begin a new table, which gets all that the ledger has"
_LIBRARIES = {"iceberg": ("pyiceberg", "sqlalchemy"), "delta": ("deltalake",)}


@named
@dataclass(frozen=True)
class Catalogued:
    """What was brought into a table: how many files, with how many rows, in how many commits; and which files were passed over."""

    table: str
    kind: str
    files: int = 0
    rows: int = 0
    commits: int = 0
    skipped: tuple[str, ...] = ()
    version: str | None = None


class Follower:
    """Brings what an output has published into one table. Holds nothing that the table has not."""

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
        ] = {}  # of a sink: where the table is, what was read behind it

    def take(self) -> Catalogued:
        """Bring in all that is published now and not in the table. Raises `CatalogError`, `EventsLost`, and what a storage raises."""
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
        """Yield the files of each commit, and the names of those that were passed over, until nothing is new."""
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
        """Return the next files of a sink behind a position, and the position behind them; none if nothing is new."""
        known, end = self._read.get(sink, (at, at))
        if known != at:
            end = at
        while events := self._log(sink).after(end, _COMMIT_FILES):
            end = events[-1].behind
            if files := [event for event in events if event.is_shown and event.kind == PUBLISHED]:
                return end, files
            self._read[sink] = at, end
        return end, []

    def _table_files(self, events: Sequence[Event]) -> tuple[list[TableFile], list[str]]:
        """Return what a table wants to know of files, and the names of those that are passed over."""
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
        """Have a file passed over that cannot be in the table, as it is now. Raises `CatalogError` unless its user says so."""
        if not self._is_skipped(unfit.path):
            msg = (
                f"{_first_line(unfit)}; have it written as it was (the schema, bucketBy), or under another name; or pass over the file "
                f"(--skip), or begin a new table; {self._table.name!r} has the rows that it had"
            )
            raise CatalogError(msg) from unfit
        self._unfit.add(unfit.path)

    def _add(self, sink: str, start: EventPosition, end: EventPosition, files: Sequence[TableFile]) -> None:
        """Commit, and look. Raises `Overtaken` if somebody was faster."""
        failpoints.hit("catalog.commit")
        try:
            self._table.add(sink, start, end, files)
        except Overtaken:
            self._look()
            raise
        except (CatalogError, Unfit):
            raise
        except Exception as error:  # of which nobody knows whether it was done; so look
            self._look()
            if self._asked(lambda: self._table.position(sink)) == end:
                return
            raise self._refusal(error) from error
        failpoints.hit("catalog.committed")
        self._look()

    def _look(self) -> None:
        self._asked(self._table.look)

    def _asked(self, ask: Any) -> Any:  # noqa: ANN401 - a call of the table, and what it returns
        """Return what a call of the table's library returns; what it raises as ours."""
        try:
            return ask()
        except PenstockError:
            raise
        except Exception as error:  # whatever two libraries raise
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
    """Return as an error of ours what a library raises about a table, or the catalogue that it is in."""
    msg = (
        f"the {what} cannot be read or written: {type(error).__name__}: {_first_line(error)}; see to that, and run this again: what is in "
        "the table is not brought in twice"
    )
    return CatalogError(msg)


def _first_line(error: Exception) -> str:
    """Return what an error of a library says, without a stack and without secrets."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return without_credentials(lines[0].strip()) if lines else "without a word"


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
    """Bring the finished files of the output `dst` into a table, each exactly once. A second call brings what was published since.

    The table is one of Iceberg or Delta. `iceberg` is its name, such as `logs.events`, in `catalog`: a name of pyiceberg's configuration,
    `sqlite:////data/catalog.db`, or a catalogue of pyiceberg's; by default pyiceberg's own default, or a SQLite file below the output.
    With `delta`, the log of the table is in `dst` itself. `sink` takes only the files of that sink. `skip` has patterns of paths below
    the output that are passed over if they cannot be in the table. Needs neither Spark nor Java; any number of callers may call it at
    any time.

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
    """Return what `catalog` calls, to be called again and again."""
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
    except Exception as error:  # whatever a catalogue raises that is not there, or is damaged
        place = f"catalogue of the table {name!r}"
        raise _refused(place, error) from error


def _check_libraries(extra: str) -> None:
    """Raise `DependencyError` unless the libraries of an extra are installed."""
    lacking = [library for library in _LIBRARIES[extra] if importlib.util.find_spec(library) is None]
    if lacking:
        msg = f"tables of {extra} need the library {lacking[0]}; install it: pip install 'penstock[{extra}]'"
        raise DependencyError(msg)
