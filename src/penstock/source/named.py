"""Files that are named by rows: a stream of names becomes the records of these files.

There are two stages, both of Arrow batches. The first (`source.looking`) looks at the files that rows name, and turns each row into
splits: a version of a file, cut into ranges if it is large, or the reason why there is nothing to read. The second (`source.splitruns`)
reads the splits, wherever they have been sent in between; small files are parsed together. Neither holds more than a few batches. This
module has what both stages share.

A range that a row names owns the records that begin in it, as any split does: adjacent ranges yield each record once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.errors import OptionError
from penstock.formats.account import Account
from penstock.options import SOURCE, Option, Options, parse
from penstock.source import advice, configured
from penstock.source.splitruns import SplitReading
from penstock.storage import locate

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import pyarrow as pa

    from penstock.formats.aside import Aside
    from penstock.source.read import Reading

# The options of a source that say how a file is read; the others say which files are read.
_READING = {
    "format", "followSymlinks", "splitSize", "changedFiles", "badRecords", "badFiles", "badRecordColumn",
    "metadataColumn", "decryptionKey", "basePath", "partitionColumns", "timeZone", "sessionTimeZone",
    "stateLocation", "tasks",
}  # fmt: skip
OPTIONS: tuple[Option, ...] = tuple(option for option in SOURCE if option.special or option.name in _READING)


class NamingColumns(NamedTuple):
    """Which columns of the rows hold what, by their positions."""

    path: int
    start: int | None = None
    end: int | None = None
    size: int | None = None
    modified: int | None = None
    identity: int | None = None


@dataclass(frozen=True)
class NamedFiles:
    """How the files that rows name are read. Picklable, travels to tasks. `reading` applies to any storage; see `on`."""

    options: Options
    reading: Reading
    base: str | None
    columns: NamingColumns
    nanoseconds: bool = False
    passes_lines = True  # a line of a file is a whole record

    @staticmethod
    def of(given: Mapping[str, Any], schema: str, columns: NamingColumns, *, nanoseconds: bool = False) -> NamedFiles:
        """Return the object for the user's options, and the schema of the files as Spark's JSON. Raises `OptionError`; touches nothing.

        `nanoseconds`: the column of modification times has nanoseconds since 1970, and not timestamps.
        """
        options, base = NamedFiles.checked(given)
        reading = replace(configured.reading(options, schema), again=advice.AGAIN_NAMED)
        configured.check_plain(options)
        root = None if base is None else locate(base, name="basePath")[1]
        return NamedFiles(options, replace(reading, follow=reading.follow or base is None), root, columns, nanoseconds)

    @staticmethod
    def checked(given: Mapping[str, Any]) -> tuple[Options, str | None]:
        """Return the options of a source for the user's options, and `basePath`. Raises `OptionError`."""
        texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in given.items()}
        written = dict(parse(OPTIONS, texts, what="read_files").given)
        base = written.pop("basePath", None)
        if base is None and written.setdefault("partitionColumns", "none") != "none":
            msg = "partitionColumns=auto needs basePath, the directory below which directories k=v are columns"
            raise OptionError(msg)
        return parse(SOURCE, written | {"path": "/"}, what="read_files"), base

    @property
    def schema(self) -> pa.Schema:
        """Return the columns that are read."""
        return configured.expected_schema(self.options, self.reading)

    @property
    def says_version(self) -> bool:
        """Tell whether rows have columns that tell one version of a file from another."""
        by_tag = self.tags_tell and self.columns.identity is not None
        return by_tag or (self.columns.size is not None and self.columns.modified is not None)

    @property
    def tags_tell(self) -> bool:
        """Tell whether the identity in a row follows from the contents of the file, wherever rows lead to."""
        return self.base is not None and locate(self.base)[0].tags_contents

    @property
    def needs_notes(self) -> bool:
        """Tell whether a replay could find other files than the first try, and the rows could not show it."""
        return not self.says_version or self.reading.policy.files or self.reading.policy.changes

    def on(self, root: str) -> Reading:
        """Return how the files of one storage, or of `basePath`, are read."""
        return replace(self.reading, storage=locate(root)[0], root=root)

    def records(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the records of splits, after the columns of the rows that named them, if `looking.splits` kept these.

        Raises what `Reading.batches` does.
        """
        account = Account()
        yield from self._splits.records(batches, account)
        configured.tell(account, "files that rows name" if self.base is None else self.base)

    def rows(
        self, batches: Iterable[pa.RecordBatch], account: Account, aside: Aside | None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records of splits, without columns of rows, for an ingest: what is set aside goes to `aside`.

        Raises what `Reading.batches` does.
        """
        return self._splits.rows(batches, account, aside)

    def text(self, batches: Iterable[pa.RecordBatch], aside: Aside | None) -> Iterator[bytes]:
        """Yield the lines of the splits as `Reading.text` does."""
        return self._splits.text(batches, aside)

    @property
    def _splits(self) -> SplitReading:
        return SplitReading(self.on, self.options, self.schema, self.reading.policy.any)


@dataclass(frozen=True)
class NameColumns:
    """Which columns of the rows that name the files of an ingest hold what; see `NamedFiles.of`."""

    columns: NamingColumns
    nanoseconds: bool = False

    def files(self, options: Options, reading: Reading) -> NamedFiles:
        """Return how the files that rows name below a source's `path` are read; `reading` is how the source itself is read."""
        reading = replace(reading, again=advice.AGAIN_NAMED)
        return NamedFiles(options, reading, reading.root, self.columns, self.nanoseconds)

    def to_json(self) -> list[Any]:
        """Return the form in which a stage holds it."""
        return [list(self.columns), self.nanoseconds]

    @staticmethod
    def from_json(form: list[Any]) -> NameColumns:
        """Return what `to_json` gave."""
        columns, nanoseconds = form
        return NameColumns(NamingColumns(*columns), nanoseconds)
