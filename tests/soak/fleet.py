"""Three pipelines of one file, one of them bad, are killed: the metrics equal the ledgers, and no record is lost or doubled.

A writer lands files without a pause; a scraper reads `/metrics` every second, and a client keeps the page open. From time to time
the writer pauses until all is read: then each number of a scrape is compared with the ledger. Then, with
batches running again, one of `ENDS` happens. At the end `verify --source` proves every record.
"""

from __future__ import annotations

import json
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any

import psutil
from prometheus_client.parser import text_string_to_metric_families

from penstock.storage import LocalStorage
from penstock.verify.files import existing_sinks
from penstock.verify.proof import verify

GOOD = ("lines", "events")
# kill: the command and all it has started; command: only the command, so that its successor meets the processes it left; jvm: only
# the JVM; worker: any other process; second: the file is run once more; back: a change is reverted while it is being applied.
ENDS = ("kill", "kill", "command", "jvm", "worker", "drain", "reload", "back", "second")
_PATIENCE_SECONDS = 600.0  # a loaded machine takes minutes to start Spark
_FILE = """
drain = "20s"
[pipelines.lines]
source = {{ path = "in/lines", settle = "0s" }}
sink = {{ path = "out/lines", rollInterval = "5s" }}
schedule = "watch"

[pipelines.events]
source = {{ path = "in/events", format = "json", schema = "id bigint, day string", settle = "0s", badRecords = "quarantine" }}
sink = {{ path = "out/events", format = "parquet", bucketBy = "day={{day}}", rollRows = 20000 }}
schedule = {{ watch = "2s" }}
retry = {{ first = "1s", most = "{most}s" }}

[pipelines.bad]
source = {{ path = "in/bad", format = "json", schema = "id bigint" }}
sink = {{ path = "out/bad", format = "json" }}
schedule = "watch"
retry = {{ first = "1s", most = "4s" }}
"""


@dataclass
class FleetOutcome:
    """What a run has done and observed."""

    seed: int
    seconds: float = 0.0
    starts: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    scrapes: int = 0
    scrape_seconds: float = 0.0
    compared: int = 0
    changes: int = 0
    rows: int = 0
    bad_failures: int = 0


class FleetSoak:
    """One run in a directory. All random choices follow from the seed, but not the moments at which things happen."""

    def __init__(self, seed: int, directory: Path) -> None:
        self._chance = random.Random(seed)  # noqa: S311 - repeatable
        self._directory = directory
        self.outcome = FleetOutcome(seed)
        self._process: subprocess.Popen[bytes] | None = None
        self._writes = threading.Event()
        self._over = threading.Event()
        self._newest: dict[tuple[str, ...], float] = {}
        self._wrong: list[str] = []
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._address = f"127.0.0.1:{free.getsockname()[1]}"
        run = ("-m", "penstock", "run", "pipelines.toml")
        self._command = [sys.executable, *run, "--metrics", self._address, "--page", self._address]

    def run(self, minutes: float) -> FleetOutcome:
        """Run for this time. Raises `AssertionError` for anything wrong."""
        began = time.monotonic()
        for name in (*GOOD, "bad"):
            (self._directory / "in" / name).mkdir(parents=True)
        (self._directory / "in/bad/bad.json").write_text("no json\n")
        self._describe()
        threads = [threading.Thread(target=work, daemon=True) for work in (self._write, self._scrape, self._watch)]
        self._writes.set()
        self._start()
        for thread in threads:
            thread.start()
        try:
            while time.monotonic() < began + minutes * 60:
                self._over.wait(self._chance.uniform(10, 30))
                self._calm()
                self._writes.set()
                self._over.wait(self._chance.uniform(0, 8))
                self._end(self._chance.choice(ENDS))
            self._over.wait(5)
            self._calm()  # the writer pauses: files that land now would be left to the next start
            self._end("drain", anew=False)
        finally:
            self._over.set()
            if self._process is not None:
                self._kill()
        self._prove()
        self.outcome.seconds = time.monotonic() - began
        return self.outcome

    # -- the command -----------------------------------------------------------------------------------------------

    def _describe(self) -> None:
        (self._directory / "pipelines.toml").write_text(_FILE.format(most=self._chance.randint(2, 9)))

    def _start(self) -> None:
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command, cwd=self._directory, stdout=log, stderr=log, start_new_session=True
            )
        self.outcome.starts += 1

    def _kill(self) -> None:
        assert self._process is not None
        for process in self._descendants():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.kill()
        self._process.wait()

    def _descendants(self) -> list[psutil.Process]:
        assert self._process is not None
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self._process.pid).children(recursive=True)
        return []

    def _end(self, how: str, *, anew: bool = True) -> None:
        """Do one of `ENDS`, and start the command again if that has ended it."""
        assert self._process is not None
        self.outcome.ends[how] += 1
        if how in {"reload", "back", "second", "worker"}:
            self._disturb(how)
            return
        if how == "kill":
            self._kill()
        elif how == "command":
            self._process.kill()
            self._process.wait()
        elif how == "jvm":
            for process in self._descendants():
                if process.name() == "java":
                    process.kill()
            status = self._process.wait(_PATIENCE_SECONDS)
            assert status == 1, f"a command whose JVM was killed ended with {status}"
        else:
            self._process.terminate()
            status = self._process.wait(_PATIENCE_SECONDS)
            assert status in {0, 1}, f"a drained command ended with {status}"
        self._newest = {}
        if anew:
            self._start()

    def _disturb(self, how: str) -> None:
        """Cause a fault that the command survives."""
        assert self._process is not None
        if how == "worker":
            workers = [process for process in self._descendants() if process.name() != "java"]
            if workers:
                with suppress(psutil.NoSuchProcess):
                    self._chance.choice(workers).kill()
        elif how == "second":
            second = subprocess.run(self._command, cwd=self._directory, capture_output=True, text=True, check=False)
            assert second.returncode == 1, f"a second command ended with {second.returncode}: {second.stderr}"
            assert "is run by another penstock run" in second.stderr, second.stderr
        else:
            before = (self._directory / "pipelines.toml").read_text()
            self._describe()
            self._process.send_signal(signal.SIGHUP)
            if how == "back":
                self._over.wait(self._chance.uniform(0, 2))
                (self._directory / "pipelines.toml").write_text(before)
                self._process.send_signal(signal.SIGHUP)

    # -- its clients -------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        number = 0
        while not self._over.wait(0.3):
            if self._writes.is_set():
                number += 1
                lines = [f"line {number} {at}" for at in range(random.randint(1, 3000))]  # noqa: S311 - only load
                self._land("lines", number, lines)
                events = [json.dumps({"id": at, "day": f"d{at % 3}"}) for at in range(len(lines))]
                self._land("events", number, [*events, f"no json {number}"])

    def _land(self, name: str, number: int, lines: list[str]) -> None:
        path = self._directory / "in" / name / f".{number}"
        path.write_text("".join(f"{line}\n" for line in lines))
        path.rename(path.with_name(f"{number}.txt"))

    def _scrape(self) -> None:
        """Read the metrics every second. Counts of finished work never decrease, whatever is killed."""
        most: dict[tuple[str, ...], float] = {}
        failed = 0
        lasting = {f"penstock_{name}_total" for name in ("rows", "input_files", "input_bytes", "output_files", "aside")}
        while not self._over.wait(1.0):
            began = time.monotonic()
            try:
                text = self._get("/metrics")
            except (OSError, HTTPException):  # it is not up
                continue
            self.outcome.scrape_seconds += time.monotonic() - began
            self.outcome.scrapes += 1
            seen: dict[tuple[str, ...], float] = {}
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    labels = {name: value for name, value in sample.labels.items() if name != "query"}
                    key = (labels.pop("pipeline"), sample.name, *labels.values())
                    seen[key] = sample.value
                    if sample.name in lasting:
                        if sample.value < most.get(key, 0.0):
                            self._wrong.append(f"{key} went from {most[key]} back to {sample.value}")
                        most[key] = max(most.get(key, 0.0), sample.value)
            self._newest = seen
            failures = round(seen.get(("bad", "penstock_errors_total", "PST-201"), 0))  # of this start
            self.outcome.bad_failures += max(failures - failed, 0)
            failed = failures

    def _watch(self) -> None:
        """Keep the page open across every end, as a browser does."""
        while not self._over.is_set():
            with suppress(OSError, ValueError, HTTPException):  # it is not up, or was killed in the middle of a line
                self._read_events()
            self._over.wait(1.0)

    def _read_events(self) -> None:
        with urllib.request.urlopen(f"http://{self._address}/events", timeout=30) as stream:
            for line in stream:
                if line.startswith(b"data: "):
                    self.outcome.changes += "html" in json.loads(line.removeprefix(b"data: "))
                if self._over.is_set():
                    return

    def _get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://{self._address}{path}", timeout=30) as response:
            text: str = response.read().decode()
        return text

    # -- what must be true -------------------------------------------------------------------------------------------

    def _calm(self) -> None:
        """Pause the writer, wait until all is read, and compare the scraped metrics with the ledgers."""
        self._writes.clear()
        time.sleep(1.0)
        until = time.monotonic() + _PATIENCE_SECONDS
        differences = ["not looked at"]
        while differences:
            assert self._process is not None
            assert self._process.poll() is None, (
                f"the command has ended with {self._process.returncode}: see {self._directory}/log"
            )
            assert time.monotonic() < until, f"after {_PATIENCE_SECONDS} s: {differences}; see {self._directory}/log"
            time.sleep(0.5)
            scraped = self._newest
            differences = [text for name in GOOD for text in self._differs(name, scraped)]
        assert not self._wrong, self._wrong
        assert json.loads(self._get("/health"))["ok"]
        self.outcome.compared += 1

    def _differs(self, name: str, scraped: dict[tuple[str, ...], float]) -> list[str]:
        """Return the metrics that differ from the ledger; all existing files must have been read."""
        landed = len(list((self._directory / "in" / name).glob("*.txt")))
        out = self._directory / "out" / name
        if not (out / "_penstock").is_dir():
            return [f"{name} has written nothing"]
        heads = [sink.ledger.head() for sink in existing_sinks(LocalStorage(), str(out))]
        if not heads:
            return [f"{name} has written nothing"]
        [head] = heads
        parts = [part for part in head.open if not part.is_aside]
        expected: dict[tuple[str, ...], float] = {
            ("penstock_input_files_total",): landed,
            ("penstock_left_files",): 0,
            ("penstock_rows_total",): head.total_rows,
            ("penstock_output_files_total",): head.total_files - head.aside.parts,
            ("penstock_output_bytes_total",): head.total_bytes - head.aside.bytes,
            ("penstock_aside_total", "record"): head.aside.records,
            ("penstock_open_parts",): len(parts),
            ("penstock_open_rows",): sum(part.rows for part in parts),
            ("penstock_batch",): max((batch for batch, _ in head.batches.values()), default=-1),
        }
        if name == "events":
            expected[("penstock_aside_total", "record")] = landed
        pairs = ((key, value, scraped.get((name, *key))) for key, value in expected.items())
        return [f"{name} {key}: {found}, the ledger has {value}" for key, value, found in pairs if found != value]

    def _prove(self) -> None:
        for name in GOOD:
            proof = verify(str(self._directory / "out" / name), str(self._directory / "in" / name))
            assert proof.ok, (name, proof.output.problems, proof.source)
            assert proof.source is not None
            assert proof.source.waiting_files == 0
            self.outcome.rows += sum(sink.rows for sink in proof.output.sinks)
        assert not list((self._directory / "out" / "bad").glob("*.json"))
        assert self.outcome.bad_failures, "the bad pipeline was not seen to fail"


def summary(outcome: FleetOutcome) -> dict[str, Any]:
    """Return a run's summary."""
    mean = outcome.scrape_seconds / max(outcome.scrapes, 1)
    return vars(outcome) | {"scrape_seconds": round(mean, 4), "seconds": round(outcome.seconds)}
