"""How far the files of a reader are cleaned: a note in the input, with which each start compares its checkpoint.

`cleanSource` takes files out of the input for good, because a committed batch has read them. A checkpoint that was put back from an older
copy does not know that batch. The failures that this prevents, and those that it must not bring about:

1. *Output and checkpoint are put back together.* 1. A copy is taken of both after batch 2. 2. Batches 3 to 5 are read, and their files
   cleaned. 3. Both are put back, and the query goes on. The sink sees nothing wrong: its ledger and the checkpoint agree. The files of
   3 to 5 are not in the input any more, so their rows are in no output, and nobody says so. Rule: before the first file of a batch is
   taken out, its reader's directory gets a durable mark of how far the batch has got; a start whose newest planned batch has not got so
   far is refused (`FilesCleaned`), before it reads or cleans anything.
2. *The power fails while a batch is cleaned*, and takes entries of Spark's offset log that were not synced. Rule: the mark comes
   after what makes these entries durable: the sinks of Penstock do so before a batch begins, and so does `persist_all` before files are
   deleted. Behind a sink that does not, an archived file may be one that no offset knows; then it is right to refuse.
3. *The last batch is replayed*, because Spark's commit log lost its entry, or the driver died. Rule: what was planned counts, not what
   was committed; a batch is cleaned only when it was planned, so the mark never passes the newest plan of a query that goes on.
4. *A driver that stood still wakes up*, and marks the batch that it has in hand, when others have long marked later ones. Rule: a mark
   is an empty file whose name is the number, put under a name of its own and never replaced; the highest one counts, so a late one
   changes nothing. Lower ones are deleted only after a higher one is durable. Two drivers of one query may do this side by side.
   What a running driver has begun is not compared again, so one that was overtaken is still told so by its sink.
5. *Several readers clean one directory*, and one of them takes away what another has read. Rule: it first marks that for each reader
   which has read a file, by that reader's own note.
6. *Files wait*, for `retention` or for other readers. To mark how far the query has got when they are cleaned would refuse a copy
   that has read them all. Rule: a note of files to be cleaned has the number of the batch that read them (`at`), and this is marked.
7. *A copy is put back while files wait.* Notes of the time after the copy say that files were read which the restored query has still
   to read, and would have them cleaned before. Rule: a start removes its notes that are later than its newest planned batch.
8. *`penstock reset`* sets the count of files to 0, and everything is read again: what was marked is no promise any more. Yet a copy of
   before the reset has a greater count than the marks of after it. Rule: the offset counts resets, and a mark has this number first.
9. *A checkpoint is deleted and begun anew.* Rule: a new query has a new reader's name, so no mark; it reads what is there.
10. *The input is put back as well*: nothing was lost. Rule: the marks lie in the input, so they are put back with it.
11. *The directory was cleaned by a version that put no marks.* Rule: no mark, no refusal.

The number is (resets, files planned to their ends since then), see `read` and `resets` in the offset. Every batch that has something to
clean has at least one such file more than the batch before it. It costs one name a batch; on HDFS an empty file, which is quick.

Not seen: a copy of before the first batch, or of before `cleanSource` was set. Its reader has another name.

Rejected: to keep the number in the archive (`delete` has none), a list of what was cleaned (grows), one file that is replaced (a stale
driver would set it back), the number of Spark's batch (a source is not told).
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.errors import AlreadyThere, DamagedState, FilesCleaned, NotThere
from penstock.query.records import checked_at
from penstock.source.archive import archived_files
from penstock.source.cursor import Cursor
from penstock.source.scan import name_filter
from penstock.storage import names_at
from penstock.units import counted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.source.cursor import FileVersion
    from penstock.storage import Storage

READERS = "_penstock-readers"
_MARK = re.compile(r"cleaned-(\d+)-(\d+)", re.ASCII)
_NAMED = 10  # files that a message names


class Reached(NamedTuple):
    """How far a query has got: how often it was set back, and the files that it has planned to their ends since then."""

    resets: int
    files: int

    @staticmethod
    def of(offset: Mapping[str, Any]) -> Reached:
        """Return how far the batch that ends at this offset has got."""
        return Reached(offset.get("resets", 0), offset["read"][0])

    def covers(self, other: Reached) -> bool:
        """Tell whether a query that has got here has planned, since it was last set back, what it had planned at `other`."""
        return self.resets == other.resets and self.files >= other.files

    @property
    def mark(self) -> str:
        """Return the name of the mark."""
        return f"cleaned-{self.resets}-{self.files}"


def home_of(root: str, reader: str) -> str:
    """Return the directory of a reader's notes."""
    return f"{root}/{READERS}/{reader}"


def reader_of(offset: Mapping[str, Any]) -> str:
    """Return the reader's name in an offset. An offset of a source that does not clean, or did not clean then, has none."""
    name: str = offset.get("reader", offset.get("sum", ""))
    return name


def _marks(storage: Storage, home: str) -> list[Reached]:
    """Return the marks of a reader, in order."""
    found = filter(None, map(_MARK.fullmatch, names_at(storage, home)))
    return sorted(Reached(*map(int, match.groups())) for match in found)


class Marks:
    """Marks how far readers of the directory `root` are cleaned; lives in the driver of one of them."""

    def __init__(self, storage: Storage, root: str) -> None:
        self._storage = storage
        self._root = root
        self._marked: dict[str, Reached] = {}

    def mark(self, reader: str, at: Reached) -> None:
        """Mark, durably, that files of this reader are cleaned up to `at`; nothing is done if it is marked as far. `StorageError`."""
        marked = self._marked.get(reader)
        if marked is not None and marked >= at:
            return
        home = home_of(self._root, reader)
        present = _marks(self._storage, home)
        if present and present[-1] >= at:
            self._storage.persist(home, [present[-1].mark])  # whoever put it may have died before it was durable
        else:
            with suppress(AlreadyThere):
                self._storage.put_if_absent(f"{home}/{at.mark}", b"")
            present.append(at)
        for lower in present[:-1]:
            self._storage.delete(f"{home}/{lower.mark}")
        self._marked[reader] = present[-1]


def check_not_cleaned_since(storage: Storage, root: str, offset: dict[str, Any]) -> None:
    """Raise `FilesCleaned` if files were cleaned that a query whose newest plan is in `offset` has not read."""
    home = home_of(root, reader_of(offset))
    marks = _marks(storage, home)
    if not marks or marks[-1] <= Reached.of(offset):
        return
    mark = marks[-1]
    try:
        form = checked_at(storage, f"{home}/reader.json")
    except (NotThere, DamagedState):
        form = {"archive": None}
    raise FilesCleaned(_told(storage, root, offset, mark, form))


def _told(storage: Storage, root: str, offset: dict[str, Any], mark: Reached, form: dict[str, Any]) -> str:
    """Return what was found, and what to do."""
    home, now = home_of(root, reader_of(offset)), Reached.of(offset)
    archive = form["archive"]
    since = "" if mark.resets == now.resets else " after it was set back (penstock reset)"
    notes = " and ".join(repr(f"{home}/{each.mark}") for each in _marks(storage, home) if each > now)
    if archive is None:
        put_back = "they were deleted: put them back from a copy, with their times, or their rows are in no output"
    else:
        left = _unread(archived_files(storage, archive), offset, form["selects"])
        names = ", ".join(repr(f"{archive}/{file.path}") for file in left[:_NAMED])
        more = f" and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
        named = f"{counted(len(left), 'file')} in {archive!r}: {names}{more}" if left else f"what {archive!r} got since"
        put_back = (
            f"move them back to where they were in {root!r}, with their times ({named}), or their rows are in no output"
        )
    return (
        f"files of {root!r} were read and cleaned that this checkpoint does not know: found {counted(now.files, 'file')} planned, expected "
        f"{mark.files} or more{since}; it was put back from an older copy. Restore the checkpoint and the output from a copy as new as "
        f"the input, if there is one. Otherwise {put_back}. Then remove {notes}, and start again. If another driver runs this query, "
        "leave it to that one"
    )


def _unread(files: list[FileVersion], offset: dict[str, Any], selects: Mapping[str, Any]) -> list[FileVersion]:
    """Return the archived files after the cursor of an offset, in order; those that came late, before it, cannot be told."""
    cursor = Cursor.from_json(offset)
    accepts = name_filter(selects["pathGlobFilter"], selects["pattern"])
    after = [file for file in files if not cursor.passed(file) and accepts(file.path.rpartition("/")[2])]
    return sorted(after, key=lambda file: file.order)
