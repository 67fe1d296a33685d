"""What brokers say about topics: which exist, where their partitions begin, and up to where their records are decided."""

from __future__ import annotations

import re
from concurrent.futures import wait
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from penstock import clock
from penstock.errors import BrokerAway, TopicNotThere
from penstock.kafka import client
from penstock.kafka.offset import UNKNOWN_EPOCH, Partition

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from confluent_kafka.admin import AdminClient

    from penstock.options import Options

_T = TypeVar("_T")
_READ_UNCOMMITTED = "read_uncommitted"
# Internal topics of brokers; other topics with similar names belong to users and their tools.
_OF_BROKERS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
_AGAIN_SECONDS = 0.2  # after an answer that no leader is known
_LEAST_SECONDS = 0.001  # the shortest wait that the client accepts
_NO_SUCH_RECORD = -1  # the offset of a time after all records
_LOOK_SECONDS = 0.2  # how often connection errors are checked while there is no answer


@dataclass(frozen=True)
class Topic:
    """A topic as it is now: its id ("": the brokers have no ids) and the numbers of its partitions."""

    id: str
    partitions: tuple[int, ...]


class End(NamedTuple):
    """Where a partition ends for now, and the epoch of the leader that says so: everything before was written in that epoch or earlier."""

    offset: int
    epoch: int = UNKNOWN_EPOCH


class Asked(Protocol):
    """The questions of a planner and of a task. Asked on the driver at every trigger, and in a task twice for each range.

    Every method raises `BrokerAway`, `TopicNotThere`, `BrokerError`.
    """

    def matching(self, pattern: str) -> set[str]:
        """Return the names of the topics that match as a whole, without Kafka's internal topics."""

    def topics(self, names: Collection[str]) -> dict[str, Topic]:
        """Return the topics of these names that exist."""

    def firsts(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """Return the first offset that each partition still has."""

    def ends(self, partitions: Collection[Partition]) -> dict[Partition, End]:
        """Return the last stable offset of each partition: everything before it is decided."""

    def written(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """Return the offset after the last record of each partition, decided or not."""

    def since(self, times: Mapping[Partition, int]) -> dict[Partition, int]:
        """Return the offset of the first record of a time, in milliseconds, or later; without partitions that have no such record yet."""


class Cluster:
    """The brokers that options name. Connects at the first question; one object for each process, because it does not survive a fork.

    Answers may take as long as `timeout` says, and `most_seconds` at most. `DependencyError` if the library is missing.
    """

    def __init__(self, options: Options, most_seconds: float = inf) -> None:
        client.require()
        self._given: Mapping[str, str] = options["kafka"]
        self._seconds = min(options["timeout"] / 1_000_000_000, most_seconds)
        self.reads_uncommitted = self._given.get("isolation.level", "").lower() == _READ_UNCOMMITTED
        self._asker: AdminClient | None = None
        self._heard = client.Heard()

    def matching(self, pattern: str) -> set[str]:
        """Return the names of the topics that match as a whole, without Kafka's internal topics."""
        names = self._answer(self._names_now)
        return {name for name in names if re.fullmatch(pattern, name)} - _OF_BROKERS

    def _names_now(self, seconds: float) -> Collection[str]:
        from confluent_kafka import KafkaException

        try:
            names: Collection[str] = self._admin().list_topics(timeout=seconds).topics
        except KafkaException as error:
            raise self._told(error, "the list of topics") from error
        return names

    def topics(self, names: Collection[str]) -> dict[str, Topic]:
        """Return the topics of these names that exist."""
        return self._answer(partial(self._topics_now, sorted(names))) if names else {}

    def _topics_now(self, names: list[str], seconds: float) -> dict[str, Topic]:
        from confluent_kafka import TopicCollection

        futures = self._admin().describe_topics(TopicCollection(names), request_timeout=seconds)
        topics = {}
        for name, future in futures.items():
            try:
                described = self._result(future, f"topic {name!r}")
            except TopicNotThere:
                continue
            numbers = sorted(partition.id for partition in described.partitions)
            topics[name] = Topic(_text_of(described.topic_id), tuple(numbers))
        return topics

    def firsts(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """Return the first offset that each partition still has."""
        from confluent_kafka.admin import OffsetSpec

        ends = self._offsets(dict.fromkeys(partitions, OffsetSpec.earliest()))
        return {name: end.offset for name, end in ends.items()}

    def ends(self, partitions: Collection[Partition]) -> dict[Partition, End]:
        """Return the last stable offset of each partition; with `isolation.level=read_uncommitted` the offset after its last record."""
        from confluent_kafka.admin import OffsetSpec

        return self._offsets(dict.fromkeys(partitions, OffsetSpec.latest()))

    def written(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """Return the offset after the last record of each partition, decided or not."""
        from confluent_kafka.admin import OffsetSpec

        ends = self._offsets(dict.fromkeys(partitions, OffsetSpec.latest()), undecided=True)
        return {name: end.offset for name, end in ends.items()}

    def since(self, times: Mapping[Partition, int]) -> dict[Partition, int]:
        """Return the offset of the first record of a time, in milliseconds, or later; without partitions that have no such record yet."""
        from confluent_kafka.admin import OffsetSpec

        ends = self._offsets({partition: OffsetSpec.for_timestamp(time) for partition, time in times.items()})
        return {name: end.offset for name, end in ends.items() if end.offset >= 0}

    def _answer(self, ask: Callable[[float], _T]) -> _T:
        """Return what `ask` returns, which gets the number of seconds that are left; ask again as long as no broker can answer.

        The client waits for an answer, but not for a broker that can give it: if no leader is known yet, for example while a broker
        comes back, or if the broker that was asked goes away, the client fails at once.
        """
        until = clock.monotonic() + self._seconds
        while True:
            try:
                return ask(max(until - clock.monotonic(), _LEAST_SECONDS))
            except BrokerAway:
                if clock.monotonic() >= until:
                    raise
            # A client keeps what it knows of leaders for minutes, even if these say that it is wrong.
            self._asker = None
            clock.sleep(_AGAIN_SECONDS)

    def _offsets(self, specs: Mapping[Partition, Any], *, undecided: bool = False) -> dict[Partition, End]:
        """Return offsets of partitions; -1 if no record has the time that was asked for."""
        reads_all = undecided or self.reads_uncommitted
        return self._answer(partial(self._offsets_now, specs, reads_all)) if specs else {}

    def _offsets_now(self, specs: Mapping[Partition, Any], undecided: bool, seconds: float) -> dict[Partition, End]:  # noqa: FBT001 - `partial` passes it
        from confluent_kafka import IsolationLevel, TopicPartition

        asked = {TopicPartition(*partition): spec for partition, spec in specs.items()}
        level = IsolationLevel.READ_UNCOMMITTED if undecided else IsolationLevel.READ_COMMITTED
        futures = self._admin().list_offsets(asked, isolation_level=level, request_timeout=seconds)
        ends = {}
        for place, future in futures.items():
            words = f"the offsets of partition {place.partition} of topic {place.topic!r}"
            answer = self._result(future, words)
            if answer.offset < _NO_SUCH_RECORD:
                # The client returns this, without an error, for a partition whose leader went away with the question.
                msg = f"{words}: the leader gave no answer{self._heard.words}; see that the brokers run and can be reached from here"
                raise BrokerAway(msg)
            epoch = UNKNOWN_EPOCH if answer.leader_epoch is None else answer.leader_epoch
            ends[Partition(place.topic, place.partition)] = End(answer.offset, epoch)
        return ends

    def _admin(self) -> AdminClient:
        if self._asker is None:
            self._asker = client.asker(self._given, self._heard.hear)
        return self._asker

    def _result(self, future: Any, asked: str) -> Any:  # noqa: ANN401 - each question has another type of answer
        """Return an answer; if a broker refuses, stop waiting, because there will be none."""
        from confluent_kafka import KafkaException

        while not wait([future], _LOOK_SECONDS).done:
            self._admin().poll(0)
            if (refusal := self._heard.refusal) is not None:
                raise client.told(refusal, asked, self._given)
        try:
            answer = future.result()
        except KafkaException as error:
            raise self._told(error, asked) from error
        self._heard.forget()
        return answer

    def _told(self, error: Exception, asked: str) -> Exception:
        """Return the error of a question as one of ours: if a broker has refused before, that is the reason for no answer."""
        self._admin().poll(0)
        return client.told(self._heard.refusal or error.args[0], asked + self._heard.words, self._given)


def _text_of(name: Any) -> str:  # noqa: ANN401 - the library's Uuid
    """Return an id as text; empty for brokers that have no ids."""
    text = str(name) if name is not None else ""
    return "" if not text.strip("A") else text
