"""Checks everything that users say about topics of Kafka: the options of `options.kafka`, an address `kafka://...`, and client options.

Options that begin with `kafka.` are passed on to the client, librdkafka, by its names. A secret among these only says where it is,
`env:NAME` or `file:PATH`, and is read by the process that connects: neither a plan, nor a pickle, nor a message ever contains the
secret.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.errors import OptionError, without_credentials
from penstock.options.checked import parse
from penstock.options.kafka import KAFKA, LATEST
from penstock.options.parsers import reference

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.options.option import Option, Options

CLIENT = "kafka."
SERVERS = f"{CLIENT}bootstrap.servers"
SCHEME = "kafka:"
_SECRET = re.compile(r"password|passphrase|secret|key\.pem|oauthbearer\.config")
_REFERENCE = re.compile(r"(env|file):")
_ADDRESS = re.compile(r"kafka://([^/@\s]+)(?:/([^/\s]*))?/?", re.IGNORECASE)
STARTING = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
_ENDING = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_SELECTING = ("subscribe", "subscribePattern", "assign")

# The options that this source sets itself, and why.
_OURS = {
    "auto.offset.reset": "missing records are reported, never skipped; startingOffsets says where a new query begins, failOnDataLoss what "
    "a loss is",
    "enable.auto.commit": "Spark's checkpoint has the offsets; no group of Kafka's is asked",
    "enable.auto.offset.store": "Spark's checkpoint has the offsets; no group of Kafka's is asked",
    "enable.partition.eof": "it shows where a range ends",
    "key.deserializer": "keys are binary; cast them in the query",
    "value.deserializer": "values are binary; cast them in the query",
    "interceptor.classes": "there is no Java here",
    "metadata.broker.list": f"{SERVERS} has the brokers",
    **dict.fromkeys(
        ("error_cb", "log_cb", "oauth_cb", "stats_cb", "throttle_cb", "on_commit", "on_delivery", "logger"),
        "it is a function of Python, and an option is text",
    ),
    "default.topic.config": "it would hold others: expected each of them by its own name",
    "sasl.jaas.config": "it would hold a password: expected kafka.sasl.mechanism, kafka.sasl.username, and kafka.sasl.password=env:NAME",
    "ssl.truststore.location": "there is no Java here: expected kafka.ssl.ca.location, a file of PEM",
    "ssl.truststore.password": "there is no Java here: expected kafka.ssl.ca.location, a file of PEM",
}


def is_topics(address: object) -> bool:
    """Tell whether an address means topics, `kafka://...`, and not files."""
    return isinstance(address, str) and address[: len(SCHEME)].lower() == SCHEME


def of_address(address: str) -> dict[str, str]:
    """Return the options that `kafka://broker:port[,broker:port]/topic[,topic]` means; without topics, other options select them."""
    match = _ADDRESS.fullmatch(address)
    if match is None:
        msg = (
            f"{without_credentials(address)!r} is not an address of topics; expected kafka://broker:9092/topic, with commas between "
            "several brokers and several topics; users and passwords are options, such as kafka.sasl.username"
        )
        raise OptionError(msg)
    servers, topics = match.groups()
    return {SERVERS: servers} | ({"subscribe": topics} if topics else {})


def parse_topics(
    given: Mapping[str, str], *, stream: bool | None, table: tuple[Option, ...] = KAFKA, what: str = "topic source"
) -> Options:
    """Return the checked options; `["kafka"]` has the client's options, by its names, with secrets as references.

    `stream`: whether the options are those of a stream or of a batch; `None`: not known yet. `table` has at least `KAFKA`.
    """
    client = {name[len(CLIENT) :]: value for name, value in given.items() if name.lower().startswith(CLIENT)}
    own = {name: value for name, value in given.items() if not name.lower().startswith(CLIENT)}
    options = parse(table, own, what=what)
    _check_selection(options)
    _check_mode(options, stream=stream)
    starting = options["startingOffsets"] or ("latest" if stream else "earliest")
    values = {**options.values, "startingOffsets": starting, "endingOffsets": options["endingOffsets"] or "latest"}
    return replace(options, values={**values, "kafka": _checked(client)})


def _check_selection(options: Options) -> None:
    """Raise `OptionError` unless topics are selected in one way."""
    chosen = [name for name in _SELECTING if options[name] is not None]
    if len(chosen) != 1:
        given_names = " and ".join(chosen) or "none of them"
        such_as = "subscribe=orders (of an ingest also SRC kafka://HOST:PORT/orders)"
        msg = f"expected one of subscribe, subscribePattern and assign, found {given_names}; such as {such_as}"
        raise OptionError(msg)


def _once(options: Options, names: tuple[str, ...]) -> str | None:
    """Return the name of the one option that is given, if any; `OptionError` for more, because one of them would be ignored."""
    chosen = [name for name in names if options[name] is not None]
    if len(chosen) > 1:
        msg = f"{' and '.join(chosen)} say the same in two ways: expected one of them"
        raise OptionError(msg)
    return chosen[0] if chosen else None


def _check_mode(options: Options, *, stream: bool | None) -> None:
    """Raise `OptionError` for options that a stream, or a batch, cannot have."""
    _once(options, STARTING)
    ending = _once(options, _ENDING)
    if stream is True and ending is not None:
        msg = f"{ending} is for a batch, spark.read; a stream has no end: leave it out, or take trigger(availableNow=True)"
        raise OptionError(msg)
    starting = options["startingOffsets"]
    begins = starting.values() if isinstance(starting, dict) else [starting]
    latest = any(at == "latest" or (isinstance(at, dict) and LATEST in at.values()) for at in begins)
    if stream is False and (latest or options["maxOffsetsPerTrigger"] is not None):
        msg = f"startingOffsets=latest (or {LATEST}) and maxOffsetsPerTrigger are for a stream, spark.readStream; leave them out of a batch"
        raise OptionError(msg)


def _checked(client: dict[str, str]) -> dict[str, str]:
    """Return the client's options; `OptionError` for one that this source sets itself, and for a secret that is written out."""
    for name, value in client.items():
        if name.lower() in _OURS:
            msg = f"{CLIENT}{name} cannot be set: {_OURS[name.lower()]}"
            raise OptionError(msg)
        if _SECRET.search(name.lower()):
            reference(value, CLIENT + name)
        if name.lower() == "group.id" and not value.strip():
            msg = f"{CLIENT}{name} is empty; leave it out: no offsets are kept with brokers, and each consumer has a group of its own"
            raise OptionError(msg)  # librdkafka makes no consumer of it, and the library would end the process
    _check_servers(client.get("bootstrap.servers", ""), client.get("security.protocol", "plaintext"))
    return client


def _check_servers(servers: str, protocol: str) -> None:
    """Raise `OptionError` if there are no brokers, and for a broker that the client would silently ignore, to wait without end."""
    if not servers.strip(", "):
        msg = 'the topic source needs brokers: expected .option("kafka.bootstrap.servers", "host:9092")'
        raise OptionError(msg)
    for server in servers.split(","):
        scheme, mark, _ = server.strip().partition("://")
        if mark and scheme.lower() != protocol.lower():
            msg = (
                f"{SERVERS}={without_credentials(servers)!r}: {scheme}:// is not what kafka.security.protocol says, which is {protocol}; "
                "expected host:9092, and the protocol there"
            )
            raise OptionError(msg)


def holds_reference(name: str, value: str) -> bool:
    """Tell whether the value of a client option says where a secret is, and is not the secret itself."""
    return bool(_REFERENCE.match(value) and (_SECRET.search(name) or name == "sasl.username"))
