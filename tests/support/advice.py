"""Streams on which tests follow the advice of an error: at the end every input line is in the output exactly once."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from penstock.cli.app import app
from penstock.formats.schema import to_arrow
from penstock.options import SINK, SOURCE, Options, parse
from penstock.query.checkpoint import Checkpoint
from penstock.sink.sink import Sink, TaskResult
from penstock.source import configured
from penstock.source.plan import Planner
from penstock.storage import locate

TEXT = '{"fields":[{"metadata":{},"name":"value","nullable":true,"type":"string"}],"type":"struct"}'


def penstock(*arguments: object) -> tuple[int, str]:
    """Run the command; return its exit status and all its output."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.output


class Lines:
    """An input and an output of lines of text."""

    def __init__(self, root: Path) -> None:
        self.root, self.src, self.dst = root, root / "in", root / "out"
        self.src.mkdir()
        self.put_in: Counter[str] = Counter()

    def put(self, name: str, *lines: str) -> Path:
        """Write an input file, dated back so that it has settled."""
        path = self.src / name
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        long_ago = path.stat().st_mtime - 60
        os.utime(path, (long_ago, long_ago))
        self.put_in.update(lines)
        return path

    def files(self) -> list[Path]:
        """Return the visible files."""
        paths = [path for path in self.dst.rglob("*") if path.is_file()]
        return sorted(path for path in paths if not any(part[0] in "._" for part in path.relative_to(self.dst).parts))

    def lines(self) -> Counter[str]:
        """Return how often each line is visible."""
        return Counter(line for path in self.files() for line in path.read_text(encoding="utf-8").splitlines())

    def is_whole(self) -> bool:
        """Tell whether the output has every input line once, and nothing else."""
        return self.lines() == self.put_in


class Query(Lines):
    """A query of our source and sink, driven as Spark drives it, checkpoint and replays included."""

    def __init__(self, root: Path, source: dict[str, str] | None = None, schema: str = TEXT, **options: str) -> None:
        super().__init__(root)
        self.source, self.schema = source or {}, schema
        self.options = options
        self.checkpoint = root / "checkpoint"

    def sink(self) -> Sink:
        """Return the sink."""
        given = {"path": str(self.dst), "checkpointLocation": str(self.checkpoint), "mergeBelow": "1"} | self.options
        storage, root = locate(str(self.dst))
        return Sink(storage, root, parse(SINK, given, what="sink"), "s")

    def batch(self, owner: str = "driver", *, final: bool = False) -> None:
        """Run a batch, as a restart does: the planned batch that Spark's log does not have as committed, else the next one, if any."""
        if self.planned():
            self.commit(*self.written(owner))
        if final:
            self.sink().finish()

    def planned(self) -> bool:
        """Plan the next batch, unless one is planned already; tell whether there is a batch to run."""
        log = Checkpoint(str(self.checkpoint))
        done, planned = log.numbers("commits"), log.numbers("offsets")
        if planned[len(done) :]:
            return True
        _, _, planner = self._source()
        start = self._offset(done[-1]) if done else planner.initial()
        end = planner.latest(start)
        if end == start:
            return False
        self._log("offsets", len(done), f"v1\n{{}}\n{json.dumps(end)}\n")
        return True

    def written(self, owner: str = "driver") -> tuple[Sink, int, list[TaskResult]]:
        """Run a batch up to its commit."""
        assert self.planned()
        log = Checkpoint(str(self.checkpoint))
        number = log.numbers("offsets")[-1]
        options, how, planner = self._source()
        sink = self.sink()
        begun = sink.begin(owner, log.batch("q", number))
        rows = configured.rows(options, how, tuple(planner.splits(self._offset(number))))
        result = sink.write(begun, "q", number, 0, to_arrow(self.schema), rows)
        return sink, number, [result]

    def commit(self, sink: Sink, number: int, results: list[TaskResult]) -> None:
        """Commit what was written, and tell Spark's log."""
        sink.commit(Checkpoint(str(self.checkpoint)).batch("q", number), results)
        self._log("commits", number, "v1\n{}\n")

    def _source(self) -> tuple[Options, Any, Planner]:
        options = parse(SOURCE, {"path": str(self.src)} | self.source, what="source")
        how = configured.reading(options, self.schema)
        planner = configured.planner(options, how)
        assert isinstance(planner, Planner)
        return options, how, planner

    def _offset(self, number: int) -> dict[str, Any]:
        offset = Checkpoint(str(self.checkpoint)).offsets(number)[0]
        assert offset is not None
        return offset

    def _log(self, kind: str, number: int, text: str) -> None:
        folder = self.checkpoint / kind
        folder.mkdir(parents=True, exist_ok=True)
        (self.checkpoint / "metadata").write_text(json.dumps({"id": "q"}))
        (folder / str(number)).write_text(text)
