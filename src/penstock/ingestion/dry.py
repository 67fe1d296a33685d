"""What an ingest would do, without doing any of it: which bytes it would read, in which batches, and what would come out.

The plan is that of the ingest itself: its planner, from its checkpoint, which is only read. So what is told is what the
next start takes, as long as the input stays as it is. Nothing is written anywhere, not even a probe; and neither Spark nor Java runs.
What comes out is told from a sample: the beginnings of a few files all over the plan, read, transformed and bucketed as a
task would. A transform that makes calls is not called.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from penstock.errors import FileTooLate, PenstockError
from penstock.formats.aside import Aside
from penstock.formats.schema import spark_name
from penstock.ingestion.earlier import Earlier, check_follows
from penstock.ingestion.replan import in_flight
from penstock.options import parse
from penstock.options.internal import LIVE_SOURCE
from penstock.source import configured
from penstock.source.late import ACCEPTED, UNSURE, LateFiles
from penstock.source.plan import Planner
from penstock.source.sides import SideRecords
from penstock.storage import locate

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import pyarrow as pa

    from penstock.ingestion.stage import Carried, Stage
    from penstock.query.checkpoint import Checkpoint
    from penstock.sink.sink import Sink
    from penstock.source.cursor import FileVersion, Split
    from penstock.source.plan import NotReadYet
    from penstock.storage import Storage

_EXAMPLES = 20  # paths of a kind that are named
_SAMPLED_FILES = 8
_SAMPLED_BYTES = 1 << 20  # of each of them
_SAMPLED_ROWS = 20_000


@dataclass(frozen=True)
class PlannedBatch:
    """A batch that would be read; `again`: it was planned by an earlier run, and not committed. `first` and `last` are paths.

    Of topics it has `offsets` instead of files, and they are partitions.
    """

    number: int
    files: int
    bytes: int
    first: str
    last: str
    again: bool = False
    offsets: int = 0


@dataclass(frozen=True)
class LeftOut:
    """Files, or names, that would not be read: how many, their bytes where those are known, and the first paths."""

    files: int = 0
    bytes: int = 0
    examples: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sample:
    """What a part of the plan would become: rows by bucket (`""` without `bucketBy`), of so many files and bytes, or offsets of topics.

    `columns` are the names and types of what would be written; a type is told as Spark does. `set_aside`: records and files that would be.
    """

    columns: Mapping[str, str]
    files: int = 0
    bytes: int = 0
    rows: int = 0
    buckets: Mapping[str, int] = field(default_factory=dict)
    set_aside: int = 0
    offsets: int = 0


@dataclass(frozen=True)
class DryRun:
    """What an ingest would do.

    `left_out` has what would not be read, by the word for why: `held` (changed too recently), `future`, `late`, `unsure`, `read` (before,
    or older than `startingFrom`), `hidden`, `name` (`pattern`, `pathGlobFilter`), `directory` (not entered), `link`, `no file`.
    `problem` is what the ingest would fail with, as far as that is known, or `None`.
    """

    batches: tuple[PlannedBatch, ...]
    left_out: Mapping[str, LeftOut]
    sample: Sample
    problem: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def files(self) -> int:
        """Return how many files would be read; one that is cut over batches counts in each of them."""
        return sum(batch.files for batch in self.batches)

    @property
    def bytes(self) -> int:
        """Return how many bytes would be read."""
        return sum(batch.bytes for batch in self.batches)

    @property
    def offsets(self) -> int:
        """Return how many offsets of topics would be read."""
        return sum(batch.offsets for batch in self.batches)


@dataclass
class Preview:
    """A dry run of an ingest: of its input (`source` are the options, with its path), stage, sink and checkpoint.

    `input` is the storage of its files, `None` where it has none.
    """

    input: Storage | None
    source: Mapping[str, str]
    stage: Stage
    sink: Sink
    checkpoint: Checkpoint
    carried: Mapping[str, str]
    problem: PenstockError | None = None
    notes: list[str] = field(default_factory=list)

    def run(self) -> DryRun:
        """Look. Raises what is wrong with the call; what is wrong with the input is the `problem` of the answer."""
        self.earlier().check()
        check_follows(self.checkpoint, self.sink_of)
        # Else the plan ends with the first one.
        given = {name: text for name, text in self.source.items() if name != "tooLate"}
        options = parse(LIVE_SOURCE, {**given, **self.carried}, what="source")
        planner = configured.planner(options, self.stage.reading, dry=True)
        assert isinstance(planner, Planner)  # noqa: S101 - another one is refused where it is dry
        batches: list[PlannedBatch] = []
        splits: list[Split] = []
        left_out: dict[str, LeftOut] = {}
        try:
            for number, plan, again in self._plans(planner):
                batches.append(_batch(number, plan, again=again))
                splits += plan
            standing = planner.standing()
            left_out = _left_out(standing, {split.file.path for split in splits})
            if standing.scan.selected and not standing.scan.has_files():
                self.notes.append("no file is one that SRC names: what comes to be one is read from then on")
            self._check_late(standing)
        except PenstockError as error:
            self.problem = error
        columns = {
            column.name: spark_name(column.type) for column in self.sink.layout.data_schema(self.stage.schema)[0]
        }
        sample = self._sampled(planner, splits, Sample(columns))
        problem = None if self.problem is None else str(self.problem)
        return DryRun(tuple(batches), left_out, sample, problem, tuple(self.notes))

    def is_idle(self) -> bool:
        """Tell whether the ingest has nothing to do: what was planned is committed and visible, and nothing has come.

        Only looks, as `run` does. False also where that is for a driver to say: what was read is to be taken away, files are
        followed, some are there that are too new to be read, or a function may still have to be told what was published.
        """
        options = parse(LIVE_SOURCE, {**self.source, **self.carried}, what="source")
        numbers = self.checkpoint.numbers("offsets")
        is_for_spark = options["follow"] or options["cleanSource"] != "off" or self.sink.options["onPublish"]
        if is_for_spark or not numbers or not self.is_settled(numbers[-1]):
            return False
        planner = configured.planner(options, self.stage.reading, dry=True)
        assert isinstance(planner, Planner)  # noqa: S101 - another one is of files that are followed
        planner.prepare_available_now()
        start = self.offset(numbers[-1])
        if planner.is_ahead(start):
            return False
        standing = planner.standing()
        return not (standing.held or standing.future)

    def earlier(self) -> Earlier:
        """Return what knows the ingests before."""
        return Earlier(self.input, self.source, self.sink.storage, self.sink.root, self.checkpoint)

    def is_settled(self, number: int) -> bool:
        """Tell whether batch `number`, the last that was planned, is committed, and all that it wrote is visible."""
        query = self.checkpoint.query_id()
        return query is not None and is_settled(self.checkpoint, self.sink_of(query), number)

    def _check_late(self, standing: NotReadYet) -> None:
        """Have late files that no offset tells of be the problem, where the option says so."""
        numbers = self.checkpoint.numbers("offsets")
        known = LateFiles.recalled(self.offset(numbers[-1]) if numbers else {}, self._beside)
        new = [entry.file.path for entry in standing.late if entry.file not in known]
        if new and self.source.get("tooLate", "").lower() == "fail":
            shown = ", ".join(map(repr, new[:3]))
            msg = f"{len(new)} files are late, and tooLate=fail: {shown}; accept them: penstock late SRC DST --accept"
            self.problem = FileTooLate(msg)

    def _beside(self, items: Any) -> list[Any]:  # noqa: ANN401 - a list, or the reference to one
        return SideRecords(locate(self.carried["stateLocation"], name="checkpoint"), writes=False).load(items)

    def _plans(self, planner: Planner) -> Iterator[tuple[int, list[Split], bool]]:
        """Yield the batches that have something to read: number, plan, and whether it was planned before."""
        number, start = self._start(planner)
        flight = in_flight(self.checkpoint)
        if flight is not None and flight == number and (plan := planner.splits(start)):
            yield number, plan, True
        planner.prepare_available_now()
        while (end := planner.latest(start)) != start:
            number, start = number + 1, end
            if plan := planner.splits(end):
                yield number, plan, False

    def _start(self, planner: Planner) -> tuple[int, dict[str, Any]]:
        """Return the batch behind which is planned, and its offset: the last planned one, unless it would be planned anew."""
        numbers = self.checkpoint.numbers("offsets")
        flight, query = in_flight(self.checkpoint), self.checkpoint.query_id()
        if flight is not None and query is not None:
            undecided = self.sink_of(query).ledger.head().last_batch(query) < flight
            changed = sum(not self.stage.reading.files.has(split) for split in planner.splits(self.offset(flight)))
            if undecided and changed:
                self.notes.append(
                    f"batch {flight} was never committed and {changed} of its files changed: it is planned anew"
                )
                numbers.remove(flight)
        if not numbers:
            return -1, planner.initial()
        return numbers[-1], self.offset(numbers[-1])

    def sink_of(self, query: str) -> Sink:
        """Return the sink as the query would name it."""
        named = self.sink.options["sinkId"] or query
        return type(self.sink)(self.sink.storage, self.sink.root, self.sink.options, named)

    def offset(self, number: int) -> dict[str, Any]:
        """Return the offset at the end of a batch that was planned."""
        offsets = [offset for offset in self.checkpoint.offsets(number) if offset is not None]
        if len(offsets) != 1:
            msg = f"the checkpoint {self.checkpoint.location!r} is none of an ingest: batch {number} has no offset of this source"
            raise PenstockError(msg)
        return offsets[0]

    # -- the sample ----------------------------------------------------------------------------------------------

    def _sampled(self, planner: Planner, splits: list[Split], empty: Sample) -> Sample:
        """Return what a few beginnings become; what cannot be read of them is the problem of the run."""
        if self.stage.transform is not None and not callable(self.stage.transform):
            self.notes.append("the transform makes calls: no sample was read, and no service was called")
            return empty
        step = max(len(splits) / _SAMPLED_FILES, 1.0)
        chosen = [splits[int(i * step)] for i in range(min(len(splits), _SAMPLED_FILES))]
        aside, buckets = Aside(), Counter[str]()
        size = 0
        for split in chosen:
            try:
                beginning = planner.beginning(split, _SAMPLED_BYTES)
                buckets.update(self.buckets([beginning], aside))
            except PenstockError as error:
                self.problem = self.problem or error
                break
            size += beginning.end - beginning.start
        by_name = dict(sorted(buckets.items()))
        set_aside = sum(lines.num_rows for lines in aside.handed_on())
        return replace(
            empty, files=len(chosen), bytes=size, rows=sum(by_name.values()), buckets=by_name, set_aside=set_aside
        )

    def buckets(self, carried: Carried, aside: Aside) -> Counter[str]:
        """Return how many rows each bucket gets of what is carried to a task, or of the beginning of that."""
        template = self.sink.layout.bucket_by(self.stage.schema)
        now_ns = self.sink.storage.now_ns()
        counts: Counter[str] = Counter()
        stage = self.stage.setting_aside(aside)
        for batch in stage.read(carried, text=False, errors=self.sink.options["encodingErrors"]):
            rows: pa.RecordBatch = batch
            for bucket, part in template.split(rows, now_ns) if template else [("", rows)]:
                counts[bucket] += part.num_rows
            if sum(counts.values()) >= _SAMPLED_ROWS:
                break
        return counts


def is_settled(checkpoint: Checkpoint, sink: Sink, number: int) -> bool:
    """Tell whether batch `number`, the last that was planned, is committed, and all that it wrote to `sink` is visible."""
    if in_flight(checkpoint) is not None:
        return False
    look = sink.ledger.look()
    head = sink.ledger.head(look)
    return look.is_published(head) and not head.open and head.last_batch(checkpoint.query_id() or "") == number


def _batch(number: int, plan: list[Split], *, again: bool) -> PlannedBatch:
    size = sum(split.end - split.start for split in plan)
    return PlannedBatch(number, len(plan), size, plan[0].file.path, plan[-1].file.path, again)


def _left_out(standing: NotReadYet, planned: set[str]) -> dict[str, LeftOut]:
    """Return what the plan leaves out, by why."""
    groups: dict[str, list[FileVersion]] = {
        "held": list(standing.held),
        "future": list(standing.future),
        "late": [entry.file for entry in standing.late if entry.why not in {ACCEPTED, UNSURE}],
        UNSURE: [entry.file for entry in standing.late if entry.why == UNSURE],
    }
    elsewhere = planned.union(*({file.path for file in files} for files in groups.values()))
    groups["read"] = [file for file in standing.scan.files() if file.path not in elsewhere]
    return {why: _of_files(files) for why, files in groups.items() if files} | _never_read(standing)


def _never_read(standing: NotReadYet) -> dict[str, LeftOut]:
    others: dict[str, list[str]] = {}
    for path, why in standing.scan.left_out():
        others.setdefault(why, []).append(path)
    return {why: LeftOut(len(paths), 0, tuple(sorted(paths)[:_EXAMPLES])) for why, paths in others.items()}


def _of_files(files: Iterable[FileVersion]) -> LeftOut:
    ordered = sorted(files, key=lambda file: file.order)
    return LeftOut(len(ordered), sum(file.size for file in ordered), tuple(file.path for file in ordered[:_EXAMPLES]))
