"""`penstock wal`: lines in, lines out, positions, exit statuses."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli.app import app
from penstock.wal import Writer
from tests.support.damage import flipped
from tests.support.wait import PATIENCE_SECONDS


def wal(*arguments: object, lines: bytes = b"") -> tuple[int, bytes, bytes]:
    """Run the command in this process; return its status and its output on stdout and stderr."""
    result = CliRunner().invoke(app, ["wal", *map(str, arguments)], input=lines)
    return result.exit_code, result.stdout_bytes, result.stderr_bytes


def wal_process(*arguments: object, lines: bytes = b"") -> tuple[int, bytes, bytes]:
    """Run the command in a process of its own, with pipes, as users do."""
    command = [sys.executable, "-m", "penstock.cli", "wal", *map(str, arguments)]
    done = subprocess.run(command, input=lines, capture_output=True, check=False, timeout=PATIENCE_SECONDS)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return a log of three records, in three groups."""
    with Writer(str(tmp_path / "log")) as writer:
        for record in (b"one", b"\xff\x1b[2J", b""):
            writer.append(record)
            writer.flush()
    return tmp_path / "log"


def test_input_that_has_no_descriptor_is_appended(tmp_path: Path) -> None:
    """Standard input may be an in-memory buffer, as in a test runner or a notebook: its lines are appended, and none is lost."""
    assert wal("append", tmp_path / "log", lines=b"a\n\n\xff\nlast")[0] == 0
    assert wal("append", tmp_path / "log", lines=b"")[0] == 0
    assert wal("read", tmp_path / "log")[:2] == (0, b"a\n\n\xff\nlast\n")


@pytest.mark.slow
def test_lines_go_in_and_come_out(tmp_path: Path) -> None:
    """Appended lines are read back unchanged, also arbitrary bytes and empty lines; the position printed is where the next line goes."""
    log = tmp_path / "log"
    status, first, _ = wal_process("append", log, lines=b"a\n\n\xff\nlast")
    assert status == 0
    assert wal_process("append", log, "--json", lines=b"more\n")[0] == 0
    assert wal_process("read", log)[:2] == (0, b"a\n\n\xff\nlast\nmore\n")
    assert wal_process("read", log, "--from", first.decode().strip())[:2] == (0, b"more\n")
    said = [json.loads(line) for line in wal_process("read", log, "--json")[1].splitlines()]
    assert [each["record"] for each in said[:-1]] == ["a", "", "\udcff", "last", "more"]
    assert said[-1]["records"] == 5
    for number, each in enumerate(said[:-1]):
        assert wal("read", log, "--from", each["position"])[1].count(b"\n") == 5 - number


@pytest.mark.slow
@pytest.mark.parametrize(("ended_by", "options"), [(signal.SIGINT, []), (signal.SIGTERM, ["--json"])])
def test_a_reader_follows(log: Path, ended_by: signal.Signals, options: list[str]) -> None:
    """`--follow` prints lines appended while it runs, until it is stopped: this is not a failure, and the last message is printed."""
    command = [sys.executable, "-m", "penstock.cli", "wal", "read", str(log), "--follow", "--from", "1:120", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as reader:
        assert reader.stdout is not None
        stop = threading.Timer(60, reader.kill)
        stop.start()
        assert b"one" in reader.stdout.readline()
        with Writer(str(log)) as writer:
            writer.append(b"new")
        assert b"new" in [reader.stdout.readline() for _ in range(3)][-1]
        reader.send_signal(ended_by)
        last = reader.stdout.read()
        stop.cancel()
    assert reader.returncode == 0
    assert not options or json.loads(last)["records"] == 4
    assert options or not last


def test_what_a_salvage_left_out_is_told(log: Path) -> None:
    """The report is on standard error, where it does not mix with records; with `--json` it is in the last object."""
    segment = log / "000000000001.wal"
    segment.write_bytes(flipped(segment.read_bytes(), 152))
    status, out, error = wal("read", log, "--mode", "salvage")
    assert (status, out) == (0, b"one\n\n")
    assert error == f"skipped: bytes 144 to 200 of {segment}\n".encode()
    status, out, error = wal("read", log, "--mode", "salvage", "--json")
    assert (status, error) == (0, b"")
    assert json.loads(out.splitlines()[-1])["skipped"] == [{"path": str(segment), "start": 144, "end": 200}]


def test_it_says_what_is_there(log: Path) -> None:
    """`info` and `verify` print how many records there are, from which position to which, as text and as JSON."""
    for command in ("info", "verify"):
        status, out, _ = wal(command, log)
        assert status == 0
        assert b"3 records, from 1:120 to 1:" in out
        facts = json.loads(wal(command, log, "--json")[1])
        assert (facts["ok"], facts["records"], facts["start"], facts["torn"]) == (True, 3, "1:120", 0)
    assert wal("repair", log)[1] == b"nothing had to be repaired\n"


@pytest.mark.slow
def test_statuses(log: Path, tmp_path: Path) -> None:
    """0 is ok, 1 failed, 2 usage, 3 damaged; after a repair a damaged log is no longer damaged."""
    assert wal("read", log, "--from", "1:121")[0] == 2
    assert wal("read", log, "--from", "x")[0] == 2
    assert wal("read", log, "--from", "")[0] == 2
    assert wal("read", log, "--mode", "lax")[0] == 2
    assert wal("verify", __file__)[0] == 2
    status, _, error = wal("verify", log.parent)
    assert status == 2
    assert b"has 'log' and no segment of a log" in error
    assert wal("append", log, "--segment-size", "1x")[0] == 2
    for command in ("read", "info", "verify", "repair"):
        assert wal(command, tmp_path / "none")[0] == 1
    with Writer(str(log)):
        assert wal("append", log, lines=b"x\n")[0] == 1
    segment = log / "000000000001.wal"
    segment.write_bytes(flipped(segment.read_bytes(), 130))
    for command in ("read", "verify"):
        status, _, error = wal(command, log)
        assert status == 3
        assert b"is damaged at byte 88" in error
    assert wal_process("append", log, lines=b"x\n")[0] == 3
    facts = json.loads(wal("repair", log, "--json")[1])
    assert facts["copies"] == [f"{segment}.broken"]
    assert wal("verify", log)[0] == 0
    assert wal_process("append", log, lines=b"x\n")[0] == 0
    assert wal("read", log)[1] == b"x\n"


@pytest.mark.slow
def test_an_append_that_fails_says_how_far_it_came(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the disk fills on the way, the lines that the message counts are there, in order, and no others."""
    log = tmp_path / "log"
    lines = [b"%d" % number * 100 for number in range(2000)]  # more than a pipe holds
    monkeypatch.setenv("PENSTOCK_FAILPOINTS", "storage.write=nospace@4")
    status, _, error = wal_process("append", log, lines=b"\n".join(lines))
    monkeypatch.delenv("PENSTOCK_FAILPOINTS")
    assert status == 1
    told = re.search(rb"durable of the input: ([0-9,]+) lines?;", error)
    assert told is not None
    durable = int(told[1].replace(b",", b""))
    assert 0 < durable < len(lines)
    there = wal("read", log)[1].splitlines()
    assert there == lines[: len(there)]
    assert len(there) >= durable


@pytest.mark.slow
def test_a_line_without_an_end(tmp_path: Path) -> None:
    """A line that never ends is refused when it is too long for a record; it is not read any further."""
    command = [sys.executable, "-m", "penstock.cli", "wal", "append", str(tmp_path / "log")]
    with subprocess.Popen(["/bin/sh", "-c", "echo first; exec cat /dev/zero"], stdout=subprocess.PIPE) as endless:
        done = subprocess.run(command, stdin=endless.stdout, capture_output=True, timeout=PATIENCE_SECONDS, check=False)
        endless.kill()
    assert done.returncode == 2
    assert b"too long for a log" in done.stderr
    assert wal("read", tmp_path / "log")[1] == b"first\n"


@pytest.mark.slow
def test_no_input_at_all(tmp_path: Path) -> None:
    """If standard input is closed, the error says so."""
    command = [sys.executable, "-m", "penstock.cli", "wal", "append", str(tmp_path / "log")]
    done = subprocess.run(
        ["/bin/sh", "-c", 'exec "$@" <&-', "sh", *command], capture_output=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert done.returncode == 2
    assert b"standard input is closed" in done.stderr
    assert not (tmp_path / "log").exists()
