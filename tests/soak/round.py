"""One round: files land all the time, a query takes them, it is killed in every way and started again; an independent reader checks.

Data and options follow from the seed, and so do the order of kills and the times between them; the moments at which
they hit the query do not, because processes are not repeatable.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import psutil

from tests.soak.driver import AWAKE, DONE
from tests.soak.reader import Reader
from tests.soak.settings import last_start, settings, start_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_MARK = "PENSTOCK_SOAK"  # every process of a start has it in its environment
_KILLS = {"driver": 2, "jvm": 2, "executor": 3, "worker": 3, "keeper": 1, "all": 3, "stall": 2}
_KILL_SECONDS = (5.0, 30.0)
_AWAKE_SHARE = 0.8  # of the kills: these do not happen while Spark starts
_LAND_SECONDS = (0.1, 1.5)
_END_SECONDS = 90  # until the killed processes are gone
_LAST_SECONDS = 900
_EXPECTED_CODES = {"PST-000"}  # Spark's own errors, and the JVM's end
_EXPECTED_OF_TWO = {"PST-300", "PST-301"}  # of two drivers at the same time, one loses


class Wrong(Exception):
    """An invariant was violated."""


@dataclass
class Outcome:
    """What a round did: a line of the artifact."""

    seed: int
    settings: str = ""
    seconds: float = 0
    starts: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    surgeries: int = 0
    fenced: int = 0
    batches: int = 0
    rows: int = 0
    input_files: int = 0
    output_files: int = 0
    polls: int = 0
    failure: str | None = None
    directory: str | None = None


@dataclass
class Start:
    """One start of the driver."""

    mark: str
    process: subprocess.Popen[bytes]
    log: Path
    alone: bool
    hit: bool = False

    def processes(self) -> list[tuple[str, psutil.Process]]:
        """Return its living processes, by kind."""
        return [(kind, process) for kind, process in _marked() if _mark_of(process) == self.mark]

    def has_ended(self) -> bool:
        """Tell whether all its processes are gone except its keepers, which outlive it."""
        return self.process.poll() is not None and all(kind == "keeper" for kind, _ in self.processes())

    def said(self) -> str:
        """Return what it has printed."""
        return self.log.read_text(errors="replace")


class Round:
    """A round in a new directory."""

    def __init__(self, seed: int, directory: Path) -> None:
        self._directory = directory
        self._settings = settings(seed)
        self._chance = random.Random(f"{seed} kills")  # noqa: S311 - repeatable
        self._src, self._dst = directory / "in", directory / "out"
        self._landed = 0
        self._current: Start | None = None
        self._stalled: Start | None = None
        self._told_to_end: list[Start] = []
        self.outcome = Outcome(seed, str(self._settings))

    def run(self, seconds: float) -> Outcome:
        """Run it; a fault is in the outcome, and then the directory is kept."""
        started = time.monotonic()
        shutil.rmtree(self._directory, ignore_errors=True)
        self._src.mkdir(parents=True)
        reader = _start_reader(self._dst, self.outcome.seed)
        over = threading.Event()
        landing = threading.Thread(target=self._land_until, args=(over,))
        landing.start()
        try:
            self._faults(reader, started + seconds)
            over.set()
            landing.join()
            self._end(reader)
        except Wrong as wrong:
            self.outcome.failure, self.outcome.directory = str(wrong), str(self._directory)
        finally:
            over.set()
            landing.join()
            reader.kill()
            self._kill_everything()
        self.outcome.seconds = round(time.monotonic() - started, 1)
        if self.outcome.failure is None:
            shutil.rmtree(self._directory)
        return self.outcome

    # -- input -----------------------------------------------------------------------------------------------------

    def _land_until(self, over: threading.Event) -> None:
        chance = random.Random(f"{self.outcome.seed} landing")  # noqa: S311 - repeatable
        while not over.wait(chance.uniform(*_LAND_SECONDS)):
            self._land()

    def _land(self) -> None:
        """Put the next file in place as programs do: under a hidden name first."""
        records = self._settings.records
        path = self._src / records.name(self._landed)
        path.parent.mkdir(exist_ok=True)
        hidden = path.with_name(f".{path.name}")
        hidden.write_bytes(records.contents(self._landed))
        hidden.rename(path)
        self._landed += 1

    # -- faults ----------------------------------------------------------------------------------------------------

    def _faults(self, reader: subprocess.Popen[bytes], until: float) -> None:
        while time.monotonic() < until:
            if self._current is None:
                self._start(start_of(self._settings, self.outcome.starts))
            if self._chance.random() < _AWAKE_SHARE:
                self._wait(reader, _END_SECONDS, until=AWAKE)
            self._wait(reader, self._chance.uniform(*_KILL_SECONDS))
            if self._stalled is not None:
                self._go_on_with_stalled()
            if self._current is not None:
                self._kill(self._current)
            if self._current is None and self._stalled is None and self._chance.random() < 0.5:
                self._await_end(self._told_to_end)
                self._surgery()

    def _start(self, given: dict[str, Any]) -> Start:
        number = self.outcome.starts
        self.outcome.starts += 1
        drawn = self._settings
        given = given | {
            "engine": drawn.engine,
            "form": drawn.records.form,
            "src": str(self._src),
            "dst": str(self._dst),
            "sink": drawn.sink | given["sink"],
        }
        mark = f"{self._directory}:{number}"
        log = self._directory / f"driver-{number}.log"
        alone = not any(kind != "keeper" for kind, _ in self._processes())
        command = [sys.executable, "-m", "tests.soak.driver", json.dumps(given)]
        with log.open("wb") as out:
            out.write(f"{json.dumps(given)}\n".encode())
            out.flush()
            environment = os.environ | {_MARK: mark} | self._spark_home(given["master"])
            process = subprocess.Popen(command, env=environment, stdout=out, stderr=out, start_new_session=True)
        self._current = Start(mark, process, log, alone)
        return self._current

    def _spark_home(self, master: str) -> dict[str, str]:
        """Return a variable with a home of Spark to which executors may write their logs, if there are executors."""
        import pyspark  # noqa: PLC0415 - only for its place

        if not master.startswith("local-cluster"):
            return {}
        home = self._directory / "spark"
        if not home.exists():
            home.mkdir()
            for entry in Path(pyspark.__file__).parent.iterdir():
                if entry.name != "work":
                    (home / entry.name).symlink_to(entry)
        return {"SPARK_HOME": str(home)}

    def _wait(self, reader: subprocess.Popen[bytes], seconds: float, *, until: str | None = None) -> None:
        """Wait until the time is over, the driver has printed `until` or has ended, or the reader complains."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and self._current is not None and not (until and until in self._current.said()):
            if reader.poll() is not None:
                _wrong(_answer(reader)["wrong"][0])
            if self._current.process.poll() is not None:
                self._look_at_end(self._current)
                self._current = None
            time.sleep(0.1)

    def _look_at_end(self, start: Start) -> None:
        """Raise unless the driver has ended for a known reason."""
        said = start.said()
        codes = set(re.findall(r"PST-\d+", said))
        allowed = _EXPECTED_CODES | (set() if start.alone else _EXPECTED_OF_TWO)
        if codes - allowed or (start.alone and not start.hit):
            _wrong(f"{start.log} ended with {start.process.returncode}: {_last_line(said)}")
        self.outcome.fenced += bool(codes & _EXPECTED_OF_TWO)

    def _kill(self, start: Start) -> None:
        """Kill some of the driver's processes, or stop all of them."""
        living = start.processes()
        kinds = [*sorted({kind for kind, _ in living} & _KILLS.keys()), "all", "stall"]
        kind = self._chance.choices(kinds, [_KILLS[kind] for kind in kinds])[0]
        self.outcome.kills[kind] += 1
        start.hit = True
        if kind == "stall":
            _signal(living, signal.SIGSTOP)
            self._stalled, self._current = start, None
            return
        if kind == "all":
            _signal([(k, p) for k, p in living if k != "keeper"], signal.SIGKILL)
        else:
            _signal([self._chance.choice([(k, p) for k, p in living if k == kind])], signal.SIGKILL)
        if kind in {"driver", "jvm", "all"}:
            self._told_to_end.append(start)
            self._current = None
            if self._chance.random() < 0.5:
                self._await_end([start])

    def _go_on_with_stalled(self) -> None:
        """Let the stopped driver go on next to its successor for a while; end it if nothing else does."""
        assert self._stalled is not None
        if self._current is not None:
            self._current.alone = False
        _signal(self._stalled.processes(), signal.SIGCONT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._stalled.process.wait(10)
        self._stalled.alone = False
        if self._stalled.process.poll() is not None:
            self._look_at_end(self._stalled)
        _signal(self._stalled.processes(), signal.SIGKILL)
        self._told_to_end.append(self._stalled)
        self._stalled = None

    def _surgery(self) -> None:
        """Delete the last entry of Spark's commit log, as a crash before it would."""
        commits = [path for path in self._dst.glob("_penstock/checkpoint/commits/*") if path.name.isdigit()]
        if commits:
            last = max(commits, key=lambda path: int(path.name))
            last.unlink()
            (last.parent / f".{last.name}.crc").unlink(missing_ok=True)
            self.outcome.surgeries += 1

    # -- the end ---------------------------------------------------------------------------------------------------

    def _end(self, reader: subprocess.Popen[bytes]) -> None:
        if self._stalled is not None:
            self._go_on_with_stalled()
        if self._current is not None:
            _signal(self._current.processes(), signal.SIGKILL)
            self._told_to_end.append(self._current)
        self._await_end(self._told_to_end)
        self._land()
        start = self._start(last_start())
        self._wait_for_last(start, reader)
        _await(lambda: not self._processes(), _END_SECONDS, "end of the keepers")
        answer = _answer(reader)
        self.outcome.polls = answer["polls"]
        if answer["wrong"]:
            _wrong(answer["wrong"][0])
        self._verify()
        self._compare()

    def _wait_for_last(self, start: Start, reader: subprocess.Popen[bytes]) -> None:
        _await(
            lambda: reader.poll() is not None or start.process.poll() is not None, _LAST_SECONDS, f"end of {start.log}"
        )
        if reader.poll() is not None:
            _wrong(_answer(reader)["wrong"][0])
        if start.process.returncode != 0 or DONE not in start.said():
            _wrong(f"the last start failed ({start.process.returncode}): {_last_line(start.said())}; see {start.log}")

    def _verify(self) -> None:
        command = [sys.executable, "-m", "penstock.cli", "verify", str(self._dst)]
        lines = self._settings.records.form == self._settings.records.to == "text"
        if self._settings.engine == "ingest" or lines:
            command += ["--source", str(self._src)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            _wrong(f"penstock verify ended with {done.returncode}: {done.stdout.strip()} {done.stderr.strip()}")

    def _compare(self) -> None:
        """Read all output once more, and compare it with the input, without any code of the product."""
        last = Reader(self._dst, self._settings)
        last.poll()
        records = self._settings.records
        expected = {name for file in range(self._landed) for name in records.ids(file)}
        self.outcome.rows, self.outcome.input_files, self.outcome.output_files = last.rows, self._landed, last.files
        commits = self._dst.glob("_penstock/checkpoint/commits/*")
        self.outcome.batches = 1 + max((int(path.name) for path in commits if path.name.isdigit()), default=-1)
        if last.wrong:
            _wrong(last.wrong[0])
        if last.ids != expected:
            lost = sorted(expected - last.ids)
            _wrong(f"{len(lost)} records of {len(expected)} are lost, such as {lost[:3]}")

    # -- processes -------------------------------------------------------------------------------------------------

    def _processes(self) -> list[tuple[str, psutil.Process]]:
        return [(kind, process) for kind, process in _marked() if _mark_of(process).startswith(f"{self._directory}:")]

    def _await_end(self, starts: list[Start]) -> None:
        """Wait until these drivers are gone, with all their child processes; raise if any stays."""
        for start in starts:
            _await(lambda start=start: start.has_ended(), _END_SECONDS, f"end of what was killed, see {start.log}")  # type: ignore[misc]
        starts.clear()

    def _kill_everything(self) -> None:
        for _ in range(3):
            _signal(self._processes(), signal.SIGKILL)
            time.sleep(0.2)
        if self._current is not None:
            self._current.process.wait()


def _wrong(what: str) -> NoReturn:
    raise Wrong(what)


def _await(over: Callable[[], bool], seconds: float, what: str) -> None:
    """Wait for a condition; raise if it does not come true."""
    end = time.monotonic() + seconds
    while not over():
        if time.monotonic() > end:
            _wrong(f"waited {seconds:.0f} s in vain for the {what}")
        time.sleep(0.1)


def _start_reader(dst: Path, seed: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.soak.reader", str(dst), str(seed)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _answer(reader: subprocess.Popen[bytes]) -> dict[str, Any]:
    """End the reader; return what it has seen."""
    out, _ = reader.communicate()
    if reader.returncode:
        _wrong(f"the reader ended with {reader.returncode}")
    answer: dict[str, Any] = json.loads(out)
    return answer


def _marked() -> Iterator[tuple[str, psutil.Process]]:
    """Yield the living processes of all rounds on this machine, by kind."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if _MARK in process.environ() and process.status() != psutil.STATUS_ZOMBIE:
                yield _kind(process.cmdline()), process


def _mark_of(process: psutil.Process) -> str:
    try:
        return process.environ().get(_MARK, "")
    except psutil.Error:
        return ""


def _kind(command: list[str]) -> str:
    text = " ".join(command)
    for part, kind in (
        ("penstock.sink.keeper", "keeper"),
        ("tests.soak.driver", "driver"),
        ("CoarseGrainedExecutorBackend", "executor"),
        ("java", "jvm"),
        ("pyspark.", "worker"),
        ("penstock.session.forkserver", "worker"),  # the server, or a process that it has forked
    ):
        if part in text:
            return kind
    return "other"


def _signal(found: list[tuple[str, psutil.Process]], number: int) -> None:
    for _, process in found:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if "PST-" in line] or text.strip().splitlines()
    return lines[-1][:600] if lines else "it said nothing"
