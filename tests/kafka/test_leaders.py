"""Leaders change, go down and come back while a range is read: on brokers without Java, whose epochs rise as real brokers' do."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from penstock.errors import BrokerAway, RecordsLost, RecordsReplaced
from penstock.kafka import read
from penstock.kafka.cluster import Cluster, End
from penstock.kafka.offset import UNKNOWN_EPOCH, Partition, Range
from tests.kafka.topics import options
from tests.support import brokers as without_java
from tests.support.follows import follows
from tests.support.jars import NoJars
from tests.support.required import missing

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from tests.support.brokers import Brokers

FIRST, SECOND = 1, 2  # epochs of the leaders below
SMALL = {"kafka.fetch.message.max.bytes": "2000", "kafka.queued.min.messages": "1", "timeout": "30s"}


@pytest.fixture
def brokers() -> Iterator[Brokers]:
    """Yield the brokers of this test."""
    try:
        with without_java.running() as two:
            yield two
    except NoJars as error:
        missing("KAFKA", error)


@pytest.fixture
def leaders(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> Brokers:
    """Return brokers with records 0 to 4 of the first epoch, and 5 to 9 of the second, which is the current one."""
    brokers.send(*(b"%d" % number for number in range(5)))
    brokers.lead(2)
    brokers.send(*(b"%d" % number for number in range(5, 10)))

    def ends(_: Cluster, partitions: Collection[Partition]) -> dict[Partition, End]:
        return dict.fromkeys(partitions, End(10, SECOND))  # these brokers do not report epochs

    monkeypatch.setattr(Cluster, "ends", ends)
    return brokers


def values(brokers: Brokers, wanted: Range, **given: str) -> list[bytes]:
    """Return the values of a range."""
    batches = read.read(options(brokers.servers, subscribe=brokers.topic, **SMALL, **given), wanted)
    return [value for batch in batches for value in batch["value"].to_pylist()]


def offsets(begin: int, end: int, *, epoch: int = UNKNOWN_EPOCH, before: int = UNKNOWN_EPOCH) -> Range:
    """Return a range of the topic, without the topic's id."""
    return Range(Partition("orders", 0), begin, end, epoch=epoch, before=before)


def numbers(begin: int, end: int) -> list[bytes]:
    """Return the values of records from one offset to another."""
    return [b"%d" % number for number in range(begin, end)]


@follows("PST-905")
@pytest.mark.parametrize(
    ("wanted", "place"),
    [
        (offsets(3, 8, epoch=FIRST), 8),  # it contains records of a later leader
        (offsets(8, 10, epoch=SECOND, before=FIRST), 8),  # a record of a later leader comes before it
        (offsets(6, 7, epoch=SECOND, before=FIRST), 6),
        (offsets(0, 10, epoch=FIRST), 10),
    ],
)
def test_records_of_a_later_leader_stand_in_the_place_of_others(leaders: Brokers, wanted: Range, place: int) -> None:
    """Records of a later leader than the plan's, in or before a range, are an error, or are read if that is not a failure."""
    assert values(leaders, offsets(0, 10)) == numbers(0, 10), "the client is one that knows the leader"
    with pytest.raises(RecordsReplaced, match=f"before offset {place}") as caught:
        values(leaders, wanted)
    assert (caught.value.offset, caught.value.epoch) == (place, FIRST)
    assert values(leaders, wanted, failOnDataLoss="false") == numbers(wanted.begin, wanted.end)


def test_what_nobody_sees_is_asked_of_the_leader(leaders: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    """No reader sees the records of an aborted transaction, so the leader must say at the end that one is from a later leader."""
    monkeypatch.setattr(read._Reader, "_check_epoch", lambda *_: None)
    with pytest.raises(RecordsReplaced, match="before offset 8"):
        values(leaders, offsets(3, 8, epoch=FIRST))


@pytest.mark.parametrize(
    "wanted",
    [
        offsets(0, 5, epoch=FIRST),
        offsets(2, 5, epoch=FIRST, before=FIRST),
        offsets(5, 10, epoch=SECOND, before=FIRST),
        offsets(0, 10, epoch=SECOND),
        offsets(7, 9),  # at an offset that a later leader has written
    ],
)
def test_a_leader_that_has_all_records_is_no_loss(leaders: Brokers, wanted: Range) -> None:
    """Another leader of the same records changes nothing, whatever the plan knew."""
    assert values(leaders, wanted) == numbers(wanted.begin, wanted.end)


def test_a_look_after_a_range_while_its_reading_ends(leaders: Brokers) -> None:
    """The client refuses to seek while it still leaves the offset before: the code waits, and does not report that brokers refuse."""
    wanted = offsets(2, 5, epoch=FIRST, before=FIRST)
    for _ in range(40):
        assert values(leaders, wanted) == numbers(2, 5)


def test_a_range_that_ends_in_front_of_its_end(leaders: Brokers) -> None:
    """A partition shorter than a range is an error at once, not a silent broker; a reader that accepts losses gets what is there."""
    for wanted in (offsets(3, 15, epoch=SECOND), offsets(3, 15)):
        begun = time.monotonic()
        with pytest.raises(RecordsLost, match="ends at offset 10, expected at least 15") as caught:
            values(leaders, wanted)
        assert (caught.value.offset, caught.value.first) == (15, 10)
        assert time.monotonic() - begun < 20, "not after `timeout`"
        assert values(leaders, wanted, failOnDataLoss="false") == numbers(3, 10)


def test_an_epoch_that_goes_back(leaders: Brokers) -> None:
    """A leader with an earlier epoch than the plan's belongs to another cluster, or to a restored copy."""
    with pytest.raises(RecordsReplaced):
        values(leaders, offsets(0, 5, epoch=SECOND + 1))


@pytest.mark.parametrize("leader", [1, 2])
@pytest.mark.slow
def test_broker_goes_in_the_middle_of_a_range(brokers: Brokers, monkeypatch: pytest.MonkeyPatch, leader: int) -> None:
    """The broker goes while a range is half read, and it comes back or another one leads: the rest comes, each record once, in order."""
    monkeypatch.setattr(read, "_BATCH_ROWS", 10)
    brokers.send(*(b"%d" % number + bytes(1000) for number in range(60)))
    reading = read.read(options(brokers.servers, subscribe=brokers.topic, **SMALL), offsets(0, 60))
    seen = next(reading)["offset"].to_pylist()
    assert 0 < len(seen) < 40
    brokers.down(1)
    if leader == 2:
        brokers.lead(2)
    else:
        brokers.up(1)
    seen += [offset for batch in reading for offset in batch["offset"].to_pylist()]
    assert seen == list(range(60))


@pytest.mark.slow
def test_groups_that_nobody_has_a_right_to(brokers: Brokers) -> None:
    """A user may read a topic but no group: the client asks for the group by itself, and no offset is stored there."""
    brokers.refuse_groups()
    brokers.send(*numbers(0, 5))
    for _ in range(5):  # it depends on the network whether the records or the refusal come first
        read._pool.cache_clear()
        assert values(brokers, offsets(0, 5)) == numbers(0, 5)
    brokers.lead(-1)
    read._pool.cache_clear()
    with pytest.raises(BrokerAway, match="gave nothing for 3 s"):
        list(read.read(options(brokers.servers, subscribe=brokers.topic, timeout="3s"), offsets(0, 5)))


def test_ends_are_asked_for_until_somebody_leads(brokers: Brokers) -> None:
    """A partition has no leader for a moment, as while a broker restarts: the client says so at once, and it is not yet a failure."""
    brokers.send(b"0", b"1")
    cluster = Cluster(options(brokers.servers, subscribe=brokers.topic, **SMALL))
    partition = Partition(brokers.topic, 0)
    assert cluster.ends([partition])[partition].offset == 2
    brokers.lead(-1)
    with ThreadPoolExecutor(1) as threads:
        ends = threads.submit(cluster.ends, [partition])
        time.sleep(0.5)  # the time of some answers
        assert not ends.done()
        brokers.lead(2)
        assert ends.result(30)[partition].offset == 2


def test_ends_that_nobody_knows_in_time(brokers: Brokers) -> None:
    """Without a leader for as long as `timeout`, it is a failure."""
    brokers.lead(-1)
    cluster = Cluster(options(brokers.servers, subscribe=brokers.topic, **{**SMALL, "timeout": "1s"}))
    with pytest.raises(BrokerAway, match="the offsets of partition 0 of topic"):
        cluster.ends([Partition(brokers.topic, 0)])


def test_pieces_of_a_range_know_what_it_knows() -> None:
    """Only the first piece of a range asks what comes before the range; each piece has the plan's epoch."""
    whole = offsets(5, 9, epoch=SECOND, before=FIRST)
    assert whole.piece(5, 7) == replace(whole, end=7)
    assert whole.piece(7, 9) == offsets(7, 9, epoch=SECOND)
    assert Range.from_json(whole.to_json()) == whole
