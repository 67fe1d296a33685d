"""Compares an output with its source: finds the sinks, the stage and the files, and then compares both sides as records.

The notes of the sinks say how the source was read (the stage of an ingest) and where the checkpoint is, which says how far.
Several sinks may have written one directory from one source. They are compared together, because a second ingest with a new
checkpoint makes each record appear twice, and a reader of the directory sees that.

If the stage is not noted (a query of Spark between source and sink), one assumption is made, and reported: that lines of text
pass unchanged. A transform is never taken from the notes, which any user who may write to the output could have forged: the
caller of `verify` names it, or nothing is compared.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, NoReturn

from penstock.errors import InputError, OptionError
from penstock.formats import format_named
from penstock.formats.aside import Tally, path_bytes
from penstock.ingestion.mendedfiles import FileKey, copy_of
from penstock.ingestion.stage import Stage, named
from penstock.options import SINK, SOURCE, parse
from penstock.options.parsers import path_list
from penstock.sink.adopt import is_adopted
from penstock.sink.buckets import shape
from penstock.sink.existing import NotedStage
from penstock.source.clean import cleaning_noted
from penstock.source.where import where
from penstock.verify.compare import Sides, examples, sums
from penstock.verify.opened import KEY_OPTION
from penstock.verify.records import Feed, file_receipts
from penstock.verify.taken import (
    UNTOLD,
    by_reading,
    changed_columns,
    last_offset,
    late_files,
    readings,
    standing_files,
    taken,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.ingestion.mendedfiles import Replacement
    from penstock.ingestion.stage import Applied
    from penstock.source.cursor import Split
    from penstock.storage import Storage
    from penstock.verify.compare import Example
    from penstock.verify.files import OutputFiles, SinkView
    from penstock.verify.records import Unit

_TEXT = '{"fields":[{"metadata":{},"name":"value","nullable":true,"type":"string"}],"type":"struct"}'
# The options that determine which records a file has, and what is in them.
_CONTENT = {"format", "badRecords", "badFiles", "metadataColumn", "emit"}
_CONTENT |= {option.name for option in SOURCE if option.special}
# The options that determine the rows and files of an output. If an earlier run had another value, some rows are not as
# the last run's would be.
_ROWS = {
    "format",
    "dropBucketColumns",
    "encodingErrors",
    "transform",
    *(option.name for option in SINK if option.special),
}
_ROWS |= {f"source.{name}" for name in _CONTENT}
_UNKNOWN = (
    "the records of SRC, but which of them were read is unknown, because the checkpoint is not where it was; if you moved it, the next "
    "batch notes its place"
)


@dataclass(frozen=True)
class SourceCheck:
    """How an output compares with its source.

    `proved`: every record that was read is in the output exactly once, or on one of the `set_aside` lines about what was set
    aside. Otherwise `reason` says what is different, or why that is unknown. `waiting_*` counts input that is there and was not
    read yet.
    """

    source: str
    proved: bool
    reason: str = ""
    source_records: int = 0
    output_records: int = 0
    files: int = 0
    waiting_files: int = 0
    waiting_bytes: int = 0
    notes: tuple[str, ...] = ()
    examples: tuple[Example, ...] = ()
    set_aside: int = 0


class CannotTellError(Exception):
    """Records cannot be compared; the message says why. Never leaves this module."""


def check_source(
    files: OutputFiles,
    views: list[SinkView],
    source: str,
    transform: str | None,
    progress: Callable[[int, int], None],
    copies: tuple[Storage, str] | None = None,
) -> SourceCheck:
    """Compare the records of an output with those read from `source`; `progress` gets bytes done and bytes in all.

    `transform` is the `module:function` that the caller names; `OptionError` if it cannot be loaded, or if the ingest had none.
    `copies` is the directory of mended copies of files that were taken in.
    """
    try:
        return _Comparison(files, views, source, transform, copies).run(progress)
    except CannotTellError as error:
        return SourceCheck(source, proved=False, reason=str(error))


@dataclass
class _Comparison:
    """The comparison of one source with the sinks of one output that read it, with notes about the comparison."""

    files: OutputFiles
    views: list[SinkView]
    source: str
    transform: str | None = None
    copies: tuple[Storage, str] | None = None
    notes: list[str] = field(default_factory=list)

    def run(self, progress: Callable[[int, int], None]) -> SourceCheck:
        """Run the comparison; raises `CannotTellError`."""
        views = self._of_source()
        self._check_opened(views)
        feeds = self._feeds(views)
        splits, waiting = self._taken(views, feeds)
        self._note_places(feeds, views)
        self._give_versions(feeds, splits)
        self._give_receipts(feeds, views)
        ways = by_reading(splits, readings(views[0]))
        sides = self._sides(feeds, views, [(feeds[0].read_by(way), read_so) for way, read_so in ways.items()], progress)
        self.notes += [note for view in views for note in view.head.account.told()]
        set_aside = self._set_aside(views)
        changed = ", ".join(sorted(_ROWS.intersection(name for view in views for name in view.sink.note.changed)))
        otherwise = f"an earlier run had another {changed}: such runs need a DST each for --source"
        try:
            of_source, of_output = sums(sides)
        except InputError as error:
            if not changed:
                raise
            _refuse(f"records were not compared: {error.message.partition('; ')[0]}; {otherwise}")
        if feeds[0].as_lines:
            self._note_lines(of_output.records - set_aside, views)
        proved = of_source == of_output
        reason = _unlike(self.notes) + (f"; {otherwise}" if changed else "")
        return SourceCheck(
            self.source,
            proved=proved,
            reason="" if proved else reason,
            source_records=of_source.records,
            output_records=of_output.records,
            files=len(splits),
            waiting_files=waiting[0],
            waiting_bytes=waiting[1],
            notes=tuple(dict.fromkeys(self.notes)),
            examples=() if proved else tuple(examples(sides)),
            set_aside=set_aside,
        )

    def _note_lines(self, lines: int, views: list[SinkView]) -> None:
        """Note if there are more lines than rows, because rows have line breaks in them."""
        rows = sum(view.head.total_rows for view in views)
        if lines > rows:
            self.notes.append(
                f"text was compared and counted line by line: {lines:,} lines of {rows:,} rows, some of which contain line breaks"
            )

    def _note_places(self, feeds: list[Feed], views: list[SinkView]) -> None:
        """Find out whether the places of rows can be compared; set that in the feeds, and note it if not."""
        if not feeds[0].compares_buckets:
            lost = "".join(f", nor {name}, which is not in the data" for name in feeds[0].dropped)
            self.notes.append(f"bucketBy uses the time of the batch: where rows lie was not compared{lost}")
        elif any({"bucketBy", "timeZone"} & view.sink.note.changed for view in views) or not all(
            map(_buckets_fit, views)
        ):
            lost = "".join(f", nor {name}, which is not in the data" for name in feeds[0].dropped)
            self.notes.append(f"directories were named by another bucketBy, too: where rows lie was not compared{lost}")
            for feed in feeds:
                feed.compares_buckets = False
        if any({"fileName", "timeFormat"} & view.sink.note.changed for view in views) or not all(
            map(_names_fit, views)
        ):
            self.notes.append(
                "files were named by another fileName, too: which file of a bucket rows lie in was not compared"
            )
            for feed in feeds:
                feed.compares_names = False

    def _sides(
        self,
        feeds: list[Feed],
        views: list[SinkView],
        parts: list[tuple[Feed, list[Split]]],
        progress: Callable[[int, int], None],
    ) -> Sides:
        """Return the two sides: the source, in `parts` that were each read in one way, and the output of each sink."""
        retried = self._retried(feeds, views)
        return Sides(
            source=(*(unit for feed, read_so in parts for unit in feed.source(read_so)), *retried),
            output=tuple(unit for feed, view in zip(feeds, views, strict=True) for unit in feed.output(view)),
            traced=lambda: (*(unit for feed, read_so in parts for unit in feed.single(read_so)), *retried),
            parallel=feeds[0].stage.is_ours,  # a user's function may not be thread-safe
            progress=progress,
        )

    @staticmethod
    def _give_versions(feeds: list[Feed], splits: list[Split]) -> None:
        """Tell the feeds which versions of files the source has."""
        reading = feeds[0].stage.reading
        versions = {(path_bytes(reading.files.full_path(s.file)), s.file.size, s.file.modified_ns) for s in splits}
        for feed in feeds:
            feed.versions = versions

    def _give_receipts(self, feeds: list[Feed], views: list[SinkView]) -> None:
        """Tell the feeds which files were taken in unchanged, and the mended copies of the others. `CannotTellError`."""
        for feed, view in zip(feeds, views, strict=True):
            receipts = {FileKey.of(line): line["copy"] for line in file_receipts(view)}
            feed.mended = {key for key, version in receipts.items() if version is None}
            feed.copies = {key: self._copy(feed, key, copy) for key, copy in receipts.items() if copy is not None}

    def _copy(self, feed: Feed, key: FileKey, version: dict[str, Any]) -> Replacement:
        """Return the mended copy that was taken in for a file, from the directory that the caller names."""
        copy = copy_of(feed.stage, key, self.copies)
        if copy is None or (copy.entry.size, copy.entry.modified_ns) != (version["size"], version["modified_ns"]):
            _refuse(
                f"a mended copy of {key.name!r} was taken in, which was {version['path']!r}: to compare takes the same, with its "
                "time, in a directory that you name: --mended DIR"
            )
        return copy

    def _set_aside(self, views: list[SinkView]) -> int:
        """Return how much was set aside; note the part that can no longer be compared."""
        aside = reduce(Tally.plus, (view.head.aside for view in views), Tally())
        if aside.changes:
            self.notes.append(
                f"{aside.changes} ranges of files had changed or were gone before they were read: what they held is neither in the "
                "output nor in SRC any more"
            )
        return aside.total

    @staticmethod
    def _retried(feeds: list[Feed], views: list[SinkView]) -> tuple[Unit, ...]:
        return tuple(unit for feed, view in zip(feeds, views, strict=True) for unit in feed.retried(view))

    @staticmethod
    def _check_opened(views: list[SinkView]) -> None:
        """Raise `CannotTellError` if files are encrypted and no key was given."""
        locked = sum(view.encrypted for view in views if view.keys is None)
        if locked:
            msg = f"{locked} files are encrypted, and their content cannot be read without a key: {KEY_OPTION} env:NAME or file:/path"
            raise CannotTellError(msg)

    def _of_source(self) -> list[SinkView]:
        """Return the sinks that noted this source; if there are none, the only sink, whose source was moved or not noted."""
        broken = {"missing", "cut", "altered"} & {problem.kind for problem in self.files.problems}
        if broken:
            _refuse(f"files of the output are {' or '.join(sorted(broken))}, so records were not compared")
        if not self.views:
            _refuse("nothing has been written here yet")
        # The input of files that Spark's sink wrote was read by a query about which nothing is known here.
        self.views = [view for view in self.views if not is_adopted(view.head)]
        self._name_all_paths()
        noted = [view for view in self.views if self._has_noted(view)]
        if not noted and len(self.views) > 1:
            names = ", ".join(view.sink.sink_id for view in self.views)
            _refuse(f"none of the sinks {names} has noted that it reads {self.source!r}; name the SRC of the ingest")
        return noted or self.views

    def _name_all_paths(self) -> None:
        """Let one of several paths that an ingest has noted stand for all of them."""
        for stage in filter(None, (view.sink.note.stage for view in self.views)):
            if "paths" in stage.source and self.source in path_list(stage.source["paths"], "paths"):
                self.source = stage.source["path"]

    def _has_noted(self, view: SinkView) -> bool:
        return view.sink.note.stage is not None and view.sink.note.stage.source.get("path") == self.source

    def _feeds(self, views: list[SinkView]) -> list[Feed]:
        """Return how each sink made its output from SRC; all sinks must agree."""
        stages = self._noted_stages(views)
        transform = self._transform(stages[0])
        if hasattr(transform, "stream"):
            _refuse(
                f"the transform {self.transform!r} makes asynchronous calls, and their answers cannot be had again: no service "
                "is called to compare; verify DST alone, and count the inputs by their call ids at the service"
            )
        try:
            made_stages = [Stage.repeated(stage, self.source, transform) for stage in stages]
        except (OptionError, AttributeError, KeyError, TypeError, ValueError) as error:  # the note may hold anything
            reason = getattr(error, "message", f"{type(error).__name__}: {error}")
            _refuse(f"how the ingest read its source is noted in a form that cannot be repeated: {reason}")
        left_out = self._changed_columns(views) | (grown := _of_growing_files(made_stages))
        self.notes += [
            f"files may have grown since; what {name!r} says of them was not compared" for name in sorted(grown)
        ]
        return [Feed(stage, view.sink, left_out) for stage, view in zip(made_stages, views, strict=True)]

    def _noted_stages(self, views: list[SinkView]) -> list[NotedStage]:
        """Return the noted stage of each sink; all of them must read the contents of records in the same way."""
        stages = [view.sink.note.stage or self._assumed(view) for view in views]
        if any("files" in stage.source for stage in stages):
            _refuse(
                "rows named the files that were read, and which rows there were is not noted; verify DST alone, and compare it with what "
                "penstock.read_files reads for the same rows"
            )
        forms = [
            replace(stage, source={name: text for name, text in stage.source.items() if name in _CONTENT})
            for stage in stages
        ]
        if any(form != forms[0] for form in forms):
            _refuse(f"several sinks read {self.source!r} in different ways; they cannot be compared together")
        return stages

    def _changed_columns(self, views: list[SinkView]) -> frozenset[str]:
        """Return the columns that not all rows have with one type, and note them."""
        changed = frozenset().union(*(changed_columns(view) for view in views))
        if changed:
            names = ", ".join(map(repr, sorted(changed)))
            self.notes.append(
                f"rows from before have other columns {names}, which were added or widened since: they were not compared"
            )
        return changed

    def _transform(self, stage: NotedStage) -> Applied | None:
        """Return the transform that the caller named; a name in the sink's notes is shown but never imported."""
        if self.transform is None:
            if stage.opaque:
                _refuse(
                    "the transform was a Python function, which is not noted; if it can be imported, name it: "
                    "--transform MODULE:FUNCTION"
                )
            if stage.transform is not None:
                _refuse(
                    f"the ingest noted a transform, and what a state file names is not imported; if you trust it, name it "
                    f"yourself: --transform {stage.transform}"
                )
            return None
        if stage.sql is not None:
            msg = f"--transform {self.transform!r}: the ingest noted SQL, {stage.sql!r}, which is repeated as noted; leave --transform out"
            raise OptionError(msg)
        if stage.transform is None and not stage.opaque:
            msg = f"--transform {self.transform!r}: what was written here has noted none; leave it out"
            raise OptionError(msg)
        if stage.transform != self.transform:
            noted = stage.transform or "a function without a name"
            self.notes.append(f"compared with {self.transform}; the ingest noted {noted}")
        return named(self.transform)

    def _assumed(self, view: SinkView) -> NotedStage:
        if not format_named(view.sink.options["format"]).as_lines:
            form = view.sink.options["format"]
            _refuse(f"this was no ingest, and it writes {form}: how its rows follow from the source is not noted")
        self.notes.append("this was no ingest: lines of text are assumed to pass unchanged")
        place = where(parse(SOURCE, {"path": self.source}, what="source"))
        cleaned = cleaning_noted(place.storage, place.root)
        return NotedStage({"recursiveFileLookup": str(self._descends(view)).lower()} | cleaned, _TEXT, _TEXT)

    def _descends(self, view: SinkView) -> bool:
        """Tell whether the query's source was recursive. That is not noted, but the checkpoint has counted the files."""
        offset = last_offset(view)
        flat = parse(SOURCE, {"path": self.source}, what="source")
        place = where(flat)
        return bool(offset) and bool(taken(place.storage, place.root, flat, offset).notes)

    def _taken(self, views: list[SinkView], feeds: list[Feed]) -> tuple[list[Split], tuple[int, int]]:
        """Return what any of the sinks has read from the source, and (files, bytes) that none has read yet."""
        furthest: dict[tuple[str, bytes], Split] = {}
        waiting = []
        for view, feed in zip(views, feeds, strict=True):
            if feed.stage.options["cleanSource"] == "delete":
                _refuse("cleanSource=delete: what was read is not there any more, so there is nothing to compare with")
            if feed.stage.options["startingFrom"] == "latest":
                _refuse("startingFrom=latest: which files were there before is not noted")
            offset = last_offset(view)
            place = where(feed.stage.options)
            beside = late_files(view, offset), standing_files(view, offset)
            reading = taken(place.storage, place.root, feed.stage.options, offset, *beside)
            for split in reading.splits:
                version = split.file.path, split.file.key
                before = furthest.get(version)
                furthest[version] = before if before and before.end >= split.end else split
            waiting.append((reading.waiting_files, reading.waiting_bytes))
            self.notes += reading.notes
        return list(furthest.values()), min(waiting)


def _unlike(notes: list[str]) -> str:
    """Return the reason of a difference, of which nobody knows whether it is one if what was read is not known."""
    return f"the output does not hold exactly {_UNKNOWN if UNTOLD in notes else 'the records that were read'}"


def _of_growing_files(stages: list[Stage]) -> frozenset[str]:
    """Return the columns that say what a file was like when it was read, if it may have grown since."""
    return frozenset(filter(None, (stage.options["metadataColumn"] for stage in stages if stage.options["follow"])))


def _refuse(why: str) -> NoReturn:
    raise CannotTellError(why)


def _buckets_fit(view: SinkView) -> bool:
    """Tell whether the sink's present `bucketBy` could have made the buckets of all its files and open parts.

    Old notes do not show changes.
    """
    buckets = {file.bucket for file in view.output} | {part.bucket for part in view.head.open if not part.is_aside}
    buckets |= {path.rpartition("/")[0] for path in view.lengths}
    fits = shape(view.sink.options["bucketBy"]).fullmatch
    return all(map(fits, buckets))


def _names_fit(view: SinkView) -> bool:
    """Tell whether the sink's present `fileName` could have named all its files and open parts."""
    names = view.sink.layout.names
    given = [file.name for file in view.output] + [part.name for part in view.head.open if not part.is_aside]
    return all(map(names.fits, set(given)))
