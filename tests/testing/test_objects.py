"""The object store: a storage like any other, as far as whole puts allow, and the differences."""

from __future__ import annotations

import errno

import pytest

from penstock import clock
from penstock.clock import SECOND_NS
from penstock.errors import AlreadyThere, StorageError
from penstock.storage import ObjectStorage, names_at
from penstock.testing import FakeClock, Fault, FaultySystem, ObjectStore
from tests.support.objects_contract import ObjectsContract
from tests.support.storage_contract import InTurnContract, put


@pytest.fixture
def store() -> ObjectStore:
    return ObjectStore()


@pytest.fixture
def storage(store: ObjectStore) -> ObjectStorage:
    return store.storage()


@pytest.fixture
def root() -> str:
    return "/root"


class TestObjectStore(InTurnContract, ObjectsContract):
    pass


def test_publish_completes_after_a_crash_between_the_two_keys(store: ObjectStore) -> None:
    """If the copy was made and the old key is still there, publishing again removes the old key."""
    put(store.storage(), "/a", b"part")
    store.copy("a", "b")
    store.storage().publish("/a", "/b")
    assert dict(store.image().objects).keys() == {"b"}


def test_the_copy_of_an_object_has_another_tag(store: ObjectStore) -> None:
    """Every real server does so: to tell after a crash whether the target is its own, a caller compares the bytes."""
    put(store.storage(), "/a", b"part")
    store.copy("a", "b")
    assert store.head("a").tag != store.head("b").tag
    assert store.head("a").token
    assert not store.head("b").token


@pytest.mark.parametrize("other", [b"trap", b"longer"])
def test_publish_does_not_take_another_object_for_its_copy(store: ObjectStore, other: bytes) -> None:
    """A key that another writer has taken is refused, even if its object has the same length; this copies nothing."""
    put(store.storage(), "/a", b"part")
    put(store.storage(), "/b", other)
    copied: list[str] = []
    store.watch = lambda _, call: copied.append(call)
    with pytest.raises(AlreadyThere):
        store.storage().publish("/a", "/b")
    assert copied == []
    assert store.storage().read("/a") == b"part"


def test_a_put_that_met_another_one_is_made_again(store: ObjectStore) -> None:
    """A store refuses a put because of a concurrent one that leaves no object: a healthy driver must not be fenced by that."""
    store.conflicts = 2
    with clock.use(FakeClock()):
        store.storage().put_if_absent("/slot", b"1")
    assert store.storage().read("/slot") == b"1"


def test_a_put_that_is_always_refused_by_nobody_is_an_error(store: ObjectStore) -> None:
    """If no object is ever there, an error says so, in bounded time."""
    store.conflicts = 1000
    with clock.use(FakeClock()), pytest.raises(AlreadyThere):
        store.storage().put_if_absent("/slot", b"1")


def test_a_put_that_the_library_repeated_is_ours(store: ObjectStore) -> None:
    """obstore repeats a put whose reply was lost, and its own object then refuses it; an object of another writer is not taken for ours."""
    store.repeats = 1
    store.storage().put_if_absent("/slot", b"1")
    with pytest.raises(AlreadyThere):
        store.storage().put_if_absent("/slot", b"1")


@pytest.mark.parametrize("call", range(1, 12))
def test_lost_replies_neither_lose_nor_double(call: int) -> None:
    """Any call may be applied and reported as failed: what is put, written and published is there once, or the caller gets the error."""
    store = ObjectStore()
    system = FaultySystem(store, Fault(errno.ETIMEDOUT, applied=True), call)
    storage = system.storage()
    try:
        storage.put_if_absent("/r/slot", b"1")
        put(storage, "/r/a", b"part")
        storage.publish("/r/a", "/r/b")
    except StorageError:
        again = store.storage()
        if "slot" in names_at(again, "/r"):
            assert again.read("/r/slot") == b"1"
        for data in (again.read(f"/r/{name}") for name in names_at(again, "/r") if name != "slot"):
            assert data == b"part"
        assert system.failed not in {"put", "copy"}  # their results are checked
    else:
        assert sorted(names_at(store.storage(), "/r")) == ["b", "slot"]


def test_a_long_file_is_sent_in_pieces_and_still_takes_no_name_from_another(store: ObjectStore) -> None:
    """No store can finish an upload only if the key is free: the upload goes to a separate key, and is published from there."""
    storage = store.storage()
    piece = bytes(5 << 20)
    with storage.create("/r/a") as file:
        for _ in range(3):
            file.write(piece)
        put(storage, "/r/a", b"theirs")
        with pytest.raises(AlreadyThere):
            file.sync()
    assert storage.read("/r/a") == b"theirs"
    with storage.create("/r/b") as file:
        for _ in range(3):
            file.write(piece)
        file.sync()
    assert storage.stat("/r/b").size == 3 * len(piece)


def test_a_long_file_with_a_name_of_its_own_goes_there_at_once(store: ObjectStore) -> None:
    """A staged file's upload goes to its own key at once, without a copy, and without a check of the key."""
    calls: list[str] = []
    store.watch = lambda _, call: calls.append(call)
    with store.storage().create("/r/token", unique=True) as file:
        file.write(bytes(9 << 20))
        file.write(b"x")
        file.sync()
    assert calls == ["upload", "finish"]
    assert store.storage().stat("/r/token").size == (9 << 20) + 1


def test_what_a_dead_writer_has_uploaded_is_found_and_removed(store: ObjectStore) -> None:
    """A listing does not show an unfinished upload; a search below its path finds it once it is old enough, and it is removed."""
    storage = store.storage()
    with clock.use(FakeClock()):
        file = storage.create("/r/token", unique=True)
        file.write(bytes(9 << 20))
        begun = storage.now_ns()
        assert names_at(storage, "/r") == []
        assert list(storage.abandoned("/r", begun)) == []
        assert list(storage.abandoned("/other", begun + SECOND_NS)) == []
        ((path, number),) = storage.abandoned("/r", begun + SECOND_NS)
        assert path == "/r/token"
        storage.drop(path, number)
        storage.drop(path, number)
        assert list(storage.abandoned("/r", begun + SECOND_NS)) == []
