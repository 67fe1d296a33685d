"""The option `files` of an ingest's source: rows name the files that are read.

SRC is then the directory that the names are relative to, as with `rsync --files-from`. The names come from one of

- a streaming DataFrame, with a column `path` and, if it has them, `start`, `end`, `size`, `modified` and `identity`, as
  `read_files` takes them: a topic, a table that can be read as a stream, the rows of `emit=files`;
- `published`: SRC is an output of Penstock, and the files are those that it finishes, in the order of its ledger;
- the path of lists, text files with one name on each line: read like any input, so each line once.

A stream has a checkpoint, which says how far it was read. A DataFrame that is not a stream has none, so the next run would read
it all again; therefore it is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock import unique
from penstock.errors import OptionError
from penstock.formats.schema import to_spark
from penstock.ingestion.looks import LookWhereRead
from penstock.ingestion.nameplans import EventPlanner, ListPlanner
from penstock.ingestion.planning import NamePlanning
from penstock.options import SOURCE, parse
from penstock.options.internal import LOOK
from penstock.options.published import EMIT, PUBLISHED
from penstock.session.connect import application, is_dataframe
from penstock.session.streams import stream_reader
from penstock.source import configured
from penstock.source.named import OPTIONS, NameColumns, NamedFiles, NamingColumns
from penstock.source.schemas import LINES
from penstock.source.where import check_repeatable, where
from penstock.storage import entry_at, locate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

    from penstock.ingestion.planning import NamePlans
    from penstock.ingestion.stage import Stage
    from penstock.query.checkpoint import Checkpoint

ROWS = "rows"  # the kind that is noted for a DataFrame
_OPTION = "files"
# Options that are allowed in addition to those that say how a file is read.
_OF_INGESTS = {"path", "files", "schema", "sessiontimezone", "quarantinelocation", "maxbadrecords", "maxbadfraction"}
_LIST_BYTES_A_BATCH = "8m"  # the default: some 100,000 names, as many as a batch has files of a directory
_OF_STREAMS = {"maxfilespertrigger", "startingfrom"}
_OF_LISTS = {
    "maxbytespertrigger",
    "settle",
    "lateness",
    "follow",
    "closeafter",
    "sleeptime",
    "pathglobfilter",
    "pattern",
}
_NOT_HERE = {"basepath", "badrecordcolumn", "statelocation", "tasks"}


@dataclass(frozen=True)
class Names:
    """The origin of the names: `kind` is `ROWS` (then `frame` has the rows), `published`, or the path of lists."""

    kind: str
    frame: DataFrame | None
    columns: NameColumns

    @staticmethod
    def of(given: Any) -> Names:  # noqa: ANN401 - what the user gave
        """Return the names for the value of the option. Raises `OptionError`."""
        if is_dataframe(given):
            from penstock.ingestion.exchange import naming_frame

            frame, columns = naming_frame(given)
            return Names(ROWS, frame, columns)
        if not isinstance(given, str) or not given:
            msg = (
                f"files={given!r}; expected a streaming DataFrame with a column path, `published` where SRC is an output of Penstock, or "
                "the path of lists of names"
            )
            raise OptionError(msg)
        if given.lower() == EMIT:
            return Names(EMIT, None, NameColumns(NamingColumns(path=0, size=1)))
        return Names(locate(given, name=_OPTION)[1], None, NameColumns(NamingColumns(path=0)))

    def check_options(self, source: Mapping[str, Any]) -> None:
        """Raise `OptionError` for options that say which files are read, because rows say that."""
        known = {name for option in OPTIONS for name in option.names} - _NOT_HERE | _OF_INGESTS
        known |= set() if self.kind == ROWS else _OF_STREAMS if self.kind == EMIT else _OF_STREAMS | _OF_LISTS
        own = {option.name.lower() for option in SOURCE}
        for name in source:
            if name.lower() in own - known:
                msg = f"source option {name!r} says which files are read, and with files={self._shown} rows say that; leave it out"
                raise OptionError(msg)

    @property
    def is_published(self) -> bool:
        """Whether the names come from SRC itself, an output of Penstock."""
        return self.kind == EMIT

    @property
    def _shown(self) -> str:
        return "a DataFrame" if self.kind == ROWS else repr(self.kind)

    def check(self, source: Mapping[str, str]) -> None:
        """Raise `OptionError` unless SRC is one directory, and its options as an output, or the lists, are valid and there."""
        options = parse(SOURCE, dict(source), what="source")
        place = where(options)
        entry = entry_at(place.storage, place.root)
        if place.is_several or (entry is not None and not entry.is_directory):
            msg = f"with files={self._shown} SRC is the directory that names lead to; expected one directory, found {source['path']!r}"
            raise OptionError(msg)
        if self.kind == EMIT:
            parse(PUBLISHED, self._published(source), what="source with files=published")
        elif self.kind != ROWS:
            storage, path = locate(self.kind, name=_OPTION)
            lists = entry_at(storage, path)
            if lists is None:
                msg = f"files={path!r} does not exist; expected lists of names, files of text with a name a line, or `published`"
                raise OptionError(msg)
            check_repeatable(_OPTION, path, lists)

    def splits(self, spark: SparkSession, source: Mapping[str, str], stage: Stage, notes: str, tasks: int) -> DataFrame:
        """Return the splits of the named files, in `tasks` tasks.

        `stage` reads them, `notes` is the directory for notes of what was found.
        """
        named = stage.carrier
        assert isinstance(named, NamedFiles)  # noqa: S101 - it was described with these names
        place = notes if named.needs_notes else None
        if self.frame is not None:
            from penstock.ingestion.exchange import split_frame

            return split_frame(self.frame, named, place, keep=False, tasks=tasks)
        schema = to_spark(stage.read_schema)
        look = LookWhereRead.of(source, schema, self.columns, place=place, run=application(spark))
        stream = stream_reader(spark, "penstock").option(LOOK, look.text)
        if self.kind == EMIT:
            return stream.options(**self._published(source)).load().repartition(tasks)
        return stream.options(**self._lists(source)).load().repartition(tasks)

    def planner_here(
        self, source: Mapping[str, str], stage: Stage, notes: str, tasks: int, *, packed: bool
    ) -> NamePlanning | None:
        """Return the planner of lists or events in this process; `None` if Spark must plan. `notes` and `tasks` are as in `splits`."""
        named = stage.carrier
        assert isinstance(named, NamedFiles)  # noqa: S101 - it was described with these names
        if self.kind == EMIT:
            planner: NamePlans = EventPlanner(parse(PUBLISHED, self._published(source), what="source"))
        elif self.frame is None and (lists := ListPlanner.of(self._lists(source))) is not None:
            planner = lists
        else:
            return None
        place = notes if named.needs_notes else None
        look = LookWhereRead.of(source, to_spark(stage.read_schema), self.columns, place=place, run=unique.token())
        return NamePlanning(planner, look, tasks, packed)

    def changed(self, source: Mapping[str, str], checkpoint: Checkpoint, number: int) -> int:
        """Return how many splits of lists in a planned batch have changed."""
        if self.kind in {ROWS, EMIT}:
            return 0
        options = parse(SOURCE, self._lists(source), what="source")
        reading = configured.reading(options, LINES)
        splits = configured.planner(options, reading).splits(checkpoint.only_offset(number))
        return sum(not reading.files.has(split) for split in splits)

    def _lists(self, source: Mapping[str, str]) -> dict[str, str]:
        """Return the options of the source that reads lists."""
        given = {name: text for name, text in source.items() if name.lower() in _OF_STREAMS | _OF_LISTS}
        limited = any(name.lower() == "maxbytespertrigger" for name in given)
        return {**given, "path": self.kind} | ({} if limited else {"maxBytesPerTrigger": _LIST_BYTES_A_BATCH})

    @staticmethod
    def _published(source: Mapping[str, str]) -> dict[str, str]:
        given = {name: text for name, text in source.items() if name.lower() in _OF_STREAMS}
        return {**given, "emit": EMIT, "path": source["path"]}


def names_taken(source: dict[str, Any]) -> Names | None:
    """Return the value of the option `files`, and replace it in `source` by the kind that is noted; `None` if it is not given.

    Raises `OptionError`; touches no storage.
    """
    name = next((name for name in source if name.lower() == _OPTION), None)
    if name is None:
        return None
    names = Names.of(source.pop(name))
    source[_OPTION] = names.kind
    names.check_options(source)
    return names
