"""The promises of `Storage` on object stores. Where a test is overridden here, such a store cannot keep the promise as written."""

from __future__ import annotations

import pytest

from penstock.errors import AlreadyThere, NotThere, StorageError
from penstock.storage import Storage, names_at
from tests.support.storage_contract import StorageContract, put


class ObjectsContract(StorageContract):
    """Inherit from this, with the fixtures `storage` and `root`."""

    def test_a_file_whose_name_went_does_not_close_well(self, storage: Storage, root: str) -> None:
        """A file does not exist before it is put, so its name cannot disappear; but another file can take the name."""
        file = storage.create(f"{root}/a")
        file.write(b"mine")
        put(storage, f"{root}/a", b"theirs")
        with pytest.raises(AlreadyThere):
            file.close()
        assert storage.read(f"{root}/a") == b"theirs"

    def test_an_open_file_stays_the_same_file(self, storage: Storage, root: str) -> None:
        """An open file never reads another file's bytes; beyond its beginning, which is in memory, a read fails."""
        put(storage, f"{root}/a", bytes(1 << 20))
        with storage.open(f"{root}/a") as file:
            storage.delete(f"{root}/a")
            with pytest.raises(NotThere):
                file.read(1 << 19, 10)
            put(storage, f"{root}/a", b"1" * (1 << 20))
            with pytest.raises(NotThere):
                file.read(1 << 19, 10)
            assert file.read(0, 10) == bytes(10)

    def test_extend_goes_on(self, storage: Storage, root: str) -> None:
        """Objects do not grow, and the error says so."""
        with pytest.raises(StorageError, match="growing=true needs a disk"):
            storage.extend(f"{root}/g", 0)

    @pytest.mark.parametrize("name", ["a b", "50%", "#1", "what?", "it's", '"q"', "ü", "-rf"])
    def test_odd_names_are_names(self, storage: Storage, root: str, name: str) -> None:
        """A name that the store takes as a key works; the storage refuses others (`test_names_that_are_no_keys`)."""
        put(storage, f"{root}/{name}", b"x")
        assert [entry.name for entry in storage.list(root)] == [name]
        assert storage.read(f"{root}/{name}") == b"x"

    def test_nothing_is_there_before_it_is_put(self, storage: Storage, root: str) -> None:
        """A file that is being written is not listed; after `sync` it is there, complete, and takes no more bytes."""
        with storage.create(f"{root}/a") as file:
            file.write(b"x")
            assert names_at(storage, root) == []
            file.sync()
            assert storage.read(f"{root}/a") == b"x"
            with pytest.raises(StorageError, match="put once"):
                file.write(b"y")

    def test_empty_and_long_files_are_published(self, storage: Storage, root: str) -> None:
        """An empty file, and one that is sent in several pieces, is published and can be read to its end."""
        for name, data in (("empty", b""), ("long", bytes(range(256)) * (80 << 10))):
            put(storage, f"{root}/{name}.staged", data)
            storage.publish(f"{root}/{name}.staged", f"{root}/{name}")
            assert storage.read(f"{root}/{name}") == data
            assert storage.stat(f"{root}/{name}").size == len(data)
        assert set(names_at(storage, root)) == {"empty", "long"}

    def test_listings_and_looks_agree(self, storage: Storage, root: str) -> None:
        """An object has the same size, time and identity in a listing, in `stat`, and when open: else it would pass for another version."""
        put(storage, f"{root}/a", b"x")
        put(storage, f"{root}/d/b", b"y")
        listed = {entry.name: entry for entry in storage.list(root)}
        assert listed["a"] == storage.stat(f"{root}/a") == storage.names(root)["a"]
        with storage.open(f"{root}/a") as file:
            assert file.info() == listed["a"]
        assert listed["d"].is_directory
