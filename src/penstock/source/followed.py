r"""Plans the batches of files that grow: logs that are being written (`follow=true`).

For each file that is there, the offset has how far it is planned (`at`, always after a whole record) and a digest of the bytes before
that (`follow.seen`). The failures that this prevents; users of Fluent Bit, Vector and Filebeat have reported each of them:

1. *The writer flushes in mid line*, between CR and LF, inside a character. Rule: a plan ends after a separator that is whole; a CR at
   the very end is not, and UTF-16 is looked at unit by unit. Bytes after that wait until their line ends, or for `closeAfter`.
2. *The file grows between plan and read, or between a batch and its replay.* Rule: a plan has the bytes [start, end), and a task reads
   no byte after `end`; the file may be longer by then.
3. *Rotation by rename*: `app.log` becomes `app.log.1`, and another `app.log` begins. Rule: a file is known by its identity (an inode),
   not by its name; the old one is read to its end under the new name, and the new one from its beginning.
4. *An inode is used again*: the old file is deleted, and a new one has its number. Rule: a file with a known number must also begin
   with the bytes that were seen; otherwise it is another file.
5. *Copy and truncate.* The copy is a new file with old records: if it were read, they would be doubled. The original is cut, and grows
   again, perhaps beyond its old size before anybody looks: if it were read from there, records would be lost. Rule: the bytes that were
   seen tell that a file was cut. A new file waits if it is named like a followed file in the same directory and begins as that file
   does. It waits until the followed file is cut (then the new file is the copy, and is read from where the followed file was), until it
   has other bytes, or until it has stood still for `COPY_NS` (then it is a file of its own). Bytes that the writer puts into the file
   between the end of the copy and the cut are lost by the method itself, unless they were read by then.
6. *A planned range is rotated away before it is read.* Rule: a task looks for the bytes by name, then by number, then by the bytes that
   were seen, in the same directory: in the renamed file, or in the copy.
7. *A file is removed, or cut, with bytes that nobody has read.* Rule: this is logged.
8. *A line never ends*, because its writer died. Rule: a file that stands still for `closeAfter` is closed, and the bytes at its end are
   a record. If it grows after that, reading continues after this record.
9. *A file is replaced at once by a longer version of itself* (`rsync`, editors). It has another identity, and is not a copy. Rule: a
   file that lies under the same name, and begins with all that was read, is continued. A log that was removed and begun again with
   exactly the same records cannot be told from that; with an inode that is used again it could not be told before either.
10. *A file, or its directory, is missing at one look.* If it were forgotten at once, it would be read again. Rule: it stays in the
    offset for a while (`growth.Away`), and is recognised by name or number, and by how it begins.
11. *The pattern matches `app.log` and not `app.log.1`*, which is always so if the path is the file. Rule: a followed file is looked for
    in its directory by its number, and a copy of it by the bytes that were seen, whatever the pattern says; no other file outside of
    the pattern is read.
12. *The copy is overtaken*: the follower reads on between copy and cut, and dies. The copy is shorter than what was read. Rule: the
    offset also has where the copies end that were seen (`Growing.earlier`). Only a file that ends there, with these bytes, is such a
    copy: a new file of another name that begins with the same header is none.
13. *The copy is overtaken before anybody has seen it*: names are listed, the copy is made, the original grows and its size is taken; all
    of that is planned, and the original is cut. The copy is shorter than what was read, and of no earlier position. Rule: names are
    listed once more after sizes, and a size counts only if no copy has come meanwhile; a copy that was seen is marked
    (`Beside.mark`) before its original is planned further.
14. *A copy is put over an older one*: `cp app.log app.log.1` writes into the file that the last rotation left, or the copy gets the
    number of one that was just removed. It has a known identity and other bytes, as a file has that was cut, and if it were read from
    its beginning, all that its original had would come twice. Rule: a file that is cut is looked at as a new one is (5), before it is
    begun again.
15. *A log that is closed (8) is cut.* Among many files a closed one has its turn seldom; if its copy has stood still for `COPY_NS` by
    then, the copy would be read as a file of its own. Rule: as long as a copy waits, its original is looked at each time.
16. *A header is all that was read*, and all files begin with it. Then it tells nothing: a new file was taken for the one that had gone, a
    copy for one of another file, an older copy for the new one. Rule: what is certain comes before what begins alike: the file itself,
    by its number; then the file of which most was read; then the newest copy.

A file has one state, whatever names lead to it: of two links to one inode one is followed. Empty files have none. State is O(files that
are there): files that grow are in the offset, and closed files are beside it if there is a place for that (`stateLocation`). State that
is not kept is found again: a file that was cut and has not been planned since is recognised by the bytes that were seen.

Rejected: the name as identity (3), the inode alone (4), a checksum of the first line alone, as in Vector (files that begin with the
same header are one file to it; a file that grew beyond its old end after a cut is taken for the old one).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock import failpoints
from penstock.errors import FileChanged, NotThere, OptionError
from penstock.formats.charsets import by_mark, charset
from penstock.formats.families import HEAD_BYTES, RecordFormat
from penstock.query.offset import FOLLOW_VERSION, check, summed
from penstock.source.cursor import FileVersion, Followed, Split
from penstock.source.dividing import Dividing, task_weight
from penstock.source.follow import seen
from penstock.source.growth import SearchedTail
from penstock.source.notices import Notices
from penstock.source.pace import ScanPace
from penstock.source.plan import _NO_LIMITS, BatchLimits, marks
from penstock.source.rotated import GrowingFiles
from penstock.source.sides import SideRecords

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.formats import ReadFormat
    from penstock.formats.families import Tail
    from penstock.options import Options
    from penstock.source.growth import Growing
    from penstock.source.read import Reading
    from penstock.storage import ReadHandle, Storage

_ALONE = {
    "emit": ("records", "splits"),
    "cleanSource": ("off",),
    "batchBoundary": ("none",),
    "startingFrom": ("earliest",),
}


def check_options(options: Options, fmt: ReadFormat, storage: Storage, root: str) -> None:
    """Raise `OptionError` if files cannot be followed with these options, in this format, or on this storage."""
    if not options["follow"]:
        return
    if storage.tags_contents:
        msg = (
            f"follow=true: {root!r} is in an object store, where objects do not grow: each is put whole, and read when it is there; "
            "leave it out, and have the writer put a new object for what is new"
        )
        raise OptionError(msg)
    for name, values in _ALONE.items():
        if options[name] not in values:
            text = options.given[name]
            msg = f"{name}={text!r} does not go with follow=true, which reads all that files have and get; leave one of them out"
            raise OptionError(msg)
    if options["decryptionKey"]:
        msg = "decryptionKey is for files that are encrypted, and so complete, and follow=true leaves such out; leave one of them out"
        raise OptionError(msg)
    from penstock.formats import format_named

    form = format_named(fmt.name)
    if not isinstance(form, RecordFormat):
        msg = f"format={fmt.name} cannot be followed: a file of it is complete or none; expected text, json or csv"
        raise OptionError(msg)
    if fmt.multi_line and not form.in_bytes(replace(fmt, encoding="UTF-8", line_sep=None)):
        msg = "multiLine=true takes a file for one document, which is whole or none, and follow=true waits for more; leave one of them out"
        raise OptionError(msg)
    if not form.in_bytes(fmt):
        msg = (
            f"encoding={fmt.encoding} cannot be followed with this format and lineSep: the bytes of a file do not show where a "
            "record ends; expected an encoding such as UTF-8, UTF-16 or ISO-8859-1"
        )
        raise OptionError(msg)


class FollowPlanner:
    """Plans the batches of a source that follows files; called as a `plan.Planner` is. Not shared between threads."""

    def __init__(
        self, reading: Reading, options: Options, *, state: tuple[Storage, str] | None = None, zone: str | None = None
    ) -> None:
        self._reading = reading
        self._storage = reading.storage
        self._root = reading.root
        self._options = options
        self._form = reading.form
        self._dividing = Dividing(lambda _: not self._form.anchored, None)
        self._side = SideRecords(state)
        self._zone = zone
        self._limits = BatchLimits(options["maxFilesPerTrigger"], options["maxBytesPerTrigger"])
        self._marks = marks(options)
        self._pace = ScanPace(reading.storage, reading.root, options)
        self._bounded = self._frozen = False
        self._turn = 0
        self._at: dict[str, Any] | None = None
        self._notices = Notices(reading.root, options)
        self._reset({})

    # -- offsets -------------------------------------------------------------------------------------------------

    def initial(self) -> dict[str, Any]:
        """Return the offset before the first batch.

        Called twice at the very start, and perhaps again later: what was planned is kept in offsets only.
        """
        self._reset({})
        self._at = None
        return self._offset([], last=False)

    def prepare_available_now(self) -> None:
        """Limit the run to the files that the next `latest` finds."""
        self._bounded, self._frozen = True, False

    def latest(self, start: dict[str, Any], *, limited: bool = True) -> dict[str, Any]:
        """Return the end offset of the next batch after `start`; `start` itself if there is nothing to read; see `Planner.latest`."""
        at, self._at = self._at, None
        if self._pace.is_closed(bounded=self._bounded or not limited) or not self._is_there(start, at):
            self._at = at
            return start
        failpoints.hit("source.planned")
        splits = sorted(self._planned(self._limits if limited else _NO_LIMITS), key=lambda split: split.file.order)
        owed = self._bounded and bool(start.get("plan")) and not start.get("last")
        last = not limited or (self._bounded and not self._more)
        self._at = self._offset(splits, last=last) if splits or owed else start
        return self._at

    def splits(self, end: dict[str, Any]) -> list[Split]:
        """Return the plan of the batch that ends at `end`; reads the offset (and its side record), nothing else."""
        check(end)
        plan = end.get("plan", [])
        return [Split.from_json(entry) for entry in (self._side.load(plan) if isinstance(plan, dict) else plan)]

    @staticmethod
    def zone(end: dict[str, Any]) -> str | None:
        """Return the zone for times without one in the batch that ends at `end`."""
        zone: str | None = end.get("zone")
        return zone

    def tasks(self, end: dict[str, Any]) -> list[list[Split]]:
        """Return the plan packed into tasks; see `Planner.tasks`."""
        splits = self.splits(end)
        return list(self._dividing.tasks(splits, task_weight(splits, self._options)))

    def clean(self, done: dict[str, Any], following: dict[str, Any] | None = None) -> None:
        """Do nothing: files that may grow are not removed."""

    def committed(self, end: dict[str, Any]) -> None:
        """Delete side records that no replay can ask for; called when the batch that ends at `end` is done."""
        check(end)
        forms = [form for form in (end, self._at) if form]
        references = [part for form in forms for part in (form.get("plan"), form.get("follow", {}).get("closed"))]
        self._side.resume(end).forget_all_but({part["file"] for part in references if isinstance(part, dict)})

    def _offset(self, splits: list[Split], *, last: bool) -> dict[str, Any]:
        pending = [file.unread for file in self._growing.files if not file.closed and file.unread]
        follow = self._growing.to_json()
        form: dict[str, Any] = {
            "v": FOLLOW_VERSION,
            "cursor": None,
            "recent": {},
            **self._marks,
            **self._side.to_json(),
            "zone": self._zone,
            "listed": self._growing.listed_ns,
            "read": [self._count, self._bytes],
            "left": [len(pending), sum(pending)],
            "follow": {**follow, "closed": self._side.store(follow["closed"])},
            "plan": self._side.store([split.to_json() for split in splits]),
        }
        return summed(form | ({"last": True} if last else {}))

    def _reset(self, start: dict[str, Any]) -> None:
        """Resume from an offset, of this process or of one that died."""
        follow: dict[str, Any] = {}
        if start:
            check(start)
            self._side.resume(start)
            if "follow" not in start:
                msg = "the checkpoint is that of a source with follow=false, found follow=true: set it as it was, or take a new checkpoint"
                raise OptionError(msg)
            follow, closed = start["follow"], start["follow"]["closed"]
            follow = {**follow, "closed": self._side.load(closed) if isinstance(closed, dict) else closed}
        self._growing = GrowingFiles(self._storage, self._root, self._options, follow, self._notices)
        self._count: int
        self._bytes: int
        self._count, self._bytes = start["read"] if start else (0, 0)
        self._more = self._is_cut = False

    def _is_there(self, start: dict[str, Any], at: dict[str, Any] | None) -> bool:
        """List files after `start`, anew unless it was planned last (`at`); `False` while a missing path is waited for."""
        if start != at:
            self._reset(start)
        try:
            self._look(anew=start != at)
        except NotThere:
            if not self._pace.is_missing() and not self._growing.is_one:
                raise
            return False
        return True

    def _look(self, *, anew: bool) -> None:
        """List the directory if it is time for that, or at once if nothing is known (`anew`).

        An AvailableNow run lists once.
        """
        if not self._frozen and (self._pace.is_due() or self._bounded or anew):
            self._growing.refresh()
        self._frozen = self._bounded

    # -- the batch -----------------------------------------------------------------------------------------------

    def _planned(self, limits: BatchLimits) -> Iterator[Split]:
        """Yield the splits of one batch; the state of a file is already moved past its split when the split is yielded."""
        count, room = 0, limits.size
        self._more = False
        closed_ns = self._storage.now_ns() - self._options["closeAfter"]
        for file in self._in_turn(limits):
            closes = file.modified_ns <= closed_ns
            if file.unread and not limits.allow(count, room):
                self._more = True
                return
            split = self._next(file, room, closes=closes) if file.unread else None
            if split is not None:
                yield split
                count += 1
                self._turn += 1
                file.turn = self._turn
                room = None if room is None else room - (split.end - split.start)
                self._more = self._more or (split.end < file.size and self._is_cut)
            file.closed = closes and file.at == file.size

    def _in_turn(self, limits: BatchLimits) -> list[Growing]:
        """Return the files that may grow, the oldest first; if a batch has not room for all, those first that have waited longest."""
        growing = sorted((file for file in self._growing.files if not file.closed), key=lambda file: file.version.order)
        if limits.files is not None and sum(file.unread > 0 for file in growing) > limits.files:
            # At each look the youngest file is the one being written, and would never have its turn otherwise.
            growing.sort(key=lambda file: file.turn)
        return growing

    def _next(self, file: Growing, room: int | None, *, closes: bool) -> Split | None:
        """Return the new records of a file, about `room` bytes, and move its position past them; `None` if there are none."""
        self._is_cut = room is not None and file.size - file.at > room
        try:
            with self._growing.beside.open(file) as handle:
                end = self._end(handle, file, room, closes=closes)
                if end == file.at or not self._is_same(handle, file):
                    return None
                digest = seen(handle, end)
                still = not file.at or seen(handle, file.at) == file.digest
                if digest is None or not still:
                    return None
        except (NotThere, FileChanged):
            return None  # it was renamed, cut or removed since the last look; the next look finds out
        base = file.at
        file.at, file.digest = end, digest
        self._count += not base
        self._bytes += end - base
        return Split(FileVersion(file.path, end, file.modified_ns, file.identity), base, end, Followed(base, digest))

    def _end(self, handle: ReadHandle, file: Growing, room: int | None, *, closes: bool) -> int:
        """Return up to where whole records go by now, or `file.at` if there are no more."""
        fmt = self._reading.format
        if by_mark(fmt.encoding) and file.size < HEAD_BYTES:
            return file.size if closes else file.at  # the bytes that tell its encoding are not there yet
        tail = self._tail(handle, file)
        while room is not None and file.size - file.at > room:
            end = tail.ended(handle.read, file.at + max(room, 1))
            if end > file.at:
                return end
            room = max(room, 1) * 16
        end = tail.ended(handle.read, file.size)
        self._is_cut = False
        if end == file.at:
            file.tail = SearchedTail(tail, seen(handle, tail.searched))
        return file.size if closes else end

    def _tail(self, handle: ReadHandle, file: Growing) -> Tail:
        """Return the end of a file from `file.at` on: the one that was looked through before, if the bytes are still those."""
        before, file.tail = file.tail, None
        if before is not None and before.tail.begin == file.at and seen(handle, before.tail.searched) == before.digest:
            return before.tail
        assert isinstance(self._form, RecordFormat)  # noqa: S101 - no other family is followed
        fmt = self._reading.format
        head = handle.read(0, min(HEAD_BYTES, file.size)) if by_mark(fmt.encoding) else b""
        return self._form.tail(fmt, file.at, charset(fmt.encoding, head))

    @staticmethod
    def _is_same(handle: ReadHandle, file: Growing) -> bool:
        return handle.info().identity == file.identity
