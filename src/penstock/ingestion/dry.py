"""Dry runs: what an ingest would do, without doing it: which bytes it would read, in which batches, and what would come out.

The plan comes from the ingest's own planner and its checkpoint, which is only read. So the report says what the next start takes,
as long as the input does not change. Nothing is written, not even a probe; and neither Spark nor Java runs. The output is
estimated from a sample: the beginnings of a few files from all over the plan, read, transformed and bucketed as a task would do
it. A transform that makes calls is not called.
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
from penstock.units import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import pyarrow as pa

    from penstock.ingestion.stage import Carried, Stage
    from penstock.query.checkpoint import Checkpoint
    from penstock.sink.sink import Sink
    from penstock.source.cursor import FileVersion, Split
    from penstock.source.plan import NotReadYet
    from penstock.storage import Storage

_EXAMPLES = 20  # how many paths of each kind are named
_SAMPLED_FILES = 8
_SAMPLED_BYTES = 1 << 20  # of each of them
_SAMPLED_ROWS = 20_000


@dataclass(frozen=True)
class PlannedBatch:
    """A batch that would be read; `again`: an earlier run has planned it, and it was not committed. `first` and `last` are paths.

    For topics, `offsets` counts offsets and `files` is 0; `first` and `last` name partitions.
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
    """Files, or names, that would not be read: how many, their bytes if known, and the first paths."""

    files: int = 0
    bytes: int = 0
    examples: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sample:
    """The result of a sample of the plan: rows by bucket (`""` without `bucketBy`), from so many files and bytes, or offsets of topics.

    `columns` are the names of the columns that would be written, with Spark's names of their types. `set_aside` counts the
    records and files that would be set aside.
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

    `left_out` has what would not be read, by a word for the reason: `held` (changed too recently), `future`, `late`, `unsure`,
    `read` (before, or older than `startingFrom`), `hidden`, `name` (`pattern`, `pathGlobFilter`), `directory` (not entered),
    `link`, `no file`. `problem` is the error with which the ingest would fail, as far as it is known, or `None`.
    """

    batches: tuple[PlannedBatch, ...]
    left_out: Mapping[str, LeftOut]
    sample: Sample
    problem: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def files(self) -> int:
        """Return how many files would be read; a file that is cut over batches counts in each of them."""
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
    """A dry run of an ingest, with its input (`source` are the options, with the path), stage, sink and checkpoint.

    `input` is the storage of the input's files, `None` if it has none.
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
        """Return the dry run. Raises errors in the call; an error in the input is the `problem` of the result."""
        self.earlier().check()
        check_follows(self.checkpoint, self.sink_of)
        # With tooLate=fail the plan would end at the first late file.
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
                self.notes.append("SRC names no file that is there: such files are read once they come")
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

        Only looks, as `run` does. Also returns False if only a driver can decide: read files are to be cleaned, files are
        followed, some files are too new to be read, or a user's function may still have to be called with what was published.
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
        """Return the object that knows earlier ingests."""
        return Earlier(self.input, self.source, self.sink.storage, self.sink.root, self.checkpoint)

    def is_settled(self, number: int) -> bool:
        """Tell whether batch `number`, the last planned one, is committed, and everything that it wrote is visible."""
        query = self.checkpoint.query_id()
        return query is not None and is_settled(self.checkpoint, self.sink_of(query), number)

    def _check_late(self, standing: NotReadYet) -> None:
        """Make late files that are in no offset yet the `problem`, if `tooLate` is `fail`."""
        numbers = self.checkpoint.numbers("offsets")
        known = LateFiles.recalled(self.offset(numbers[-1]) if numbers else {}, self._beside)
        new = [entry.file.path for entry in standing.late if entry.file not in known]
        if new and self.source.get("tooLate", "").lower() == "fail":
            shown = ", ".join(map(repr, new[:3]))
            msg = f"{counted(len(new), 'file')} too late, and tooLate=fail: {shown}; accept them: penstock late SRC DST --accept"
            self.problem = FileTooLate(msg)

    def _beside(self, items: Any) -> list[Any]:  # noqa: ANN401 - a list, or the reference to one
        return SideRecords(locate(self.carried["stateLocation"], name="checkpoint"), writes=False).load(items)

    def _plans(self, planner: Planner) -> Iterator[tuple[int, list[Split], bool]]:
        """Yield the batches that have something to read: number, plan, and whether an earlier run has planned it."""
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
        """Return the batch after which planning continues, and its offset: the last planned batch, unless it would be planned again."""
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
        """Return the sink with the id that it has in the query."""
        named = self.sink.options["sinkId"] or query
        return type(self.sink)(self.sink.storage, self.sink.root, self.sink.options, named)

    def offset(self, number: int) -> dict[str, Any]:
        """Return the offset at the end of a planned batch."""
        offsets = [offset for offset in self.checkpoint.offsets(number) if offset is not None]
        if len(offsets) != 1:
            msg = f"the checkpoint {self.checkpoint.location!r} is none of an ingest: batch {number} has no offset of this source"
            raise PenstockError(msg)
        return offsets[0]

    # -- the sample ----------------------------------------------------------------------------------------------

    def _sampled(self, planner: Planner, splits: list[Split], empty: Sample) -> Sample:
        """Return what the beginnings of a few splits become; one that cannot be read is the problem of the run."""
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
        """Return how many rows each bucket gets from what is carried to a task, or from the beginning of that."""
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
    """Tell whether batch `number`, the last planned one, is committed, and everything that it wrote to `sink` is visible."""
    if in_flight(checkpoint) is not None:
        return False
    look = sink.ledger.look()
    head = sink.ledger.head(look)
    return look.is_published(head) and not head.open and head.last_batch(checkpoint.query_id() or "") == number


def _batch(number: int, plan: list[Split], *, again: bool) -> PlannedBatch:
    size = sum(split.end - split.start for split in plan)
    return PlannedBatch(number, len(plan), size, plan[0].file.path, plan[-1].file.path, again)


def _left_out(standing: NotReadYet, planned: set[str]) -> dict[str, LeftOut]:
    """Return what the plan leaves out, by reason."""
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
