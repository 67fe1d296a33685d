"""Processes that compete for one log: writers that are killed, stopped and replaced, a reader, a purge, a repair."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from penstock.errors import Locked
from penstock.wal import Log, Position, Reader, Writer

TURNS = 25
RANDOM = random.Random()  # noqa: S311 - no secrets; each process has its own


def write(directory: str, acknowledged: str) -> None:
    """Append records of this process, a few with each flush, whenever the log is free; note the acknowledged ones."""
    numbers = count()
    with Path(acknowledged).open("ab", buffering=0) as note:
        while True:
            try:
                writer = Writer(directory, segment_size=RANDOM.choice(["300", "1k", "5k"]))
            except Locked:
                continue
            with writer:
                for _ in range(RANDOM.randrange(1, 6)):
                    records = [b"%d.%d" % (os.getpid(), next(numbers)) for _ in range(RANDOM.randrange(1, 5))]
                    writer.append_many(b"%s %s" % (record, b"." * RANDOM.randrange(80)) for record in records)
                    writer.flush()
                    note.write(b"\n".join(records) + b"\n")


def forget(directory: str, read: str) -> None:
    """Purge what a reader has noted as read, and repair whenever there is no writer."""
    while True:
        log = Log(directory)
        if segment := Path(read).read_text():
            log.purge(Position(int(segment), 0))
        with suppress(Locked):
            log.repair()


def started(*arguments: object) -> subprocess.Popen[bytes]:
    """Start a process that runs one of these functions."""
    code = "import sys; from tests.wal import test_processes as t; getattr(t, sys.argv[1])(*sys.argv[2:])"
    return subprocess.Popen([sys.executable, "-c", code, *map(str, arguments)], stderr=subprocess.PIPE)


@pytest.fixture
def tmp_path(on_disk: Path) -> Path:
    """Return a directory on a disk, not in memory, because real processes share it."""
    return on_disk


@pytest.mark.soak
def test_writers_that_are_killed_beside_a_reader_and_a_purge(root: str, tmp_path: Path) -> None:
    """The reader sees each acknowledged record, none twice, and the records of each process in their order."""
    read, notes = tmp_path / "read", [tmp_path / f"acknowledged{number}" for number in range(3)]
    read.write_text("")
    Writer(root).close()
    seen: list[bytes] = []
    ended: list[subprocess.Popen[bytes]] = []
    writers = [started("write", root, note) for note in notes]
    purge = started("forget", root, read)
    with Reader(root) as reader:

        def follow(seconds: float) -> None:
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                seen.extend(record.split()[0] for record in reader)
                read.write_text(str(reader.position.segment))

        for _ in range(TURNS):
            follow(RANDOM.uniform(0.2, 0.5))
            victim = RANDOM.randrange(3)
            writers[victim].send_signal(RANDOM.choice([signal.SIGKILL, signal.SIGSTOP]))
            follow(0.1)
            writers[victim].send_signal(signal.SIGCONT)
            if writers[victim].poll() is not None:
                ended.append(writers[victim])
                writers[victim] = started("write", root, notes[victim])
        for process in (*writers, purge):
            process.kill()
        said = [process.communicate()[1] for process in (*writers, *ended, purge)]
        follow(0.1)
    assert said == [b""] * len(said)
    acknowledged = [record for note in notes for record in note.read_bytes().split()]
    assert len(acknowledged) > 100
    assert len(ended) > 3
    assert len(seen) == len(set(seen))
    assert set(acknowledged) <= set(seen)
    for owner in {record.split(b".")[0] for record in seen}:
        own = [int(record.split(b".")[1]) for record in seen if record.split(b".")[0] == owner]
        assert own == sorted(own)
    assert Log(root).info().start.segment > 1
