"""Samples of every state file of a format version, kept in `tests/data/formats/v<version>`.

They are made once per version, before its release, and never again:

    PYTHONPATH=src:. python -m tests.support.samples tests/data/formats/v1

A released version stays readable, so its samples stay, and `tests/test_samples.py` reads them with the current code. To add a
file that is new in a version, make all samples in another place and copy that file.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import clock, unique
from penstock.options import SOURCE, parse
from penstock.sink import parttables
from penstock.sink.handover import take
from penstock.sink.keys import KeyTables
from penstock.sink.telling import Telling
from penstock.source import sides
from penstock.source.clean import Cleaner
from penstock.source.cleaned import Reached
from penstock.source.cursor import FileVersion
from penstock.source.noted import SchemaNotes
from penstock.source.pinned import Moment, pins
from penstock.source.plan import Planner
from penstock.storage import HostFact, LocalStorage
from penstock.testing import FakeClock
from penstock.wal import Manager, Writer
from penstock.windows import WindowStore
from tests.support.keyed import run, staged, writing
from tests.support.output import QUERY, Output
from tests.support.scene import FORMS, Scene, small

TIMES = {
    "a.log": 1_000_000,
    "b ü.log": 1_000_001,
    "c.log": 1_000_002,
}  # input file -> its modification time, in seconds
WINDOWS = {(1, 0): b"one", (1, 1): b"", (2, 0): b"two" * 50, (2, 1): b"\0\1\2", (4, 0): b"four"}  # (window, owner)
LOG = [[b"one", b""], [], [b"two" * 50], [b"three"]]  # records of windows 0 to 3
SCHEMAS = [
    '{"type":"struct","fields":[{"name":"id","type":"integer","nullable":true,"metadata":{}}]}',
    (
        '{"type":"struct","fields":[{"name":"id","type":"long","nullable":true,"metadata":{}},'
        '{"name":"naïve","type":"string","nullable":true,"metadata":{}}]}'
    ),
]
DAYS_SCHEMA = pa.schema([("value", pa.string()), ("ts", pa.timestamp("us", tz="UTC"))])
DAYS = {
    "path": "/data/out",
    "format": "json",
    "bucketBy": "dt={ts:%Y-%m-%d}",
    "partitionReady": "success-file,event",
    "partitionReadyDelay": "1h",
    "rollInactivity": "30d",
    "rollInterval": "30d",
    "onPublish": "catalogue:register",
}
SIGHTS: dict[str, list[Any] | str] = {
    "/data/in/a ü.json": [114, 1_767_225_601_000_000_000, "13221893"],
    "/data/in/b.json": "'/data/in/b.json' does not exist: expected a file to read; have it come before its name",
}
MANY_SCHEMA = pa.schema([("value", pa.string()), ("b", pa.string())])
MANY = {
    "bucketBy": "{b}",
    "dropBucketColumns": "true",
    "fileName": "p-{writer}-{seq}",
    "rollRows": "3",
    "path": "/data/out",
}
KEYS = ["day/1", "day/2", "one", "day/4", "two"]
DEAD_KEY = "dead"
TAKER = "q2"
READER = f"{7:032x}"
FACT = {"busy": False, "sink": "s", "owner": "worker-1:4242:1:q1", "jvm": [4242, 1.5], "keeper": 4243}


def make(root: Path) -> None:
    """Make the samples below `root`: an output for each form of staged rows, a checkpoint, plans, logs, a host fact."""
    numbers = count(1)
    time = FakeClock()
    with pytest.MonkeyPatch.context() as patch, clock.use(time), unique.use(lambda: f"{next(numbers):032x}"):
        patch.setattr(socket, "gethostname", lambda: "worker-1")
        patch.setattr(os, "getpid", lambda: 4242)
        for form, options in FORMS.items():
            with small(form):
                Scene(Output(root / "outputs" / form, time), {"path": "/data/out"} | options).begin()
        make_batches(root / "batches")
        make_many(Output(root / "many", time))
        make_checkpoint(root / "checkpoint", root / "in", time)
        shutil.rmtree(root / "in")
        make_schemas(root / "schemas")
        make_log(root / "log")
        make_windows(root / "windows")
        make_days(Output(root / "days", time))
        make_named(root / "named")
        with host_fact(root).locked() as state:
            state.update(FACT)
        make_taken(Output(root / "taken", time))
        make_readers(root / "readers", time)


def make_batches(root: Path) -> None:
    """Make an output of batch writes: keys in a table and in the record, and a batch whose driver died before its commit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KeyTables, "in_record_max", 1)
        for key in KEYS:
            run(writing(LocalStorage(), str(root), key), {0: [key]})
    dead = writing(LocalStorage(), str(root), DEAD_KEY)
    staged(dead, dead.begin(), {0: ["dead"]})


def make_many(output: Output) -> None:
    """Make an output with more open parts than its record holds, so a table has them; one part has gained a row, and one has ended."""
    output.schema = MANY_SCHEMA
    sink = output.sink(**MANY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parttables, "IN_RECORD", 3)
        output.batch(sink, 0, {0: [f"0|{bucket}" for bucket in "abcd"], 1: ["0|a", "0|e"]})
        output.batch(sink, 1, {0: ["1|b", "1|c", "2|c"]})


def make_taken(output: Output) -> None:
    """Make the ledger of an ingest that another one has taken over from; its own driver has claimed it since."""
    sink = output.sink(path="/data/out", rollRows="3")
    for number in range(2):
        output.batch(sink, number, {0: [f"{number}"] * 2})
    take(sink, sink.ledger.head(), sink.ledger.look(), TAKER)
    sink.begin("d2")


def make_readers(source: Path, time: FakeClock) -> None:
    """Make the notes of a reader that has cleaned one file, and has another one wait."""
    selects = {"pathGlobFilter": "*.log", "pattern": None, "recursiveFileLookup": False, "partitionColumns": "auto"}
    cleaner = Cleaner(LocalStorage(), str(source), archive=None, retention_ns=10**12, selects=selects)
    time.seconds = 3_000_000
    for number, (name, seconds) in enumerate(list(TIMES.items())[:2], 1):
        put = source / name
        put.parent.mkdir(exist_ok=True)
        put.write_bytes(b"1234567\n")
        os.utime(put, (seconds, seconds))
        cleaner.clean(READER, [FileVersion(name, 8, seconds * 10**9, "4711")], f"batch-{number}", Reached(0, number))
        time.seconds += 900
    cleaner.clean(READER, [], "batch-3", Reached(0, 2))
    (source / "b ü.log").unlink()


def host_fact(root: Path) -> HostFact:
    """Return the host fact of the samples below `root`, which is not where this host keeps its facts."""
    fact = HostFact("host-fact")
    fact.path = str(root / "host-fact.json")
    return fact


def make_schemas(directory: Path) -> None:
    """Make the notes of a stream with an inferred schema, which has one more column since batch 2."""
    notes = SchemaNotes(LocalStorage(), str(directory))
    notes.first(SCHEMAS[0], -1, 1_000_000)
    notes.go_on(SCHEMAS[1], 1, 2_000_000)


def make_log(log: Path) -> None:
    """Make a log of windows: two segments, of which another writer wrote the first; the last window has no end."""
    for start in (0, 2):
        with Manager(str(log), lambda _window, _records: None) as manager:
            manager.restore()
            for window in (start, start + 1):
                for record in LOG[window]:
                    manager.append(record)
                manager.end_window(window)
    with Writer(str(log)) as writer:
        writer.append(b"\0of no window")


def make_windows(directory: Path) -> None:
    """Make a window store that has forgotten window 1."""
    with WindowStore(str(directory)) as store:
        for (window, owner), artifact in WINDOWS.items():
            store.save(window, artifact, owner)
            store.committed(window // 2 + 1)


def make_days(output: Output) -> None:
    """Make an output by days: one is complete, one was complete and got late rows, one waits; a function got some of the events."""
    output.schema = DAYS_SCHEMA
    output.time.seconds = 1_800_000_000
    sink = output.sink(**DAYS)
    told: list[dict[str, Any]] = []
    telling = Telling(sink, "catalogue:register", lambda: told.extend)
    sink.begin("d1")
    telling.begin("d1")
    for number, moments in enumerate((["29T10", "30T10", "30T11"], ["31T02"], ["29T11", "31T03"])):
        output.batch(sink, number, {0: [f"{number}|2026-01-{moment}:00:00Z" for moment in moments]}, mark=f"m{number}")
        if number == 1:
            telling.tell("d1")
    assert [event["event"] for event in told] == ["published", "ready", "published", "ready"]


def make_named(directory: Path) -> None:
    """Make the note of what a batch first found at the paths named in its rows."""
    notes = pins((LocalStorage(), str(directory)), Moment(QUERY, 7, 0, "run"))
    assert notes.agreed(SIGHTS, reasons=True) == {path: [sight] for path, sight in SIGHTS.items()}


def make_checkpoint(checkpoint: Path, source: Path, time: FakeClock) -> None:
    """Make Spark's checkpoint of a query over three files, and the plan that was too long for its offset."""
    source.mkdir(parents=True)
    for name, seconds in TIMES.items():
        (source / name).write_bytes(b"1234567\n")
        os.utime(source / name, (seconds, seconds))
    time.seconds = 2_000_000
    options = parse(SOURCE, {"path": str(source), "maxBytesPerTrigger": "12", "settle": "0s"}, what="source")
    planner = Planner(
        LocalStorage(),
        str(source),
        options,
        divisible=lambda _: True,
        state=(LocalStorage(), str(checkpoint / "penstock")),
    )
    for log in ("offsets", "commits"):
        (checkpoint / log).mkdir(parents=True)
    (checkpoint / "metadata").write_text(json.dumps({"id": QUERY}))
    at = planner.initial()
    for batch, inline in enumerate([sides.INLINE_BYTES, 0]):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sides, "INLINE_BYTES", inline)
            at = planner.latest(at)
        (checkpoint / f"offsets/{batch}").write_text(f"v1\n{{}}\n{json.dumps(at)}")
    (checkpoint / "commits/0").write_text('v1\n{"nextBatchWatermarkMs":0}')


if __name__ == "__main__":
    make(Path(sys.argv[1]).absolute())
