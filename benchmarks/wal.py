"""`python -m benchmarks.wal`: the log against a raw write and fdatasync, SQLite, and a raw read with a checksum; and into Spark.

All run in one process, on one disk, in turns, and the median of some rounds counts: the results are ratios, not times.
"""

from __future__ import annotations

import os
import sqlite3
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import xxhash
from rich.console import Console

from penstock import local_session
from penstock.wal import Log, Position, Reader, Writer, form

if TYPE_CHECKING:
    from collections.abc import Callable

MB = 1_000_000
_RECORD = os.urandom(256)
_ROUNDS, _GROUPS, _THREADS, _SEGMENTS = 7, 100, 8, 1000
_READ_BATCHES, _READ_RECORDS, _READ_BYTES = 300, 512, 1024
_STREAM_BATCHES = 800
_console = Console(highlight=False, soft_wrap=True)


def timed(work: Callable[[], object]) -> float:
    """Return the seconds that the work takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def middle(*contenders: Callable[[], float]) -> list[float]:
    """Return the median of each contender; they take turns."""
    rounds = [[contender() for contender in contenders] for _ in range(_ROUNDS)]
    return [statistics.median(each) for each in zip(*rounds, strict=True)]


def raw_append(path: Path, size: int) -> float:
    """Write and sync groups of this number of records; return the seconds for each group."""
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    data = _RECORD * size

    def work() -> None:
        for _ in range(_GROUPS):
            os.write(descriptor, data)
            os.fdatasync(descriptor)

    try:
        return timed(work) / _GROUPS
    finally:
        os.close(descriptor)


def log_append(path: Path, size: int, *, many: bool) -> float:
    """Do the same with the log."""
    records = [_RECORD] * size
    with Writer(str(path)) as writer:
        writer.append(_RECORD)
        writer.flush()

        def work() -> None:
            for _ in range(_GROUPS):
                if many:
                    writer.append_many(records)
                else:
                    for record in records:
                        writer.append(record)
                writer.flush()

        return timed(work) / _GROUPS


def sqlite_append(path: Path, size: int) -> float:
    """Do the same with SQLite, a transaction for each group, in WAL mode with synchronous=FULL."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("CREATE TABLE IF NOT EXISTS log (record BLOB)")
        rows = [(_RECORD,)] * size

        def work() -> None:
            for _ in range(_GROUPS):
                connection.execute("BEGIN")
                connection.executemany("INSERT INTO log VALUES (?)", rows)
                connection.execute("COMMIT")

        return timed(work) / _GROUPS
    finally:
        connection.close()


def log_threads(path: Path, threads: int) -> float:
    """Return the seconds for each record when this number of threads append and wait for each record."""
    with Writer(str(path)) as writer:

        def wait() -> None:
            for _ in range(_GROUPS):
                writer.append(_RECORD)
                writer.flush()

        def work() -> None:
            running = [threading.Thread(target=wait) for _ in range(threads)]
            for thread in running:
                thread.start()
            for thread in running:
                thread.join()

        return timed(work) / _GROUPS / threads


def appends(root: Path) -> None:
    """Print the cost of an append, made durable in groups of 1, 64 and 512."""
    for size in (1, 64, 512):
        raw, one, many, sqlite = middle(
            lambda size=size: raw_append(root / f"raw-{size}", size),  # type: ignore[misc]  # - a default binds it
            lambda size=size: log_append(root / f"log-{size}", size, many=False),  # type: ignore[misc]  # - a default binds it
            lambda size=size: log_append(root / f"many-{size}", size, many=True),  # type: ignore[misc]  # - a default binds it
            lambda size=size: sqlite_append(root / f"sqlite-{size}", size),  # type: ignore[misc]  # - a default binds it
        )
        _console.print(
            f"append, groups of {size:3}: raw {raw * 1e6:5.0f} us; append {raw / one:4.0%} of its speed, append_many "
            f"{raw / many:4.0%}; {sqlite / one:.1f}x and {sqlite / many:.1f}x SQLite"
        )
    single, grouped = middle(lambda: log_threads(root / "single", 1), lambda: log_threads(root / "grouped", _THREADS))
    _console.print(f"{_THREADS} threads that append and wait: {single / grouped:.1f}x one thread")


def reads(root: Path) -> None:
    """Print how fast records of 1 KiB are read, and found again by a writer that opens the log."""
    path = root / "read"
    with Writer(str(path), segment_size="1g") as writer:
        records = [os.urandom(_READ_BYTES)] * _READ_RECORDS
        for _ in range(_READ_BATCHES):
            writer.append_many(records)

    def raw() -> None:
        for each in path.iterdir():
            with each.open("rb", buffering=0) as file:
                while data := file.read(4 << 20):
                    xxhash.xxh3_64_intdigest(data)

    def log() -> None:
        with Reader(str(path)) as reader:
            for batch in reader.batches():
                batch.array()

    plain, ours, recovery = middle(
        lambda: timed(raw), lambda: timed(log), lambda: timed(lambda: Writer(str(path)).close())
    )
    size = _READ_BATCHES * _READ_RECORDS * _READ_BYTES / MB
    _console.print(
        f"read: {size / ours:,.0f} MB/s, {plain / ours:.0%} of a raw read with a checksum; recovery: {size / recovery:,.0f} MB/s"
    )


def seeks(root: Path) -> None:
    """Print the cost of a seek in a log of many segments."""
    path = root / "seek"
    with Writer(str(path), segment_size=400) as writer:
        at = [writer.append(_RECORD) for _ in range(_SEGMENTS)]
    assert len(Log(str(path)).info().segments) == _SEGMENTS
    assert at[-1] == Position(_SEGMENTS, form.FIRST_ENTRY)
    taken = timed(lambda: [Reader(str(path), start=position).close() for position in at]) / _SEGMENTS
    _console.print(f"seek in {_SEGMENTS} segments: {taken * 1e3:.2f} ms")


def streams(root: Path) -> None:
    """Print how fast records of 1 KiB go into Spark, as a stream and as a batch; the first run of each warms Spark up."""
    path, spark = root / "stream", local_session()
    with Writer(str(path)) as writer:
        records = [os.urandom(_READ_BYTES)] * _READ_RECORDS
        for _ in range(_STREAM_BATCHES):
            writer.append_many(records)

    def stream() -> None:
        with tempfile.TemporaryDirectory() as checkpoint:
            frame = spark.readStream.format("penstock-wal").load(str(path))
            writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
            writer.trigger(availableNow=True).start().awaitTermination()

    def batch() -> None:
        spark.read.format("penstock-wal").load(str(path)).write.format("noop").mode("overwrite").save()

    stream()
    batch()
    whole, plain = (statistics.median(timed(work) for _ in range(3)) for work in (stream, batch))
    size = _STREAM_BATCHES * _READ_RECORDS * _READ_BYTES / MB
    _console.print(
        f"into Spark, {size:,.0f} MB: {size / whole:,.0f} MB/s as a stream, {size / plain:,.0f} MB/s as a batch"
    )
    spark.stop()


def main() -> None:
    """Measure, and print."""
    with tempfile.TemporaryDirectory() as work:
        for part in (appends, reads, seeks, streams):
            part(Path(work))


if __name__ == "__main__":
    main()
