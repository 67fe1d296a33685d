"""From a task's splits to Arrow batches, or to bytes if nothing needs to be parsed.

A task reads the version of each file that was planned (`planned`) or raises `FileChanged`, and never ends a file early without an
error. Files in records are cut into pieces (`cutting`, `pieces`), which are decoded here; a table yields rows itself. Memory is bounded
by a few blocks of `BLOCK_BYTES` (or one record, or one page of a row group), whatever the file's size.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from penstock import failpoints
from penstock.errors import BadFile, BadRecord, FileChanged, OptionError
from penstock.formats import ReadFormat, decoder, format_named
from penstock.formats.account import Account
from penstock.formats.aside import Aside, Policy, about_records
from penstock.formats.begins import Begins
from penstock.formats.charsets import UTF_8, Charset, charset, is_utf8
from penstock.formats.families import RecordFormat, TableFormat, separator
from penstock.formats.lines import with_line_feeds
from penstock.formats.malformed import Sifted, excerpt, nothing_bad, of_records
from penstock.formats.registry import record_format
from penstock.formats.strings import checked
from penstock.source import advice
from penstock.source.ahead import OPEN_FILES, OpenedAhead
from penstock.source.cutting import Cutting
from penstock.source.guarded import SplitGuard
from penstock.source.pieces import FilePiece, ended, joined, without_end
from penstock.source.planned import PlannedFiles
from penstock.source.rescue import rescuing, with_paths

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from penstock.formats import Decoder
    from penstock.formats.families import Format
    from penstock.source.cursor import FileVersion, Split
    from penstock.storage import Opener, ReadHandle, Storage

NUMBER = "\0number"  # a name that no column of a user has
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


class NamedRows(NamedTuple):
    """Facts about the rows that name the files of some splits, each by the path of its file: `begins`, where its range begins.

    `numbers`: a last column `NUMBER` has for each record the number of the row that named its file; `None`: there is no such column.
    """

    begins: Mapping[str, int]
    numbers: Mapping[str, int] | None


@dataclass(frozen=True)
class Reading:
    """How the splits of one source are read; picklable, travels to tasks.

    Records and files that `policy` sets aside go to `aside`, which a task sets. `format.schema` is the schema of the data; with
    `metadata` a column of that name is added in its place in `columns`. `follow` allows links that lead out of `root`. `archive` is
    where files go that were read: a replay of a batch reads them there. `key` says where the key for encrypted files is; it is never
    the key itself. This object does not know the columns that directories name (see `source.partitions`), except for those that the
    files have as well: `kept`, in lower case. `named` is for files that are named by rows, and `again` is what messages then advise to
    do once a file is mended. `opens` opens a path in another way than the storage does, and stays in its process. `bad_at` is the
    index of `badRecordColumn` in the schema.
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
    opens: Opener | None = None
    bad_at: int | None = None

    @property
    def form(self) -> Format:
        """The format of the files."""
        return format_named(self.format.name)

    @property
    def files(self) -> PlannedFiles:
        """The files that plans name."""
        where = self.storage, self.root, self.form, self.follow, self.archive, self.key, self.again
        return PlannedFiles(*where, self.opens)

    @property
    def _cutting(self) -> Cutting:
        takes = (False, False) if self.aside is None else (self.policy.records, self.policy.text)
        return Cutting(self.files, self._in_records, self.format, self._gives_text, *takes)

    @property
    def _guard(self) -> SplitGuard:
        return SplitGuard(self.files, self.policy, self.aside, self.named.begins if self.named else None)

    def refuse(self, splits: Iterable[Split], error: BadFile) -> None:
        """Set all files of the splits aside, if the policy sets bad files aside; otherwise raise the error."""
        for split in splits:
            self._guard.refuse(split, error)

    def in_zone(self, zone: str) -> Reading:
        """Return this reading with `zone` as the zone for times without one."""
        return self if zone == self.format.zone else replace(self, format=replace(self.format, zone=zone))

    def divisible(self, path: str) -> bool:
        """Tell whether a file of this name may be read in byte ranges."""
        if self.files.decrypts(path or self.root):
            return False
        if self.policy.files and isinstance(self.form, TableFormat):
            return False  # no row of a bad file is taken, so one task has to see all of it
        return self.form.divisible(self.format, path or self.root)

    def boundary(self, file: FileVersion, anchor: int, target: int) -> int:
        """Return the first record start at or after `target`, from the record start `anchor` on; see `boundaries`."""
        return self.boundaries(file, anchor, [target])[0]

    def boundaries(self, file: FileVersion, anchor: int, targets: Sequence[int]) -> list[int]:
        """Return the first record start at or after each of `targets`, which ascend, from the record start `anchor` on.

        For formats that are `anchored`. If changed files are set aside, a changed file is not cut: the task that has all of it reports
        it.
        """
        try:
            with self.files.open(file) as handle, self.files.naming(file):
                return self.form.boundaries(self.format, handle.read, file.size, anchor, targets)
        except FileChanged:
            if not self.policy.changes:
                raise
            return [file.size] * len(targets)

    def reach(self, handle: ReadHandle, size: int, at: int) -> int | None:
        """Return where the records end that begin before the cut `at`: a batch that was cut there has read up to this point.

        `None` if there is no such point nearby, or the file is bad, which is for the task that reads it; see `Format.reach`.
        """
        with suppress(BadFile):
            return self.form.reach(self.format, handle.read, size, at)
        return None

    def batches(self, splits: Iterable[Split], account: Account | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the records of the splits, in order; names that they have and no column has are entered into `account`.

        Raises `FileChanged`, `BadRecord`, `BadFile` or `StorageError`; batches that were yielded before must then be dropped.
        """
        account = Account() if account is None else account
        if self.opens is not None or self.storage.reads_ahead:
            yield from self._batches(splits, account)
            return
        planned = list(splits)
        paths = (self.files.full_path(split.file) for split in planned if split.followed is None)
        with self.storage.workers(OPEN_FILES) as workers:
            ahead = OpenedAhead(self.storage.open, paths, workers)
            yield from replace(self, opens=ahead.open)._batches(planned, account)  # noqa: SLF001 - this object itself, with files opened ahead

    def _batches(self, splits: Iterable[Split], account: Account) -> Iterator[pa.RecordBatch]:
        form = self.form
        if isinstance(form, TableFormat):
            for split in splits:
                yield from self._counted_once(form, split, account)
        else:
            yield from self._records(splits, account)

    def blocks(self, splits: Iterable[Split]) -> Iterator[tuple[bytes, tuple[str, ...] | None, Callable[[int], str]]]:
        """Yield blocks of whole records as they are decoded: each with the names in its files' header, and a function.

        The function returns the path of the file from which a byte of the block comes. Each header comes first, with an empty block:
        some files have nothing else. Raises what `batches` does, except errors of parsing.
        """
        for piece in joined(self._pieces(splits, headers=True), self.format.line_sep):
            yield piece.data, piece.columns, lambda at, piece=piece: self.files.full_path(piece.origin_of(at).file)  # type: ignore[misc]  # - mypy does not infer it

    def stored_schema(self, form: TableFormat, file: FileVersion) -> pa.Schema:
        """Return the columns that a table's file declares, with the types in which Spark reads them. `BadFile`, `FileChanged`."""
        files = self.files
        files.admit(file.path)
        keys = files.keys(files.full_path(file))
        with files.open(file) as handle, files.naming(file), files.contents(handle, file, keys) as contents:
            return form.stored_schema(contents.file, contents.size)

    def text(self, splits: Iterable[Split]) -> Iterator[bytes]:
        """Yield the lines of text splits as UTF-8 bytes, each line ended by a line feed: nothing is parsed.

        Lines of a binary column are not checked, and must be in an encoding that `gives_utf8`.
        """
        check = decoder(self.format)
        for piece in joined(self._pieces(splits), self.format.line_sep):
            data = piece.data
            if not is_utf8(data):
                bad = self._decode(check, piece).starts
                starts = check.starts(data)
                ends = np.append(starts[1:], len(data))
                good = ~np.isin(starts, bad)
                data = of_records(data, starts[good], ends[good])
            if data:
                yield ended(with_line_feeds(data, self.format.line_sep), b"\n")

    # -- records in bytes ----------------------------------------------------------------------------------------

    def _records(self, splits: Iterable[Split], account: Account) -> Iterator[pa.RecordBatch]:
        decoders: dict[tuple[Charset, tuple[str, ...] | None], Decoder] = {}
        pieces = self._pieces(splits)
        for piece in pieces if self._alone else joined(pieces, self.format.line_sep):
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

    def _with_origins(
        self, batch: pa.RecordBatch, piece: FilePiece, rows_of: Decoder, sifted: Sifted
    ) -> pa.RecordBatch:
        """Add to the rows of a piece the columns that say where they come from."""
        if self.metadata:  # then the piece comes from one file
            origin, starts = piece.origins[0], _kept(rows_of, piece, sifted)
            batch = self._with_metadata(batch, origin.file, origin.in_file(starts, piece.data, self.format))
        files = [origin.file for origin in piece.origins]
        if self.named is None or self.named.numbers is None or len(files) == 1:
            return self._numbered(batch, files)  # to find where records begin takes a third of the time of reading them
        return self._numbered(batch, files, piece.owners(_kept(rows_of, piece, sifted)))

    @property
    def _alone(self) -> bool:
        """Whether each piece must come from one file."""
        return self.metadata is not None or not self.gives_utf8

    @property
    def gives_utf8(self) -> bool:
        """Tell whether values are decoded from UTF-8, and not from bytes in the file's own encoding."""
        return self._gives_text or charset(self.format.encoding, b"").codec == UTF_8

    @property
    def _gives_text(self) -> bool:
        """Tell whether values are text, and not the bytes of the file as they are."""
        return self._in_records.gives_text(self.format)

    @property
    def _in_records(self) -> RecordFormat:
        return record_format(self.format.name)

    def _decoder(self, how: Charset, columns: tuple[str, ...] | None, account: Account) -> Decoder:
        """Return the decoder for blocks of a file in this encoding, with these columns in its header."""
        fmt = self.format if columns is None else replace(self.format, columns=columns)
        return decoder(fmt if self._gives_text else replace(fmt, line_sep=separator(fmt, how), unit=how.unit), account)

    @property
    def _sifts(self) -> bool:
        """Whether bad records are set aside."""
        return self.aside is not None and (self.policy.records or self.policy.text)

    def _decode(self, how: Decoder, piece: FilePiece) -> Sifted:
        """Return the rows of a piece and, if bad records are set aside, these records."""
        try:
            if not self._sifts:
                return nothing_bad(how.decode(piece.data))
            sifted = how.sift(piece.data)
            if len(sifted.starts):
                self._set_aside(piece, sifted)
        except BadRecord as error:
            origin = piece.origin_of(error.offset or 0)
            place = np.array([(error.offset or 0) - origin.place])
            offset = int(origin.in_file(place, piece.data_of(origin), self.format)[0])
            path = self.files.full_path(origin.file)
            hint = advice.not_text(b"" if origin.offset else piece.data_of(origin)[:8], origin.file.path)
            if is_utf8(piece.data):
                hint = self._in_records.advice(self.format, piece.data[error.offset or 0 :].partition(b"\n")[0])
            msg = f"{path!r}, byte {offset}: {error.message}{hint}; mend or remove the record {self.again}"
            raise BadRecord(msg, path=path, offset=offset) from error
        return sifted

    def _set_aside(self, piece: FilePiece, sifted: Sifted) -> None:
        """Set aside the bad records of a piece, file by file; `BadRecord` for the first one of a kind that is not set aside."""
        spans = zip(sifted.starts.tolist(), sifted.ends.tolist(), strict=True)
        records = [without_end(piece.data[start:end], self.format.line_sep) for start, end in spans]
        takes = self.policy.records, self.policy.text
        if takes[0] != takes[1]:
            unwanted = next((place for place, record in enumerate(records) if not takes[not is_utf8(record)]), None)
            if unwanted is not None:
                message = f"found '{excerpt(records[unwanted])}', {sifted.reasons[unwanted]}"
                raise BadRecord(message, offset=int(sifted.starts[unwanted]))
        owners = piece.owners(sifted.starts)
        for owner in np.unique(owners).tolist():
            origin, chosen = piece.origins[owner], np.flatnonzero(owners == owner).tolist()
            starts = sifted.starts[chosen] - origin.place
            if origin.raw is None:
                offsets, held = starts + origin.offset, [records[place] for place in chosen]
            else:
                offsets = origin.in_file(starts, piece.data_of(origin), self.format)
                held = origin.raw_records(offsets - origin.offset, self.format)
            lines = about_records(
                self.files.full_path(origin.file),
                offsets,
                pa.array(held, pa.binary()),
                [sifted.reasons[place] for place in chosen],
                modified_ns=origin.file.modified_ns,
                columns=piece.columns,
            )
            self._take(lines)

    def _take(self, lines: pa.RecordBatch) -> None:
        if self.aside is not None:
            self.aside.take(lines)

    def _pieces(self, splits: Iterable[Split], *, headers: bool = False) -> Iterator[FilePiece]:
        guard, cutting, passed = self._guard, self._cutting, set[tuple[str, ...] | None]()
        small = None if headers or self.opens is not None else cutting.small(joins=not self._alone)
        for split in splits if small is None else small.read(splits):
            if isinstance(split, FilePiece):
                yield split
                continue
            for item in guard.read(split, cutting.read):
                if isinstance(item, FilePiece):
                    if item.data or (headers and item.columns not in passed):
                        passed.add(item.columns)
                        yield item
                else:
                    self._take(item)

    def _rescues(self, batch: pa.RecordBatch) -> bool:
        """Tell whether something was rescued from any row."""
        name = self.format.rescued
        return name is not None and int(batch.column(name).null_count) < batch.num_rows

    def _with_path(
        self, batch: pa.RecordBatch, starts: npt.NDArray[np.int64], piece: FilePiece, account: Account
    ) -> pa.RecordBatch:
        """Return the rows with whole objects in the column of rescued data, each with the path of its file."""
        place = batch.schema.get_field_index(self.format.rescued)
        origins = piece.owners(starts)
        paths = [self.files.full_path(origin.file) for origin in piece.origins]
        return batch.set_column(
            place, batch.schema.field(place), with_paths(batch.column(place), paths, origins, account)
        )

    # -- tables --------------------------------------------------------------------------------------------------

    def _counted_once(self, form: TableFormat, split: Split, account: Account) -> Iterator[pa.RecordBatch]:
        """Yield what is taken of a split, and count only that: a bad split gives nothing, and a large one may be read twice."""
        whole: list[Account] = []  # of each time that the split was read to its end

        def read(split: Split) -> Iterator[pa.RecordBatch]:
            counted = Account()
            yield from self._table(form, split, counted)
            whole.append(counted)

        yield from self._guard.read(split, read)
        if whole:
            account.take_in(whole[-1])

    def _table(self, form: TableFormat, split: Split, account: Account) -> Iterator[pa.RecordBatch]:
        failpoints.hit("source.read")
        files, file, fmt = self.files, split.file, self.format
        files.admit(file.path)
        path = files.full_path(file)
        keys = files.keys(path)
        with files.open(file) as handle:
            try:
                with files.ahead(handle, split) as ahead, files.contents(ahead, file, keys) as contents:
                    opened, size = contents.file, contents.size
                    span = (0, size) if contents.streams else (split.start, split.end)
                    begins = Begins() if self.metadata else None
                    rows = (
                        rescuing(form, fmt, opened, size, span, path, account, begins=begins) if fmt.is_strict else None
                    )
                    for batch in rows or form.rows(fmt, opened, size, span, account, begins):
                        with_metadata = checked(batch, fmt.errors)
                        if begins is not None:
                            with_metadata = self._with_metadata(with_metadata, file, begins.take(batch.num_rows))
                        yield self._numbered(with_metadata, [file])
            except (BadFile, OptionError) as error:
                files.check(handle, file)
                msg = f"{path!r}: {error.message}; mend or remove the file {self.again}"
                raise BadFile(msg) from error
            files.check(handle, file)

    # -- the metadata column -------------------------------------------------------------------------------------

    def _with_metadata(self, batch: pa.RecordBatch, file: FileVersion, starts: npt.NDArray[np.int64]) -> pa.RecordBatch:
        """Add the metadata column; `starts` is where in the file the rows begin."""
        if not self.metadata:
            return batch
        rows, offsets = batch.num_rows, pa.array(starts)
        values = [_printable(self.files.full_path(file)), file.modified_ns // 1000, file.size]
        fields = [pa.repeat(pa.scalar(v, f.type), rows) for v, f in zip(values, METADATA_TYPE, strict=False)]
        column = pa.StructArray.from_arrays([*fields, offsets], fields=list(METADATA_TYPE))
        arrays = [column if name == self.metadata else batch.column(name) for name in self.columns]
        return pa.RecordBatch.from_arrays(arrays, names=list(self.columns))

    # -- files that rows name --------------------------------------------------------------------------------------

    def _numbered(
        self, batch: pa.RecordBatch, files: list[FileVersion], owners: npt.NDArray[np.int64] | None = None
    ) -> pa.RecordBatch:
        """Add to each row the number of the row that named its file, if asked for; `owners`: the index into `files` of each row."""
        if self.named is None or self.named.numbers is None:
            return batch
        numbers = [self.named.numbers[file.path] for file in files]
        column = np.full(batch.num_rows, numbers[0]) if owners is None else np.array(numbers)[owners]
        return batch.append_column(NUMBER, pa.array(column, pa.int64()))


def files_batch(reading: Reading, splits: Iterable[Split]) -> pa.RecordBatch:
    """Return the files of a plan as rows (`emit=files`); an identity that does not follow from contents, such as an inode, is null."""
    files = [split.file for split in splits if split.end == split.file.size]
    columns = [
        pa.array([_printable(reading.files.full_path(f)) for f in files], pa.string()),
        pa.array([f.modified_ns // 1000 for f in files], FILES_SCHEMA.field("modified").type),
        pa.array([f.size for f in files], pa.int64()),
        pa.array([f.identity if reading.storage.tags_contents else None for f in files], pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=FILES_SCHEMA)


def _kept(rows_of: Decoder, piece: FilePiece, sifted: Sifted) -> npt.NDArray[np.int64]:
    """Return where in a piece the records begin that became rows."""
    starts = rows_of.starts(piece.data)
    return np.setdiff1d(starts, sifted.starts, assume_unique=True) if len(sifted.starts) else starts


def _printable(path: str) -> str:
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
