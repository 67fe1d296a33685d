"""An output against its source: which sinks, which stage, which files; then both sides as records, compared.

What the sinks noted of themselves says how the source was read (the stage of an ingest) and where the checkpoint is,
which says how far. Several sinks may have written one directory from one source: they are compared together, for a
second ingest with a new checkpoint makes each record appear twice, and that is what a reader of the directory sees.

Where the stage is not noted (a query of Spark's own between source and sink) or cannot be repeated (a function that
was pickled), nothing is guessed but one thing, and that is said: that lines of text pass as they are.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from penstock.errors import OptionError
from penstock.formats.format import CSV_OPTIONS
from penstock.options import SOURCE, parse
from penstock.storage import locate
from penstock.verify.compare import Sides, examples, sums
from penstock.verify.records import Feed
from penstock.verify.taken import last_offset, taken

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.sink.sink import Sink
    from penstock.source.cursor import Split
    from penstock.verify.compare import Example
    from penstock.verify.files import OutputFiles, SinkView

_TEXT = '{"fields":[{"metadata":{},"name":"value","nullable":true,"type":"string"}],"type":"struct"}'
_CONTENT = (
    "format",
    "encoding",
    "encodingErrors",
    "lineSep",
    "sep",
    *CSV_OPTIONS,
    "blockSize",
    "metadataColumn",
    "emit",
)


@dataclass(frozen=True)
class SourceCheck:
    """How an output compares with its source.

    `proved`: every record that was read is in it exactly once. Otherwise `reason` says what is different, or why it
    cannot be told. `waiting_*` is there and was not read yet.
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


class CannotTellError(Exception):
    """There is no way to compare; the message says why. Never leaves this module."""


def check_source(
    files: OutputFiles, views: list[SinkView], source: str, progress: Callable[[int, int], None]
) -> SourceCheck:
    """Compare the records of an output with those read from `source`; `progress` gets bytes done and bytes in all."""
    try:
        return _Comparison(files, views, source).run(progress)
    except CannotTellError as error:
        return SourceCheck(source, proved=False, reason=str(error))


@dataclass
class _Comparison:
    """The sinks of one output that read one source, and what is to be said about comparing them."""

    files: OutputFiles
    views: list[SinkView]
    source: str
    notes: list[str] = field(default_factory=list)

    def run(self, progress: Callable[[int, int], None]) -> SourceCheck:
        """Compare; raises `CannotTellError`."""
        views = self._of_source()
        feeds = self._feeds(views)
        splits, waiting = self._taken(views, feeds)
        if not feeds[0].compares_buckets:
            lost = "".join(f", nor {name}, which is not in the data" for name in feeds[0].dropped)
            self.notes.append(f"bucketBy uses the time of the batch: where rows lie was not compared{lost}")
        sides = Sides(
            source=tuple(feeds[0].source(splits)),
            output=tuple(unit for feed, view in zip(feeds, views, strict=True) for unit in feed.output(view)),
            traced=lambda: feeds[0].single(splits),
            parallel=feeds[0].stage.transform is None,  # a user's function may not be made for several threads
            progress=progress,
        )
        there, here = sums(sides)
        return SourceCheck(
            self.source,
            proved=there == here,
            reason="" if there == here else "the output does not hold exactly the records that were read",
            source_records=there.records,
            output_records=here.records,
            files=len(splits),
            waiting_files=waiting[0],
            waiting_bytes=waiting[1],
            notes=tuple(dict.fromkeys(self.notes)),
            examples=() if there == here else tuple(examples(sides)),
        )

    def _of_source(self) -> list[SinkView]:
        """Return the sinks that noted this source; else the only one there is, whose source was moved or not noted."""
        broken = {"missing", "cut", "altered"} & {problem.kind for problem in self.files.problems}
        if broken:
            _refuse(f"files of the output are {' or '.join(sorted(broken))}, so records were not compared")
        if not self.views:
            _refuse("nothing has been written here yet")
        named = [view for view in self.views if _noted(view.sink).get("source", {}).get("path") == self.source]
        if not named and len(self.views) > 1:
            names = ", ".join(view.sink.sink_id for view in self.views)
            _refuse(f"none of the sinks {names} has noted that it reads {self.source!r}; name the SRC of the ingest")
        return named or self.views

    def _feeds(self, views: list[SinkView]) -> list[Feed]:
        """Return how each sink made its output of SRC; they must agree."""
        stages = [self._stage(view) for view in views]
        forms = [json.loads(stage) for stage in stages]
        for form in forms:
            form["source"] = {name: value for name, value in form["source"].items() if name in _CONTENT}
        if any(form != forms[0] for form in forms):
            _refuse(f"several sinks read {self.source!r} in different ways; they cannot be compared together")
        transform = forms[0]["transform"]
        try:
            feeds = [Feed(stage, view.sink) for stage, view in zip(stages, views, strict=True)]
        except (ImportError, AttributeError, OptionError) as error:
            _refuse(f"the transform {transform!r} cannot be loaded here: {error}")
        if hasattr(feeds[0].stage.transform, "stream"):
            _refuse(
                f"the transform {transform!r} makes asynchronous calls, and their answers cannot be had again: no service is called "
                "to compare; verify DST alone, and count the inputs by their call ids at the service"
            )
        return feeds

    def _stage(self, view: SinkView) -> str:
        """Return the stage between source and sink, reading SRC."""
        stage = _noted(view.sink)
        if not stage:
            return self._assumed(view)
        if isinstance(stage["transform"], dict):
            _refuse("the transform was a Python function, which is not noted; 'module:function' can be repeated")
        return json.dumps({**stage, "source": {**stage["source"], "path": self.source}})

    def _assumed(self, view: SinkView) -> str:
        if view.sink.options["format"] != "text":
            form = view.sink.options["format"]
            _refuse(f"this was no ingest, and it writes {form}: how its rows follow from the source is not noted")
        self.notes.append("this was no ingest: it is assumed that lines of text pass as they are")
        given = {"path": self.source, "recursiveFileLookup": str(self._descends(view)).lower()}
        return json.dumps({"source": given, "schema": _TEXT, "transform": None, "out": _TEXT})

    def _descends(self, view: SinkView) -> bool:
        """Tell whether the query's source was recursive: it did not say, but its checkpoint has counted the files."""
        offset = last_offset(view)
        storage, root = locate(self.source)
        flat = parse(SOURCE, {"path": self.source}, what="source")
        return bool(offset) and bool(taken(storage, root, flat, offset).notes)

    def _taken(self, views: list[SinkView], feeds: list[Feed]) -> tuple[list[Split], tuple[int, int]]:
        """Return what was read of the source by any of the sinks, and (files, bytes) that none has read yet."""
        storage, root = locate(self.source)
        furthest: dict[str, Split] = {}
        waiting = []
        for view, feed in zip(views, feeds, strict=True):
            if feed.stage.options["startingFrom"] == "latest":
                _refuse("startingFrom=latest: which files were there before is not noted")
            found = taken(storage, root, feed.stage.options, last_offset(view))
            for split in found.splits:
                before = furthest.get(split.file.path)
                furthest[split.file.path] = before if before and before.end >= split.end else split
            waiting.append((found.waiting_files, found.waiting_bytes))
            self.notes += found.notes
        return list(furthest.values()), min(waiting)


def _refuse(why: str) -> NoReturn:
    raise CannotTellError(why)


def _noted(sink: Sink) -> dict[str, Any]:
    """Return the stage that the sink noted, nothing if there was none."""
    text = sink.options["ingest"]
    stage: dict[str, Any] = json.loads(text) if text else {}
    return stage
