"""Brokers of Kafka without Java: librdkafka's own test brokers. They run in this process, and clients reach them like any other broker.

They keep records, elect leaders with increasing epochs, stop and come back. They support neither transactions nor topic ids.
"""

from __future__ import annotations

import contextlib
import ctypes
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.jars import NoJars

if TYPE_CHECKING:
    from collections.abc import Iterator

_PRODUCER = 0
_FIND_COORDINATOR, _NO_RIGHT = 10, 30  # numbers of Kafka's protocol
_ANSWERS = 1000
_NAME = b"orders"


class Brokers:
    """Two brokers with a topic `orders` of one partition, which the first broker leads."""

    topic = _NAME.decode()

    def __init__(self, library: ctypes.CDLL) -> None:
        pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
        self._call = library
        for name, result, arguments in (
            ("rd_kafka_conf_new", pointer, ()),
            ("rd_kafka_conf_set", number, (pointer, text, text, pointer, ctypes.c_size_t)),
            ("rd_kafka_new", pointer, (number, pointer, pointer, ctypes.c_size_t)),
            ("rd_kafka_destroy", None, (pointer,)),
            ("rd_kafka_mock_cluster_new", pointer, (pointer, number)),
            ("rd_kafka_mock_cluster_destroy", None, (pointer,)),
            ("rd_kafka_mock_cluster_bootstraps", text, (pointer,)),
            ("rd_kafka_mock_topic_create", number, (pointer, text, number, number)),
            ("rd_kafka_mock_partition_set_leader", number, (pointer, text, ctypes.c_int32, ctypes.c_int32)),
            ("rd_kafka_mock_broker_set_down", number, (pointer, ctypes.c_int32)),
            ("rd_kafka_mock_broker_set_up", number, (pointer, ctypes.c_int32)),
            ("rd_kafka_mock_push_request_errors_array", None, (pointer, ctypes.c_int16, ctypes.c_size_t, pointer)),
        ):
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        settings = library.rd_kafka_conf_new()
        library.rd_kafka_conf_set(settings, b"log_level", b"0", None, 0)
        self._client = library.rd_kafka_new(_PRODUCER, settings, None, 0)
        self._cluster = library.rd_kafka_mock_cluster_new(self._client, 2)
        self.servers: str = library.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()
        library.rd_kafka_mock_topic_create(self._cluster, _NAME, 1, 2)
        self.lead(1)

    def lead(self, broker: int) -> None:
        """Make a broker the leader of the partition; each call starts a later epoch."""
        self._call.rd_kafka_mock_partition_set_leader(self._cluster, _NAME, 0, broker)

    def down(self, broker: int) -> None:
        """Disconnect a broker from all its clients."""
        self._call.rd_kafka_mock_broker_set_down(self._cluster, broker)

    def up(self, broker: int) -> None:
        """Bring the broker back."""
        self._call.rd_kafka_mock_broker_set_up(self._cluster, broker)

    def refuse_groups(self) -> None:
        """Have the brokers answer every request for a group that the client has no right to it."""
        errors = (ctypes.c_int * _ANSWERS)(*[_NO_RIGHT] * _ANSWERS)
        self._call.rd_kafka_mock_push_request_errors_array(self._cluster, _FIND_COORDINATOR, _ANSWERS, errors)

    def send(self, *values: bytes) -> None:
        """Append records, each in its own batch."""
        from confluent_kafka import Producer  # noqa: PLC0415 - may be missing

        settings: dict[str, Any] = {"bootstrap.servers": self.servers, "log_level": 0, "batch.num.messages": 1}
        producer = Producer(settings | {"linger.ms": 0})
        for value in values:
            producer.produce(self.topic, value, partition=0)
        assert producer.flush(30) == 0

    def close(self) -> None:
        """End the brokers."""
        self._call.rd_kafka_mock_cluster_destroy(self._cluster)
        self._call.rd_kafka_destroy(self._client)


def library() -> ctypes.CDLL:
    """Return the client's library. `NoJars` if it does not exist as a separate file."""
    spec = find_spec("confluent_kafka")
    folder = None if spec is None or spec.origin is None else Path(spec.origin).parent.with_suffix(".libs")
    files = [] if folder is None else sorted(folder.glob("librdkafka*.so*"))
    if not files:
        msg = "librdkafka is not here as a file of its own"
        raise NoJars(msg)
    return ctypes.CDLL(str(files[0]))


_Words = ctypes.c_uint64 * 8


class _Part(ctypes.Structure):
    """What a call tells the library about a record: a number for the kind of value, and the value."""

    _fields_ = (("kind", ctypes.c_int), ("words", _Words))


def send_with_headers(servers: str, topic: str, *names: bytes) -> None:
    """Append one record per name to partition 0, with that name as a header: the Python wrapper of the library takes only text."""
    call = library()
    pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
    for function, result, arguments in (
        ("rd_kafka_conf_new", pointer, ()),
        ("rd_kafka_conf_set", number, (pointer, text, text, pointer, ctypes.c_size_t)),
        ("rd_kafka_new", pointer, (number, pointer, pointer, ctypes.c_size_t)),
        ("rd_kafka_produceva", pointer, (pointer, pointer, ctypes.c_size_t)),
        ("rd_kafka_flush", number, (pointer, number)),
        ("rd_kafka_destroy", None, (pointer,)),
    ):
        getattr(call, function).restype, getattr(call, function).argtypes = result, arguments
    settings = call.rd_kafka_conf_new()
    for key, value in ((b"bootstrap.servers", servers.encode()), (b"log_level", b"0")):
        call.rd_kafka_conf_set(settings, key, value, None, 0)
    producer = call.rd_kafka_new(_PRODUCER, settings, None, 0)
    try:
        for name in names:
            texts = [ctypes.create_string_buffer(each) for each in (topic.encode(), b"value", name, b"1")]
            of_topic, of_value, of_name, of_header = map(ctypes.addressof, texts)
            # In the numbering of the library: topic, partition, value, the flag to copy it, and a header.
            parts = {1: (of_topic,), 3: (0,), 4: (of_value, 5), 7: (2,), 9: (of_name, of_header, 1)}
            given = (_Part * len(parts))(*(_Part(kind, _Words(*words)) for kind, words in parts.items()))
            assert call.rd_kafka_produceva(producer, given, len(parts)) is None
        assert call.rd_kafka_flush(producer, 30_000) == 0
    finally:
        call.rd_kafka_destroy(producer)


@contextlib.contextmanager
def running() -> Iterator[Brokers]:
    """Yield running brokers. `NoJars` if the client's library does not exist as a separate file."""
    brokers = Brokers(library())
    try:
        yield brokers
    finally:
        brokers.close()
