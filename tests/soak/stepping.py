"""The ingests of `damaged` without Spark, in a process that is killed: `python -m tests.soak.stepping ROOT`.

Each has its source, stage, sink and a checkpoint as Spark would write it, from which every start continues. A start prints `ready`,
runs batches until no input is left, and prints `done`.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock import unique
from penstock.formats import ddl
from penstock.ingestion import stage as stages
from penstock.verify import verify
from tests.cli.conftest import TEXT_SCHEMA, Pipeline
from tests.soak.damaged import EVENTS, Damaged

if TYPE_CHECKING:
    from penstock.verify.proof import Proof

COMMON = {"badFiles": "quarantine", "encodingErrors": "quarantine", "settle": "0s", "maxFilesPerTrigger": "2"}
RECORDS = COMMON | {"badRecords": "quarantine"}


def pipelines(root: Path) -> dict[str, dict[str, Any]]:
    """Return functions that make each pipeline."""
    options: dict[str, dict[str, Any]] = {
        "text": {"source": COMMON},
        "csv": {
            "source": RECORDS | {"format": "csv", "header": "true"},
            "sink_options": {"format": "csv"},
            "schema": ddl.parsed("LineId int, Content string"),
        },
        "events": {
            "source": RECORDS | {"format": "json", "unknownFields": "rescue", "rescuedDataColumn": "rest"},
            "sink_options": {"format": "parquet"},
            "schema": ddl.parsed(f"{EVENTS}, rest string"),
        },
    }
    return {name: {"root": root / name, "schema": TEXT_SCHEMA} | given for name, given in options.items()}


class Restarted(Pipeline):
    """A pipeline that continues from its checkpoint; the checkpoint's files are written as Spark writes them, complete or not."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.owner = f"driver {unique.token()}"
        done = sorted(int(path.name) for path in self.checkpoint.glob("commits/*") if path.name.isdigit())
        if done:
            self.batch = done[-1] + 1
            self.offset = json.loads((self.checkpoint / "offsets" / str(done[-1])).read_text().splitlines()[2])

    def _log(self, kind: str, text: str) -> None:
        path = self.checkpoint / kind / str(self.batch)
        path.parent.mkdir(parents=True, exist_ok=True)
        (self.checkpoint / "metadata").write_text(json.dumps({"id": self.query}))
        part = path.with_name(f".{path.name}.{unique.token()}")
        part.write_text(text)
        part.rename(path)

    def out(self) -> None:
        """Run batches until there is no more input."""
        before = -1
        while self.batch != before:
            before = self.batch
            self.run()


@dataclass
class Stepping:
    """One run: `kills` processes are killed while files arrive."""

    root: Path
    seed: int
    kills: int

    def run(self) -> dict[str, Proof]:
        """Let all files arrive under kills, run all ingests to their end, and return the answers of `verify --source`."""
        chance = random.Random(self.seed)  # noqa: S311 - repeatable
        coming = Damaged(self.root / "given", self.seed, self.kills)
        for name in pipelines(self.root):
            (self.root / name / "in").mkdir(parents=True)
            coming.sources[name] = self.root / name / "in"
        share = max(len(coming.waiting) // (self.kills + 1), 1)
        for _ in range(self.kills):
            coming.arrive(share)
            with self._started() as process:
                try:
                    process.wait(chance.random() * 3)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
        coming.arrive(len(coming.waiting))
        with self._started() as process:
            said = process.communicate()[0]
        if process.returncode or "done" not in said:
            raise AssertionError(said)
        return {
            name: verify(str(self.root / name / "out"), str(self.root / name / "in")) for name in pipelines(self.root)
        }

    def _started(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(self.root)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        if process.stdout is None or process.stdout.readline() != "ready\n":
            raise AssertionError(process.communicate()[0])
        return process


def main(root: Path) -> None:
    """Run the pipelines, one after the other; each is created anew."""
    print("ready", flush=True)  # noqa: T201 - whoever started this waits for it
    for given in pipelines(root).values():
        stages.Stage.of.cache_clear()
        Restarted(**given).out()
    print("done")  # noqa: T201 - what the parent process looks for


if __name__ == "__main__":
    main(Path(sys.argv[1]))
