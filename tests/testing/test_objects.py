"""The object store: a storage like any other, as far as one can be on whole puts, and what is different."""

from __future__ import annotations

import pytest

from penstock.errors import AlreadyThere, NotThere, StorageError
from penstock.storage import Storage
from penstock.testing import ObjectStore
from tests.support.storage_contract import InTurnContract, StorageContract, put


@pytest.fixture
def storage() -> Storage:
    made = ObjectStore().storage()
    made.make_directory("/root")
    return made


@pytest.fixture
def root() -> str:
    return "/root"


class TestObjectStore(InTurnContract, StorageContract):
    """Where a test has another body here, the store cannot keep the promise as it is written, and this is what it does."""

    def test_a_file_whose_name_went_does_not_close_well(self, storage: Storage, root: str) -> None:
        """A file is nowhere before it is put, so its name cannot go; but another file can take it."""
        file = storage.create(f"{root}/a")
        file.write(b"mine")
        put(storage, f"{root}/a", b"theirs")
        with pytest.raises(AlreadyThere):
            file.close()
        assert storage.read(f"{root}/a") == b"theirs"

    def test_an_open_file_stays_the_same_file(self, storage: Storage, root: str) -> None:
        """An open file never reads the bytes of another: it fails."""
        put(storage, f"{root}/a", b"old")
        with storage.open(f"{root}/a") as file:
            storage.delete(f"{root}/a")
            put(storage, f"{root}/a", b"new one")
            with pytest.raises(NotThere):
                file.read(0, 10)

    def test_extend_goes_on(self, storage: Storage, root: str) -> None:
        """Objects do not grow, and that is said."""
        with pytest.raises(StorageError, match="growing=true needs a disk"):
            storage.extend(f"{root}/g", 0)


def test_nothing_is_there_before_it_is_put(storage: Storage) -> None:
    """A file that is being written is not listed; it is there, whole, after `sync`, and takes no more."""
    with storage.create("/root/a") as file:
        file.write(b"x")
        assert list(storage.names("/root")) == []
        file.sync()
        assert storage.read("/root/a") == b"x"
        with pytest.raises(StorageError, match="put once"):
            file.write(b"y")


def test_publish_completes_after_a_crash_between_the_two_keys() -> None:
    """With the copy made and the old key still there, publishing again removes it."""
    store = ObjectStore()
    put(store.storage(), "/a", b"part")
    store.copy("/a", "/b")
    store.storage().publish("/a", "/b")
    assert dict(store.image().objects).keys() == {"/b"}


def test_the_copy_of_an_object_has_another_tag() -> None:
    """As on every real server: so who asks after a crash whether the target is its own compares the bytes."""
    store = ObjectStore()
    store.put("/a", b"part")
    store.copy("/a", "/b")
    assert store.head("/a").tag != store.head("/b").tag


@pytest.mark.parametrize("other", [b"trap", b"longer"])
def test_publish_does_not_take_another_object_for_its_copy(other: bytes) -> None:
    """A key that somebody else has taken is refused, also where the object there is as long."""
    store = ObjectStore()
    put(store.storage(), "/a", b"part")
    store.put("/b", other)
    with pytest.raises(AlreadyThere):
        store.storage().publish("/a", "/b")
    assert store.head("/a").data == b"part"
