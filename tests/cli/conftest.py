"""The command run in this process, and an ingest that runs without Spark but with a checkpoint."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from penstock import clock
from penstock.cli.app import app
from penstock.formats.account import Account
from penstock.formats.aside import Aside
from penstock.ingestion import stage as stages
from penstock.options import SOURCE, parse
from penstock.sink.sink import Batch, Sink
from penstock.source import configured
from penstock.storage import LocalStorage
from penstock.testing import FakeClock
from tests.support.output import Output

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TEXT_SCHEMA = '{"fields":[{"metadata":{},"name":"value","nullable":true,"type":"string"}],"type":"struct"}'


@dataclass
class Said:
    """What a command printed, and its exit status."""

    status: int
    out: str
    err: str

    @property
    def facts(self) -> dict[str, Any]:
        """Return its JSON object; there must be exactly one."""
        assert self.out.endswith("\n")
        assert self.out.count("\n") == 1
        facts: dict[str, Any] = json.loads(self.out)
        return facts


@pytest.fixture
def penstock() -> Callable[..., Said]:
    def run(*arguments: object) -> Said:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        return Said(result.exit_code, result.stdout, result.stderr)

    return run


@pytest.fixture
def output(tmp_path: Path) -> Iterator[Output]:
    """Yield an output whose clock starts at the current time and stands still: files get their times from the disk."""
    time = FakeClock(clock.now_ns() / clock.SECOND_NS)
    with clock.use(time):
        yield Output(tmp_path / "out", time)


@dataclass
class Pipeline:
    """An ingest of text as Spark would run it: its sink, its stage, and the checkpoint that Spark would write.

    `corrupt` changes the lines on their way, which no correct ingest does.
    """

    root: Path
    source: dict[str, str] = field(default_factory=dict)
    sink_options: dict[str, str] = field(default_factory=dict)
    query: str = "q"
    schema: str = TEXT_SCHEMA
    corrupt: Callable[[list[str]], list[str]] | None = None
    owner: str = "driver"
    transform: Any = None

    def __post_init__(self) -> None:
        self.src, self.dst = self.root / "in", self.root / "out"
        self.checkpoint = self.dst / "_penstock" / f"checkpoint-{self.query}"
        self.src.mkdir(exist_ok=True)
        self.batch = 0
        self.offset: dict[str, Any] | None = None
        options = self.source | {"path": str(self.src)}
        self.stage = stages.Stage.describe(options, self.schema, self.transform)
        self.noted: str | None = self.stage.text  # as the sink gets it
        self.options = parse(SOURCE, options, what="source")

    def put(self, name: str, *lines: str) -> Path:
        """Write an input file that has settled."""
        path = self.src / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        before = path.stat().st_mtime - 60
        os.utime(path, (before, before))
        return path

    def sink(self) -> Sink:
        """Return the sink."""
        given = {
            "path": str(self.dst),
            "mergeBelow": "1",
            "checkpointLocation": str(self.checkpoint),
        } | self.sink_options
        noted = {"ingest": self.noted} if self.noted else {}
        return Sink(LocalStorage(), str(self.dst), parse(stages.LIVE_SINK, given | noted, what="sink"), self.query)

    def run(self, *, finish: bool = True) -> None:
        """Run one batch of the present input as a new driver; with `finish`, also end the query.

        A batch that the checkpoint has planned and not committed runs first, as in Spark.
        """
        how = configured.reading(self.options, self.schema)
        planner = configured.planner(self.options, how)
        planner.prepare_available_now()
        if (self.checkpoint / "offsets" / str(self.batch)).exists():
            end = json.loads((self.checkpoint / "offsets" / str(self.batch)).read_text().splitlines()[2])
            planner.clean(self.offset or planner.initial(), end)
        else:
            start = self.offset or planner.initial()
            end = planner.latest(start)
            if end != start:
                self._log("offsets", f"v1\n{{}}\n{json.dumps(end)}\n")
        if end != self.offset and (self.checkpoint / "offsets" / str(self.batch)).exists():
            self._commit([split for task in planner.tasks(end) for split in task], how)
            self._log("commits", "v1\n{}\n")
            self.batch, self.offset = self.batch + 1, end
        if finish:
            self.sink().finish()

    def run_twice(self) -> None:
        """Run one batch, and run it again if it read anything: the driver died after the ledger put and before Spark's commit."""
        before = self.batch, self.offset
        self.run(finish=False)
        if self.batch > before[0]:
            (self.checkpoint / "commits" / str(before[0])).unlink()
            self.batch, self.offset = before
            self.run(finish=False)

    def _commit(self, splits: list[Any], how: Any) -> None:
        sink, batch = self.sink(), Batch(self.query, self.batch)
        stage = stages.Stage.of(self.stage)
        if self.corrupt:
            lines = [line for found in how.batches(splits) for line in found.column(0).to_pylist()]
            rows: Any = [pa.RecordBatch.from_pydict({"value": self.corrupt(lines)}, schema=stage.schema)]
            aside = account = None
        else:
            text = stage.plain_text and sink.options["format"] == "text" and sink.layout.places(stage.schema).is_one
            carried = iter([configured.carried(splits, how.format.zone)])
            aside, account = Aside(restarts=True), Account()
            rows = stages.CarriedRows(stage, carried, account, aside, text=text, errors="fail")
        begun = sink.begin(self.owner, batch)
        result = sink.write(begun, self.query, self.batch, 0, stage.schema, rows, account, aside=aside)
        sink.commit(batch, [result])

    def _log(self, kind: str, text: str) -> None:
        folder = self.checkpoint / kind
        folder.mkdir(parents=True, exist_ok=True)
        (self.checkpoint / "metadata").write_text(json.dumps({"id": self.query}))
        (folder / str(self.batch)).write_text(text)


@pytest.fixture
def pipeline(tmp_path: Path) -> Callable[..., Pipeline]:
    def make(**options: Any) -> Pipeline:
        return Pipeline(tmp_path, **options)

    return make
