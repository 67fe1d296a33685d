"""Object stores that are faulty, or shared with others: what is reported before anything starts, and what succeeds nonetheless."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from penstock.errors import AccessRefused, CommitError, PublishConflict, StorageError
from penstock.ingestion.call import IngestCall
from penstock.ingestion.ingest import check
from penstock.options import SINK, SOURCE, parse
from penstock.sink.sink import Batch, Sink
from penstock.source.scan import Scan
from penstock.storage import ObjectStorage, locate, names_at
from penstock.verify import verify
from tests.support.stores import Relay

if TYPE_CHECKING:
    from penstock.sink.sink import Begun, TaskResult

pytestmark = pytest.mark.slow  # starts a server

_numbers = count()
LINES = pa.schema([("value", pa.string())])


@pytest.fixture
def place() -> str:
    """Return an address that no other test uses."""
    return f"s3://bucket/{next(_numbers)}"


def opened(root: str, **options: str) -> Sink:
    """Return the sink of an output."""
    storage, path = locate(root)
    return Sink(storage, path, parse(SINK, {"path": path, "rollBatches": "1", **options}, what="sink"), "sink")


def staged(sink: Sink, owner: str, number: int, tasks: int = 2) -> tuple[Batch, Begun, list[TaskResult]]:
    """Begin a batch, and write its lines."""
    batch = Batch("query", number, str(number))
    begun = sink.begin(owner, batch)
    results = [
        sink.write(begun, "query", number, task, LINES, [f"{number} {task}\n".encode()]) for task in range(tasks)
    ]
    return batch, begun, results


def committed(sink: Sink, owner: str, number: int) -> None:
    """Write and commit a batch."""
    batch, _, results = staged(sink, owner, number)
    sink.commit(batch, results)


def lines_below(root: str) -> Counter[str]:
    """Return how often each line is visible."""
    storage, path = locate(root)
    names = [entry.name for entry in storage.list(path) if entry.is_file and entry.name[0] not in "._"]
    return Counter(line for name in names for line in storage.read(f"{path}/{name}").decode().splitlines())


def expected(batches: int) -> Counter[str]:
    """Return the lines of that many batches."""
    return Counter(f"{number} {task}" for number in range(batches) for task in range(2))


# -- what is reported before Spark starts ---------------------------------------------------------------------------------


@pytest.mark.parametrize("right", ["list", "get", "put", "delete"])
def test_a_right_that_is_missing_is_told_before_spark_starts(
    relay: Relay, place: str, tmp_path: Path, right: str
) -> None:
    """Keys lack one right: the ingest says so before it starts anything, in the store's words and with the object."""
    locate(place)[0].put_if_absent(f"{place}/in/a.txt", b"one\n")
    relay.refuses = {right: (403, "AccessDenied", "Access Denied.")}
    with pytest.raises(AccessRefused, match=r"Access Denied|403|refuse") as raised:
        check(IngestCall(f"{place}/in", f"{place}/out", source={}, sink={}, checkpoint=f"{tmp_path}/checkpoint"))
    assert "get, put, delete, list" in str(raised.value)
    relay.refuses = {}
    check(IngestCall(f"{place}/in", f"{place}/out", source={}, sink={}, checkpoint=f"{tmp_path}/checkpoint"))


@pytest.mark.parametrize("status", [403, 400])
def test_a_clock_that_is_wrong_is_told_as_that(relay: Relay, place: str, status: int) -> None:
    """A store refuses requests signed at another time than its own: the advice is to set the clock, not to check the keys."""
    storage, path = locate(place)
    relay.refuses = dict.fromkeys(
        ("list", "get", "put"), (status, "RequestTimeTooSkewed", "The times differ by too much.")
    )
    with pytest.raises(AccessRefused, match=r"The times differ by too much.*set this machine's clock"):
        storage.stat(path)
    relay.refuses.pop("list")
    with pytest.raises(AccessRefused, match=r"The times differ by too much.*set this machine's clock"):
        storage.put_if_absent(f"{path}/a", b"x")


@pytest.mark.parametrize("code", ["ExpiredToken", "InvalidToken", "TokenRefreshRequired"])
def test_credentials_that_expire_are_refused_as_such(relay: Relay, place: str, code: str) -> None:
    """For an expired session S3 answers "bad request" (400), not "forbidden": it is `AccessRefused`, without retries."""
    storage, path = locate(place)
    storage.put_if_absent(f"{path}/a", b"x")
    relay.refuses = dict.fromkeys(("list", "get", "put", "delete"), (400, code, "The provided token has expired."))
    before = relay.requests
    for call in (
        storage.stat,
        storage.read,
        storage.delete,
        lambda path: list(storage.list(path)),
        lambda path: storage.put_if_absent(path, b""),
    ):
        with pytest.raises(AccessRefused, match=r"has expired|400"):
            call(f"{path}/a")
    assert relay.requests - before <= 20, "what is refused for good was tried again and again"
    relay.refuses = {}
    assert storage.read(f"{path}/a") == b"x"


# -- what succeeds nonetheless --------------------------------------------------------------------------------------------


def test_credentials_expire_in_mid_batch(relay: Relay, place: str) -> None:
    """Keys expire between a batch's tasks and its commit: none of it is visible, and with new keys it is there once."""
    sink = opened(place)
    committed(sink, "driver", 0)
    batch, _, results = staged(sink, "driver", 1)
    relay.refuses = dict.fromkeys(("list", "get", "put"), (400, "ExpiredToken", "The provided token has expired."))
    with pytest.raises(AccessRefused):
        sink.commit(batch, results)
    relay.refuses = {}
    assert lines_below(place) == expected(1)
    again = opened(place)
    committed(again, "driver-2", 1)
    assert lines_below(place) == expected(2)
    assert verify(place).ok


def test_a_store_that_is_away_for_a_while_is_waited_for(relay: Relay, place: str) -> None:
    """The store is away for a second in the middle of a batch: puts, reads and listings wait, and every line is there once."""
    sink = opened(place)
    committed(sink, "driver", 0)
    relay.away = True
    back = threading.Timer(1.0, lambda: setattr(relay, "away", False))
    back.start()
    committed(sink, "driver", 1)
    assert not relay.away
    back.join()
    assert lines_below(place) == expected(2)
    assert verify(place).ok


def test_storms_of_refusals_and_lost_replies(relay: Relay, place: str) -> None:
    """Every fifth request is refused as too many, every thirteenth reply is lost: a sink's batches succeed, each line once."""
    sink = opened(place)
    committed(sink, "driver", 0)
    relay.storms, relay.loses = 5, 13
    for number in range(1, 4):
        committed(sink, "driver", number)
    relay.storms = relay.loses = 0
    assert lines_below(place) == expected(4)
    assert verify(place).ok


def test_a_driver_that_stood_still_is_fenced(relay: Relay, place: str) -> None:
    """A driver stops with a staged batch, and another one does that batch and the next: the first one commits nothing."""
    stopped, other = opened(place), opened(place)
    committed(stopped, "driver", 0)
    batch, _, results = staged(stopped, "driver", 1)
    for number in (1, 2):
        committed(other, "driver-2", number)
    with pytest.raises(CommitError):
        stopped.commit(batch, results)
    other.finish()
    assert lines_below(place) == expected(3)
    assert verify(place).ok


# -- objects of others ----------------------------------------------------------------------------------------------------


def test_objects_that_others_put_below_the_output(relay: Relay, place: str) -> None:
    """Directory markers, foreign files, also among our state: none of them is touched, and the sink continues."""
    key = place.removeprefix("s3://bucket/")
    with closing(relay.server.client()) as client:

        def put(name: str, data: bytes = b"theirs") -> None:
            client.put_object(Bucket="bucket", Key=f"{key}/{name}", Body=data)

        put("", b"")
        put("_penstock/", b"")
        sink = opened(place)
        committed(sink, "driver", 0)
        strange = {
            "notes.txt",
            "_penstock/notes.txt",
            "_penstock/sink/notes.txt",
            "_penstock/sink/ledger/notes.txt",
            "sub/notes.txt",
        }
        for name in strange:
            put(name)
        for number in (1, 2):
            committed(opened(place), f"driver-{number}", number)
        ours = lines_below(place) - Counter(["theirs"])
        assert ours == expected(3)
        keys = {entry["Key"].removeprefix(f"{key}/") for entry in client.list_objects_v2(Bucket="bucket")["Contents"]}
    assert keys >= strange


def test_somebody_elses_object_has_the_name_of_a_part(
    relay: Relay, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A taken name is an error with its key, also one that is taken after the decision, and its object is never replaced."""
    sink, (storage, path) = opened(place), locate(place)
    batch, _, results = staged(sink, "driver", 0)
    storage.put_if_absent(f"{path}/part-sink-0-0.txt", b"theirs\n")
    with pytest.raises(PublishConflict, match=rf"{path}/part-sink-0-0\.txt.*no such file"):
        sink.commit(batch, results)
    assert storage.read(f"{path}/part-sink-0-0.txt") == b"theirs\n"
    storage.delete(f"{path}/part-sink-0-0.txt")
    sink.commit(batch, results)
    batch, _, results = staged(sink, "driver", 1)
    publish = ObjectStorage.publish

    def late(self: ObjectStorage, source: str, target: str, **options: bool) -> None:
        storage.put_if_absent(target, b"theirs, too\n")
        publish(self, source, target, **options)

    with monkeypatch.context() as patched:
        patched.setattr(ObjectStorage, "publish", late)
        with pytest.raises(PublishConflict, match=rf"{path}/part-sink-\d+-\d+\.txt") as raised:
            sink.commit(batch, results)
    theirs = next(name for name in names_at(storage, path) if f"{path}/{name}'" in str(raised.value))
    assert storage.read(f"{path}/{theirs}") == b"theirs, too\n"
    storage.delete(f"{path}/{theirs}")
    opened(place).finish()
    assert lines_below(place) == expected(2)


def test_keys_that_nobody_can_read_are_told(relay: Relay, place: str) -> None:
    """A key with two slashes is valid for S3 but not for the library: a listing that meets one says so."""
    storage, path = locate(f"{place}/in")
    storage.put_if_absent(f"{path}/a.txt", b"one\n")
    with closing(relay.server.client()) as client:
        client.put_object(Bucket="bucket", Key=f"{path.removeprefix('s3://bucket/')}/b//c.txt", Body=b"two\n")
    scan = Scan.of(storage, path, parse(SOURCE, {"path": path, "recursiveFileLookup": "true"}, what="source"))
    with pytest.raises(StorageError, match="no key of an object store"):
        scan.refresh()
