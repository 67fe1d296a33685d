"""The options of topics of Kafka, `format("penstock-kafka")`: those of Spark's own connector, except those that silently lose records.

Everything else that users say about topics, their address and the options of the client, is in `options.topics`.
"""

from __future__ import annotations

import json
import re
from typing import Any

from penstock.errors import OptionError
from penstock.options.option import Option
from penstock.options.parsers import choice, count, duration_ns, flag, text

LATEST, EARLIEST = -1, -2  # in place of an offset
_NAME = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")
# Only one way to write each number: of two entries for one partition one would be lost.
_PARTITION = re.compile(r"0|[1-9][0-9]{0,8}")
_MOMENT = re.compile(r"[0-9]{1,15}")
_OFFSET_MAX = (1 << 63) - 1
_LEAST_NS, _MOST_NS = 1_000_000, 3_600_000_000_000  # librdkafka's own bounds for the timeout of a request


def names_of_topics(value: str, name: str) -> tuple[str, ...]:
    """Return the names of topics, each once, sorted."""
    names = tuple(part.strip() for part in value.split(","))
    for topic in names:
        if not _NAME.fullmatch(topic):
            msg = f"{name}={value!r}: {topic!r} is not a topic name; expected letters, digits, '.', '_' or '-', such as orders,payments"
            raise OptionError(msg)
    return tuple(sorted(set(names)))


def pattern_of_topics(value: str, name: str) -> str:
    """Return a regular expression of Python."""
    try:
        re.compile(text(value, name))
    except re.error as error:
        msg = (
            f"{name}={value!r} is not a regular expression of Python, which differs from Java's: {error}; expected one such "
            "as orders-\\d+"
        )
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
    """Return `earliest`, `latest`, or the JSON object with one of these words for a topic, or an offset for each of its partitions.

    In an offset -2 is earliest, -1 latest.
    """
    return _offsets(value, name, ("earliest", "latest"), EARLIEST)


def ending_offsets(value: str, name: str) -> str | dict[str, Any]:
    """Return `latest`, or the JSON object with that word for a topic, or an offset for each of its partitions; -1 is latest."""
    return _offsets(value, name, ("latest",), LATEST)


def _offsets(value: str, name: str, words: tuple[str, ...], least: int) -> str | dict[str, Any]:
    if value.strip().lower() in words:
        return value.strip().lower()
    form = _json(value)
    given = {topic: item for topic, item in form.items() if topic[:1] != "@"} if isinstance(form, dict) else {}
    topics = {topic: item.lower() if isinstance(item, str) else item for topic, item in given.items()}
    if not topics or not all(_is_offsets_of_topic(item, words, least) for item in topics.items()):
        msg = (
            f"{name}={value!r}: expected {', '.join(words)}, or JSON with an offset of at least {least} for each partition, each once, "
            'such as {"orders": {"0": 23, "1": -1}}, or with one of these words for a topic, such as {"orders": "latest"}'
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
    """Return the JSON object with a time for each partition, in milliseconds since 1970."""
    form = _json(value)
    if not isinstance(form, dict) or not form or not all(_is_offsets_of_partitions(item, 0) for item in form.items()):
        msg = (
            f"{name}={value!r}: expected JSON with milliseconds since 1970 for each partition, each once, such as "
            '{"orders": {"0": 1700000000000}}'
        )
        raise OptionError(msg)
    return form


def patience_ns(value: str, name: str) -> int:
    """Return how long brokers may be silent, in nanoseconds."""
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
    """Return an object of JSON; `ValueError` if a key occurs twice, because one of its values would be lost."""
    form = dict(members)
    if len(form) < len(members):
        raise ValueError
    return form


def _is_list_of_partitions(item: tuple[str, Any]) -> bool:
    topic, numbers = item
    whole = isinstance(numbers, list) and all(type(number) is int and number >= 0 for number in numbers)
    return bool(_NAME.fullmatch(topic) and numbers and whole)


def _is_offsets_of_topic(item: tuple[str, Any], words: tuple[str, ...], least: int) -> bool:
    topic, offsets = item
    is_word = isinstance(offsets, str) and offsets in words
    return bool(is_word and _NAME.fullmatch(topic)) or _is_offsets_of_partitions(item, least)


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
        "startingOffsetsByTimestampStrategy",
        "error",
        choice("error", "latest"),
        "for a partition without such a record",
    ),
    Option("endingTimestamp", None, moment, "a batch ends before the first records of this time or later"),
    Option("endingOffsetsByTimestamp", None, moments, "the same, with a time for each partition"),
    Option("maxOffsetsPerTrigger", None, count, "at most that many offsets a batch, over all partitions"),
    Option("minPartitions", None, count, "tasks of a batch at least, as far as it has that many offsets"),
    Option("failOnDataLoss", "true", flag, "fail if records are gone, or continue after them with a warning"),
    Option("includeHeaders", "false", flag, "a column with the headers"),
    Option("timeout", "2m", patience_ns, "how long brokers may give no answer before that fails"),
)
