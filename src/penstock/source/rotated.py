"""The files that grow, as listings show them: which appeared, grew, disappeared or came back, and which were renamed, copied or cut.

The failures that this prevents are those of `followed`, by their numbers.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.errors import StorageError
from penstock.formats.codecs import codec_of, unreadable
from penstock.formats.encryption import is_encrypted
from penstock.source.cursor import FileVersion
from penstock.source.growth import COMPARED_BYTES, COPY_NS, Away, Beside, Growing, is_named_like
from penstock.source.scan import Changes, Scan

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from penstock.options import Options
    from penstock.source.notices import Notices
    from penstock.storage import Storage

_log = logging.getLogger("penstock.source")
_LOOKS = 3  # how often all is looked at again because names and sizes do not belong together


class GrowingFiles:
    """The followed files of one source: `files`, in no order; `beside` opens them at their places. Not shared between threads.

    `form` is what an offset has of them (`to_json`, with its closed files loaded), or empty before the first offset. `notices` reports
    what is left out.
    """

    def __init__(
        self, storage: Storage, root: str, options: Options, form: Mapping[str, Any], notices: Notices
    ) -> None:
        self._storage = storage
        self._root = root
        self._notices = notices
        self._listing = Listing(storage, root, options, notices)
        self.beside = Beside(storage, root)
        self.files = [Growing.of(entry) for entry in form.get("growing", ())]
        self.files += [Growing.of(entry, closed=True) for entry in form.get("closed", ())]
        self._losses = Losses(root, form)
        # Of this look: files that have grown and of which little was read, and files that are cut, as they are now.
        self._grown: list[Growing] = []
        self._cut: list[Growing] = []
        self._originals: set[str] = set()  # of which a copy may wait: they are looked at even if they are closed

    @property
    def listed_ns(self) -> int | None:
        """When the newest listing began."""
        return self._listing.listed_ns

    @property
    def is_one(self) -> bool:
        """Whether the source is one file, and not a directory: then the file may be away while it is rotated."""
        return any(not file.path for file in self.files)

    def to_json(self) -> dict[str, Any]:
        """Return what an offset keeps."""
        return {
            "growing": [file.to_json() for file in self.files if not file.closed],
            "closed": sorted(file.to_json() for file in self.files if file.closed),
            **self._losses.to_json(),
        }

    def refresh(self) -> None:
        """Take in which files appeared, disappeared or grew, and which were renamed or cut.

        Names are listed once more after sizes were taken: a copy that the first listing did not show may have fewer bytes than its
        original (failure 13). Then all is looked at again.
        """
        overtaken: list[Growing] = []
        for _ in range(_LOOKS):
            was_one = self.is_one
            self._refresh()
            if was_one and not self._listing.is_one:
                self._notices.is_directory()
            overtaken = self._overtaken()
            if not overtaken:
                return
        for file in overtaken:
            file.size = file.at  # so that no more of it is planned before the next look

    def _refresh(self) -> None:
        self.beside.again()
        self._listing.look({file.path for file in self.files if file.closed} - self._originals)
        self._originals = set()
        for file in self._matched():
            known = self._losses.back(file, self.beside)
            if known is not None:
                self.files.append(known)
                _log.info("%r is back, and continues at byte %d", file.path or self._root, known.at)
            elif not self._waits_as_copy(file):
                self.files.append(Growing.new(file))

    def _overtaken(self) -> list[Growing]:
        """List names again; return the files with unread bytes of which a copy may have come, or grown, since the listing before."""
        unread = [file for file in self.files if file.unread]
        if not unread:
            return []
        new = self._listing.come_since({file.path for file in self.files})
        return [file for file in unread if any(self.beside.may_be_copy(other, file) for other in new)]

    def _matched(self) -> list[FileVersion]:
        """Bring followed files up to date; return the files that are not followed yet, an original before its copies."""
        gone, cut, known = self._sorted_out()
        self._cut = [Growing.new(now) for _, now in cut]
        known -= self._taken_over([*gone, *(file for file, _ in cut)])
        cut, over = self._put_over(cut, gone, self._unknown(known, {now.identity for _, now in cut}))
        new = self._unknown(known - {now.path for _, now in over}, {now.identity for _, now in cut})
        steps = [
            *((file, partial(self._find_moved, file)) for file in gone),
            *((file, partial(self._begin_again, file, self._listing.latest(now))) for file, now in cut),
            *((file, partial(self._find_copied, file, now)) for file, now in over),
        ]
        # A file of which little was read may be the beginning of many: one of which more was read has the better claim to a copy.
        for _, step in sorted(steps, key=lambda item: -item[0].at):
            new = step(new)
        return sorted(new, key=lambda file: (len(file.path), file.order))  # a copy has the longer name

    def _sorted_out(self) -> tuple[list[Growing], list[tuple[Growing, FileVersion]], set[str]]:
        """Keep the files that continue; return gone files, cut files with their present version, and the known names."""
        by_identity = {file.identity: file for file in self._listing.now.values() if file.identity}
        known: set[str] = set()
        kept: list[Growing] = []
        cut: list[tuple[Growing, FileVersion]] = []
        gone: list[Growing] = []
        self._grown = []
        for file in self.files:
            now = self._there(file, by_identity)
            if now is None:
                gone.append(file)
                continue
            if file.place is None:
                known.add(now.path)
            if self._brought_up(file, now):
                kept.append(file)
            else:
                cut.append((file, now))
        if gone or cut:
            # List again: a copy is there before its original is cut, but need not have been there when we listed.
            self._listing.look({file.path for file in self.files if file.closed})
        self.files = kept
        return gone, cut, known

    def _taken_over(self, originals: Sequence[Growing]) -> set[str]:
        """Stop following files with more bytes than before, if a copy was put over them, or may be; return their paths (failure 14).

        Nothing or only a header was read of them, and the copy begins with that, too. `originals` are files that are gone or cut.
        """
        taken: set[str] = set()
        for file in self._grown:
            now = file.version
            if self.beside.is_of_one(now, [*self.files, *self._cut], file.at) or any(
                known.at > file.at and self.beside.is_copy(now, known) for known in originals
            ):
                taken.add(file.path)
        self.files = [file for file in self.files if file.path not in taken or file.place is not None]
        return taken

    def _put_over(
        self, cut: list[tuple[Growing, FileVersion]], gone: list[Growing], new: list[FileVersion]
    ) -> tuple[list[tuple[Growing, FileVersion]], list[tuple[Growing, FileVersion]]]:
        """Divide cut files: into those to begin again, and those that a copy of another file was put over (failure 14)."""
        originals = [file for file in (*gone, *(file for file, _ in cut)) if file.at]
        begun: list[tuple[Growing, FileVersion]] = []
        over: list[tuple[Growing, FileVersion]] = []
        for file, now in cut:
            later = self._listing.latest(now)
            is_copy = file.place is None and (
                any(self.beside.is_copy(later, other) for other in originals if other is not file)
                or self._waits_as_copy(later, [*new, *(begun for other, begun in cut if other is not file)])
            )
            (over if is_copy else begun).append((file, now))
        return begun, over

    def _there(self, file: Growing, by_identity: Mapping[str, FileVersion]) -> FileVersion | None:
        """Return the present version of a file: under its path, or under another path if it was renamed."""
        now = self._listing.now.get(file.path)
        now = now if now is not None and now.identity == file.identity else by_identity.get(file.identity)
        if now is not None:
            file.place = None
        elif file.place is not None:
            now = self._unlisted(file)
        return now

    def _unlisted(self, file: Growing) -> FileVersion | None:
        """Return the present version of a file under a name outside of the pattern."""
        if file.closed and self.beside.stands_still(file):
            return file.version
        lies = self.beside.unlisted(file, self._listing.now)
        if lies is None:
            return None
        file.place, entry = lies
        return FileVersion(file.path, entry.size, entry.modified_ns, entry.identity)

    def _brought_up(self, file: Growing, now: FileVersion) -> bool:
        """Update a file to its present version; `False` if that begins with other bytes than were seen."""
        goes_on = (now.size, now.modified_ns) == (file.size, file.modified_ns) or self.beside.goes_on(file, now)
        if goes_on:
            if now.size < file.size and file.unread and not _is_copied(file, self.files, self._listing.now):
                self._losses.cut(file, now, min(file.unread, file.size - now.size), "there")
            if now.size > file.size and file.at <= COMPARED_BYTES and file.place is None:
                self._grown.append(file)
            file.closed = file.closed and now.size == file.size
            file.path, file.size, file.modified_ns = now.path, now.size, now.modified_ns
        return goes_on is not False

    def _unknown(self, known: set[str], identities: set[str]) -> list[FileVersion]:
        """Return the files that have bytes and are not followed, one for each identity."""
        followed = {file.identity for file in self.files} | identities
        names: dict[str, FileVersion] = {}
        for path in sorted(self._listing.now.keys() - known):
            file = self._listing.now[path]
            if file.size and not (file.identity and file.identity in followed):
                names.setdefault(file.identity or path, file)
        return list(names.values())

    def _find_moved(self, file: Growing, new: list[FileVersion]) -> list[FileVersion]:
        """Continue a file that is gone in itself, if it lies beside the listed ones, or in the file that has its bytes; return the rest.

        The file itself comes first: the one that took its name may begin with all that was read of it, if that is a header.
        """
        now = self._unlisted(file)
        if now is not None and self._brought_up(file, now):
            self.files.append(file)
            return new
        present = [*self.files, *self._cut]  # a copy of one of them is not what is left of this one
        for other in sorted(
            new, key=lambda other: (other.identity != file.identity, other.path == file.path, -other.size)
        ):
            is_left = self.beside.is_copy(other, file) and not self.beside.is_of_one(other, present, file.at)
            if file.at and (is_left or self.beside.replaces(other, file)):
                self.files.append(self.beside.rest_in(other, file))
                if other.size < file.at:  # a copy of a part that was read: the file itself is away
                    self._losses.gone(file, self._storage.now_ns())
                return [rest for rest in new if rest != other]
        self._losses.gone(file, self._storage.now_ns())
        return new

    def _find_copied(self, file: Growing, now: FileVersion, new: list[FileVersion]) -> list[FileVersion]:
        """Continue a file that a copy was put over in a copy of it, if there is one; return the rest of the new files."""
        copies = [other for other in new if other.path != now.path and file.at and self.beside.is_copy(other, file)]
        copy = max(copies, key=lambda other: other.size, default=None)
        if copy is not None:
            self.files.append(self.beside.rest_in(copy, file))
        elif not self._goes_on_beside(file) and file.unread:
            self._losses.cut(file, now, file.unread, "where its original had been read to")
        return [other for other in new if other != copy]

    def _begin_again(self, file: Growing, now: FileVersion, new: list[FileVersion]) -> list[FileVersion]:
        """Follow a file that was cut from its beginning, and its copy from where the file was; return the rest of the new files."""
        place, file.place = file.place, None
        self.files.append(Growing(now.path, now.identity, 0, "", now.size, now.modified_ns, place=place))
        copies = [other for other in new if self.beside.is_copy(other, file)]
        copy = max(copies, key=lambda other: other.size, default=None)  # a copy of only the beginning may be older
        if copy is not None:
            self.files.append(self.beside.rest_in(copy, file))
            if copy.size < file.at and not self._goes_on_beside(file) and file.unread:
                self._losses.cut(file, now, file.unread, "its beginning")
            return [other for other in new if other != copy]
        if not self._goes_on_beside(file):
            self._losses.cut(file, now, file.unread, "its beginning")
        return new

    def _goes_on_beside(self, file: Growing) -> bool:
        """Follow a copy that the listing does not show from where the file was; `False` if there is none."""
        lies = self.beside.unlisted(file, self._listing.now, {known.identity for known in self.files})
        if lies is None:
            return False
        place, entry = lies
        self.files.append(
            Growing(file.path, entry.identity, file.at, file.digest, entry.size, entry.modified_ns, place=place)
        )
        _log.info("what was %r continues as %r at byte %d", file.path or self._root, place, file.at)
        return True

    def _waits_as_copy(self, file: FileVersion, new: Sequence[FileVersion] = ()) -> bool:
        """Tell whether a file may be a copy of a file, followed or new, that is about to be cut (failure 5)."""
        if self._listing.changed_ns(file) < self._storage.now_ns() - COPY_NS:
            return False
        for known in (*self.files, *map(Growing.new, new)):
            if self.beside.may_be_copy(file, known):
                self.beside.mark(known, file)
                self._originals.add(known.path)
                return True
        return False


def _is_copied(file: Growing, files: Iterable[Growing], listed: Mapping[str, FileVersion]) -> bool:
    """Tell whether a file that is cut may have a copy: a listed file named like it that is not among `files`, and is then read whole."""
    followed = {known.identity for known in files}
    return not file.at and any(
        is_named_like(path, file.path) and other.size >= file.size and other.identity not in followed
        for path, other in listed.items()
    )


class Listing:
    """The files of a directory, as looks at it show them: `now`, by path. Compressed and encrypted ones are left out.

    `notices` reports what is left out.
    """

    def __init__(self, storage: Storage, root: str, options: Options, notices: Notices) -> None:
        self._scan = Scan.of(storage, root, options)
        self._root = root
        self._notices = notices
        self._later = Changes()  # what was shown and is not in `now` yet
        self._since: dict[str, int] = {}
        self.now: dict[str, FileVersion] = {}

    @property
    def listed_ns(self) -> int | None:
        """When the newest look began."""
        return self._scan.listed_ns

    @property
    def is_one(self) -> bool:
        """Whether the newest look has found a file, and not a directory."""
        return self._scan.is_one

    def look(self, closed: set[str]) -> None:
        """List names, and look at all files but the closed ones: also at those that wait as copies, or were empty so far."""
        later, self._later = self._later, Changes()
        self._take_in(later)
        self._take_in(self._changes(self.now.keys() - closed))
        self._notices.left_out(self._scan)

    def latest(self, file: FileVersion) -> FileVersion:
        """Return a file as the last look has it, if that still shows the same file."""
        now = self.now.get(file.path, file)
        return now if now.identity == file.identity else file

    def changed_ns(self, file: FileVersion) -> int:
        """Return when a file was changed, or came under its name; later than its modification time if its writer has set that (`cp -p`)."""
        return max(file.modified_ns, self._since.get(file.path, file.modified_ns))

    def come_since(self, followed: set[str]) -> list[FileVersion]:
        """List names again; return the files that are not followed, and have come, or grown, since the last look. `now` stays."""
        self._later = self._changes(self.now.keys() - followed)
        return [arrival.file for arrival in self._later.came if arrival.file.path not in followed]

    def _changes(self, look_at: Iterable[str]) -> Changes:
        """Return what has changed since the last listing; after a failure the next one returns everything."""
        try:
            return self._scan.refresh(look_at)
        except StorageError:
            self.now, self._later = {}, Changes()
            raise

    def _take_in(self, changes: Changes) -> None:
        for file in changes.gone:
            self.now.pop(file.path, None)
            self._since.pop(file.path, None)
        for file, since_ns in changes.came:
            name = file.path or self._root
            if codec_of(name) or unreadable(name) or is_encrypted(name):
                self._notices.not_followed(file.path, "is compressed or encrypted, and a file that grows is not")
            else:
                self.now[file.path] = file
                if since_ns is not None:
                    self._since[file.path] = since_ns


class Losses:
    """Files that are gone, some of which may come back; and bytes that were cut or removed before they were read: logged and counted."""

    def __init__(self, root: str, form: Mapping[str, Any]) -> None:
        self._root = root
        self._away = Away(form.get("gone"))
        self._files, self._bytes = form.get("lost", (0, 0))  # as far as their bytes are known

    def to_json(self) -> dict[str, Any]:
        """Return what an offset keeps."""
        away, lost = self._away.to_json(), [self._files, self._bytes]
        return ({"gone": away} if away else {}) | ({"lost": lost} if self._files else {})

    def cut(self, file: Growing, now: FileVersion, size: int, start: str) -> None:
        """Log that a file was cut, and count the bytes of it that were seen and are gone unread."""
        self._count(size)
        _log.warning(
            "%r was cut or replaced: it had been read up to byte %d, has %d bytes now and is read from %s; bytes that "
            "were written after that byte before are in no file here",
            file.path or self._root,
            file.at,
            now.size,
            start,
        )

    def gone(self, file: Growing, now_ns: int) -> None:
        """Remember a file that is not there, and log how much of it nobody has read."""
        self._away.note(file, now_ns)
        if file.unread:
            self._count(file.unread)
            _log.warning(
                "%r was removed before it was read to its end: %d bytes of it are lost, after byte %d",
                file.path or self._root,
                file.unread,
                file.at,
            )

    def back(self, file: FileVersion, beside: Beside) -> Growing | None:
        """Return the continued state of a new file that was away, and subtract it from the losses; `None` if it was not away."""
        known = self._away.back(file, beside)
        if known is None:
            return None
        if known.unread:
            self._files, self._bytes = self._files - 1, self._bytes - known.unread
        return Growing(file.path, file.identity, known.at, known.digest, file.size, file.modified_ns)

    def _count(self, size: int) -> None:
        self._files, self._bytes = self._files + 1, self._bytes + size
