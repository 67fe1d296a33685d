"""From a task's splits to Arrow batches, or to bytes where nothing need be parsed.

A range owns the records that begin in it. Each file is compared with the version that was planned (its size and
modification time) before its first byte is read and after its last: a task reads that version or raises `FileChanged`, and
never ends a file early without a word. Memory is bounded by a few blocks of `BLOCK_BYTES` (or one record, or one page of a row group),
whatever the file's size.

Small files are joined into blocks before they are parsed: one parser call a file would cost a hundred times its
contents. A record that cannot be parsed is reported by its own file and byte offset all the same.

Records are found in the bytes of a file wherever the encoding allows it (`charsets`), and each block is decoded by itself;
offsets are those of the file. Where it does not, the file is decoded as a stream and records are found in that, offsets too.
"""

from __future__ import annotations

import codecs
from bisect import bisect_right
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, TypeVar, cast

import numpy as np
import pyarrow as pa

from penstock import failpoints
from penstock.errors import BadFile, BadRecord, FileChanged, NotThere, OptionError, PenstockError, WrongKey
from penstock.formats import ReadFormat, decoder, format_named
from penstock.formats.account import Account
from penstock.formats.aside import CHANGE, FILE, Aside, BeginAgain, Policy, about_file, about_records
from penstock.formats.charsets import (
    UTF_8,
    UTF_8_CHARSET,
    Charset,
    by_mark,
    charset,
    encoded,
    is_utf8,
    to_utf8,
)
from penstock.formats.codecs import COMPRESSED_NAMES, codec_of, decompressed, unreadable
from penstock.formats.encryption import Keys, inner_name, is_encrypted
from penstock.formats.families import HEAD_BYTES, RecordFormat, TableFormat, separator
from penstock.formats.lines import BLOCK_BYTES, begun, record_starts, value_ends, with_line_feeds, without_bom
from penstock.formats.malformed import Sifted, excerpt, nothing_bad, of_records
from penstock.formats.registry import record_format
from penstock.formats.strings import checked
from penstock.formats.trials import refused
from penstock.source import advice, follow
from penstock.source.ahead import OPEN_FILES, WINDOW_BYTES, WINDOWS_AHEAD, OpenedAhead, WindowsAhead
from penstock.source.archive import archived_version
from penstock.source.cursor import is_version
from penstock.source.rescue import rescuing, with_paths
from penstock.storage import Scratch, entry_at, secret

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import numpy.typing as npt

    from penstock.formats import Decoder
    from penstock.formats.families import Format, Found, ReadableFile
    from penstock.source.cursor import FileVersion, Split
    from penstock.storage import Entry, ReadHandle, Storage

_CHUNK_BYTES = 1 << 20
_CUTS_MAX = 3  # of a file, while one range of it is read
_HELD_BYTES = 32 << 20  # of a file that may turn out bad
_Item = TypeVar("_Item")
NUMBER = "\0number"  # no column of a user
EXPANDED_BYTES_MAX = 64 << 30  # of one compressed file
EXPANSION_MAX = 1000  # uncompressed bytes for one compressed; gzip cannot pass 1,032, a bomb is near it
FILES_SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("modified", pa.timestamp("us", tz="UTC")),
        ("size", pa.int64()),
        ("identity", pa.string()),
    ],
)
METADATA_TYPE = pa.struct(
    [
        ("path", pa.string()),
        ("modified", pa.timestamp("us", tz="UTC")),
        ("size", pa.int64()),
        ("offset", pa.int64()),
    ],
)


@dataclass(frozen=True)
class Reading:
    """How the splits of one source are read; picklable, travels to tasks.

    What `policy` says is set aside goes to `aside`, which a task has.

    `format.schema` is the schema of the data; with `metadata` a column of that name is added where `columns` puts it.
    `follow` allows links that lead out of `root`. `archive` is where files go that were read: a replay of a batch reads them
    there. `key` is where the key is that opens encrypted files, never the key. Of columns that directories name it knows nothing
    (see `source.partitions`), but of those that the files have all the same, `kept`, in lower case.
    `named` is for files that rows name, and `again` what messages then tell to do once a file is mended.
    """

    storage: Storage
    root: str
    format: ReadFormat
    metadata: str | None = None
    columns: tuple[str, ...] = ()
    follow: bool = False
    archive: str | None = None
    policy: Policy = field(default_factory=Policy)
    aside: Aside | None = None
    key: str | None = None
    named: NamedRows | None = None
    again: str = advice.AGAIN
    kept: frozenset[str] = frozenset()

    @property
    def form(self) -> Format:
        """What files of the format are."""
        return format_named(self.format.name)

    def full_path(self, file: FileVersion) -> str:
        """Return the file's path on the storage."""
        return f"{self.root.rstrip('/')}/{file.path}" if file.path else self.root

    def in_zone(self, zone: str) -> Reading:
        """Return how the same is read with the times that say no zone in this one."""
        return self if zone == self.format.zone else replace(self, format=replace(self.format, zone=zone))

    def divisible(self, path: str) -> bool:
        """Tell whether a file of this name may be read in byte ranges."""
        if self._decrypts(path or self.root):
            return False
        if self.policy.files and isinstance(self.form, TableFormat):
            return False  # of a bad file no row is taken, so one task has to see all of it
        return self.form.divisible(self.format, path or self.root)

    def admit(self, path: str) -> None:
        """Raise `BadFile` if a file of this name holds what is not read, such as an archive; `OptionError` if no key would open it."""
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

    def boundary(self, file: FileVersion, anchor: int, target: int) -> int:
        """Return the first record start at or behind `target`, from the record start `anchor` on; for what is `anchored`.

        A file that has changed, where that is set aside, is not cut: the task that has all of it tells.
        """
        path = self.full_path(file)
        try:
            with self._open(file, path) as handle:
                self._check(handle, file, path)
                return self.form.boundary(self.format, handle.read, file.size, anchor, target)
        except FileChanged:
            if not self.policy.changes:
                raise
            return file.size

    def reach(self, handle: ReadHandle, size: int, at: int) -> int | None:
        """Return where the records end that begin before the cut `at`: what is in front of that, a cut there has read.

        `None` if there is no such place near; see `Format.reach`.
        """
        return self.form.reach(self.format, handle.read, size, at)

    def is_as_planned(self, split: Split) -> bool:
        """Tell whether what was planned can be read as it was planned."""
        if split.followed is not None:
            try:
                follow.opened(self.storage, self.root, split).close()
            except FileChanged:
                return False
            return True
        now = entry_at(self.storage, self.full_path(split.file))
        return now is not None and is_version(self.storage, now, split.file)

    def batches(self, splits: Iterable[Split], account: Account | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the records of the splits, in order; what they have and no column has is entered into `account`.

        Raises `FileChanged`, `BadRecord`, `BadFile` or `StorageError`; what was yielded before must then be dropped.
        """
        account = Account() if account is None else account
        if self.storage.has_directories:
            yield from self._batches(splits, account)
            return
        planned = list(splits)
        paths = (self.full_path(split.file) for split in planned if split.followed is None)
        with self.storage.workers(OPEN_FILES) as workers:
            storage = cast("Storage", OpenedAhead(self.storage, paths, workers))
            yield from replace(self, storage=storage)._batches(planned, account)  # noqa: SLF001 - it is the same, by another storage

    def _batches(self, splits: Iterable[Split], account: Account) -> Iterator[pa.RecordBatch]:
        form = self.form
        if isinstance(form, TableFormat):
            for split in splits:
                yield from self._guarded(split, lambda split: self._table(form, split, account))
        else:
            yield from self._records(splits, account)

    def blocks(self, splits: Iterable[Split]) -> Iterator[tuple[bytes, tuple[str, ...] | None, Callable[[int], str]]]:
        """Yield blocks of whole records as they are decoded: with what the header of their files says, and whose byte is whose.

        The last is a function from a byte of the block to the path of its file. Raises what `batches` does, short of parsing.
        """
        for piece in _joined(self._pieces(splits), self.format.line_sep):
            yield piece.data, piece.columns, lambda at, piece=piece: self.full_path(piece.origin_of(at).file)  # type: ignore[misc]  # - mypy does not infer it

    def stored_schema(self, form: TableFormat, file: FileVersion) -> pa.Schema:
        """Return the columns that a table's file says it has, in the types that Spark reads them as. `BadFile`, `FileChanged`."""
        path = self.full_path(file)
        self.admit(file.path)
        keys = self._keys(path)
        with self._open(file, path) as handle:
            self._check(handle, file, path)
            with _named(path, self.again), self._contents(handle, file.size, path, keys) as contents:
                return form.stored_schema(contents.file, contents.size)

    def text(self, splits: Iterable[Split]) -> Iterator[bytes]:
        """Yield the lines of text splits as UTF-8 bytes, each line ended by a line feed: nothing is parsed.

        Lines of a binary column are not checked, and must be in an encoding that `gives_utf8`.
        """
        check = decoder(self.format)
        for piece in _joined(self._pieces(splits), self.format.line_sep):
            data = piece.data
            if not is_utf8(data):
                bad = self._decode(check, piece).starts
                starts = check.starts(data)
                ends = np.append(starts[1:], len(data))
                good = ~np.isin(starts, bad)
                data = of_records(data, starts[good], ends[good])
            if data:
                yield _ended(with_line_feeds(data, self.format.line_sep), b"\n")

    # -- the planned version -------------------------------------------------------------------------------------

    @contextmanager
    def _open(self, file: FileVersion, path: str) -> Iterator[ReadHandle]:
        """Open a planned file; `FileChanged` if it is not there, or where a store says of a range that its object was replaced."""
        with self._opened(file, path) as handle:
            try:
                yield handle
            except NotThere as error:
                msg = f"{path!r} was replaced or removed while it was read; {advice.put_back(file)}, or leave it as it is, {self.again}"
                raise FileChanged(msg) from error

    def _opened(self, file: FileVersion, path: str) -> ReadHandle:
        try:
            return self.storage.open(path)
        except NotThere as error:
            archived = archived_version(self.storage, self.archive, file) if self.archive else None
            if archived is not None:
                return self.storage.open(archived)
            msg = f"{path!r} was planned and is gone; {advice.put_back(file)}, or leave it away, {self.again}"
            raise FileChanged(msg) from error

    @contextmanager
    def _ahead(self, handle: ReadHandle, split: Split, at: int | None = None) -> Iterator[ReadableFile]:
        """Give an open file of which a server is asked for windows ahead, if what is read of it is long; `at`: where that begins."""
        if self.storage.of_this_host or split.end - split.start <= WINDOW_BYTES:
            yield handle
            return
        with (
            self.storage.workers(WINDOWS_AHEAD + 1) as workers,
            closing(WindowsAhead(handle, split.end, workers, at)) as file,
        ):
            yield file

    def _check(self, handle: ReadHandle, file: FileVersion, path: str) -> None:
        """Raise `FileChanged` unless the open file is the version that was planned, in this file or in a copy of it."""
        now = handle.info()
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
        """Tell whether the open file is one below the path, and no link has led elsewhere since it was planned.

        Who may put files there could else swap one for a link to a file that he may not read. What is at the resolved path
        must be what is open: a link that is swapped in just for the opening does not help him.
        """
        root, target = self.storage.resolve(self.root), self.storage.resolve(path)
        if target != root and not target.startswith(f"{root.rstrip('/')}/"):
            return False
        planned = entry_at(self.storage, target)
        return planned is not None and planned.identity == opened.identity

    # -- what is encrypted ---------------------------------------------------------------------------------------

    def _decrypts(self, path: str) -> bool:
        """Tell whether a file of this name is decrypted; without a key nothing is."""
        return self.key is not None and is_encrypted(path)

    def _keys(self, path: str) -> Keys | None:
        """Return the keys for a file of this name, read where they are; `None` if it is not decrypted. `OptionError`."""
        if self.key is None or not self._decrypts(path):
            return None
        return Keys(secret(self.key, "decryptionKey"), f"decryptionKey={self.key!r}")

    @contextmanager
    def _contents(self, handle: ReadableFile, size: int, path: str, keys: Keys | None) -> Iterator[_Contents]:
        """Give what is in an open file: itself, or what is encrypted in it, once all of that is known to be right.

        `BadFile` if it is damaged, `WrongKey`.
        """
        if keys is None:
            yield _Contents(handle, size, codec_of(path))
            return
        with Scratch() as scratch:
            try:
                keys.decrypt(handle.read, size, scratch.write)
            except WrongKey as error:
                msg = f"{path!r}: {error.message}"
                raise WrongKey(msg) from error
            yield _Contents(scratch, scratch.size, codec_of(inner_name(path)), decrypted=True)

    # -- records in bytes ----------------------------------------------------------------------------------------

    def _records(self, splits: Iterable[Split], account: Account) -> Iterator[pa.RecordBatch]:
        alone = self.metadata or not self.gives_utf8
        decoders: dict[tuple[Charset, tuple[str, ...] | None], Decoder] = {}
        pieces = self._pieces(splits)
        for piece in pieces if alone else _joined(pieces, self.format.line_sep):
            origin = piece.origins[0]
            key = origin.charset, piece.columns
            rows_of = decoders.get(key) or decoders.setdefault(key, self._decoder(*key, account))
            sifted = self._decode(rows_of, piece)
            batch = sifted.rows
            if self._rescues(batch):
                batch = self._with_path(batch, _kept(rows_of, piece, sifted), piece, account)
            if batch.num_rows and (self.metadata or self.named):
                yield self._with_origins(batch, piece, rows_of, sifted)
            elif batch.num_rows or (self.aside is not None and self.aside.waits):
                yield self._with_metadata(batch, origin.file, np.zeros(0, np.int64))

    def _with_origins(self, batch: pa.RecordBatch, piece: _Piece, rows_of: Decoder, sifted: Sifted) -> pa.RecordBatch:
        """Add to the rows of a piece the columns that say where they come from."""
        if self.metadata:  # then it is of one file
            origin, starts = piece.origins[0], _kept(rows_of, piece, sifted)
            batch = self._with_metadata(batch, origin.file, self._in_file(starts, piece.data, origin))
        files = [origin.file for origin in piece.origins]
        if self.named is None or self.named.numbers is None or len(files) == 1:
            return self._numbered(batch, files)  # where records begin takes a third of the time of reading them
        return self._numbered(batch, files, _owners(piece, _kept(rows_of, piece, sifted)))

    @property
    def gives_utf8(self) -> bool:
        """Tell whether values are made of UTF-8, and not of bytes in the file's own encoding."""
        return self._gives_text or _is_utf8_name(self.format.encoding)

    @property
    def _gives_text(self) -> bool:
        """Tell whether values are text, and not the bytes of the file as they are."""
        return self._in_records.gives_text(self.format)

    @property
    def _in_records(self) -> RecordFormat:
        return record_format(self.format.name)

    def _decoder(self, how: Charset, columns: tuple[str, ...] | None, account: Account) -> Decoder:
        """Return what makes rows of the blocks of a file that is written so, with these columns in its header."""
        fmt = self.format if columns is None else replace(self.format, columns=columns)
        return decoder(fmt if self._gives_text else replace(fmt, line_sep=separator(fmt, how), unit=how.unit), account)

    @property
    def _sifts(self) -> bool:
        """Whether records that cannot be read are set aside."""
        return self.aside is not None and (self.policy.records or self.policy.text)

    def _decode(self, how: Decoder, piece: _Piece) -> Sifted:
        """Return the rows of a piece and, once they are set aside, the records that cannot be read."""
        try:
            if not self._sifts:
                return nothing_bad(how.decode(piece.data))
            sifted = how.sift(piece.data)
            if len(sifted.starts):
                self._set_aside(piece, sifted)
        except BadRecord as error:
            origin = piece.origin_of(error.offset or 0)
            place = np.array([(error.offset or 0) - origin.place])
            offset = int(self._in_file(place, piece.data_of(origin), origin)[0])
            path = self.full_path(origin.file)
            hint = "" if is_utf8(piece.data) else "; set encoding to what the file has, or encodingErrors=replace"
            msg = f"{path!r}, byte {offset}: {error.message}{hint}; mend or remove the record {self.again}"
            raise BadRecord(msg, path=path, offset=offset) from error
        return sifted

    def _set_aside(self, piece: _Piece, sifted: Sifted) -> None:
        """Set aside the bad records of a piece, file by file; `BadRecord` for the first that the user does not want to be."""
        spans = zip(sifted.starts.tolist(), sifted.ends.tolist(), strict=True)
        records = [_without_end(piece.data[start:end], self.format.line_sep) for start, end in spans]
        takes = self.policy.records, self.policy.text
        if takes[0] != takes[1]:
            unwanted = next((place for place, record in enumerate(records) if not takes[not is_utf8(record)]), None)
            if unwanted is not None:
                message = f"found '{excerpt(records[unwanted])}', {sifted.reasons[unwanted]}"
                raise BadRecord(message, offset=int(sifted.starts[unwanted]))
        places = np.array([origin.place for origin in piece.origins])
        owners = np.searchsorted(places, sifted.starts, side="right") - 1
        for owner in np.unique(owners).tolist():
            origin, chosen = piece.origins[owner], np.flatnonzero(owners == owner).tolist()
            end = places[owner + 1] if owner + 1 < len(places) else len(piece.data)
            starts = sifted.starts[chosen] - origin.place
            if origin.raw is None:
                offsets, held = starts + origin.offset, [records[place] for place in chosen]
            else:
                offsets = self._in_file(starts, piece.data[origin.place : end], origin)
                held = self._raw_records(origin, offsets - origin.offset)
            lines = about_records(
                self.full_path(origin.file),
                offsets,
                pa.array(held, pa.binary()),
                [sifted.reasons[place] for place in chosen],
                modified_ns=origin.file.modified_ns,
                columns=piece.columns,
            )
            self._take(lines)

    def _raw_records(self, origin: _Origin, starts: npt.NDArray[np.int64]) -> list[bytes]:
        """Return the records that begin at `starts` of what the file has, without what ends them."""
        raw, how = origin.raw or b"", origin.charset
        every = record_starts(raw, sep=separator(self.format, how), unit=how.unit)
        ends = np.append(value_ends(raw, every, sep=separator(self.format, how), unit=how.unit), 0)
        return [raw[start : ends[np.searchsorted(every, start)]] for start in starts.tolist()]

    def _take(self, lines: pa.RecordBatch) -> None:
        if self.aside is not None:
            self.aside.take(lines)

    def _in_file(self, starts: npt.NDArray[np.int64], text: bytes, origin: _Origin) -> npt.NDArray[np.int64]:
        """Return where in the file the records begin that begin at `starts` of `text`, all that came from `origin`.

        Decoding changes lengths; which line is which stays.
        """
        if origin.raw is None:
            return starts + origin.offset
        lines = np.searchsorted(record_starts(text, sep=self.format.line_sep), starts, side="right") - 1
        written = origin.charset
        return record_starts(origin.raw, sep=separator(self.format, written), unit=written.unit)[lines] + origin.offset

    def _pieces(self, splits: Iterable[Split]) -> Iterator[_Piece]:
        for split in splits:
            for item in self._guarded(split, self._read):
                if isinstance(item, _Piece):
                    yield item
                else:
                    self._take(item)

    def _read(self, split: Split) -> Iterator[_Piece | pa.RecordBatch]:
        """Yield what one split holds, and lines about what of it could not even be told apart."""
        failpoints.hit("source.read")
        path = self.full_path(split.file)
        self.admit(split.file.path)
        if split.followed is not None:
            yield from self._followed(split, path)
            return
        keys = self._keys(path)
        with self._open(split.file, path) as handle:
            self._check(handle, split.file, path)
            with (
                self._ahead(handle, split, at=split.start) as file,
                _named(path, self.again),
                self._contents(file, split.file.size, path, keys) as contents,
            ):
                yield from self._pieces_of(contents, split)
            self._check(handle, split.file, path)

    def _followed(self, split: Split, path: str) -> Iterator[_Piece | pa.RecordBatch]:
        """Yield what a split of a followed file holds; where that is cut in the middle, the rest is read of its copy."""
        at, tries = split.start, _CUTS_MAX
        while tries:
            tries -= 1
            about: list[_Piece | pa.RecordBatch] = []  # lines about records in front of the next piece, or of the end
            with (
                follow.opened(self.storage, self.root, split) as handle,
                self._ahead(handle, replace(split, start=at), at=at) as file,
                _named(path, self.again),
            ):
                try:
                    for item in self._pieces_of(_Contents(file, split.file.size), replace(split, start=at)):
                        about.append(item)
                        if not isinstance(item, _Piece):
                            continue
                        follow.check(handle, split, path)  # before anything is made of it
                        yield from about
                        about.clear()
                        origin = item.origins[0]
                        at = origin.offset + len(item.data if origin.raw is None else origin.raw)
                    follow.check(handle, split, path)
                except FileChanged:
                    if not tries:
                        raise
                else:
                    yield from about
                    return

    def _pieces_of(self, contents: _Contents, split: Split) -> Iterator[_Piece | pa.RecordBatch]:
        """Yield what one split holds, as UTF-8 wherever values are made of text. Raises `BadFile`, and `BadRecord` without a path."""
        refusals: list[tuple[int, bytes, str]] = []
        if self._sifts and self.policy.records:
            taking = replace(self, format=replace(self.format, refuse=lambda *refusal: refusals.append(refusal)))
            columns: tuple[str, ...] | None = None
            for piece in taking._found(contents, split):  # noqa: SLF001 - the same, with a place for what is refused
                columns = piece.columns if isinstance(piece, _Piece) else columns
                yield from self._refused(split, refusals, columns)
                yield piece
            yield from self._refused(split, refusals, columns)
        else:
            yield from self._found(contents, split)

    def _refused(
        self, split: Split, refusals: list[tuple[int, bytes, str]], columns: tuple[str, ...] | None
    ) -> Iterator[pa.RecordBatch]:
        """Yield lines about what was refused, and forget it."""
        if refusals:
            offsets, records, reasons = zip(*refusals, strict=True)
            held = [_without_end(record, self.format.line_sep) for record in records]
            refusals.clear()
            path, version = self.full_path(split.file), split.file.modified_ns
            data = pa.array(held, pa.binary())
            yield about_records(path, np.array(offsets), data, reasons, modified_ns=version, columns=columns)

    def _found(self, contents: _Contents, split: Split) -> Iterator[_Piece | pa.RecordBatch]:
        form, fmt = self._in_records, self.format
        known = None if by_mark(fmt.encoding) else charset(fmt.encoding, b"")
        in_place = form.in_bytes(fmt)
        decodes = in_place and self._gives_text and not (known == UTF_8_CHARSET and fmt.errors == "fail")
        _check_range(split, whole=not in_place or contents.streams)
        chunks, written = _opened(contents, fmt.encoding, known)
        read = self._blocks if in_place else self._decoded
        header, blocks = read(contents.file, split, chunks, written)
        columns = None
        if header:
            columns = form.columns(fmt, self._text(header, 0, written) if decodes else header)
        for offset, data in blocks:
            if decodes and self._sifts and self.policy.text:
                yield from self._legible(split.file, offset, data, written, columns)
                continue
            text = self._text(data, offset, written) if decodes else data
            yield _Piece(text, [_Origin(0, split.file, offset, written, None if text is data else data)], columns)

    def _legible(
        self, file: FileVersion, offset: int, data: bytes, how: Charset, columns: tuple[str, ...] | None
    ) -> Iterator[_Piece | pa.RecordBatch]:
        """Yield what of a block is text, and a line about each record that is none; a piece ends in front of one."""
        starts = self._in_records.record_starts(self.format, data, how)
        bounds = [*starts.tolist(), len(data)]
        bad = refused(
            len(starts), lambda low, high: _undecoded(data[bounds[low] : bounds[high]], how.codec, self._errors)
        )
        at = 0
        for place, _ in [*bad, (len(starts), None)]:
            if bounds[place] > at:
                part = data[at : bounds[place]]
                text = self._text(part, offset + at, how)
                yield _Piece(text, [_Origin(0, file, offset + at, how, None if text is part else part)], columns)
            at = bounds[min(place + 1, len(starts))]
        if bad:
            ends = [*value_ends(data, starts, sep=separator(self.format, how), unit=how.unit).tolist()]
            records = pa.array([data[bounds[place] : ends[place]] for place, _ in bad], pa.binary())
            reasons = [f"expected {self.format.encoding}"] * len(bad)
            offsets = offset + starts[[place for place, _ in bad]]
            path, version = self.full_path(file), file.modified_ns
            yield about_records(path, offsets, records, reasons, modified_ns=version, columns=columns)

    # -- what cannot be read as a whole ----------------------------------------------------------------------------

    def _guarded(self, split: Split, read: Callable[[Split], Iterator[_Item]]) -> Iterator[_Item]:
        """Yield what is read of a split, or set it aside: nothing of a bad file is yielded, and nothing of a range that changed.

        What is read is held back until it is known to be whole, as long as that is little. Of more, what was yielded has to be
        dropped if it turns out bad: the task begins again, and looks at everything before it yields any of it.
        """
        aside = self.aside
        if aside is None or not (self.policy.files or self.policy.changes):
            yield from read(split)
            return
        held: list[_Item] = []
        size = 0
        try:
            items = read(split)
            for item in items:
                held.append(item)
                size += _size_of(item)
                if size > _HELD_BYTES:
                    break
            if size > _HELD_BYTES and not aside.restarts:
                held.clear()
                for _ in items:  # to the end, whatever it holds
                    pass
                items = read(split)
        except (BadFile, BadRecord, FileChanged) as error:
            self._set_split_aside(split, error, aside)
            return
        yield from held
        try:
            yield from items
        except (BadFile, BadRecord, FileChanged) as error:
            if not aside.restarts or not self._takes(error):
                raise
            aside.restarts = False
            raise BeginAgain from error

    def _takes(self, error: PenstockError) -> bool:
        """Tell whether what an error is about is set aside."""
        return self.policy.changes if isinstance(error, FileChanged) else self.policy.files

    def _set_split_aside(self, split: Split, error: BadFile | BadRecord | FileChanged, aside: Aside) -> None:
        """Set aside the range of a file that changed, or a file that is bad: once, whatever ranges of it were planned.

        A file that is read in ranges is bad only by what it begins with, in each of them alike; the first one tells.
        """
        if not self._takes(error):
            raise error
        whole = isinstance(error, BadFile)
        if whole and split.start != (self.named.begins[split.file.path] if self.named else 0):
            return
        span = (0, split.file.size) if whole else (split.start, split.end - split.start)
        code = CHANGE if isinstance(error, FileChanged) else FILE
        aside.take(
            about_file(
                self.full_path(split.file),
                offset=span[0],
                size=span[1],
                modified_ns=split.file.modified_ns,
                reason=error.message,
                code=code,
            )
        )

    def _blocks(self, handle: ReadableFile, split: Split, chunks: Iterator[bytes] | None, how: Charset) -> Found:
        """Return what a split holds as the file has it."""
        form, fmt = self._in_records, self.format
        if chunks is not None:
            return form.streamed(fmt, chunks, how)
        size, span, base = split.file.size, (split.start, split.end), split.followed.base if split.followed else 0
        if not base or form.anchored:
            return form.ranged(fmt, handle.read, size, span, how)

        def behind(offset: int, length: int) -> bytes:
            return handle.read(base + offset, length)

        unmarked = replace(how, bom=b"")
        header, ranged = form.ranged(fmt, behind, size - base, (span[0] - base, span[1] - base), unmarked)
        return header, ((offset + base, data) for offset, data in ranged)

    def _decoded(self, handle: ReadableFile, split: Split, chunks: Iterator[bytes] | None, how: Charset) -> Found:
        """Return what a file holds that is decoded as a stream, offsets in its UTF-8. Raises `BadRecord` without a path."""
        mark = how.bom if how.bom == UTF_8_CHARSET.bom else b""  # any other comes out as U+FEFF, and is left out then
        taken, rest = without_bom(chunks or _chunks(handle, split.file.size), mark)
        text = chain((mark[:taken],), _transcoded(rest, how.codec, self._errors, taken))
        return self._in_records.streamed(self.format, text, UTF_8_CHARSET)

    @property
    def _errors(self) -> str:
        """Return `encodingErrors` in the words of Python's codecs."""
        return "strict" if self.format.errors == "fail" else self.format.errors

    def _text(self, data: bytes, offset: int, how: Charset) -> bytes:
        """Return a block as UTF-8."""
        try:
            return to_utf8(data, how.codec, self._errors)
        except UnicodeDecodeError as error:
            starts = record_starts(data, sep=separator(self.format, how), unit=how.unit)
            begin = int(starts[np.searchsorted(starts, error.start, side="right") - 1])
            raise _undecodable(data[error.start : error.start + 4], offset + begin, self.format.encoding) from error

    def _rescues(self, batch: pa.RecordBatch) -> bool:
        """Tell whether something was rescued of a row."""
        name = self.format.rescued
        return name is not None and int(batch.column(name).null_count) < batch.num_rows

    def _with_path(
        self, batch: pa.RecordBatch, starts: npt.NDArray[np.int64], piece: _Piece, account: Account
    ) -> pa.RecordBatch:
        """Return the rows with whole objects in the column for what is rescued, each with the path of its file."""
        place = batch.schema.get_field_index(self.format.rescued)
        origins = _owners(piece, starts)
        paths = [self.full_path(origin.file) for origin in piece.origins]
        return batch.set_column(
            place, batch.schema.field(place), with_paths(batch.column(place), paths, origins, account)
        )

    # -- tables --------------------------------------------------------------------------------------------------

    def _table(self, form: TableFormat, split: Split, account: Account) -> Iterator[pa.RecordBatch]:
        failpoints.hit("source.read")
        path, fmt = self.full_path(split.file), self.format
        self.admit(split.file.path)
        keys = self._keys(path)
        with self._open(split.file, path) as handle:
            self._check(handle, split.file, path)
            try:
                with (
                    self._ahead(handle, split) as ahead,
                    self._contents(ahead, split.file.size, path, keys) as contents,
                ):
                    file, size = contents.file, contents.size
                    span = (0, size) if contents.streams else (split.start, split.end)
                    rows = rescuing(form, fmt, file, size, span, path, account) if fmt.is_strict else None
                    for batch in rows or form.rows(fmt, file, size, span, account):
                        starts = np.full(batch.num_rows, split.start)
                        with_metadata = self._with_metadata(checked(batch, fmt.errors), split.file, starts)
                        yield self._numbered(with_metadata, [split.file])
            except (BadFile, OptionError) as error:
                self._check(handle, split.file, path)
                msg = f"{path!r}: {error.message}; mend or remove the file {self.again}"
                raise BadFile(msg) from error
            self._check(handle, split.file, path)

    # -- the metadata column -------------------------------------------------------------------------------------

    def _with_metadata(self, batch: pa.RecordBatch, file: FileVersion, starts: npt.NDArray[np.int64]) -> pa.RecordBatch:
        """Add the column; `starts` is where in the file the rows begin."""
        if not self.metadata:
            return batch
        rows, offsets = batch.num_rows, pa.array(starts)
        values = [_printable(self.full_path(file)), file.modified_ns // 1000, file.size]
        fields = [pa.repeat(pa.scalar(v, f.type), rows) for v, f in zip(values, METADATA_TYPE, strict=False)]
        column = pa.StructArray.from_arrays([*fields, offsets], fields=list(METADATA_TYPE))
        arrays = [column if name == self.metadata else batch.column(name) for name in self.columns]
        return pa.RecordBatch.from_arrays(arrays, names=list(self.columns))

    # -- files that rows name --------------------------------------------------------------------------------------

    def _numbered(
        self, batch: pa.RecordBatch, files: list[FileVersion], owners: npt.NDArray[np.int64] | None = None
    ) -> pa.RecordBatch:
        """Add the number of the row that named its file to each row, where that is asked for; `owners`: of which of `files` it is."""
        if self.named is None or self.named.numbers is None:
            return batch
        numbers = [self.named.numbers[file.path] for file in files]
        column = np.full(batch.num_rows, numbers[0]) if owners is None else np.array(numbers)[owners]
        return batch.append_column(NUMBER, pa.array(column, pa.int64()))


def files_batch(reading: Reading, splits: Iterable[Split]) -> pa.RecordBatch:
    """Return the files of a plan as rows (`emit=files`); an identity that is none of the contents, such as an inode, is null."""
    files = [split.file for split in splits if split.end == split.file.size]
    columns = [
        pa.array([_printable(reading.full_path(f)) for f in files], pa.string()),
        pa.array([f.modified_ns // 1000 for f in files], FILES_SCHEMA.field("modified").type),
        pa.array([f.size for f in files], pa.int64()),
        pa.array([f.identity if reading.storage.tags_contents else None for f in files], pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=FILES_SCHEMA)


@contextmanager
def _named(path: str, again: str) -> Iterator[None]:
    """Name the file in what is wrong with it, and say what to do once it is mended."""
    try:
        yield
    except BadFile as error:
        msg = f"{path!r}: {error.message}; mend or remove the file {again}"
        raise BadFile(msg) from error
    except BadRecord as error:
        if error.path is not None:
            raise
        msg = f"{path!r}, byte {error.offset}: {error.message}; mend or remove the record {again}"
        raise BadRecord(msg, path=path, offset=error.offset) from error


class _Contents(NamedTuple):
    """What is in a file: its bytes, their number, and how they are compressed; `decrypted`: they are other ones than the file has."""

    file: ReadableFile
    size: int
    codec: str | None = None
    decrypted: bool = False

    @property
    def streams(self) -> bool:
        """Whether it is read as a whole, with offsets in what comes out."""
        return self.decrypted or self.codec is not None


class NamedRows(NamedTuple):
    """What is known of the rows that name the files of some splits, each by the path of its file: `begins`, where its range begins.

    `numbers`: rows are given the number of the row that their file was named by, in a last column `NUMBER`; `None`: they are not.
    """

    begins: Mapping[str, int]
    numbers: Mapping[str, int] | None


class _Origin(NamedTuple):
    """What part of a piece came from: the part begins at `place` of the piece and at `offset` of what the file holds.

    `raw` is what the file has there, if the piece has it in another encoding.
    """

    place: int
    file: FileVersion
    offset: int
    charset: Charset
    raw: bytes | None


def _owners(piece: _Piece, starts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return of which origin of the piece each record is, by where it begins."""
    places = np.array([origin.place for origin in piece.origins])
    return np.searchsorted(places, starts, side="right") - 1


def _kept(rows_of: Decoder, piece: _Piece, sifted: Sifted) -> npt.NDArray[np.int64]:
    """Return where in a piece the records begin that are rows."""
    starts = rows_of.starts(piece.data)
    return np.setdiff1d(starts, sifted.starts, assume_unique=True) if len(sifted.starts) else starts


@dataclass
class _Piece:
    """Bytes of whole records, and where they come from, in order."""

    data: bytes
    origins: list[_Origin]
    columns: tuple[str, ...] | None = None  # what the header of a csv file says

    def origin_of(self, at: int) -> _Origin:
        """Return where the byte at `at` comes from."""
        return self.origins[bisect_right([origin.place for origin in self.origins], at) - 1]

    def data_of(self, origin: _Origin) -> bytes:
        """Return the part that came from there."""
        later = [other.place for other in self.origins if other.place > origin.place]
        return self.data[origin.place : min(later, default=len(self.data))]


def _joined(pieces: Iterable[_Piece], sep: bytes | None) -> Iterator[_Piece]:
    """Join small pieces to blocks of about `BLOCK_BYTES`; a last line without an end is given one.

    Pieces that would grow together are kept apart: CR before LF, and any where lines end in more than one byte. So are
    those of other columns.
    """
    data: list[bytes] = []
    origins: list[_Origin] = []
    columns: tuple[str, ...] | None = None
    size = 0
    for piece in pieces:
        if size and (size >= BLOCK_BYTES or columns != piece.columns or _grow_together(data[-1], piece.data, sep)):
            yield _Piece(b"".join(data), origins, columns)
            data, origins, size = [], [], 0
        columns = piece.columns
        if not size and len(piece.data) >= BLOCK_BYTES // 2:
            yield piece
        elif piece.data:
            origins += [_Origin(size + o.place, o.file, o.offset, o.charset, o.raw) for o in piece.origins]
            data.append(_ended(piece.data, sep))
            size += len(data[-1])
    if size:
        yield _Piece(b"".join(data), origins, columns)


def _grow_together(left: bytes, right: bytes, sep: bytes | None) -> bool:
    if sep is not None:
        return len(sep) > 1
    return left.endswith(b"\r") and right.startswith(b"\n")


def _ended(data: bytes, sep: bytes | None) -> bytes:
    if sep is None:
        return data if data.endswith((b"\n", b"\r")) else data + b"\n"
    return data if len(sep) > 1 or data.endswith(sep) else data + sep


def _opened(contents: _Contents, encoding: str, known: Charset | None) -> tuple[Iterator[bytes] | None, Charset]:
    """Return the bytes of a stream, None for a file that can be read anywhere; and how it is written, if that is not `known`."""
    handle, size, codec = contents.file, contents.size, contents.codec
    if not contents.streams:
        return None, known or charset(encoding, handle.read(0, min(HEAD_BYTES, size)))
    chunks = _chunks(handle, size)
    if codec is not None:
        chunks = decompressed(chunks, codec, limit_bytes=EXPANDED_BYTES_MAX, ratio_max=EXPANSION_MAX)
    if known:
        return chunks, known
    head, rest = begun(chunks, HEAD_BYTES)
    return chain((head,), rest), charset(encoding, head)


def _check_range(split: Split, *, whole: bool) -> None:
    """Raise `BadFile` for a range of a file that can only be read whole: each range of it would give all records."""
    if whole and (split.start, split.end) != (0, split.file.size):
        msg = (
            f"bytes {split.start} to {split.end} of {split.file.size} were planned, and such a file can only be read whole: it was "
            "planned with another encoding or lineSep, or by an older version; set them as they were, or read it under a new "
            "checkpoint"
        )
        raise BadFile(msg)


def _chunks(handle: ReadableFile, size: int) -> Iterator[bytes]:
    for offset in range(0, size, _CHUNK_BYTES):
        yield handle.read(offset, min(_CHUNK_BYTES, size - offset))


def _is_utf8_name(encoding: str) -> bool:
    """Tell whether bytes of the encoding are UTF-8 as they are."""
    return charset(encoding, b"").codec == UTF_8


def _transcoded(chunks: Iterable[bytes], codec: str, errors: str, taken: int) -> Iterator[bytes]:
    """Yield text as UTF-8. Raises `BadRecord` with the offset of what is no text; `taken` bytes stand in front."""
    convert = codecs.getincrementaldecoder(codec)(errors)
    try:
        for chunk in chunks:
            taken += len(chunk)
            yield encoded(convert.decode(chunk), errors)
        yield encoded(convert.decode(b"", final=True), errors)
    except UnicodeDecodeError as error:
        at = taken - len(error.object) + error.start
        raise _undecodable(error.object[error.start : error.start + 4], at, codec) from error
    except UnicodeEncodeError as error:
        character = error.object[error.start].encode("ascii", "backslashreplace")
        raise _undecodable(character, max(taken - _CHUNK_BYTES, 0), codec) from error


def _undecodable(found: bytes, offset: int, encoding: str) -> BadRecord:
    """Return the error for bytes that are no text; `offset` is where they are, or where their record begins."""
    shown = excerpt(found.decode("ascii", "backslashreplace"))
    msg = f"found '{shown}', expected {encoding}; set encoding to what the file has, or encodingErrors=replace"
    return BadRecord(msg, offset=offset)


def _undecoded(data: bytes, codec: str, errors: str) -> UnicodeDecodeError | None:
    try:
        to_utf8(data, codec, errors)
    except UnicodeDecodeError as error:
        return error
    return None


def _without_end(record: bytes, sep: bytes | None) -> bytes:
    """Return a record without what ends it."""
    if sep is not None:
        return record.removesuffix(sep)
    return record[:-2] if record.endswith(b"\r\n") else record[:-1] if record.endswith((b"\n", b"\r")) else record


def _size_of(item: _Piece | pa.RecordBatch) -> int:
    """Return about how much memory an item takes."""
    return len(item.data) if isinstance(item, _Piece) else int(item.nbytes)


def _printable(path: str) -> str:
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
