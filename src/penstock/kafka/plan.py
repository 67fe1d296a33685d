"""Plans what is next: which partitions a query reads, and from where to where; detects each way in which records can have been lost.

If a loss is no failure (`failOnDataLoss=false`) the plan continues after it, and a warning says how much was lost; the offset notes it,
so that a replay reads the same.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from heapq import nlargest
from typing import TYPE_CHECKING, Any

from penstock.errors import (
    BrokerError,
    OptionError,
    RecordsLost,
    RecordsReplaced,
    TopicNotThere,
    TopicReplaced,
    TransactionOpen,
)
from penstock.kafka.cluster import End
from penstock.kafka.offset import OffsetCounts, Partition, Positions
from penstock.kafka.resting import Resting, whose
from penstock.options.internal import SPLITS
from penstock.options.kafka import EARLIEST, LATEST

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from penstock.kafka.cluster import Asked, Topic
    from penstock.options import Options

# For at most so many partitions the offsets left are reported, because each one is a time series of a monitor.
_TOLD_PARTITIONS = 100
_TOLD_MISTAKES = 10
_WORDS = {"earliest": EARLIEST, "latest": LATEST}
_TIME = {"startingOffsets": "startingTimestamp", "endingOffsets": "endingTimestamp"}
_TIMES = {"startingOffsets": "startingOffsetsByTimestamp", "endingOffsets": "endingOffsetsByTimestamp"}
_log = logging.getLogger("penstock.kafka")
_HOW = "or set failOnDataLoss=false, which continues with what is there and says what was skipped"


class TopicPlanner:
    """Plans one batch after the other. No plan follows from an earlier one: each is made of what brokers say now."""

    def __init__(self, options: Options, cluster: Asked) -> None:
        self._options, self._cluster = options, cluster
        self._limit: int | None = options["maxOffsetsPerTrigger"]
        self._seals = options.values.get("emit") == SPLITS
        self._zone: str | None = options.values.get("sessionTimeZone")
        self._pinned: Mapping[Partition, tuple[str, End]] | None = None  # with the ids of topics
        self._resting = Resting(options["kafka"]["bootstrap.servers"])
        self._missing: set[Partition] = set()  # partitions that are gone, and were already reported

    def initial(self) -> dict[str, Any]:
        """Return the offset before the first batch. `TopicNotThere`, `OptionError` for offsets of other partitions, `BrokerError`."""
        return replace(self._at("startingOffsets"), begins=True).form()

    def whole(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the offsets between which a batch of `spark.read` lies.

        Raises the errors of `initial`, and `OptionError` for an end that is not there yet, or that lies before the beginning.
        """
        begin, positions = self._at("startingOffsets"), self._at("endingOffsets")
        ends = self._cluster.ends(list(positions.next))
        for partition, at in positions.next.items():
            if at > ends[partition].offset:
                msg = f"endingOffsets has {at} for {partition}, expected at most {ends[partition].offset}, its last stable offset"
                raise OptionError(msg)
            if begin.next.get(partition, 0) > at:
                msg = (
                    f"the batch would begin at offset {begin.next[partition]} of {partition}, and end at {at}; expected startingOffsets "
                    "that are not after endingOffsets, nor after the end of the partition"
                )
                raise OptionError(msg)
        return begin.form(), replace(positions, epochs=_epochs(ends)).form()

    def prepare_available_now(self) -> None:
        """Limit the run to the records that are decided now."""
        topics, partitions = self._selected(self._names())  # the next plan reports what is missing
        ends = self._cluster.ends(partitions)
        self._pinned = {partition: (topics[partition.topic].id, end) for partition, end in ends.items()}

    def latest(self, start: dict[str, Any], *, limited: bool = True) -> dict[str, Any]:
        """Return the offset of the end of the next batch; `start` itself if there is nothing new.

        The first batch exists even if it has no records: Spark asks for the offset before it at each start, and if that is `latest`, or
        retention moves on, it is another one each time. So the end of this batch says where it began.
        """
        before = Positions.of(start)
        topics, partitions = self._selected({partition.topic for partition in before.next})
        replaced_topics = self._replaced(before, topics)
        unasked, missing = self._left_out(before, partitions, replaced_topics)
        gone = self._check_missing(missing)
        at, begun = self._going_on(before, partitions, replaced_topics)
        begun = dict(at) if before.begins else begun
        ends = self._ends(at, topics)
        self._check_ends(at, ends)
        if self._pinned is None:
            self._resting.see(at, ends, self._cluster)
        whole = {partition: max(at[partition], end.offset) for partition, end in ends.items()}
        upto = _shared(at, whole, self._limit) if limited and self._limit is not None else whole
        ids = _ids(topics, before, gone | unasked)
        if upto | gone == before.next and _are_alike(before.ids, ids) and not before.begins:
            return start
        epochs = _epochs(ends) | _still_known(before, at, upto, begun)
        planned = Positions(upto | gone, ids, begun, _counted(before, at, upto, whole), epochs=epochs, unasked=unasked)
        return (replace(planned, zone=self._zone, sealed=True) if self._seals else planned).form()

    def _going_on(
        self, before: Positions, partitions: Collection[Partition], replaced_topics: set[str]
    ) -> tuple[dict[Partition, int], dict[Partition, int]]:
        """Return the next offset of each partition, and those offsets that differ from the end of the last batch (or from 0)."""
        every = {**before.unasked, **before.next}
        read = {partition: at for partition, at in every.items() if partition.topic not in replaced_topics}
        known = {partition.topic for partition in read}
        # Otherwise a partition that is new here existed before, and was not asked for.
        comes = self._options["assign"] is None
        firsts = self._cluster.firsts(partitions)
        at, begun = {}, {}
        for partition in sorted(partitions):
            usual = before.next.get(partition, 0)
            continues = partition in read or (comes and partition.topic in known)
            at[partition] = self._begin(partition, read.get(partition, 0) if continues else None, firsts[partition])
            if at[partition] != usual:
                begun[partition] = at[partition]
        return at, begun

    def _begin(self, partition: Partition, expected: int | None, first: int) -> int:
        """Return where a partition continues that should do so at `expected`; `None`: wherever it begins, because its topic is new."""
        if expected is None:
            if first:
                _log.warning("partition %s is new here: it begins at offset %d, which is its first", partition, first)
            return first
        if first > expected:
            self._lost(lost(partition, expected, first))
            return first
        return expected

    def _ends(self, at: Mapping[Partition, int], topics: Mapping[str, Topic]) -> dict[Partition, End]:
        """Return where each partition ends for now; in an AvailableNow run, what appeared after its line does not count yet."""
        if self._pinned is None:
            return self._cluster.ends(list(at))
        ends = {}
        for partition, position in at.items():
            name, end = self._pinned.get(partition, ("", None))
            ends[partition] = end if end is not None and name == topics[partition.topic].id else End(position)
        return ends

    def _check_ends(self, at: dict[Partition, int], ends: dict[Partition, End]) -> None:
        """Look for partitions that were cut off: that end before the offset up to which they were read.

        A partition is not cut off if its next offset is only undecided, for example if another reader, which reads open transactions,
        has written the offset.
        """
        short = sorted(partition for partition, end in ends.items() if end.offset < at[partition])
        written, decided = self._cluster.written(short), self._cluster.ends(short)
        for partition in short:
            if written[partition] < at[partition]:
                self._lost(cut_off(partition, at[partition], written[partition]))
                at[partition] = decided[partition].offset

    def _replaced(self, before: Positions, topics: Mapping[str, Topic]) -> set[str]:
        """Return the topics that were made anew; `TopicReplaced` if that is a failure."""
        names = {name for name, known in before.ids.items() if name in topics and topics[name].id not in {known, ""}}
        for name in sorted(names):
            self._lost(replaced(name, before.ids[name], topics[name].id))
        return names

    def _left_out(
        self, before: Positions, partitions: Collection[Partition], replaced_topics: set[str]
    ) -> tuple[dict[Partition, int], dict[Partition, int]]:
        """Return the next offsets of partitions that were read and are not selected: of those that exist, and of those that do not.

        The former may be asked for again, and then go on there.
        """
        unasked, gone = (
            {name: at for name, at in each.items() if name not in partitions and name.topic not in replaced_topics}
            for each in (before.unasked, before.next)
        )
        still = self._cluster.topics({partition.topic for partition in gone})
        missing: dict[Partition, int] = {}
        for partition, at in sorted(gone.items()):
            topic = still.get(partition.topic)
            if topic is not None and partition.number in topic.partitions:
                _log.info("partition %s is no longer asked for; it was read up to offset %d", partition, at)
                unasked[partition] = at
            else:
                missing[partition] = at
        return unasked, missing

    def _check_missing(self, missing: Mapping[Partition, int]) -> dict[Partition, int]:
        """Report partitions that were read and no longer exist, each once.

        Return the next offsets of those that are still named, because a topic may come back.
        """
        for partition in sorted(set(missing) - self._missing):
            msg = (
                f"partition {partition.number} of topic {partition.topic!r} is gone, which was read up to offset "
                f"{missing[partition]}: the topic was deleted; take it out of the options and start the query with a new "
                f"checkpoint, {_HOW}"
            )
            self._lost(TopicNotThere(msg))
        self._missing = set(missing)
        named = self._options["subscribe"] or self._options["assign"] or ()
        return {partition: at for partition, at in missing.items() if partition.topic in named}

    def _lost(self, error: BrokerError) -> None:
        """Raise an error of lost data, or log it."""
        if self._options["failOnDataLoss"]:
            raise error
        _log.warning("failOnDataLoss=false: %s", error)

    def _selected(self, known: Collection[str]) -> tuple[dict[str, Topic], set[Partition]]:
        """Return the topics that the options name, with their partitions; a missing topic that is not `known` is an error."""
        names = self._names()
        topics = self._cluster.topics(names)
        if missing := sorted(names - set(topics) - set(known)):
            servers = self._options["kafka"]["bootstrap.servers"]
            msg = (
                f"topic {missing[0]!r} is not there, expected it at {servers}: make it, or mend its name in subscribe or assign; "
                "subscribePattern takes topics when they come"
            )
            raise TopicNotThere(msg)
        existing = {Partition(name, number) for name, topic in topics.items() for number in topic.partitions}
        return topics, existing if self._options["assign"] is None else self._assigned(existing, known)

    def _assigned(self, existing: set[Partition], known: Collection[str]) -> set[Partition]:
        """Return the existing partitions that are assigned; `TopicNotThere` for one that never existed."""
        wanted = {Partition(name, number) for name, numbers in self._options["assign"].items() for number in numbers}
        for name, number in sorted(wanted - existing):
            if name not in known:
                msg = f"topic {name!r} has no partition {number}: mend assign"
                raise TopicNotThere(msg)
        return wanted & existing

    def _names(self) -> set[str]:
        pattern = self._options["subscribePattern"]
        if pattern is not None:
            return self._cluster.matching(pattern)
        return set(self._options["subscribe"] or self._options["assign"])

    def _at(self, option: str) -> Positions:
        """Return the positions that an option says, for every partition that exists."""
        topics, partitions = self._selected(())
        ids = {name: topic.id for name, topic in topics.items()}
        times = self._options[_TIMES[option]] if self._options[_TIME[option]] is None else self._options[_TIME[option]]
        if times is not None:
            return self._at_times(option, times, partitions, ids)
        word = self._options[option]
        if word == "earliest":
            return Positions(self._cluster.firsts(partitions), ids)
        if word == "latest":
            return _at_ends(self._cluster.ends(partitions), ids)
        given = _named(option, word, partitions)
        firsts = self._cluster.firsts({partition for partition, at in given.items() if at == EARLIEST})
        ends = self._cluster.ends({partition for partition, at in given.items() if at == LATEST})
        latest = _at_ends(ends, ids)
        return replace(latest, next={**given, **firsts, **latest.next})

    def _at_times(
        self, option: str, times: int | Mapping[str, Any], partitions: set[Partition], ids: Mapping[str, str]
    ) -> Positions:
        """Return the positions of the first records of a time or later; if there is none yet, the end of the partition, as in Spark."""
        given = (
            dict.fromkeys(partitions, times) if isinstance(times, int) else _named(_TIMES[option], times, partitions)
        )
        first = self._cluster.since(given)
        without = sorted(partitions - set(first))
        if without and option == "startingOffsets" and self._options["startingOffsetsByTimestampStrategy"] == "error":
            msg = (
                f"partition {without[0]} has no record of {given[without[0]]} ms since 1970 or later; expected one in each partition: say "
                "an earlier time, or set startingOffsetsByTimestampStrategy=latest, which begins such a partition with its next record"
            )
            raise OptionError(msg)
        latest = _at_ends(self._cluster.ends(without), ids)
        return replace(latest, next={**first, **latest.next})


def _named(option: str, form: Mapping[str, Any], partitions: set[Partition]) -> dict[Partition, int]:
    """Return an option's value for each partition; `OptionError` unless exactly the partitions that are read are named."""
    given: dict[Partition, int] = {}
    for topic, offsets in form.items():
        if isinstance(
            offsets, str
        ):  # for the whole topic; a topic that is not read must be refused, so it gets one partition
            of_topic = [partition for partition in partitions if partition.topic == topic] or [Partition(topic, 0)]
            given |= dict.fromkeys(of_topic, _WORDS[offsets])
        else:
            given |= {Partition(topic, int(number)): at for number, at in offsets.items()}
    if set(given) != partitions:
        wrong = sorted(partitions ^ set(given))
        names = ", ".join(map(str, wrong[:_TOLD_MISTAKES]))
        more = f", and {len(wrong) - _TOLD_MISTAKES} more" if wrong[_TOLD_MISTAKES:] else ""
        msg = f"{option} has to name the partitions that are read, all of them and no other; mend {names}{more}"
        raise OptionError(msg)
    return given


def _counted(
    before: Positions, at: Mapping[Partition, int], upto: Mapping[Partition, int], whole: Mapping[Partition, int]
) -> OffsetCounts:
    """Return the counts of a batch from `at` to `upto`, if `whole` are the ends of the partitions."""
    read = sum(upto.values()) - sum(at.values()) + (before.counts.read if before.counts else 0)
    left = {partition: end - upto[partition] for partition, end in whole.items()}
    most = nlargest(_TOLD_PARTITIONS, filter(left.get, left), key=left.__getitem__)
    return OffsetCounts(read, sum(left.values()), {partition: left[partition] for partition in most})


def _ids(topics: Mapping[str, Topic], before: Positions, gone: Collection[Partition]) -> dict[str, str]:
    """Return the ids of topics, and the former ids of topics that are gone."""
    of_gone = {partition.topic: before.ids.get(partition.topic, "") for partition in gone}
    return of_gone | {name: topic.id for name, topic in topics.items()}


def _are_alike(known: Mapping[str, str], ids: Mapping[str, str]) -> bool:
    """Tell whether topics have the ids in an offset, if it has any."""
    return not known or known == {name: topic_id for name, topic_id in ids.items() if topic_id}


def _still_known(
    before: Positions, at: Mapping[Partition, int], upto: Mapping[Partition, int], begun: Mapping[Partition, int]
) -> dict[Partition, int]:
    """Return the epochs that stay: without new records nobody asks, so the old epoch stays for the records before."""
    return {
        name: epoch for name, epoch in before.epochs.items() if name not in begun and upto.get(name) == at.get(name)
    }


def _epochs(ends: Mapping[Partition, End]) -> dict[Partition, int]:
    return {partition: end.epoch for partition, end in ends.items()}


def _at_ends(ends: Mapping[Partition, End], ids: Mapping[str, str]) -> Positions:
    return Positions({partition: end.offset for partition, end in ends.items()}, ids, epochs=_epochs(ends))


def lost(partition: Partition, expected: int, first: int) -> RecordsLost:
    """Return the error for records that are gone before they were read."""
    msg = (
        f"partition {partition.number} of topic {partition.topic!r} begins at offset {first}, expected {expected}, which is next: "
        f"retention took {first - expected} offsets before they were read; restore them and give the topic a longer retention, {_HOW}"
    )
    return RecordsLost(msg, topic=partition.topic, partition=partition.number, offset=expected, first=first)


def cut_off(partition: Partition, expected: int, end: int) -> RecordsLost:
    """Return the error for a partition that ends before its next offset."""
    msg = (
        f"partition {partition.number} of topic {partition.topic!r} ends at offset {end}, expected at least {expected}, which a batch has "
        "reached or startingOffsets say: the topic was cut, or made anew; give the query a new checkpoint and startingOffsets, "
        f"{_HOW}"
    )
    return RecordsLost(msg, topic=partition.topic, partition=partition.number, offset=expected, first=end)


def overwritten(partition: Partition, at: int, epoch: int) -> RecordsReplaced:
    """Return the error for records that replaced others, before `at`."""
    msg = (
        f"partition {partition.number} of topic {partition.topic!r} has records before offset {at} that are later than epoch {epoch}, "
        f"expected those that were there when {at} was planned: the partition was cut when its leader changed (an unclean election, or a "
        "broker that came back without its data), and others are in their place; give the query a new checkpoint, with startingOffsets "
        f"before the cut, {_HOW}"
    )
    return RecordsReplaced(msg, topic=partition.topic, partition=partition.number, offset=at, epoch=epoch)


def undecided(partition: Partition, end: int, stable: int, seconds: float, given: Mapping[str, str]) -> TransactionOpen:
    """Return the error for a range that cannot be read because a transaction is open from offset `stable` on."""
    msg = (
        f"partition {partition.number} of topic {partition.topic!r} has a transaction that is open from offset {stable} on, and was for "
        f"{seconds:g} s; expected it to end, because what comes after it, up to {end}, was planned and cannot be read before that: "
        "wait for its producer, or for the broker to abort it (transaction.timeout.ms of the producer), then start the query again; or "
        f"set a larger timeout; {whose(partition, stable, given['bootstrap.servers'])}"
    )
    return TransactionOpen(msg, topic=partition.topic, partition=partition.number, offset=stable)


def replaced(name: str, known: str, found: str) -> TopicReplaced:
    """Return the error for a topic that is another one than was planned."""
    msg = (
        f"topic {name!r} has the id {found}, expected {known}: it was deleted and made anew, and what was not read of it is gone; "
        f"give the query a new checkpoint, {_HOW}, from its first record on"
    )
    return TopicReplaced(msg)


def _shared(at: Mapping[Partition, int], upto: Mapping[Partition, int], limit: int) -> dict[Partition, int]:
    """Return the ends of a batch of about `limit` offsets, in proportion to what each partition has; at least one if it has any."""
    total = sum(upto.values()) - sum(at.values())
    if total <= limit:
        return dict(upto)
    return {
        partition: at[partition] + min(end - at[partition], max(1, limit * (end - at[partition]) // total))
        for partition, end in upto.items()
    }
