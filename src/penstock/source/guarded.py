"""Files that cannot be read as a whole: no row is taken from a bad file, or from a range that changed, if these are set aside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from penstock.errors import BadFile, BadRecord, FileChanged
from penstock.formats.aside import CHANGE, FILE, Aside, BeginAgain, Policy, about_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from penstock.source.cursor import Split
    from penstock.source.pieces import FilePiece
    from penstock.source.planned import PlannedFiles

_HELD_BYTES = 32 << 20  # bytes held back of a file that may turn out to be bad
_Item = TypeVar("_Item", bound="FilePiece | pa.RecordBatch")


@dataclass(frozen=True)
class SplitGuard:
    """Sets aside files and ranges of files, as `policy` says, in `aside`; if `aside` is `None`, every error is raised.

    `begins`: for files that are named by rows, the byte at which the range of each file begins, by path.
    """

    files: PlannedFiles
    policy: Policy
    aside: Aside | None
    begins: Mapping[str, int] | None

    def read(self, split: Split, read: Callable[[Split], Iterator[_Item]]) -> Iterator[_Item]:
        """Yield what `read` yields of a split, or set the split aside and yield nothing of it.

        The items are held back until the split is known to be whole, as long as they are small. If they are large, items that were
        already yielded must be dropped when the split turns out to be bad: the task begins again (`BeginAgain`), and then checks
        everything before it yields any of it.
        """
        aside = self.aside
        if aside is None or not (self.policy.files or self.policy.changes):
            yield from read(split)
            return
        try:
            held, items = _looked_at(split, read, to_the_end=not aside.restarts)
        except (BadFile, BadRecord, FileChanged) as error:
            self.refuse(split, error)
            return
        yield from held
        try:
            yield from items
        except (BadFile, BadRecord, FileChanged) as error:
            if not aside.restarts or not self._takes(error):
                raise
            aside.restarts = False
            raise BeginAgain from error

    def _takes(self, error: BadFile | BadRecord | FileChanged) -> bool:
        """Tell whether the policy sets aside what the error is about."""
        return self.policy.changes if isinstance(error, FileChanged) else self.policy.files

    def refuse(self, split: Split, error: BadFile | BadRecord | FileChanged) -> None:
        """Set aside the range of a file that changed, or a file that is bad: only once, however many of its ranges were planned.

        A file that is read in ranges can be bad only because of its place or its beginning. That is the same in each range, so only the
        first one reports it.
        """
        aside = self.aside
        if aside is None or not self._takes(error):
            raise error
        whole = isinstance(error, BadFile)
        if whole and split.start != (0 if self.begins is None else self.begins[split.file.path]):
            return
        offset, size = (0, split.file.size) if whole else (split.start, split.end - split.start)
        aside.take(
            about_file(
                self.files.full_path(split.file),
                offset=offset,
                size=size,
                modified_ns=split.file.modified_ns,
                reason=self._found(error.message),
                code=CHANGE if isinstance(error, FileChanged) else FILE,
            )
        )

    def _found(self, message: str) -> str:
        """Return what was found, without the advice for a batch that has failed: this one goes on."""
        found = message.removesuffix(self.files.again)
        return message if found == message else found.rpartition("; ")[0]


def _looked_at(
    split: Split, read: Callable[[Split], Iterator[_Item]], *, to_the_end: bool
) -> tuple[list[_Item], Iterator[_Item]]:
    """Return what was read of a split, and the rest. If that is much and `to_the_end`, check all of it, keep nothing, and read it anew."""
    items, held, size = read(split), list[_Item](), 0
    for item in items:
        held.append(item)
        size += _size_of(item)
        if size > _HELD_BYTES:
            break
    if size <= _HELD_BYTES or not to_the_end:
        return held, items
    held.clear()
    for _ in items:  # only to find out whether it can be read
        pass
    return held, read(split)


def _size_of(item: FilePiece | pa.RecordBatch) -> int:
    """Return about how much memory an item takes."""
    return int(item.nbytes) if isinstance(item, pa.RecordBatch) else len(item.data)
