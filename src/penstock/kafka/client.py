"""Clients of brokers, one that consumes and one that asks, and their errors as errors of ours.

They are made in each process where they are used, because none survives a fork; secrets are read then. librdkafka logs nothing unless
it is asked to; its log goes to the logger `penstock.kafka` and not to stderr.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from penstock import unique
from penstock.errors import BrokerAway, BrokerError, DependencyError, OptionError, TopicNotThere
from penstock.options.topics import CLIENT, holds_reference
from penstock.storage import secret

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from confluent_kafka import Consumer, KafkaError
    from confluent_kafka.admin import AdminClient

_log = logging.getLogger("penstock.kafka")
_AWAY = frozenset(
    {
        "_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT", "_RESOLVE", "_WAIT_COORD", "_NODE_UPDATE", "_TIMED_OUT_QUEUE", "_NOENT",
        "LEADER_NOT_AVAILABLE", "NOT_LEADER_FOR_PARTITION", "REQUEST_TIMED_OUT", "BROKER_NOT_AVAILABLE", "REPLICA_NOT_AVAILABLE",
        "NETWORK_EXCEPTION", "OFFSET_NOT_AVAILABLE", "KAFKA_STORAGE_ERROR", "FENCED_LEADER_EPOCH", "UNKNOWN_LEADER_EPOCH",
    }
)  # fmt: skip
_MISSING = frozenset({"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "UNKNOWN_TOPIC_ID"})
REFUSED = frozenset(
    {
        "_AUTHENTICATION",
        "_SSL",
        "SASL_AUTHENTICATION_FAILED",
        "TOPIC_AUTHORIZATION_FAILED",
        "CLUSTER_AUTHORIZATION_FAILED",
    }
)

_NAMES = "see kafka.* in the options, by the names of librdkafka"
_KERBEROS = (
    "kafka.sasl.mechanism is GSSAPI, which is Kerberos, unless it is said, and confluent-kafka as it comes in packages has none: set it to "
    "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER, or build confluent-kafka with librdkafka of this machine, which has it"
)
_SECRET_CHARACTERS = 4
_SILENT = 0  # what matters is reported as an error; kafka.log_level=7 makes librdkafka log everything else

# Settings of a consumer unless the user sets them.
_READS = {
    "isolation.level": "read_committed",
    "check.crcs": True,  # Java's client does this; librdkafka does it only if this is set
    "fetch.message.max.bytes": 4 << 20,  # of one partition in one answer
    # A range is there already: an answer that waits for more, 500 ms, would also delay the next range.
    "fetch.wait.max.ms": 5,
    # How long fetching pauses while the queue is full: 1000 would be a second without a fetch.
    "fetch.queue.backoff.ms": 10,
    "fetch.error.backoff.ms": 100,
}
# Settings of a consumer in any case.
_ALWAYS = {
    "auto.offset.reset": "error",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
}


class Heard:
    """The last problem that brokers reported on a client's connections; a less specific one does not replace it."""

    def __init__(self) -> None:
        self._error: KafkaError | None = None

    def hear(self, error: KafkaError) -> None:
        """Keep an error; the client calls this while it is polled."""
        if self.refusal is None and (self._error is None or error.name() != "_ALL_BROKERS_DOWN"):
            self._error = error

    def forget(self) -> None:
        """Forget the error: there was an answer since."""
        self._error = None

    @property
    def refusal(self) -> KafkaError | None:
        """Return the error if waiting does not help against it."""
        return self._error if self._error is not None and self._error.name() in REFUSED else None

    @property
    def words(self) -> str:
        """Return the error's words, to follow the words of a question."""
        return "" if self._error is None else f": {self._error.str()}"


def require() -> None:
    """Raise `DependencyError` if the library is not installed."""
    try:
        import confluent_kafka  # noqa: F401 - only looked for
    except ImportError as error:
        msg = "format penstock-kafka needs confluent-kafka, here and on the executors: pip install 'penstock[kafka]'"
        raise DependencyError(msg) from error


def consumer(given: Mapping[str, str], hears: Callable[[KafkaError], None]) -> Consumer:
    """Return a consumer whose partitions are assigned by the caller; it joins no group. `hears` gets the errors of its connections."""
    require()
    from confluent_kafka import Consumer

    settings = {"group.id": f"penstock-{unique.token()}"} | _READS | resolved(given) | _ALWAYS
    reads: Consumer = _made(Consumer, settings, hears)
    return reads


def asker(given: Mapping[str, str], hears: Callable[[KafkaError], None]) -> AdminClient:
    """Return a client that asks brokers for topics and offsets."""
    require()
    from confluent_kafka.admin import AdminClient

    consuming = (
        "isolation.level",
        "check.crcs",
        "fetch.",
        "queued.",
        "group.",
        "session.",
        "heartbeat.",
        "max.poll.",
        "auto.",
        "enable.",
    )
    settings = {name: value for name, value in resolved(given).items() if not name.startswith(consuming)}
    asks: AdminClient = _made(AdminClient, settings, hears)
    return asks


def resolved(given: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings with the secrets to which they refer."""
    return {
        name: secret(value, CLIENT + name) if holds_reference(name, value) else value for name, value in given.items()
    }


def _made(kind: Any, settings: dict[str, Any], hears: Callable[[KafkaError], None]) -> Any:  # noqa: ANN401 - one of two clients
    from confluent_kafka import KafkaException

    try:
        return kind({"log_level": _SILENT, **settings, "error_cb": hears}, logger=_log)
    except KafkaException as error:
        reason = error.args[0]
        # Do not repeat the user's values: librdkafka shows a value that it refuses, and it may be a secret.
        words = reason.str() if reason.name() != "_INVALID_ARG" else _unnamed(reason.str(), settings)
        advice = _KERBEROS if "No provider for SASL mechanism" in words else _NAMES
        msg = f"the client of Kafka refuses its settings: {words}; {advice}"
        raise OptionError(msg) from None


def _unnamed(words: str, settings: Mapping[str, Any]) -> str:
    """Return the client's words without the values of settings; very short values stay, because they may be parts of other words."""
    values = {str(value) for value in settings.values()}
    for value in sorted((value for value in values if len(value) >= _SECRET_CHARACTERS), key=len, reverse=True):
        words = words.replace(value, "***")
    return words


def told(error: KafkaError, asked: str, given: Mapping[str, str]) -> BrokerError:
    """Return a client's error as one of ours; `asked` says what it was asked for."""
    words = f"{asked}: {error.str()} ({error.name()})"
    servers = given["bootstrap.servers"]
    if error.name() in _MISSING:
        return TopicNotThere(
            f"{words}; expected it at {servers}: make it, or mend its name in subscribe, subscribePattern or assign"
        )
    if is_away(error):
        return BrokerAway(
            f"{words}; no answer from {servers}: see that they run and can be reached from here, then start the query again"
        )
    return BrokerError(f"{words}; refused by {servers}: mend what it says, then start the query again")


def is_away(error: KafkaError) -> bool:
    """Tell whether an error goes away when brokers are back."""
    return error.name() in _AWAY or (error.retriable() and error.name() not in REFUSED | _MISSING)
