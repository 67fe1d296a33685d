"""Clients of brokers, a consumer and one that asks, and what they say, as errors of ours.

They are made where they are used, in each process, since none survives a fork; secrets are looked up then. What librdkafka logs, which
is nothing unless it is asked to, goes to the logger `penstock.kafka` and not to stderr.
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
_SILENT = 0  # what matters comes as an error; kafka.log_level=7 has librdkafka tell all the rest

# What a consumer is unless the user says otherwise.
_READS = {
    "isolation.level": "read_committed",
    "check.crcs": True,  # Java's client does; librdkafka asks to be told
    "fetch.message.max.bytes": 4 << 20,  # of one partition in one answer
    "fetch.wait.max.ms": 5,  # a range is there: an answer that waits for more, 500 ms, keeps the next range waiting, too
    "fetch.queue.backoff.ms": 10,  # how long a full queue is left alone: 1000 would be a second without a fetch
    "fetch.error.backoff.ms": 100,
}
# What it is in any case.
_ALWAYS = {
    "auto.offset.reset": "error",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
}


class Heard:
    """What brokers have done to the connections of a client: the last of it, but for what says less than what came before."""

    def __init__(self) -> None:
        self._error: KafkaError | None = None

    def hear(self, error: KafkaError) -> None:
        """Keep an error; called by the client while it is asked."""
        if self.refusal is None and (self._error is None or error.name() != "_ALL_BROKERS_DOWN"):
            self._error = error

    def forget(self) -> None:
        """Take what was heard for over: there was an answer."""
        self._error = None

    @property
    def refusal(self) -> KafkaError | None:
        """Return what does not get better by waiting."""
        return self._error if self._error is not None and self._error.name() in REFUSED else None

    @property
    def words(self) -> str:
        """Return what was heard, to stand behind what was asked."""
        return "" if self._error is None else f": {self._error.str()}"


def require() -> None:
    """Raise `DependencyError` where the library is not there."""
    try:
        import confluent_kafka  # noqa: F401 - only looked for
    except ImportError as error:
        msg = "format penstock-kafka needs confluent-kafka, here and on the executors: pip install 'penstock[kafka]'"
        raise DependencyError(msg) from error


def consumer(given: Mapping[str, str], hears: Callable[[KafkaError], None]) -> Consumer:
    """Return a consumer that is given its partitions; it asks for no group. `hears` is called with what brokers do to it."""
    require()
    from confluent_kafka import Consumer

    settings = {"group.id": f"penstock-{unique.token()}"} | _READS | resolved(given) | _ALWAYS
    reads: Consumer = _made(Consumer, settings, hears)
    return reads


def asker(given: Mapping[str, str], hears: Callable[[KafkaError], None]) -> AdminClient:
    """Return a client that asks brokers what they have."""
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
    """Return the settings with the secrets that they name."""
    return {
        name: secret(value, CLIENT + name) if holds_reference(name, value) else value for name, value in given.items()
    }


def _made(kind: Any, settings: dict[str, Any], hears: Callable[[KafkaError], None]) -> Any:  # noqa: ANN401 - one of two clients
    from confluent_kafka import KafkaException

    try:
        return kind({"log_level": _SILENT, **settings, "error_cb": hears}, logger=_log)
    except KafkaException as error:
        reason = error.args[0]
        # What was given is not repeated: librdkafka shows the value, which may be a secret, where it does not like it.
        words = reason.str() if reason.name() != "_INVALID_ARG" else _unnamed(reason.str(), settings)
        advice = _KERBEROS if "No provider for SASL mechanism" in words else _NAMES
        msg = f"the client of Kafka refuses its settings: {words}; {advice}"
        raise OptionError(msg) from None


def _unnamed(words: str, settings: Mapping[str, Any]) -> str:
    """Return the client's words without the values of settings, whatever they are; a short one may be a part of other words."""
    values = {str(value) for value in settings.values()}
    for value in sorted((value for value in values if len(value) >= _SECRET_CHARACTERS), key=len, reverse=True):
        words = words.replace(value, "***")
    return words


def told(error: KafkaError, asked: str, given: Mapping[str, str]) -> BrokerError:
    """Return what a client says as an error of ours; `asked` is what it was asked for."""
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
    """Tell whether an error is over when brokers are back."""
    return error.name() in _AWAY or (error.retriable() and error.name() not in REFUSED | _MISSING)
