"""Takes over an output of Spark's own file sink, so that one of our queries can continue in its directory.

The files that the log of Spark's sink lists stay where they are. They enter one of our ledgers as finished files, so `status`,
`files` and `verify` know them. The log itself is moved away: Spark's readers see only the files that it lists, so they would
silently miss everything that our query writes. The log is kept, so that the adoption can be undone.

The failures, and the rule for each:

1. One of Spark's batches was killed, and its files are still in the directory. The log does not list them, so Spark's readers do
   not see them. Without the log all readers would see them, and would have rows twice. Rule: files that are not listed are
   reported, and nothing is changed until the user has said whether they are set aside or stay.
2. The command is killed. Rule: each step may be repeated. Records are appended for files that are listed and not yet in the
   ledger. A file is set aside by a move that never replaces. The log is moved last, as one directory. Until then Spark's readers
   see what they saw before; from then on they also see what our queries publish.
3. Spark's query still runs, or is started again. The command reads the log again after moving it, and so finds what the query has
   added in the meantime. After the move, the query begins a new log, and Spark's readers see only the files of that log. Rule:
   `verify` reports the new log, our sink refuses to write beside a log, and both advise to adopt again.
4. The output was moved after the log was written, so the log has the old paths. Rule: see `sparklog.relative`.
5. A listed file is gone, or has another size. Rule: it is reported, and does not enter the ledger, because it was lost before the
   adoption.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock import clock, unique
from penstock.arguments import named
from penstock.errors import AlreadyThere, BadFile, NotThere, OptionError, UsageError
from penstock.formats.families import TableFormat
from penstock.formats.registry import format_of
from penstock.sink.buckets import DEFAULT_PARTITION
from penstock.sink.decide import successor
from penstock.sink.existing import note_options, noted, sink_ids
from penstock.sink.ledger import FinishedFile, Ledger
from penstock.sink.rivals import paths_of
from penstock.sink.sink import STATE_DIRECTORY
from penstock.sink.sparklog import LOG, relative
from penstock.sink.sparklog import read as read_log
from penstock.storage import entry_at, locate

if TYPE_CHECKING:
    from penstock.sink.ledger import State
    from penstock.sink.sparklog import Logged
    from penstock.storage import Entry, Storage

ADOPTED = "spark-file-sink"  # the sink whose ledger has the files
UNKNOWN_ROWS = -1
_OWNER = "adopt:"
_ASIDE = "unlisted"
_RECORD_FILES = 5_000  # a record of about a megabyte


@dataclass(frozen=True)
class Adopted:
    """What an adoption found and did. Paths are relative to the output.

    `files` counts the files in the ledger, and `rows` the rows of those whose footers give a number. `unlisted` files are in no
    log and no ledger; `aside` names those that were moved to `kept_unlisted`. `missing` files are listed, but are gone or have
    another size. `kept_log` is where Spark's log is kept. `done`: our queries may write here.
    """

    path: str
    files: int
    bytes: int
    rows: int
    rows_unknown: int
    unlisted: tuple[str, ...]
    aside: tuple[str, ...]
    missing: tuple[str, ...]
    kept_log: str | None
    kept_unlisted: str
    done: bool


@named
def adopt(directory: str | os.PathLike[str], *, unlisted: str | None = None, dry_run: bool = False) -> Adopted:
    """Take over an output of Spark's file sink; afterwards one of our queries may continue in the directory.

    Stop Spark's query first. `unlisted` says what becomes of files that are not listed: `aside` moves them into the state of the
    output, where no reader sees them; `keep` leaves them where all readers will see them. If there are such files and `unlisted`
    is not given, the call raises `UsageError` and changes nothing. `dry_run` only looks, and names all such files. Idempotent,
    even after a kill.

    Raises `OptionError` if there is no log of Spark's sink, `DamagedState` if the log is incomplete.
    """
    if unlisted not in {None, "aside", "keep"}:
        msg = f"unlisted={unlisted!r}; expected 'aside' or 'keep'"
        raise OptionError(msg)
    storage, root = locate(os.fspath(directory), name="DIR")
    adoption = _Adoption(storage, root)
    return adoption.look() if dry_run else adoption.run(unlisted)


def is_adopted(head: State) -> bool:
    """Tell whether a ledger is one of adopted files, which Spark's sink has written."""
    return head.owner.startswith(_OWNER)


class _Adoption:
    """The adoption of one output."""

    def __init__(self, storage: Storage, root: str) -> None:
        self._storage = storage
        self._root = root
        self._state = f"{root}/{STATE_DIRECTORY}/{ADOPTED}"
        self._ledger = Ledger(storage, f"{self._state}/ledger", ADOPTED)

    def look(self, aside: tuple[str, ...] = ()) -> Adopted:
        """Return what is left to do and what was done. Changes nothing."""
        entry = entry_at(self._storage, self._root)
        if entry is None or not entry.is_directory:
            raise self._no_log()
        entries = self._visible()
        listed, missing = self._listed(entries)
        head, recorded = self._ledger.head(), {file.path: file for file in self._ledger.history()}
        ours = self._ours()
        unlisted = sorted(entries.keys() - listed.keys() - recorded.keys() - ours)
        logs = self._kept()
        return Adopted(
            path=self._root,
            files=len(recorded),
            bytes=head.total_bytes,
            rows=head.total_rows,
            rows_unknown=sum(file.rows == UNKNOWN_ROWS for file in recorded.values()),
            unlisted=tuple(unlisted),
            aside=aside,
            missing=tuple(sorted(missing - recorded.keys())),
            kept_log=logs[-1] if logs else None,
            kept_unlisted=f"{self._state}/{_ASIDE}",
            done=bool(logs) and not self._has_log() and not head.finished and listed.keys() <= recorded.keys(),
        )

    def run(self, unlisted: str | None) -> Adopted:
        """Take the output over."""
        before = self.look()
        if before.unlisted and unlisted is None and not before.done:
            _refuse(before)
        for part in ("ledger", "staging"):
            self._storage.make_directory(f"{self._state}/{part}", private=True)
        self._record()
        aside = tuple(map(self._set_aside, before.unlisted)) if unlisted == "aside" else ()
        if self._has_log():
            self._storage.move_directory(f"{self._root}/{LOG}", self._next_kept())
            self._record()  # what Spark's query has added meanwhile
        return self.look(aside)

    # -- what is there -------------------------------------------------------------------------------------------

    def _has_log(self) -> bool:
        return entry_at(self._storage, f"{self._root}/{LOG}") is not None

    def _kept(self) -> list[str]:
        """Return the paths of the logs that were taken over, in order."""
        with suppress(NotThere):
            names = [name for name in self._storage.names(self._state) if name.startswith(f"{LOG}-")]
            return [f"{self._state}/{name}" for name in sorted(names, key=lambda name: int(name.rpartition("-")[2]))]
        return []

    def _next_kept(self) -> str:
        return f"{self._state}/{LOG}-{len(self._kept()) + 1}"

    def _listed(self, entries: dict[str, Entry]) -> tuple[dict[str, Logged], set[str]]:
        """Return the listed files that are there with their listed size, by path, and the paths of the other listed files."""
        logs = [*self._kept(), *([f"{self._root}/{LOG}"] if self._has_log() else [])]
        if not logs:
            raise self._no_log()
        sizes = {path: entry.size for path, entry in entries.items()}
        listed: dict[str, Logged] = {}
        for log in logs:
            listed |= relative(read_log(self._storage, log).values(), self._root, sizes)
        missing = {path for path, entry in listed.items() if sizes.get(path) != entry.size}
        return {path: entry for path, entry in listed.items() if path not in missing}, missing

    def _no_log(self) -> OptionError:
        entry = entry_at(self._storage, self._root)
        why = f"it has no {LOG}" if entry else "there is nothing of that name"
        if entry and not entry.is_directory:
            why = "it is a file"
        return OptionError(
            f"{self._root!r} is no output of Spark's file sink: {why}; name the directory that a streaming query wrote"
        )

    def _ours(self) -> set[str]:
        """Return the files that other sinks of ours have finished here."""
        paths: set[str] = set()
        state = f"{self._root}/{STATE_DIRECTORY}"
        with suppress(NotThere):
            for name in sink_ids(self._storage, state):
                paths |= paths_of(self._storage, self._root, name)
        return paths

    def _visible(self) -> dict[str, Entry]:
        """Return the files that readers see, by path."""
        entries: dict[str, Entry] = {}
        waiting = [""]
        while waiting:
            folder = waiting.pop()
            for entry in self._storage.list(f"{self._root}/{folder}" if folder else self._root):
                path = f"{folder}/{entry.name}" if folder else entry.name
                if _is_hidden(entry.name):
                    continue
                if entry.is_directory:
                    waiting.append(path)
                else:
                    entries[path] = entry
        return entries

    # -- steps ---------------------------------------------------------------------------------------------------

    def _record(self) -> None:
        """Enter the listed files that the ledger does not have yet, and end with a record that names no file."""
        listed, _ = self._listed(self._visible())
        recorded = {file.path for file in self._ledger.history()}
        left = sorted(listed.keys() - recorded)
        for at in range(0, len(left), _RECORD_FILES):
            self._put([self._finished(path, listed[path]) for path in left[at : at + _RECORD_FILES]])
        head = self._ledger.head()
        if head.finished or not head.n:
            self._put([])
        if not noted(self._storage, self._state).options:
            note_options(self._storage, self._state, 1, {"path": self._root, "sinkId": ADOPTED, **_format(listed)})

    def _put(self, files: list[FinishedFile]) -> None:
        head = self._ledger.head()
        rows = sum(file.rows for file in files if file.rows != UNKNOWN_ROWS)
        state = successor(
            head,
            finished=tuple(files),
            epoch=1,
            owner=f"{_OWNER}{LOG}",
            write=unique.token(),
            time_ns=clock.now_ns(),
            total_rows=head.total_rows + rows,
        )
        try:
            self._ledger.put(state)
        except AlreadyThere as error:
            msg = f"{self._root!r} is being adopted by another process; run this again when that has ended"
            raise UsageError(msg) from error

    def _finished(self, path: str, entry: Logged) -> FinishedFile:
        bucket = path.rpartition("/")[0]
        rows = self._rows(path, entry.size)
        return FinishedFile(path, bucket, rows, entry.size, "", entry.first_batch, entry.last_batch, "")

    def _rows(self, path: str, size: int) -> int:
        """Return the number of rows in the file's footer, else `UNKNOWN_ROWS`; `BadFile` if the footer cannot be read."""
        form = format_of(path)
        if not isinstance(form, TableFormat):
            return UNKNOWN_ROWS
        try:
            with self._storage.open(f"{self._root}/{path}") as handle:
                count = form.row_count(handle, size)
        except BadFile as error:
            msg = f"{self._root}/{path}: {error.message}; restore it, or remove it: it is then reported as missing"
            raise BadFile(msg) from error
        return UNKNOWN_ROWS if count is None else count

    def _set_aside(self, path: str) -> str:
        target = f"{self._state}/{_ASIDE}/{path}"
        self._storage.make_directory(target.rpartition("/")[0], private=True)
        with suppress(NotThere):  # a run that was killed has moved it
            self._storage.publish(f"{self._root}/{path}", target)
        return path


def _refuse(found: Adopted) -> None:
    shown = ", ".join(repr(path) for path in found.unlisted[:5])
    more = f" and {len(found.unlisted) - 5} more (--dry-run names all)" if len(found.unlisted) > 5 else ""  # noqa: PLR2004 - shown above
    msg = (
        f"{found.path!r} has files that its {LOG} does not list: {shown}{more}. Spark's readers have not seen them: killed batches "
        "left them, or they are somebody else's; without the log all readers would see them, and rows of killed batches twice. Nothing "
        f"was changed; say --unlisted aside to move them to {found.kept_unlisted}, or --unlisted keep to leave them where they are"
    )
    raise UsageError(msg)


def _is_hidden(name: str) -> bool:
    """Tell whether readers skip a name, as Spark does; a directory `_k=v` is not skipped."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name and name != DEFAULT_PARTITION)


def _format(listed: dict[str, Logged]) -> dict[str, str]:
    """Return the format of the files as an option, if their names show it."""
    form = next((format_of(path) for path in listed), None)
    return {"format": form.name} if form else {}
