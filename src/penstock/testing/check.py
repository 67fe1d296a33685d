"""Compares what a reader sees with what was acknowledged: which records are lost, doubled, partial or uncommitted.

`visible` is that reader, for any storage; `compare` knows nothing of files.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from penstock.errors import NotThere

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.storage import Storage

_T = TypeVar("_T")
_HIDDEN = (".", "_")


@dataclass(frozen=True)
class Verdict(Generic[_T]):
    """What is wrong; each record as often as it is wrong. All four are empty if nothing is wrong."""

    lost: tuple[_T, ...] = ()
    doubled: tuple[_T, ...] = ()
    partial: tuple[_T, ...] = ()
    uncommitted: tuple[_T, ...] = ()

    def complaints(self, *, final: bool = True) -> list[str]:
        """Return a line for each; not `final`: acknowledged records may still be on their way, so nothing is lost yet."""
        kinds = {"doubled": self.doubled, "partial": self.partial, "uncommitted": self.uncommitted}
        if final:
            kinds["lost"] = self.lost
        return [f"{kind} {record!r}" for kind, records in kinds.items() for record in records]


def compare(seen: Iterable[_T], *, acknowledged: Iterable[_T], offered: Iterable[_T]) -> Verdict[_T]:
    """Compare the records that a reader sees with those whose commit was acknowledged, and with all that were ever offered.

    Records are hashable; equal ones may occur several times and are counted. A record that was offered and not acknowledged must not be
    seen (`uncommitted`); a record that was never offered is taken for a torn one (`partial`). If the acknowledgement itself may be
    lost, pass as `acknowledged` what the ledger has.
    """
    counted, known, all_ = Counter(seen), Counter(acknowledged), Counter(offered)
    partial = Counter({record: times for record, times in counted.items() if record not in all_})
    doubled = counted - partial - (all_ | known)
    return Verdict(
        lost=tuple((known - counted).elements()),
        doubled=tuple(doubled.elements()),
        partial=tuple(partial.elements()),
        uncommitted=tuple((counted - partial - doubled - known).elements()),
    )


def visible(storage: Storage, root: str) -> dict[str, bytes]:
    """Return the files below `root` that a plain reader sees, by their paths below it; none if there is no `root`.

    Names that begin with `_` or `.` are left out at every level, as Spark, Hive, Trino, DuckDB and pyarrow do.
    """
    files: dict[str, bytes] = {}
    waiting = [root]
    while waiting:
        folder = waiting.pop()
        try:
            entries = list(storage.list(folder))
        except NotThere:
            continue
        for entry in entries:
            path = f"{folder}/{entry.name}"
            if entry.name.startswith(_HIDDEN):
                continue
            if entry.is_directory:
                waiting.append(path)
            else:
                files[path[len(root) + 1 :]] = storage.read(path)
    return files
