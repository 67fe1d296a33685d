"""`penstock ingest` as users run it: in its own process with its own Spark, or in a warm one where that makes no difference."""

from __future__ import annotations

import ast
import io
import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

import penstock
from penstock import clock
from penstock.cli import ingest, process
from penstock.cli.process import (
    Interrupted,
    Stop,
    hangups,
    interrupted_by_signals,
    jsonable_stdout,
    status_of,
    stop_signals,
)
from penstock.cli.progress import Course, reporter
from penstock.errors import PenstockError
from penstock.ingestion.ingested import Ingested
from penstock.testing import FakeClock
from tests.soak.records import DDL, Records
from tests.support.trees import walked
from tests.support.wait import PATIENCE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from tests.cli.conftest import Pipeline
    from tests.support.interpreter import Interpreter

PACKAGE = Path(penstock.__file__).parent
spark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.xdist_group("programs")]


class Place:
    """A directory in which the command runs, with an input and an output."""

    def __init__(self, root: Path) -> None:
        self.root, self.src, self.dst = root, root / "in", root / "out"
        self.src.mkdir()

    def put(self, name: str, text: str) -> None:
        self.put_bytes(name, text.encode())

    def put_bytes(self, name: str, data: bytes) -> None:
        path = self.src / name
        path.write_bytes(data)
        before = path.stat().st_mtime - 60
        os.utime(path, (before, before))

    def start(self, *arguments: str, failpoints: str = "") -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "penstock.cli", *arguments]
        environment = os.environ | {"PENSTOCK_FAILPOINTS": failpoints}
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command, cwd=self.root, env=environment, stdout=pipe, stderr=pipe, text=True, start_new_session=True
        )

    def run(self, *arguments: str, by: Interpreter | None = None, failpoints: str = "") -> tuple[int, str, str]:
        """Run the command in a process of its own, or in an interpreter with a warm JVM, which takes a tenth of the time."""
        if by is not None:
            done = by.penstock(*arguments, cwd=self.root)
            return done.returncode, done.stdout, done.stderr
        running = self.start(*arguments, failpoints=failpoints)
        out, err = running.communicate(timeout=PATIENCE_SECONDS)
        return running.returncode, out, err

    def ingest(
        self, *arguments: str, by: Interpreter | None = None, failpoints: str = ""
    ) -> tuple[int, dict[str, Any], str]:
        """Run an ingest; its stdout must be JSON lines, and the last object is returned."""
        status, out, err = self.run("ingest", "in", "out", *arguments, "--json", by=by, failpoints=failpoints)
        return status, [json.loads(line) for line in out.splitlines()][-1], err

    def lines(self) -> list[str]:
        return sorted(line for path in self.dst.glob("*.txt") for line in path.read_text().splitlines())


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


TRANSFORM = """
import pyarrow as pa, pyarrow.compute as pc

print("this module is noisy")

def shout(batch):
    print("and so is this function")
    return pa.RecordBatch.from_arrays([pc.utf8_upper(batch.column(0))], names=["value"])
"""


CALLS = """
import penstock
from pyspark.sql.types import StringType, StructField, StructType

async def shout(row):
    return (row.value.upper(),)

calls = penstock.AsyncMap(shout, schema=StructType([StructField("loud", StringType())]), keep_input=False)
"""


class TestProcess:
    pytestmark = spark

    @pytest.mark.soak
    def test_asynchronous_calls(self, place: Place, python: Interpreter) -> None:
        """A transform may be an `AsyncMap`. Its records cannot be compared with the source; verify says so, with status 1."""
        (place.root / "calling.py").write_text(CALLS)
        place.put("a.txt", "one\ntwo\n")
        status, facts, err = place.ingest("--transform", "calling:calls")
        assert (status, facts["rows"], place.lines()) == (0, 2, ["ONE", "TWO"]), err
        status, out, _ = place.run("verify", "out", "--source", "in", "--transform", "calling:calls", by=python)
        assert status == 1
        assert "'calling:calls' makes asynchronous calls" in " ".join(out.split())

    @pytest.mark.parametrize(("form", "to"), [("orc", "avro"), ("avro", "orc")])
    def test_tables_of_others_become_tables_of_others(
        self, place: Place, python: Interpreter, form: str, to: str
    ) -> None:
        """The command converts ORC and Avro that other writers made into each other, and other readers find the same rows."""
        records = Records(7, form, to)
        for file in range(2):
            place.put_bytes(records.name(file).rpartition("/")[2], records.contents(file))
        options = ("--format", form, "--to", to, "--schema", DDL)
        status, done, err = place.ingest(*options, by=python)
        assert (status, done["ok"]) == (0, True), err
        rows = [row for path in place.dst.glob(f"*.{to}") for row in records.read(path.name, path.read_bytes())]
        assert sorted(rows) == sorted(records.row(name) for file in range(2) for name in records.ids(file))

    @pytest.mark.soak  # a document that shows the summary has a test that compares it
    def test_summary(self, place: Place, python: Interpreter) -> None:
        """Without --json the summary is on stdout and progress on stderr, without any output of Spark's; verify agrees."""
        place.put("a.json", "".join(f'{{"id": {n}, "city": "c{n % 3}"}}\n' for n in range(300)))
        flags = [
            "--format",
            "json",
            "--schema",
            "id bigint, city string",
            "--to",
            "parquet",
            "--bucket-by",
            "city={city}",
        ]
        status, out, err = place.run("ingest", "in", "out", *flags)
        assert status == 0
        assert out.startswith("read     1 file, ")
        assert "300 rows in 3 files" in out
        assert all(line.startswith("batch ") for line in err.splitlines())
        assert len(list(place.dst.glob("city=c*/*.parquet"))) == 3
        status, out, err = place.run("verify", "out", "--source", "in", by=python)
        assert (status, err) == (0, "")
        assert "every record that was read is in the output exactly once" in out

    def test_a_record_that_cannot_be_read(self, place: Place, python: Interpreter) -> None:
        """A failing query ends with status 1 and the cause as one message, with code, file and byte; nothing becomes visible."""
        place.put("a.txt", "good\n")
        (place.src / "b.txt").write_bytes(b"good\n\xff\xfe\n")
        status, facts, err = place.ingest(by=python)
        assert (status, facts["error"]["code"]) == (1, "PST-201")
        assert "b.txt', byte 5" in err
        assert len(err.splitlines()) == 1
        assert not place.lines()

    def test_the_jvm_is_killed(self, place: Place, python: Interpreter) -> None:
        """A dead JVM is reported with status 1; the same command then completes the work; a third run reads only new files."""
        place.put("a.txt", "one\ntwo\n")
        status, facts, err = place.ingest("--master", "local[2]", failpoints="sink.write.staged=kill-jvm")
        assert status == 1
        assert "Spark's JVM has ended" in facts["error"]["message"]
        assert "Traceback" not in err
        assert place.ingest(by=python)[0] == 0
        assert place.lines() == ["one", "two"]
        place.put("b.txt", "three\n")
        status, facts, _ = place.ingest(by=python)
        assert (status, facts["rows"], facts["new"]["rows"], facts["new"]["input_files"]) == (0, 3, 1, 1)
        assert place.lines() == ["one", "three", "two"]

    @pytest.mark.soak  # first signal: ask, second: force; tested below without Spark, and for real in `tests/cli/test_run.py`
    def test_stopped_under_way(self, place: Place, python: Interpreter) -> None:
        """SIGTERM ends a run early with status 143, with all committed files visible; the same command reads the rest, once."""
        for number in range(100):  # several batches, so that the signal comes before the last one
            place.put(f"{number:02}.txt", "".join(f"{number} {line}\n" for line in range(12)))
        running = place.start("ingest", "in", "out", "--max-files", "1", "--json", "--master", "local[2]")
        assert running.stdout is not None
        while json.loads(running.stdout.readline())["batch"] < 1:
            pass
        running.send_signal(signal.SIGTERM)
        out, _ = running.communicate(timeout=PATIENCE_SECONDS)
        facts = json.loads(out.splitlines()[-1])
        assert (running.returncode, facts["interrupted"], facts["ok"]) == (143, True, False)
        assert facts["open_rows"] == 0
        assert 0 < len(place.lines()) == facts["rows"] < 1200
        assert place.run("verify", "out", "--source", "in", by=python)[0] == 0
        assert place.ingest(by=python)[1]["rows"] == 1200
        assert len(set(place.lines())) == len(place.lines()) == 1200

    @pytest.mark.soak
    def test_all_its_processes_are_stopped(self, place: Place, python: Interpreter) -> None:
        """SIGTERM also to the JVM and the workers, as `timeout` and systemd send it: a watch ends as if only it had received it."""
        place.put("a.txt", "one\n")
        running = place.start("ingest", "in", "out", "--watch", "--json")
        assert running.stdout is not None
        while json.loads(running.stdout.readline())["batch"] < 0:
            pass
        os.killpg(running.pid, signal.SIGTERM)
        out, err = running.communicate(timeout=PATIENCE_SECONDS)
        assert (running.returncode, err) == (0, "")
        assert json.loads(out.splitlines()[-1])["interrupted"] is True
        place.put("b.txt", "two\n")
        assert place.ingest(by=python)[0] == 0
        assert place.lines() == ["one", "two"]

    def test_watching(self, place: Place) -> None:
        """--watch reads files as they come, and ends with status 0 at Ctrl-C, with everything visible.

        The files go through a transform in the current directory; what the transform prints is not in the answer.
        """
        (place.root / "noisy.py").write_text(TRANSFORM)
        place.put("a.txt", "one\n")
        flags = [
            "--watch",
            "--interval",
            "200ms",
            "--json",
            "--source-option",
            "settle=100ms",
            "--transform",
            "noisy:shout",
        ]
        running = place.start("ingest", "in", "out", *flags)
        assert running.stdout is not None
        while not (facts := json.loads(running.stdout.readline()))["waiting"]:
            pass
        assert (facts["rows"], facts["batch"]) == (1, 0)
        assert facts["waiting_since"] >= facts["last_batch"] > "2026"
        place.put("b.txt", "two\n")
        while json.loads(running.stdout.readline())["rows"] < 2:
            pass
        os.killpg(running.pid, signal.SIGINT)  # as a terminal does
        out, err = running.communicate(timeout=PATIENCE_SECONDS)
        noise = {"this module is noisy", "and so is this function"}
        assert (running.returncode, set(err.splitlines()) - noise) == (0, set())
        facts = json.loads(out.splitlines()[-1])
        assert (facts["event"], facts["interrupted"], facts["rows"], facts["open_rows"]) == ("done", True, 2, 0)
        assert place.lines() == ["ONE", "TWO"]


# -- without Spark -----------------------------------------------------------------------------------------------


def state(batch: int, read: int, left: int, rows: int) -> Ingested:
    return Ingested(batch, batch + 1, read, 1, left, rows, batch, read, 0)


def test_progress_is_calm(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal, a line is printed at most once a second, and only if something has changed."""
    course = Course()
    with reporter(as_json=False, write=print) as shown:
        for number in range(500):
            course.update(state(number, number * 100, 1000, number))
            shown(course)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("batch 0: 1 file, 0 B of 1000 B, 0 rows")


def test_progress_as_json() -> None:
    """With --json each progress line is an object with the pace and remaining time of this run only, from its first batch on."""
    written: list[str] = []
    course, time = Course(), FakeClock()
    with clock.use(time):
        course.update(state(3, 10_000, 5000, 7))
        with reporter(as_json=True, write=written.append) as shown:
            shown(course)
        facts = json.loads(written[0])
        assert (facts["event"], facts["batch"], facts["bytes_per_second"]) == ("progress", 3, 0)
        assert (facts["seconds_left"], facts["last_batch"], facts["waiting_since"]) == (None, None, None)
        time.sleep(5)
        course.update(state(4, 12_000, 5000, 8))
        assert (course.facts["bytes_per_second"], course.facts["seconds_left"]) == (0, None)
        time.sleep(2)
        course.update(state(5, 32_000, 5000, 9))
        assert course.new(state(5, 32_000, 5000, 9))["input_bytes"] == 22_000
        assert (course.facts["bytes_per_second"], course.facts["seconds_left"]) == (10_000, 0.5)


def test_the_pace_is_that_of_the_last_minute() -> None:
    """A watch that read much at first and little since reports its present pace, and none after it has waited for a minute."""
    course, time = Course(), FakeClock()
    with clock.use(time):
        course.update(state(0, 0, 0, 0))
        for second in range(1, 241):
            time.sleep(1)
            course.update(state(second, 1_000_000 * min(second, 60) + 1000 * max(second - 60, 0), 0, second))
        assert 1000 <= course.pace() < 1020
        assert len(course.marks) < 70
        for _ in range(61):
            time.sleep(1)
            course.update(replace(state(240, 60_180_000, 0, 240), waiting=True))
        assert course.facts["bytes_per_second"] == 0


def test_a_watch_that_waits_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """An idle watch is reported once, with its last batch and since when it waits; later input makes a normal batch."""
    course, time = Course(), FakeClock(1_800_000_000)
    idle = replace(state(-1, 0, 0, 0), waiting=True)
    with clock.use(time), reporter(as_json=False, write=print) as shown:
        for each in [idle] * 5 + [state(0, 100, 0, 1)] * 5 + [replace(state(0, 100, 0, 1), waiting=True)] * 5:
            course.update(each)
            shown(course)
            time.sleep(1)
        assert course.facts["waiting_since"] == "2027-01-15T08:00:10.000Z"
        course.update(state(1, 200, 0, 2))
        shown(course)
    assert capsys.readouterr().err.splitlines() == [
        "nothing to read yet; waiting since 2027-01-15T08:00:00.000Z",
        "batch 0: 1 file, 100 B of 100 B, 1 row",
        "batch 0 at 2027-01-15T08:00:05.000Z: 1 file, 100 B of 100 B, 1 row; waiting since 2027-01-15T08:00:10.000Z",
        "batch 1: 2 files, 200 B of 200 B, 2 rows, 10 B/s",
    ]


def test_a_terminal_of_forty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a narrow terminal without colours the progress bar shows its label, in whole lines of that width."""
    for name, value in {"COLUMNS": "40", "FORCE_COLOR": "1", "NO_COLOR": "1", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    course = Course()
    with reporter(as_json=False, write=print) as shown:
        course.update(state(0, 100, 1000, 1))
        shown(course)
        time.sleep(0.3)
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "\n", out.getvalue()).replace("\r", "\n").splitlines()
    assert "\x1b[3" not in out.getvalue()  # no colour
    assert any("batch 0" in line for line in lines)
    assert max(map(len, lines)) <= 40


def test_what_others_print_goes_to_stderr() -> None:
    """With --json, what other code in this process or its children writes to stdout goes to stderr."""
    code = (
        "import os, sys\nfrom penstock.cli.process import jsonable_stdout\n"
        "with jsonable_stdout(True) as write:\n"
        "    print('noise'); os.system('echo more'); write('{}'); sys.stdout.flush()\n"
        "print('after')\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (ended.stdout, sorted(ended.stderr.split())) == ("{}\nafter\n", ["more", "noise"])
    with jsonable_stdout(False) as write:
        write("plain")


def test_spark_is_quiet_and_ours_is_not(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The output of a process that we started is kept and not shown, except Penstock's own warnings."""
    monkeypatch.setattr(process, "_said", said := process._Said())
    with process._quiet():
        noise = "echo noise; echo WARN spark >&2; echo 'not read: x (1 file): too late' >&2"
        subprocess.run(["/bin/sh", "-c", noise], check=True)
        while len(said.lines) < 3:
            time.sleep(0.01)
    assert said.whole() == ["noise", "WARN spark", "not read: x (1 file): too late"]
    while "warning" not in (seen := capfd.readouterr().err):
        time.sleep(0.01)
    assert seen == "warning: not read: x (1 file): too late\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device here is always full")
def test_a_log_that_is_full_does_not_stop_the_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A warning that could not be passed on ended what empties the JVM's pipe: 64 KiB later the JVM stood still, and the watch, too."""
    monkeypatch.setattr(process, "_said", said := process._Said())
    stderr = os.dup(2)
    try:
        with open("/dev/full", "wb") as full:
            os.dup2(full.fileno(), 2)
        writing = said.pipe()
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
    with open(writing, "wb") as pipe:
        pipe.write(b"not read: x (1 file): too late\nand more\n")
    assert said.whole() == ["not read: x (1 file): too late", "and more"]


def test_last_words_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The failure of a busy machine: the JVM had printed why it did not start, but nobody had read it yet."""
    monkeypatch.setattr(process, "_said", said := process._Said())
    drain = process._drain

    def late(*given: Any) -> None:
        time.sleep(0.3)
        drain(*given)

    monkeypatch.setattr(process, "_drain", late)
    with process._quiet():
        subprocess.run(["/bin/sh", "-c", "echo no such JVM >&2"], check=True)
    assert said.whole() == ["no such JVM"]


def test_our_warnings_are_known(pipeline: Callable[..., Pipeline], caplog: pytest.LogCaptureFixture) -> None:
    """The command passes on the source's warnings, which come from one of Spark's processes."""
    line = pipeline(source={"lateness": "1s"})
    line.put("a.txt", "one")
    line.put("b.txt", "two")
    os.utime(line.src / "b.txt", (2**31, 2**31))
    with caplog.at_level(logging.WARNING):
        line.run()
        os.utime(line.put("late.txt", "x"), (1000, 1000))
        line.run()
    assert [cause for cause in ("in the future", "older than the cursor") if cause in caplog.text] == [
        "in the future",
        "older than the cursor",
    ]
    assert all(process._OURS.match(message) for message in caplog.messages)


# Told by the summary, by an error, or as what the command says of itself; or of no ingest.
TOLD_OTHERWISE = (
    "nothing is read of ",
    "%r: %s",
    "%r: the schema was inferred",
    "the checkpoint was written for another path",
    "batchKey=",
)


def test_warnings_of_what_is_not_read_lost_or_left_are_all_shown() -> None:
    """A new warning of source and sink is one that the command lets pass, or one that is told in another way."""
    swallowed = []
    for path in [file for room in ("source", "sink") for file in (PACKAGE / room).glob("*.py")]:
        nodes = walked(path.read_text())[1]
        texts = {
            target.id: node.value.value
            for node in nodes
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for call in (
            node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("_log.warning")
        ):
            given = call.args[0]
            text = given.value if isinstance(given, ast.Constant) else texts.get(ast.unparse(given))
            if isinstance(text, str) and not text.startswith(TOLD_OTHERWISE):
                shown = (
                    text.replace("%r %s", "'x' is there, and is read")
                    .replace("%s; it", "'x': its first 3 bytes were read in earlier batches; it")
                    .replace("%r", "'x'")
                    .replace("%d", "1")
                    .replace("has a %s", "has a _spark_metadata")
                )
                swallowed += [] if process._OURS.match(shown) else [text]
    assert swallowed == []


def test_a_first_signal_asks_and_a_second_ends() -> None:
    """The first SIGTERM or Ctrl-C only asks for an end, once; the second interrupts; afterwards the handlers are restored."""
    before = signal.getsignal(signal.SIGTERM)
    with stop_signals() as stop:
        assert not stop.due()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.interrupt is not None
        assert status_of(stop.interrupt) == 143
        assert [stop.due(), stop.due()] == [True, False]
        with pytest.raises(KeyboardInterrupt) as caught:
            os.kill(os.getpid(), signal.SIGINT)
    assert status_of(caught.value) == status_of(KeyboardInterrupt()) == 130
    assert signal.getsignal(signal.SIGTERM) == before
    assert not Stop().due()


@pytest.mark.parametrize("ignored", [False, True], ids=["terminal", "nohup"])
def test_a_closed_terminal_asks_for_an_end_unless_that_is_ignored(ignored: bool) -> None:
    """SIGHUP asks as SIGTERM does; where it is ignored when the command starts (`nohup`), it stays ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    try:
        with stop_signals() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop.requested is not ignored
            assert stop.interrupt is None or status_of(stop.interrupt) == 129
        assert signal.getsignal(signal.SIGHUP) == (signal.SIG_IGN if ignored else signal.SIG_DFL)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_reload_is_no_end() -> None:
    """Where SIGHUP asks `penstock run` to read its file again, what waits for an end leaves it alone."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        with hangups() as reload, stop_signals() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert (reload.is_set(), stop.requested) == (True, False)
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("waits", [True, False])
def test_only_a_report_from_after_the_end_is_shown(monkeypatch: pytest.MonkeyPatch, waits: bool) -> None:
    """A stop shows the result from after the end of the query; a second signal does not wait for that, and shows no older result."""

    def stopped(*_: object, progress: Callable[[Ingested], None], **__: object) -> None:
        try:
            progress(state(1, 1, 0, 1))
        except KeyboardInterrupt:
            if waits:
                progress(state(2, 2, 0, 2))
            raise

    monkeypatch.setattr(penstock, "ingest", stopped)
    course = Course()
    progress = ingest._watching(Stop(Interrupted(signal.SIGTERM)), course, lambda _: None)
    request = ingest.Request("in", "out", {}, {}, None, None)

    def run() -> Ingested:
        return request.ingest(cast("Any", None), watch=True, progress=progress)

    if waits:
        assert ingest._or_stopped(course, run).rows == 2
    else:
        with pytest.raises(Interrupted) as raised:
            ingest._or_stopped(course, run)
        assert status_of(raised.value) == 128 + signal.SIGTERM


def test_a_signal_where_nothing_is_to_be_finished() -> None:
    """SIGTERM interrupts the demo as Ctrl-C does, so that the processes it started are ended."""
    with interrupted_by_signals(), pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.slow
def test_a_spark_that_does_not_start_says_why(place: Place) -> None:
    """Without Java the error is one message that says what is missing."""
    place.put("a.txt", "one\n")
    (place.root / "bin").mkdir()
    (place.root / "bin" / "java").write_text("#!/bin/sh\necho 'no such JVM' >&2\nexit 1\n")
    (place.root / "bin" / "java").chmod(0o755)
    command = [sys.executable, "-m", "penstock.cli", "ingest", "in", "out", "--master", "local[1]"]
    path = f"{place.root}/bin{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "JAVA_HOME": str(place.root)}
    ended = subprocess.run(command, cwd=place.root, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "Spark did not start: no such JVM" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_a_jvm_that_crashed_is_told_with_what_may_be_damaged() -> None:
    """The message has the words that Java printed, without their frame, and advice about the one file that may be damaged."""
    said = ["#", "# A fatal error has been detected by the Java Runtime Environment:", "#", "#  SIGBUS (0x7) at pc=0x00, pid=7", "#",
            "# An error report file is saved as:", "# /home/hs_err_pid7.log", "#"]  # fmt: skip
    told = process._not_started(said, RuntimeError()).message
    assert (
        "SIGBUS (0x7) at pc=0x00, pid=7; An error report file is saved as:; /home/hs_err_pid7.log; Java has crashed"
        in told
    )
    assert told.endswith("remake its archive of classes: penstock warmup")
    warned = [
        "/lib/pyspark/testing/utils.py:127: FutureWarning: PySpark does not yet fully support pandas",
        "  warnings.warn(",
    ]
    assert "not start: RuntimeError: gone; find out" in process._not_started(warned, RuntimeError("gone")).message
    assert process._not_started(["bad"], RuntimeError()).message.endswith("with: penstock doctor")


def test_errors_of_penstock_pass_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that exists already is used and left running, and errors come through unchanged."""
    sql = pytest.importorskip("pyspark.sql")

    class Session:
        sparkContext = type("Context", (), {"_gateway": None})  # noqa: N815 - Spark's name

        def stop(self) -> None:
            pytest.fail("it was there before")

    active = Session()
    monkeypatch.setattr(sql.SparkSession, "getActiveSession", lambda: active)
    error = PenstockError("as it is")
    with pytest.raises(PenstockError, match="as it is"), process.session(None):
        raise error


def test_a_transform_that_exits_on_rows_has_failed(pipeline: Callable[..., Pipeline]) -> None:
    """`sys.exit` in a worker is the error of a transform as any other is: it is told as one, and the batch is not taken for done."""

    def leaves(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.num_rows:
            sys.exit(0)
        return batch

    broken = pipeline(transform=leaves)
    broken.put("a", "1")
    with pytest.raises(PenstockError, match="the transform failed on a batch of 1 rows: SystemExit: 0"):
        broken.run()
