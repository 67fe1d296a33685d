"""Taking over an output of Spark's own file sink, so that a query of ours goes on in its directory.

What the log of Spark's sink lists stays where it is, and enters a ledger of ours as finished: `status`, `files` and `verify` know it.
The log itself goes, for Spark's readers see the files that it lists and no others: with it there, what our query
writes would be hidden from them, without a word. It is kept, so that all of this can be taken back.

The failures, and the rules:

1. A batch of Spark's was killed, and its files are in the directory. No log lists them, so no reader of Spark's sees them; without the
   log all would, and have rows twice. Rule: files that nothing lists are reported, and nothing is changed until the user
   has said what becomes of them: they are set aside, or they stay.
2. The command is killed. Rule: each step may be repeated. Records are appended for what is listed and not in the ledger yet;
   a file is set aside by a move that never replaces; the log is moved last, as one directory. Until then Spark's readers see
   what they saw before, and from then on that and what our queries publish.
3. The query of Spark's still runs, or is started again. What it adds while this runs is found by looking at the log again once
   it is moved. Behind that it begins a new log, and its readers see only what that has. Rule: `verify` reports it, our sink
   refuses to write beside a log, and both say to adopt again.
4. The output was moved since, and the log has the paths from before. Rule: in `sparklog.relative`.
5. A listed file is gone, or has another size. Rule: it is reported, and does not enter the ledger: it was lost before.
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
    """What was found and done. Paths are relative to the output.

    `files` are in the ledger by now, and `rows` counts the rows of those whose footers tell. `unlisted` files are in no log and no
    ledger; `aside` names those that were moved to `kept_unlisted`. `missing` files are listed, but gone or of another size. `kept_log` is
    where Spark's log is kept. `done`: our queries may write here.
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
    """Take over an output of Spark's file sink; a query of ours may go on in the directory.

    Stop Spark's query first. `unlisted` says what becomes of files that nothing lists: `aside` moves them out of
    sight of readers, into the state of the output; `keep` leaves them where all readers will see them. If there are such files and
    `unlisted` is not given, that is `UsageError`, and nothing is changed. `dry_run` only looks, and names them all. Idempotent, even after
    a kill.

    Raises `OptionError` if there is no log of Spark's sink, `DamagedState` if that is not whole.
    """
    if unlisted not in {None, "aside", "keep"}:
        msg = f"unlisted={unlisted!r}; expected 'aside' or 'keep'"
        raise OptionError(msg)
    storage, root = locate(os.fspath(directory), name="DIR")
    adoption = _Adoption(storage, root)
    return adoption.look() if dry_run else adoption.run(unlisted)


def is_adopted(head: State) -> bool:
    """Tell whether a ledger is that of files which Spark's sink has written."""
    return head.owner.startswith(_OWNER)


class _Adoption:
    """One output, as it is taken over."""

    def __init__(self, storage: Storage, root: str) -> None:
        self._storage = storage
        self._root = root
        self._state = f"{root}/{STATE_DIRECTORY}/{ADOPTED}"
        self._ledger = Ledger(storage, f"{self._state}/ledger", ADOPTED)

    def look(self, aside: tuple[str, ...] = ()) -> Adopted:
        """Return what there is to do, and was done. Changes nothing."""
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
            self._record()  # what a query of Spark's has added meanwhile
        return self.look(aside)

    # -- what is there -------------------------------------------------------------------------------------------

    def _has_log(self) -> bool:
        return entry_at(self._storage, f"{self._root}/{LOG}") is not None

    def _kept(self) -> list[str]:
        """Return the logs that were taken over, in order."""
        with suppress(NotThere):
            names = [name for name in self._storage.names(self._state) if name.startswith(f"{LOG}-")]
            return [f"{self._state}/{name}" for name in sorted(names, key=lambda name: int(name.rpartition("-")[2]))]
        return []

    def _next_kept(self) -> str:
        return f"{self._state}/{LOG}-{len(self._kept()) + 1}"

    def _listed(self, entries: dict[str, Entry]) -> tuple[dict[str, Logged], set[str]]:
        """Return the files of all logs that are there as they were listed, by path, and the paths of the others."""
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
        """Enter into the ledger what is listed and not there yet, and end with a record that names nothing."""
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
        """Return the rows of a file whose footer says how many; `BadFile` where that cannot be read."""
        form = format_of(path)
        if not isinstance(form, TableFormat):
            return UNKNOWN_ROWS
        try:
            with self._storage.open(f"{self._root}/{path}") as handle:
                count = form.row_count(handle, size)
        except BadFile as error:
            msg = f"{self._root}/{path}: {error.message}; restore it, or remove it: it is then told as missing"
            raise BadFile(msg) from error
        return UNKNOWN_ROWS if count is None else count

    def _set_aside(self, path: str) -> str:
        target = f"{self._state}/{_ASIDE}/{path}"
        self._storage.make_directory(target.rpartition("/")[0], private=True)
        with suppress(NotThere):  # by a run that was killed
            self._storage.publish(f"{self._root}/{path}", target)
        return path


def _refuse(found: Adopted) -> None:
    shown = ", ".join(repr(path) for path in found.unlisted[:5])
    more = f" and {len(found.unlisted) - 5} more (--dry-run names all)" if len(found.unlisted) > 5 else ""  # noqa: PLR2004 - shown above
    msg = (
        f"{found.path!r} has files that its {LOG} does not list: {shown}{more}. Spark's readers have not seen them: they are what killed "
        "batches left, or somebody else's; without the log all readers would, rows of killed batches twice. Nothing was changed; say "
        f"--unlisted aside to have them moved to {found.kept_unlisted}, or --unlisted keep to leave them where they are"
    )
    raise UsageError(msg)


def _is_hidden(name: str) -> bool:
    """Tell whether readers leave a name out, as Spark does: not for a directory `_k=v`."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name and name != DEFAULT_PARTITION)


def _format(listed: dict[str, Logged]) -> dict[str, str]:
    """Return the format of the files as an option, where their names tell."""
    form = next((format_of(path) for path in listed), None)
    return {"format": form.name} if form else {}
