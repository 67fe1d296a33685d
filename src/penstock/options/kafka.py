"""The options of topics of Kafka, `format("penstock-kafka")`: those of Spark's own connector, but for what would lose records in silence.

What begins with `kafka.` is handed on to the client, librdkafka, by its names. A secret among these says where it is, `env:NAME` or
`file:PATH`, and is read by the process that connects: neither a plan, nor a pickle, nor a message ever has it.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.errors import OptionError, without_credentials
from penstock.options.checked import parse
from penstock.options.option import Option, Options
from penstock.options.parsers import choice, count, duration_ns, flag, reference, text

if TYPE_CHECKING:
    from collections.abc import Mapping

CLIENT = "kafka."
SERVERS = f"{CLIENT}bootstrap.servers"
SCHEME = "kafka:"
LATEST, EARLIEST = -1, -2  # in place of an offset
_NAME = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")
_SECRET = re.compile(r"password|passphrase|secret|key\.pem|oauthbearer\.config")
_REFERENCE = re.compile(r"(env|file):")
_ADDRESS = re.compile(r"kafka://([^/@\s]+)(?:/([^/\s]*))?/?", re.IGNORECASE)
_PARTITION = re.compile(r"0|[1-9][0-9]{0,8}")  # one way to write each number: of two of a partition one would be lost
_MOMENT = re.compile(r"[0-9]{1,15}")
_OFFSET_MAX = (1 << 63) - 1
_LEAST_NS, _MOST_NS = 1_000_000, 3_600_000_000_000  # librdkafka's own bounds of a question's time
STARTING = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
_ENDING = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_SELECTING = ("subscribe", "subscribePattern", "assign")

# What this source says itself, and why.
_OURS = {
    "auto.offset.reset": "what is missing is told, never skipped; startingOffsets says where a new query begins, failOnDataLoss what "
    "a loss is",
    "enable.auto.commit": "Spark's checkpoint has the offsets; no group of Kafka's is asked",
    "enable.auto.offset.store": "Spark's checkpoint has the offsets; no group of Kafka's is asked",
    "enable.partition.eof": "it tells where a range ends",
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


def names_of_topics(value: str, name: str) -> tuple[str, ...]:
    """Return the names of topics, each once, in order."""
    names = tuple(part.strip() for part in value.split(","))
    for topic in names:
        if not _NAME.fullmatch(topic):
            msg = f"{name}={value!r}: {topic!r} is no name of a topic; expected letters, digits, '.', '_' or '-', such as orders,payments"
            raise OptionError(msg)
    return tuple(sorted(set(names)))


def pattern_of_topics(value: str, name: str) -> str:
    """Return a regular expression of Python."""
    try:
        re.compile(text(value, name))
    except re.error as error:
        msg = f"{name}={value!r} is no regular expression of Python, which differs from Java's: {error}; expected one such as orders-\\d+"
        raise OptionError(msg) from error
    return value


def assigned(value: str, name: str) -> dict[str, tuple[int, ...]]:
    """Return the partitions of each topic."""
    form = _json(value)
    if not isinstance(form, dict) or not form or not all(_is_list_of_partitions(item) for item in form.items()):
        msg = f'{name}={value!r}: expected JSON with the partitions of each topic, each topic once, such as {{"orders": [0, 1]}}'
        raise OptionError(msg)
    return {topic: tuple(sorted(set(numbers))) for topic, numbers in sorted(form.items())}


def starting_offsets(value: str, name: str) -> str | dict[str, Any]:
    """Return `earliest`, `latest`, or the form of JSON with an offset for each partition; -2 is earliest, -1 latest."""
    return _offsets(value, name, ("earliest", "latest"), EARLIEST)


def ending_offsets(value: str, name: str) -> str | dict[str, Any]:
    """Return `latest`, or the form of JSON with an offset for each partition; -1 is latest."""
    return _offsets(value, name, ("latest",), LATEST)


def _offsets(value: str, name: str, words: tuple[str, ...], least: int) -> str | dict[str, Any]:
    if value.strip().lower() in words:
        return value.strip().lower()
    form = _json(value)
    topics = {topic: item for topic, item in form.items() if topic[:1] != "@"} if isinstance(form, dict) else {}
    if not topics or not all(_is_offsets_of_partitions(item, least) for item in topics.items()):
        msg = (
            f"{name}={value!r}: expected {', '.join(words)}, or JSON with an offset of at least {least} for each partition, each once, "
            'such as {"orders": {"0": 23, "1": -1}}'
        )
        raise OptionError(msg)
    return topics


def moment(value: str, name: str) -> int:
    """Return a time, in milliseconds since 1970."""
    if not _MOMENT.fullmatch(value.strip()):
        msg = f"{name}={value!r}: expected milliseconds since 1970, such as 1700000000000"
        raise OptionError(msg)
    return int(value)


def moments(value: str, name: str) -> dict[str, Any]:
    """Return the form of JSON with a time for each partition, in milliseconds since 1970."""
    form = _json(value)
    if not isinstance(form, dict) or not form or not all(_is_offsets_of_partitions(item, 0) for item in form.items()):
        msg = (
            f"{name}={value!r}: expected JSON with milliseconds since 1970 for each partition, each once, such as "
            '{"orders": {"0": 1700000000000}}'
        )
        raise OptionError(msg)
    return form


def patience_ns(value: str, name: str) -> int:
    """Return for how long brokers may be silent, in nanoseconds."""
    nanoseconds = duration_ns(value, name)
    if not _LEAST_NS <= nanoseconds <= _MOST_NS:
        msg = f"{name}={value!r}: expected 1ms to 1h, such as 2m"
        raise OptionError(msg)
    return nanoseconds


def _json(value: str) -> Any:  # noqa: ANN401 - whatever was written
    try:
        return json.loads(value, object_pairs_hook=_each_once)
    except ValueError:
        return None


def _each_once(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON; `ValueError` if it says something twice, of which one would be lost."""
    form = dict(members)
    if len(form) < len(members):
        raise ValueError
    return form


def _is_list_of_partitions(item: tuple[str, Any]) -> bool:
    topic, numbers = item
    whole = isinstance(numbers, list) and all(type(number) is int and number >= 0 for number in numbers)
    return bool(_NAME.fullmatch(topic) and numbers and whole)


def _is_offsets_of_partitions(item: tuple[str, Any], least: int) -> bool:
    topic, offsets = item
    if not _NAME.fullmatch(topic) or not isinstance(offsets, dict) or not offsets:
        return False
    return all(
        _PARTITION.fullmatch(key) and type(value) is int and least <= value <= _OFFSET_MAX
        for key, value in offsets.items()
    )


KAFKA = (
    Option("subscribe", None, names_of_topics, "topics, separated by commas"),
    Option("subscribePattern", None, pattern_of_topics, "a regular expression that the whole name of a topic matches"),
    Option("assign", None, assigned, "single partitions, as JSON"),
    Option("startingOffsets", None, starting_offsets, "where a new query begins; unset: latest, of a batch earliest"),
    Option("endingOffsets", None, ending_offsets, "where a batch ends; unset: latest"),
    Option("startingTimestamp", None, moment, "a new query begins with the first records of this time or later"),
    Option("startingOffsetsByTimestamp", None, moments, "the same, with a time for each partition"),
    Option(
        "startingOffsetsByTimestampStrategy", "error", choice("error", "latest"), "of a partition without such a record"
    ),
    Option("endingTimestamp", None, moment, "a batch ends in front of the first records of this time or later"),
    Option("endingOffsetsByTimestamp", None, moments, "the same, with a time for each partition"),
    Option("maxOffsetsPerTrigger", None, count, "at most that many offsets a batch, over all partitions"),
    Option("minPartitions", None, count, "tasks of a batch at least, as far as it has that many offsets"),
    Option("failOnDataLoss", "true", flag, "fail where records are gone, or go on behind them with a warning"),
    Option("includeHeaders", "false", flag, "a column with the headers"),
    Option("timeout", "2m", patience_ns, "how long brokers may give no answer before that fails"),
)


def is_topics(address: object) -> bool:
    """Tell whether what is read is said to be topics, `kafka://...`, and no files."""
    return isinstance(address, str) and address[: len(SCHEME)].lower() == SCHEME


def of_address(address: str) -> dict[str, str]:
    """Return the options that `kafka://broker:port[,broker:port]/topic[,topic]` stands for; without topics other options say which."""
    match = _ADDRESS.fullmatch(address)
    if match is None:
        msg = (
            f"{without_credentials(address)!r} is no address of topics; expected kafka://broker:9092/topic, with commas between "
            "several brokers and several topics; users and passwords are options, such as kafka.sasl.username"
        )
        raise OptionError(msg)
    servers, topics = match.groups()
    return {SERVERS: servers} | ({"subscribe": topics} if topics else {})


def parse_topics(
    given: Mapping[str, str], *, stream: bool | None, table: tuple[Option, ...] = KAFKA, what: str = "topic source"
) -> Options:
    """Return the checked options; `["kafka"]` has what is for the client, by its names, secrets as references.

    `stream`: whether they are those of a stream or of a batch; `None`: that is not known yet. `table` has at least `KAFKA`.
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
    """Return the one of some options that is given, if any is; `OptionError` for more, of which one would be passed over."""
    chosen = [name for name in names if options[name] is not None]
    if len(chosen) > 1:
        msg = f"{' and '.join(chosen)} say the same in two ways: expected one of them"
        raise OptionError(msg)
    return chosen[0] if chosen else None


def _check_mode(options: Options, *, stream: bool | None) -> None:
    """Raise `OptionError` for what a stream, or a batch, cannot have."""
    _once(options, STARTING)
    ending = _once(options, _ENDING)
    if stream is True and ending is not None:
        msg = f"{ending} is for a batch, spark.read; a stream has no end: leave it out, or take trigger(availableNow=True)"
        raise OptionError(msg)
    starting = options["startingOffsets"]
    latest = starting == "latest" or (
        isinstance(starting, dict) and any(LATEST in at.values() for at in starting.values())
    )
    if stream is False and (latest or options["maxOffsetsPerTrigger"] is not None):
        msg = f"startingOffsets=latest (or {LATEST}) and maxOffsetsPerTrigger are for a stream, spark.readStream; leave them out of a batch"
        raise OptionError(msg)


def _checked(client: dict[str, str]) -> dict[str, str]:
    """Return what is for the client; `OptionError` for what this source says itself, and for a secret that is written out."""
    for name, value in client.items():
        if name.lower() in _OURS:
            msg = f"{CLIENT}{name} cannot be set: {_OURS[name.lower()]}"
            raise OptionError(msg)
        if _SECRET.search(name.lower()):
            reference(value, CLIENT + name)
        if name.lower() == "group.id" and not value.strip():
            msg = f"{CLIENT}{name} is empty; leave it out: no offsets are kept with brokers, and each consumer has a group of its own"
            raise OptionError(msg)  # librdkafka makes no consumer of it, and the library ends the process
    if not client.get("bootstrap.servers", "").strip(", "):
        msg = 'the topic source needs brokers: expected .option("kafka.bootstrap.servers", "host:9092")'
        raise OptionError(msg)
    return client


def holds_reference(name: str, value: str) -> bool:
    """Tell whether what is said for the client by this name is where it is, and not what it is."""
    return bool(_REFERENCE.match(value) and (_SECRET.search(name) or name == "sasl.username"))
