"""What a reader sees, compared with what was acknowledged: what is lost, doubled, partial or uncommitted.

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
    """What is wrong, each record as often as it is wrong. All four are empty when nothing is."""

    lost: tuple[_T, ...] = ()
    doubled: tuple[_T, ...] = ()
    partial: tuple[_T, ...] = ()
    uncommitted: tuple[_T, ...] = ()

    def complaints(self, *, final: bool = True) -> list[str]:
        """Return a line for each; not `final`: what was acknowledged may still be on its way, so nothing is lost yet."""
        kinds = {"doubled": self.doubled, "partial": self.partial, "uncommitted": self.uncommitted}
        if final:
            kinds["lost"] = self.lost
        return [f"{kind} {record!r}" for kind, records in kinds.items() for record in records]


def compare(seen: Iterable[_T], *, acknowledged: Iterable[_T], offered: Iterable[_T]) -> Verdict[_T]:
    """Compare the records a reader sees with those whose commit was acknowledged, and all that were ever offered.

    Records are hashable; equal ones may occur several times and are counted. One that was offered and not
    acknowledged must not be seen (`uncommitted`); one that was never offered is taken for a torn one (`partial`).
    Where the acknowledgement itself may be lost, say as `acknowledged` what the ledger has.
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
