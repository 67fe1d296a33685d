"""The finished files of an output as a batch of splits: `sink.snapshot` lists the files, and the source reads them.

Unlike other input, the files are known. Their names and the notes of the sinks give the format, and the notes give the dialect of
CSV. No file of another program is among them, and each file is compared with its length in the ledger before a task is made of
it.

Spark asks a source for its schema before it says whether a batch or a stream is read. `penstock.register` makes readers of
batches say so. Without it, the schema of an output of tables, which cannot be read as text, is that of its files. For an output
whose lines could also be read as text, the format must be given.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from penstock.errors import FileChanged, OptionError, PenstockError
from penstock.formats import format_named
from penstock.formats.codecs import codec_of
from penstock.formats.encryption import is_encrypted
from penstock.formats.families import TableFormat
from penstock.options import SOURCE, parse
from penstock.options.finished import FOR_BATCHES, LIVE_FINISHED, READING
from penstock.options.formats import DEFAULT, VALUES
from penstock.sink.buckets import columns_in
from penstock.sink.snapshot import Finished, OutputSnapshot, Positions
from penstock.source import advice, configured, follow
from penstock.source.cursor import FileVersion, Followed, Split
from penstock.source.dividing import Dividing
from penstock.source.globs import NameGlob
from penstock.source.inferred import format_by_name, infer
from penstock.source.schemas import default_schema
from penstock.storage import locate, names_at

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.options import Options
    from penstock.source.read import Reading
    from penstock.storage import Entry, Storage

_LISTERS = 8
_SHOWN = 3


@dataclass(frozen=True)
class AsLoaded:
    """What `load` has found out about an output, if the user gave no schema; travels with the source to the reader.

    `schema` is the schema of the files; `None` if a stream of their lines may be meant, which has its own schema. The ledgers are
    read up to `positions`.
    """

    format: str
    schema: str | None = None
    positions: Positions | None = None


def loaded(given: Mapping[str, str]) -> AsLoaded | None:
    """Return what an output holds, for a user who gave no schema; `None` if a stream is meant, or there is no output.

    Raises `OptionError`, and the errors of reading ledgers and files.
    """
    names = {name.lower() for name in given}
    batch: FinishedFiles | None = None
    if not names & FOR_BATCHES:
        try:
            batch = FinishedFiles.of(given)
        except PenstockError:  # a stream may be meant, which has other options; a batch gets the error when it is read
            return None
        if batch.format in VALUES:
            return None
        if "format" not in names and not isinstance(format_named(batch.format), TableFormat):
            return AsLoaded(batch.format)
    batch = batch or FinishedFiles.of(given)
    return AsLoaded(batch.format, batch.schema(), batch.positions)


@dataclass(frozen=True)
class FinishedFiles:
    """The finished files of one snapshot, and how to read them. `options` are those of `FINISHED`, `source` those of the source.

    `kept` are columns, in lower case, that the files have although directories name them, too.
    """

    storage: Storage
    root: str
    options: Options
    source: Options
    snapshot: OutputSnapshot
    positions: Positions
    kept: frozenset[str] = frozenset()

    @staticmethod
    def of(given: Mapping[str, str], positions: Positions | None = None) -> FinishedFiles:
        """Return the finished files that the options ask for, up to the `positions` if these are known.

        Raises `OptionError`, `EventsLost`, `DamagedState`.
        """
        options = parse(LIVE_FINISHED, dict(given), what="batch read")
        storage, root = locate(options["path"])
        finished = Finished(storage, root, options["sinkId"])
        if not finished.sinks():
            msg = (
                f"path={root!r} is no output of Penstock, no sink has a ledger in it: expected spark.readStream, which reads a directory "
                "of input, or Spark's own text, json, csv or parquet"
            )
            raise OptionError(msg)
        positions = finished.positions(options["asOf"]) if positions is None else positions
        snapshot = finished.snapshot(positions, lost=options["ignoreMissingFiles"])
        snapshot = _chosen(snapshot, options["pathGlobFilter"])
        noted = finished.noted()
        form = options["format"] if "format" in options.given else _format(snapshot, noted, root)
        written = options.given_of(READING) | {"path": root, "format": form}
        written.pop("schema", None)
        source = parse(SOURCE, _dialect(form, noted, root) | written, what="batch read")
        return FinishedFiles(storage, root, options, source, snapshot, positions, _kept(noted, root))

    @property
    def format(self) -> str:
        """The format of the files."""
        return str(self.source["format"])

    def schema(self) -> str:
        """Return the schema of the files, as DDL. Raises what `infer` does."""
        if self.format in VALUES:
            return default_schema(self.source)
        files = [version for version in self.versions() if version.size or not self._is_table]
        if not files:
            msg = f"{self.root!r} has no finished file to infer a schema from; give the schema, or try again when there is one"
            raise OptionError(msg)
        return infer(self.source, files=sorted(files, key=lambda file: file.order), kept=self.kept).ddl

    @property
    def _is_table(self) -> bool:
        return isinstance(format_named(self.format), TableFormat)

    def versions(self) -> list[FileVersion]:
        """Return the present versions of the files, in the order of the ledgers. `FileChanged` if one is missing or has another size."""
        sizes, present = self.snapshot.sizes, self._present()
        missing = [path for path in sizes if path not in present]
        if missing and not self.options["ignoreMissingFiles"]:
            msg = (
                f"{len(missing)} of {len(sizes)} finished files of {self.root!r} are not there, such as {_some(missing)}: they were taken "
                "away since they were published; put them back, or set ignoreMissingFiles=true to read those that are left"
            )
            raise FileChanged(msg)
        altered = [
            path
            for path, size in sizes.items()
            if path in present and not (present[path].size == size or self._has_grown(path, present[path].size))
        ]
        if altered:
            entry = present[altered[0]]
            msg = (
                f"{f'{self.root}/{altered[0]}'!r} has {entry.size} bytes, the ledger says {sizes[altered[0]]}: it was changed since it was "
                f"published; put it back from a copy, {advice.AGAIN_FINISHED}"
            )
            raise FileChanged(msg)
        return [
            FileVersion(path, size, present[path].modified_ns, present[path].identity)
            for path, size in sizes.items()
            if path in present
        ]

    def _has_grown(self, path: str, size: int) -> bool:
        return size >= self.snapshot.lengths.get(path, size + 1)

    def _present(self) -> dict[str, Entry]:
        """Return the files that are in the directories, by paths below the output."""
        folders = sorted({path.rpartition("/")[0] for path in self.snapshot.sizes})
        present: dict[str, Entry] = {}
        with self.storage.workers(_LISTERS) as pool:
            for folder, entries in zip(folders, pool.map(self._listed, folders), strict=True):
                prefix = f"{folder}/" if folder else ""
                present |= {f"{prefix}{entry.name}": entry for entry in entries if entry.is_file}
        return present

    def _listed(self, folder: str) -> list[Entry]:
        place = f"{self.root}/{folder}" if folder else self.root
        return list(self.storage.list(place)) if names_at(self.storage, place) else []

    def reading(self, schema: str) -> Reading:
        """Return how to read the files into rows of this schema, Spark's JSON. Raises `OptionError`."""
        return replace(configured.reading(self.source, schema), again=advice.AGAIN_FINISHED, kept=self.kept)

    def tasks(self, how: Reading) -> list[tuple[Split, ...]]:
        """Return the splits of each task: small files together, large files cut if that needs no reading."""
        splits = [self._split(how, version) for version in self.versions()]
        divisible: Callable[[str], bool] = _never if how.form.anchored or self.snapshot.lengths else how.divisible
        dividing = Dividing(divisible, None)
        return [tuple(task) for task in dividing.tasks(filter(None, splits), self.source["splitSize"])]

    def _split(self, how: Reading, version: FileVersion) -> Split | None:
        """Return the split for a whole file, or for the part of a growing file that the ledger has, whatever comes after it."""
        for_nothing = not version.size and not self._is_table
        if for_nothing:
            return None
        how.files.admit(version.path)
        split = Split(version, 0, version.size)
        grows = version.path in self.snapshot.lengths and codec_of(version.path) is None
        if grows and not is_encrypted(version.path):
            with how.storage.open(how.files.full_path(version)) as handle:
                digest = follow.seen(handle, version.size)
            return split if digest is None else split._replace(followed=Followed(0, digest))
        return split


def _never(path: str) -> bool:  # noqa: ARG001 - what `Dividing` calls
    return False


def _some(paths: Sequence[str]) -> str:
    return ", ".join(map(repr, paths[:_SHOWN]))


def _chosen(snapshot: OutputSnapshot, glob: str | None) -> OutputSnapshot:
    """Return the files of a snapshot whose names match."""
    if glob is None:
        return snapshot
    name = NameGlob(glob)

    def matches(path: str) -> bool:
        return name.matches(path.rpartition("/")[2])

    lengths = {path: length for path, length in snapshot.lengths.items() if matches(path)}
    return OutputSnapshot(tuple(file for file in snapshot.files if matches(file.path)), lengths)


def _format(snapshot: OutputSnapshot, noted: Mapping[str, Mapping[str, str]], root: str) -> str:
    """Return the format of the files, by their names or the sinks' options; `OptionError` if there are several."""
    written = {options.get("format", DEFAULT).lower() for options in noted.values()}
    unsaid = next(iter(written)) if len(written) == 1 else None
    examples: dict[str | None, str] = {}
    for path in snapshot.sizes:
        examples.setdefault(format_by_name(path) or unsaid, path)
    if not examples:
        examples = dict.fromkeys(written, "")
    if len(examples) > 1 or None in examples:
        shown = ", ".join(f"{name or 'unknown'} ({path!r})" for name, path in examples.items())
        msg = (
            f"the finished files of {root!r} are of several formats: {shown}; expected one: choose by sinkId, or by pathGlobFilter=*.json, "
            "and say which by format"
        )
        raise OptionError(msg)
    (name,) = examples
    return str(name)


def _kept(noted: Mapping[str, Mapping[str, str]], root: str) -> frozenset[str]:
    """Return the columns of `bucketBy` that stayed in the data; `OptionError` if another sink has left one of them out."""
    named = {sink: columns_in(options.get("bucketBy", "")) for sink, options in noted.items()}
    drops = {sink for sink, options in noted.items() if options.get("dropBucketColumns", "false").lower() == "true"}
    kept = frozenset[str]().union(*(columns for sink, columns in named.items() if sink not in drops))
    left_out = frozenset[str]().union(*(columns for sink, columns in named.items() if sink in drops))
    if kept & left_out:
        both = ", ".join(sorted(kept & left_out))
        msg = f"the sinks of {root!r} have {both} in their files, or in the names of directories alone; choose one by sinkId"
        raise OptionError(msg)
    return kept


def _dialect(form: str, noted: Mapping[str, Mapping[str, str]], root: str) -> dict[str, str]:
    """Return the sinks' options of the dialect, as options of a source; `OptionError` if the sinks have different ones."""
    own = format_named(form).write_options & format_named(form).read_options - {"comment"}
    dialects = {
        sink: {name: text for name, text in options.items() if name in own}
        for sink, options in noted.items()
        if options.get("format") == form
    }
    first: dict[str, str] = next(iter(dialects.values()), {})
    for sink, dialect in dialects.items():
        if dialect != first:
            msg = (
                f"the sinks of {root!r} have written {form} in different dialects: {next(iter(dialects))} {first}, {sink} {dialect}; "
                "choose one by sinkId"
            )
            raise OptionError(msg)
    return first
