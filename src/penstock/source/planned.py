"""Files as they were planned: finds, opens, checks and decrypts them.

Each file is compared with the version that was planned (its size and modification time) before its first byte is read and after its
last: a reader gets exactly that version, or `FileChanged`.
"""

from __future__ import annotations

from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import BadFile, BadRecord, FileChanged, NotThere, OptionError, WrongKey
from penstock.formats.codecs import COMPRESSED_NAMES, NOT_PLAIN, codec_of, unreadable
from penstock.formats.encryption import EXTENSION, Keys, inner_name, is_encrypted
from penstock.formats.families import RecordFormat
from penstock.source import advice, follow
from penstock.source.ahead import WINDOW_BYTES, WINDOWS_AHEAD, WindowsAhead
from penstock.source.archive import archived_version
from penstock.source.cursor import is_version
from penstock.storage import Scratch, entry_at, secret

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.formats.families import Format
    from penstock.source.cursor import FileVersion, Split
    from penstock.storage import Entry, Opener, ReadableFile, ReadHandle, Storage


_OTHERS = (*NOT_PLAIN, EXTENSION)


def is_plain(path: str) -> bool:
    """Tell whether, by its name, a file is neither compressed, nor an archive, nor encrypted."""
    return not path.lower().endswith(_OTHERS)


class Contents(NamedTuple):
    """The contents of a file: its bytes, their number, and their compression; `decrypted`: the bytes are not those of the file itself."""

    file: ReadableFile
    size: int
    codec: str | None = None
    decrypted: bool = False

    @property
    def streams(self) -> bool:
        """Whether the contents are read as a stream, with offsets in the decoded bytes."""
        return self.decrypted or self.codec is not None


@dataclass(frozen=True)
class PlannedFiles:
    """The files below one root that plans name, of one format.

    `follow` allows links that lead out of `root`. `archive` is where files go that were read: a replay of a batch reads them there.
    `key` says where the key for encrypted files is; it is never the key itself. `again` is what messages advise to do once a file is
    mended. `opens` opens a path in another way than the storage does: earlier, or in another place.
    """

    storage: Storage
    root: str
    form: Format
    follow: bool
    archive: str | None
    key: str | None
    again: str
    opens: Opener | None = None

    def full_path(self, file: FileVersion) -> str:
        """Return the file's path on the storage."""
        return f"{self.root.rstrip('/')}/{file.path}" if file.path else self.root

    def admit(self, path: str) -> None:
        """Raise `BadFile` if the name shows a kind of file that is not read, such as an archive; `OptionError` if its key is missing."""
        if path and is_plain(path):
            return
        name = f"{self.root}/{path}" if path else self.root
        if is_encrypted(name) and self.key is None and not self.form.as_it_is:
            msg = (
                f"{name!r} is encrypted by its name, and nothing says where its key is: set decryptionKey=env:NAME or file:/path of the "
                "key; or move it away"
            )
            raise OptionError(msg)
        kind = unreadable(inner_name(name)) if isinstance(self.form, RecordFormat) else None
        if kind:
            msg = (
                f"{name!r}: found {kind} by its name, expected a file of {self.form.name}, plain or compressed "
                f"({COMPRESSED_NAMES}); unpack it, or move it away, or say what is to be read, such as "
                f"pathGlobFilter='*{self.form.extension}'"
            )
            raise BadFile(msg)

    def has(self, split: Split) -> bool:
        """Tell whether the planned version can still be read."""
        if split.followed is not None:
            try:
                follow.opened(self.storage, self.root, split).close()
            except FileChanged:
                return False
            return True
        now = entry_at(self.storage, self.full_path(split.file))
        return now is not None and is_version(self.storage, now, split.file)

    @contextmanager
    def open(self, file: FileVersion) -> Iterator[ReadHandle]:
        """Open a planned file and `check` it; `FileChanged` if it is not there, or a store says that its object was replaced."""
        path = self.full_path(file)
        with self._opened(file, path) as handle:
            try:
                self.check(handle, file)
                yield handle
            except NotThere as error:
                msg = f"{path!r} was replaced or removed while it was read; {advice.put_back(file)}, or leave it as it is, {self.again}"
                raise FileChanged(msg) from error

    def _opened(self, file: FileVersion, path: str) -> ReadHandle:
        opens = self.opens or self.storage.open
        try:
            return opens(path)
        except NotThere as error:
            archived = archived_version(self.storage, self.archive, file) if self.archive else None
            if archived is not None:
                return opens(archived)
            msg = f"{path!r} was planned and is gone; {advice.put_back(file)}, or leave it away, {self.again}"
            raise FileChanged(msg) from error

    def check(self, handle: ReadHandle, file: FileVersion) -> None:
        """Raise `FileChanged` unless the open file, or the copy of it that is open, is the planned version."""
        now, path = handle.info(), self.full_path(file)
        alike = is_version(self.storage, now, file)
        if alike and (now.identity == file.identity or self.follow or self.is_inside(path, now)):
            return
        facts = [("size", now.size, file.size), ("modification time", now.modified_ns, file.modified_ns)]
        facts = [(name, is_now, planned) for name, is_now, planned in facts if is_now != planned]
        changes = "; ".join(f"{name} {is_now}, planned {planned}" for name, is_now, planned in facts)
        msg = (
            f"{path!r} changed after it was planned: {changes or 'another file is there'}; {advice.put_back(file)}, or leave it "
            f"as it is, {self.again}"
        )
        raise FileChanged(msg)

    def is_inside(self, path: str, opened: Entry) -> bool:
        """Tell whether the open file lies below the root, and no link has led elsewhere since it was planned.

        Otherwise a user who may put files there could replace one with a link to a file that the user may not read. The file at the
        resolved path must be the open file: so a link that is put there only while the file is opened does not help.
        """
        root, target = self.storage.resolve(self.root), self.storage.resolve(path)
        if target != root and not target.startswith(f"{root.rstrip('/')}/"):
            return False
        planned = entry_at(self.storage, target)
        return planned is not None and planned.identity == opened.identity

    @contextmanager
    def ahead(self, handle: ReadHandle, split: Split, at: int | None = None) -> Iterator[ReadableFile]:
        """Yield an open file that requests windows ahead from a server, if much is read of it; `at`: where reading begins.

        A server that reads ahead keeps a stream filled for a reader that reads on. For a reader that says where it begins, windows
        would be one more copy; for any other reader windows are requested one by one, and come from that stream.
        """
        filled = self.storage.of_this_host or (self.storage.reads_ahead and at is not None)
        if filled or split.end - split.start <= WINDOW_BYTES:
            yield handle
            return
        count = 1 if self.storage.reads_ahead else WINDOWS_AHEAD + 1
        with (
            self.storage.workers(count) as workers,
            closing(WindowsAhead(handle, split.end, workers, at)) as file,
        ):
            yield file

    def decrypts(self, path: str) -> bool:
        """Tell whether a file of this name is decrypted; without a key no file is."""
        return self.key is not None and is_encrypted(path)

    def keys(self, path: str) -> Keys | None:
        """Return the keys for a file of this name, read from their place; `None` if it is not decrypted. `OptionError`."""
        if self.key is None or not self.decrypts(path):
            return None
        return Keys(secret(self.key, "decryptionKey"), f"decryptionKey={self.key!r}")

    @contextmanager
    def contents(self, handle: ReadableFile, file: FileVersion, keys: Keys | None) -> Iterator[Contents]:
        """Yield the contents of an open file: the file itself, or its decrypted contents, once all of them are verified.

        `BadFile` if it is damaged, `WrongKey`.
        """
        path = self.full_path(file)
        if keys is None:
            yield Contents(handle, file.size, codec_of(path))
            return
        with Scratch() as scratch:
            try:
                keys.decrypt(handle.read, file.size, scratch.write)
            except WrongKey as error:
                msg = f"{path!r}: {error.message}"
                raise WrongKey(msg) from error
            yield Contents(scratch, scratch.size, codec_of(inner_name(path)), decrypted=True)

    @contextmanager
    def naming(self, file: FileVersion) -> Iterator[None]:
        """Add the file's name to errors, and what to do once the file is mended."""
        path = self.full_path(file)
        try:
            yield
        except BadFile as error:
            msg = f"{path!r}: {error.message}; mend or remove the file {self.again}"
            raise BadFile(msg) from error
        except BadRecord as error:
            if error.path is not None:
                raise
            msg = f"{path!r}, byte {error.offset}: {error.message}; mend or remove the record {self.again}"
            raise BadRecord(msg, path=path, offset=error.offset) from error
        except FileChanged as error:
            if repr(path) in error.message:  # already named, by the code that compares versions
                raise
            msg = f"{path!r}: {error.message}, or leave it as it is, {self.again}"
            raise FileChanged(msg) from error
