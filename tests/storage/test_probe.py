"""A place is tried before it is used: what works, what is broken, and that the trial leaves nothing behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock import clock
from penstock.errors import NoSpace, StorageError
from penstock.storage import LocalStorage, names_at, probe
from tests.support.storages import STORAGES

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("kind", STORAGES)
def test_storages_hold_what_an_output_needs(kind: str) -> None:
    """Each promise is tried on every kind of storage, and everything made for the trial is gone."""
    storage = STORAGES[kind]()
    storage.make_directory("/data")
    found = probe(storage, "/data")
    assert found.holds
    assert len(found.tried) == 8
    assert found.directory == "/data"
    assert names_at(storage, "/data") == []


def test_output_that_is_still_to_be_made(tmp_path: Path) -> None:
    """A missing output is tried in the directory where it would be created, and is not created."""
    found = probe(LocalStorage(), f"{tmp_path}/a/b/c")
    assert found.holds
    assert found.directory == str(tmp_path)
    assert found.clock_seconds is not None
    assert abs(found.clock_seconds) < 5
    assert list(tmp_path.iterdir()) == []


def test_file_is_no_output(tmp_path: Path) -> None:
    """A file in the place of an output is refused."""
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="is a file; expected a directory"):
        probe(LocalStorage(), f"{tmp_path}/file")


class Broken(LocalStorage):
    """A local disk that breaks one promise, as network and user-space file systems do."""

    def __init__(self, promise: str) -> None:
        super().__init__()
        self.broken = promise

    def make_directory(self, path: str, *, private: bool = False) -> None:
        if self.broken == "make":
            msg = "cannot make a directory: Permission denied"
            raise StorageError(msg)
        super().make_directory(path, private=private)

    def create(self, path: str, *, unique: bool = False) -> Any:
        if self.broken == "space":
            msg = "cannot write: No space left on device"
            raise NoSpace(msg)
        if self.broken == "exclusive":
            self.delete(path)
        return super().create(path, unique=unique)

    def names(self, path: str) -> dict[str, Any]:
        return {} if self.broken == "list" else super().names(path)

    def read(self, path: str) -> bytes:
        return b"" if self.broken == "read" else super().read(path)

    def publish(self, source: str, target: str, *, as_it_is: bool = False) -> None:
        if self.broken == "link":
            msg = "cannot publish: Operation not permitted"
            raise StorageError(msg)
        if self.broken == "replace":
            self.delete(target)
        super().publish(source, target, as_it_is=as_it_is)

    def put_if_absent(self, path: str, data: bytes) -> None:
        if self.broken == "put":
            self.delete(path)
        super().put_if_absent(path, data)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("promise", "told"),
    [
        ("make", "Permission denied"),
        ("space", "No space left"),
        ("exclusive", "does not keep it from that"),
        ("list", "was listed as"),
        ("read", "other ones read"),
        ("link", "Operation not permitted"),
        ("replace", "does not keep it from that"),
        ("put", "does not keep it from that"),
    ],
)
def test_broken_promise_is_named(tmp_path: Path, promise: str, told: str) -> None:
    """The trial stops at the first broken promise and says how it is broken; nothing is left behind."""
    found = probe(Broken(promise), str(tmp_path))
    assert not found.holds
    assert [each.broken is None for each in found.tried] == [True] * (len(found.tried) - 1) + [False]
    assert told in str(found.tried[-1].broken)
    assert list(tmp_path.iterdir()) == []


def test_clock_of_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe reports how far the storage's clock is ahead of this machine's: parts roll by one, files settle by the other."""
    monkeypatch.setattr(clock, "now_ns", lambda now=clock.now_ns: now() - 60 * clock.SECOND_NS)
    found = probe(LocalStorage(), str(tmp_path))
    assert found.clock_seconds is not None
    assert 55 < found.clock_seconds < 65
