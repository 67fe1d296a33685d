"""Which files before the cursor were not read, and why: a list in the offset, so that it outlives the process.

A file that appears before the cursor, and is older than the cursor by more than `lateness`, is reported and counts as done (`recent`).
A line in a log is not enough to find it again, and `recent` cannot say which of its files were read. So each such file has an entry
here, until it is gone, is another version, or is read after all because its user has accepted it.

*Accepting.* The failures, and the rules:

1. A user touches a late file, to have it read as new. But its time was data: other readers, backups, buckets by file time. Rule:
   accepting changes the entry alone. The offset then says that the file waits, and the next plan includes it in the ordinary way: under
   the limits of a batch, checked before and after it is read, replayed from the offset.
2. The driver that plans the file dies before or after the offset of that batch is written. Rule: the entry is removed in the same
   offset whose plan begins the file. Before that offset is written the file waits, after that it is planned; there is no state in
   between.
3. A file is accepted twice, or while it is read. Rule: only an entry can be accepted; for a file that has none, or whose entry is
   accepted already, nothing changes. (Who may write the offset, and when, is in `ingestion.late`.)
4. A late file is away for a while (a mount, a rename), and a restart lies between. Rule: an accepted entry is kept until the file is
   read. Other entries are kept as long as `recent` remembers files that are away; after that the file is found late again.
5. Ten thousand files come late. Rule: an offset has `KEPT` entries at most, those with the newest notices; it also says how many were
   dropped.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from penstock.source.cursor import FileVersion

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

KEPT = 10_000  # entries, of about 100 bytes; a list of more than 64 KiB lies beside the checkpoint of an ingest
LATE = "late"  # certainly not read
UNSURE = "unsure"  # not read, or read earlier and away for a while
ACCEPTED = "accepted"  # waits for its batch
DISMISSED = "dismissed"  # was late, and its user does not want it: it is not reported any more
READ = "read"  # was unsure, and its user says that it was read, or does not want it
CLOSED = {DISMISSED, READ}
CERTAIN = {LATE, ACCEPTED, DISMISSED}  # certainly not read


@dataclass(frozen=True)
class LateFile:
    """A version of a file before the cursor that was not read; `since_ns` is its arrival time or, if that is unknown, when it was seen."""

    file: FileVersion
    since_ns: int
    why: str

    def to_json(self) -> list[Any]:
        """Return the entry of the offset."""
        file = self.file
        return [file.path, file.size, file.modified_ns, file.identity, self.since_ns, self.why]

    @staticmethod
    def from_json(entry: list[Any]) -> LateFile:
        """Return the late file of an entry of the offset."""
        path, size, modified_ns, identity, since_ns, why = entry
        return LateFile(FileVersion(path, size, modified_ns, identity), since_ns, why)


class LateFiles:
    """The entries of one planner. Adding or looking up one costs O(1), writing them costs O(entries)."""

    def __init__(self, entries: Iterable[LateFile] = (), dropped: int = 0) -> None:
        self._entries = {entry.file.key: entry for entry in entries}
        self._dropped = dropped
        self.unkept = False  # there are entries that are in no offset yet

    @staticmethod
    def recalled(form: Mapping[str, Any], load: Callable[[Any], list[Any]]) -> LateFiles:
        """Return the entries of an offset; `load` loads a list that lies beside it."""
        late = form.get("late", {})
        return LateFiles(map(LateFile.from_json, load(late.get("files", []))), late.get("dropped", 0))

    def __contains__(self, file: FileVersion) -> bool:
        """Tell whether this version has an entry."""
        return self._entry(file) is not None

    def awaits(self, file: FileVersion) -> bool:
        """Tell whether this version is accepted and not planned yet."""
        return self._why(file) == ACCEPTED

    def awaited(self) -> set[bytes]:
        """Return the keys of the versions that are accepted and not planned yet."""
        return {key for key, entry in self._entries.items() if entry.why == ACCEPTED}

    def note(self, entries: Iterable[LateFile]) -> None:
        """Add entries for files that were not read; a file that has an entry keeps it."""
        for entry in entries:
            if entry.file.key not in self._entries:
                self._entries[entry.file.key] = entry
                self.unkept = True

    def accept(self, files: Iterable[LateFile]) -> list[LateFile]:
        """Mark these files to wait for a batch; return those that were not waiting before."""
        waiting = [entry for entry in files if not self.awaits(entry.file)]
        self._entries.update((entry.file.key, replace(entry, why=ACCEPTED)) for entry in waiting)
        return waiting

    def dismiss(self, files: Iterable[LateFile]) -> list[LateFile]:
        """Stop reporting these files; return those that were reported until now."""
        dismissed = [entry for entry in files if self._why(entry.file) not in CLOSED]
        self._entries.update(
            (entry.file.key, replace(entry, why=READ if entry.why == UNSURE else DISMISSED)) for entry in dismissed
        )
        return dismissed

    def _entry(self, file: FileVersion) -> LateFile | None:
        # Mostly there are none, and each file of a listing is looked up: then its key, a digest, is not computed.
        return self._entries.get(file.key) if self._entries else None

    def _why(self, file: FileVersion) -> str | None:
        entry = self._entry(file)
        return None if entry is None else entry.why

    def planned(self, files: Iterable[FileVersion]) -> None:
        """Remove the entries of files whose beginning is in a plan."""
        for entry in filter(None, map(self._entry, files)):
            del self._entries[entry.file.key]

    def entries(self, is_there: Callable[[FileVersion], bool]) -> list[LateFile]:
        """Return the entries of files that are there, and of accepted files, in the order of files, without dismissed ones."""
        told = [entry for entry in self._entries.values() if entry.why not in CLOSED]
        entries = [entry for entry in told if entry.why == ACCEPTED or is_there(entry.file)]
        return sorted(entries, key=lambda entry: entry.file.order)

    def _bounded(self, entries: list[LateFile]) -> list[LateFile]:
        """Return as many entries as an offset may have: the accepted ones and the last of the others; count the dropped ones."""
        accepted = [entry for entry in entries if entry.why == ACCEPTED]
        others = [entry for entry in entries if entry.why != ACCEPTED]
        surplus = max(len(others) - max(KEPT - len(accepted), 0), 0)
        self._dropped += surplus
        return accepted + others[surplus:]

    def _keep(self, is_kept: Callable[[FileVersion], bool]) -> list[LateFile]:
        """Return the entries that stay: the accepted ones, and those for which `is_kept`; drop the others."""
        kept = self._bounded([e for e in self._entries.values() if e.why == ACCEPTED or is_kept(e.file)])
        self._entries = {entry.file.key: entry for entry in kept}
        return kept

    def to_json(
        self, is_there: Callable[[FileVersion], bool], from_ns: int, store: Callable[[list[Any]], Any]
    ) -> dict[str, Any]:
        """Return the field of the offset for the entries, empty if there are none. From `from_ns` on, files that are away are kept.

        `store` puts a long list beside the offset.
        """
        kept = self._keep(lambda file: file.modified_ns >= from_ns or is_there(file))
        if not kept and not self._dropped:
            return {}
        open_files = [entry.file for entry in kept if entry.why not in {ACCEPTED, *CLOSED}]
        form: dict[str, Any] = {
            "files": store([entry.to_json() for entry in kept]),
            "count": [len(open_files) + self._dropped, sum(file.size for file in open_files)],
            "accepted": sum(entry.why == ACCEPTED for entry in kept),
        }
        return {"late": form | ({"dropped": self._dropped} if self._dropped else {})}
