"""A real Kafka on this machine, for tests: one broker that is its own controller (KRaft), in a process that can be killed and restarted.

Its jars come from Maven, see `tests.support.jars`. It listens on 127.0.0.1 only, and ends when the process that started it is
gone, for whatever reason.
"""

from __future__ import annotations

import contextlib
import struct
import subprocess
import time
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from tests.support.hdfs import Daemon, free_port
from tests.support.jars import SHORT_LIVED, NoJars, fetched, having, java
from tests.support.wait import PATIENCE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator

VERSION = "4.1.0"
_START_SECONDS = PATIENCE_SECONDS
_BATCH_HEAD = struct.Struct(">qi")  # of a record batch in a segment: its first offset, and how many bytes follow


class Kafka:
    """A broker below one directory; `start` after `kill` continues with the same topics, on the same port.

    With a `key` store (PKCS 12, password `secret`) it listens on a second port, where it serves `users` with TLS and passwords.
    """

    def __init__(self, directory: Path, key: Path | None = None, users: dict[str, str] | None = None) -> None:
        if find_spec("confluent_kafka") is None:
            msg = "confluent-kafka is not installed: pip install 'penstock[kafka]'"
            raise NoJars(msg)
        classes = fetched("org.apache.kafka", "kafka_2.13", VERSION)
        self._directory = directory
        files = f"-Djava.io.tmpdir={directory}"
        self._java = [java(), "-Xmx400m", *SHORT_LIVED, files, "-cp", f"{classes}/*"]
        self.port, controller = free_port(), free_port()
        self._controller = f"127.0.0.1:{controller}"
        self._settings = directory / "server.properties"
        lines = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "log.dirs": f"{directory}/data",
            "offsets.topic.num.partitions": "1",
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            "auto.create.topics.enable": "false",
            "log.retention.check.interval.ms": "1000",
            "log.cleaner.backoff.ms": "200",
            "log.initial.task.delay.ms": "1000",
            "file.delete.delay.ms": "100",
        }
        self.secure_port = free_port()
        if key is not None:
            lines |= self._secure(key, users or {})
        self._settings.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        self._archive = classes.with_name(f"{classes.name}.jsa")
        self.broker = Daemon([*self._java, "kafka.Kafka", str(self._settings)], directory / "broker.log", self._archive)

    def _secure(self, key: Path, users: dict[str, str]) -> dict[str, str]:
        """Return the settings of the second port."""
        names = "".join(f' user_{name}="{password}"' for name, password in users.items())
        plain = "org.apache.kafka.common.security.plain.PlainLoginModule"
        port = f"127.0.0.1:{self.port}"
        return {
            "listeners": f"PLAINTEXT://{port},SECURE://127.0.0.1:{self.secure_port},CONTROLLER://{self._controller}",
            "advertised.listeners": f"PLAINTEXT://{port},SECURE://127.0.0.1:{self.secure_port}",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SECURE:SASL_SSL",
            "listener.name.secure.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.secure.plain.sasl.jaas.config": f"{plain} required{names};",
            "ssl.keystore.location": str(key),
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.password": "secret",
        }

    @property
    def servers(self) -> str:
        """Return the value for `kafka.bootstrap.servers`."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Format the storage and start the broker, and wait until it answers."""
        tool = [
            *having(self._java, self._archive),
            "kafka.tools.StorageTool",
            "format",
            "-t",
            "AAAAAAAAQACAAAAAAAAAAQ",
            "-c",
            str(self._settings),
        ]
        subprocess.run(tool, check=True, capture_output=True, timeout=_START_SECONDS)
        self.restart()

    def restart(self) -> None:
        """Start the broker after `kill`, and wait until it answers."""
        self.broker.start()
        until = time.monotonic() + _START_SECONDS
        while True:
            with contextlib.suppress(Exception):  # errors of a broker that is still starting
                self.admin.list_topics(timeout=2)
                return
            if time.monotonic() > until:
                msg = f"Kafka does not answer: {(self._directory / 'broker.log').read_text()[-3000:]}"
                raise RuntimeError(msg)

    def kill(self) -> None:
        """Kill the broker (SIGKILL), and wait until it is gone."""
        self.broker.kill()

    @cached_property
    def admin(self) -> Any:
        """Return a client for what only administrators do; its open requests fail when it is gone."""
        from confluent_kafka.admin import AdminClient  # noqa: PLC0415 - may be missing

        return AdminClient({"bootstrap.servers": self.servers, "log_level": 0})

    def topic(self, name: str = "", partitions: int = 1, settings: dict[str, str] | None = None) -> str:
        """Make a topic and return its name: a new name, unless one is given."""
        from confluent_kafka.admin import NewTopic  # noqa: PLC0415 - may be missing

        name = name or f"t-{uuid4().hex[:12]}"
        new = NewTopic(name, num_partitions=partitions, replication_factor=1, config=settings or {})
        (future,) = self.admin.create_topics([new]).values()
        future.result(30)
        self._until(lambda known: name in known)
        return name

    def delete(self, name: str) -> None:
        """Delete a topic, and wait until the broker no longer knows it."""
        (future,) = self.admin.delete_topics([name]).values()
        future.result(30)
        self._until(lambda known: name not in known)

    def widen(self, name: str, partitions: int) -> None:
        """Give a topic more partitions."""
        from confluent_kafka.admin import NewPartitions  # noqa: PLC0415 - may be missing

        (future,) = self.admin.create_partitions([NewPartitions(name, partitions)]).values()
        future.result(30)
        self._until(lambda known: name in known and len(known[name].partitions) == partitions)

    def cut(self, name: str, partition: int, offset: int) -> None:
        """Delete all records before an offset, as retention does."""
        from confluent_kafka import TopicPartition  # noqa: PLC0415 - may be missing

        (future,) = self.admin.delete_records([TopicPartition(name, partition, offset)]).values()
        future.result(30)

    def forget(self, name: str, offset: int) -> None:
        """Remove the records from an offset on from partition 0 of a topic, while the broker is down: as if it never got them.

        To a client this looks like an unclean election: the broker comes back as the leader of a later epoch.
        """
        (log,) = (self._directory / "data").glob(f"{name}-0")
        (segment,) = log.glob("*.log")
        data, at = segment.read_bytes(), 0
        while at < len(data):
            base, length = _BATCH_HEAD.unpack_from(data, at)
            if base >= offset:
                break
            at += _BATCH_HEAD.size + length
        segment.write_bytes(data[:at])
        for index in log.glob("*.*index"):
            index.unlink()

    def producer(self, transactional: str | None = None, **settings: Any) -> Any:
        """Return a producer; if it has a transactional id, it is ready to begin its first transaction."""
        from confluent_kafka import Producer  # noqa: PLC0415 - may be missing

        own = {"bootstrap.servers": self.servers, "log_level": 0, "linger.ms": 1}
        if transactional is None:
            return Producer(own | settings)
        producer = Producer(own | {"transactional.id": transactional} | settings)
        producer.init_transactions(30)
        return producer

    def send(self, topic: str, *values: bytes, partition: int = 0) -> None:
        """Append records with these values, and wait until they are there."""
        producer = self.producer()
        for value in values:
            producer.produce(topic, value=value, partition=partition)
        assert producer.flush(30) == 0

    def committed(self, topic: str) -> list[tuple[int, int, bytes | None]]:
        """Return partition, offset and value of each committed record, up to the current ends, as a consumer of a group reads them.

        This is not the way we read: it uses `subscribe`, a group, `earliest` and single polls.
        """
        from confluent_kafka import Consumer, KafkaError  # noqa: PLC0415 - may be missing

        settings = {
            "bootstrap.servers": self.servers,
            "group.id": uuid4().hex,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "log_level": 0,
        }
        left = set(self.admin.list_topics(topic, timeout=30).topics[topic].partitions)
        records = []
        consumer = Consumer(settings)
        consumer.subscribe([topic])
        try:
            while left:
                message = consumer.poll(1)
                if message is None:
                    continue
                if message.error() is None:
                    records.append((message.partition(), message.offset(), message.value()))
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    left.discard(message.partition())
        finally:
            consumer.close()
        return records

    def _until(self, done: Any) -> None:
        until = time.monotonic() + _START_SECONDS
        while not done(self.admin.list_topics(timeout=30).topics):
            assert time.monotonic() < until, "the broker does not say what it was told"
            time.sleep(0.05)


@contextlib.contextmanager
def running(directory: Path, key: Path | None = None, users: dict[str, str] | None = None) -> Iterator[Kafka]:
    """Yield a running broker. `NoJars` if its jars are not available."""
    broker = Kafka(directory, key, users)
    try:
        broker.start()
        yield broker
    finally:
        broker.broker.end()
