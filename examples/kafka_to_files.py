"""Write Kafka topics to files, exactly once: the query is killed with SIGKILL, and every fourth transaction of the producer aborts.

Run it with `python examples/kafka_to_files.py [HOST:PORT] [--kills N]`. Without an address it starts its own broker: a real Kafka,
whose jars (43 MB) are fetched the first time. A query reads two topics with `format("penstock-kafka")` and writes Parquet, with a
directory for each topic. It is killed with its JVM in the middle, three times, while the producer goes on. In the end an independent
consumer reads the topics without Penstock, and its records are compared with the files.
"""
# ruff: noqa: INP001, S603, T201
# An example is a standalone script, it starts itself again, and it prints what it did.

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow.dataset as ds
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewTopic

import penstock

TRANSACTION = 50
KILL_AT_BATCH = (2, 4, 6)
PARTITIONS = 2


def run_query(servers: str, topics: str, work: str, ends: str) -> None:
    """Write the topics to files: the available records (`ends`), or without end."""
    spark = penstock.local_session("local[2]")
    rows = (
        spark.readStream.format("penstock-kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topics)
        .option("startingOffsets", "earliest")
        .options(**({} if ends == "yes" else {"maxOffsetsPerTrigger": "2000"}))
        .load()
    )
    writer = (
        rows.selectExpr("topic", "partition", "offset", "CAST(value AS STRING) AS value")
        .writeStream.format("penstock")
        .option("format", "parquet")
        .option("bucketBy", "topic={topic}")
        .option("rollBatches", "2")
        .option("checkpointLocation", f"{work}/checkpoint")
    )
    writer = writer.trigger(availableNow=True) if ends == "yes" else writer.trigger(processingTime="500 milliseconds")
    writer.start(f"{work}/files").awaitTermination()
    spark.stop()


class Bank(threading.Thread):
    """A producer of transactions over both topics; it aborts every fourth one, and goes on until it is told to end."""

    def __init__(self, servers: str, topics: list[str]) -> None:
        super().__init__()
        self._producer = Producer({"bootstrap.servers": servers, "transactional.id": topics[0], "log_level": 0})
        self._topics = topics
        self.over = threading.Event()
        self.committed = self.aborted = 0

    def run(self) -> None:
        """Produce."""
        self._producer.init_transactions(60)
        number = 0
        while not self.over.wait(0.1) or number % 4:
            self._producer.begin_transaction()
            for each in range(TRANSACTION):
                topic = self._topics[each % len(self._topics)]
                self._producer.produce(topic, value=f"{number}.{each}", partition=each // 2 % PARTITIONS)
            number += 1
            if number % 4:
                self._producer.commit_transaction()
                self.committed += TRANSACTION
            else:
                self._producer.flush()
                self._producer.abort_transaction()
                self.aborted += TRANSACTION


def run_and_kill(command: list[str], work: Path, at: int) -> None:
    """Start the query, and kill it with its JVM once it has committed batch `at`."""
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
    while process.poll() is None:
        if (work / "checkpoint" / "commits" / str(at)).exists():
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            print(f"killed with SIGKILL after batch {at}", flush=True)
            return
        time.sleep(0.01)
    sys.exit(f"it ended before it could be killed: status {process.returncode}")


def consumed(servers: str, topics: list[str]) -> Counter[tuple[Any, ...]]:
    """Return how often a consumer of a group, without any of our code, gets each committed record."""
    settings = {"group.id": uuid4().hex, "auto.offset.reset": "earliest", "enable.partition.eof": True}
    consumer = Consumer({"bootstrap.servers": servers, "isolation.level": "read_committed", **settings})
    consumer.subscribe(topics)
    records: Counter[tuple[Any, ...]] = Counter()
    left = {(topic, number) for topic in topics for number in range(PARTITIONS)}
    while left:
        message = consumer.poll(1)
        if message is None:
            continue
        if message.error() is None:
            records[message.topic(), message.partition(), message.offset(), message.value().decode()] += 1
        elif message.error().code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - the library's name of it
            left.discard((message.topic(), message.partition()))
    consumer.close()
    return records


def written(files: Path) -> Counter[tuple[Any, ...]]:
    """Return how often each record is in the files that any reader sees."""
    visible = [str(path) for path in files.rglob("*.parquet") if "_penstock" not in path.parts]
    table = ds.dataset(visible).to_table(columns=["topic", "partition", "offset", "value"])
    return Counter(tuple(row.values()) for row in table.to_pylist())


def broker(directory: Path) -> Any:  # noqa: ANN401 - a context manager of the tests'
    """Return a context manager that runs our own broker."""
    sys.path.append(str(Path(__file__).resolve().parent.parent))
    from tests.support.kafka import running  # noqa: PLC0415 - only where none is given

    print("starting Kafka; the first time its jars are fetched, too", flush=True)
    directory.mkdir()
    return running(directory)


def main(given: str | None, kills: int) -> None:
    """Produce, write, be killed, go on, compare."""
    with tempfile.TemporaryDirectory(prefix="kafka-") as directory:
        work = Path(directory)
        with nullcontext() if given else broker(work / "kafka") as own:
            servers = given or own.servers
            topics = [f"{name}-{uuid4().hex[:8]}" for name in ("orders", "payments")]
            admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
            for future in admin.create_topics([NewTopic(topic, PARTITIONS) for topic in topics]).values():
                future.result()
            bank = Bank(servers, topics)
            bank.start()
            query = servers, ",".join(topics), directory
            try:
                for at in KILL_AT_BATCH[:kills]:
                    run_and_kill([sys.executable, __file__, "--query", *query, "no"], work, at)
            finally:
                bank.over.set()
                bank.join()
            run_query(*query, "yes")
            expected, got = consumed(servers, topics), written(work / "files")
    print(f"{bank.committed} records committed, {bank.aborted} aborted")
    print(
        f"{got.total()} in the files, {len(got)} different; the same as an independent consumer gets: {got == expected}"
    )
    if got != expected or got.total() != bank.committed:
        sys.exit(1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("servers", nargs="?", metavar="HOST:PORT", help="brokers; without it one is started")
    parser.add_argument("--kills", type=int, default=len(KILL_AT_BATCH), help="how often it is killed, at most")
    parser.add_argument("--query", nargs=4, help=argparse.SUPPRESS)  # set when it starts itself
    asked = parser.parse_args()
    if asked.query:
        run_query(*asked.query)
    else:
        main(asked.servers, asked.kills)
