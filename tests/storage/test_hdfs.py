"""HDFS keeps the contract, on a real one, and what is its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock import unique
from penstock.errors import StorageError
from penstock.storage import HdfsStorage, Storage
from tests.support.storage_contract import StorageContract, put

if TYPE_CHECKING:
    from tests.support.hdfs import MiniHdfs


@pytest.fixture
def storage(hdfs: MiniHdfs) -> HdfsStorage:
    return HdfsStorage(hdfs.authority)


@pytest.fixture
def root(hdfs: MiniHdfs, storage: HdfsStorage) -> str:
    path = f"{hdfs.url}/{unique.token()}"
    storage.make_directory(path)
    return path


class TestHdfsStorage(StorageContract):
    def test_an_open_file_stays_the_same_file(self, storage: Storage, root: str) -> None:
        """A reader reads the file it opened, or nothing: never another one that has its name by now."""
        put(storage, f"{root}/a", b"old")
        with storage.open(f"{root}/a") as file:
            before = file.info()
            storage.delete(f"{root}/a")
            put(storage, f"{root}/a", b"new one")
            try:
                found = file.read(0, 10)
            except StorageError:
                found = b"old"  # its blocks are gone
            assert found == b"old"
            assert (before.size, before.identity) == (file.info().size, file.info().identity)

    @pytest.mark.parametrize("name", ["a b", "50%", "#1", "what?", "it's", '"q"', "ü", "-rf", "a\nb", "a+b%20c"])
    def test_odd_names_are_names(self, storage: Storage, root: str, name: str) -> None:
        """Any character but a slash and a colon may be in a name."""
        super().test_odd_names_are_names(storage, root, name)
