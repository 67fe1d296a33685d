"""What is remembered of a file that grows: earlier positions, by which a shorter copy is recognised, and files that are away."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from penstock.source import growth
from penstock.source.cursor import FileVersion
from penstock.source.growth import Away, Beside, Growing, is_named_like
from penstock.storage import LocalStorage

if TYPE_CHECKING:
    from pathlib import Path


def growing(path: str = "app.log", identity: str = "7", at: int = 0, digest: str = "") -> Growing:
    """Return a followed file."""
    return Growing(path, identity, at, digest, at, 1)


@pytest.mark.parametrize(
    ("path", "original", "like"),
    [
        ("app.log.1", "app.log", True),
        ("old-app.log", "app.log", True),
        ("app.log", "app.log.1", False),
        ("app.log", "app.log", False),
        ("a/app.log.1", "a/app.log", True),
        ("b/app.log.1", "a/app.log", False),
        ("other.log", "app.log", False),
    ],
)
def test_names_of_copies(path: str, original: str, like: bool) -> None:
    """A rotation makes the longer name, beside the file; the file that took the name of a renamed one is no copy of it."""
    assert is_named_like(path, original) is like


def beside(folder: Path, **files: bytes) -> Beside:
    """Put files into a directory."""
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return Beside(LocalStorage(), str(folder))


def version(folder: Path, name: str, identity: str = "9") -> FileVersion:
    """Return a file as a listing would show it, with a number of its own."""
    return FileVersion(name, os.path.getsize(folder / name), 1, identity)


def digest(look: Beside, name: str, end: int) -> str:
    """Return the digest of the first bytes of a file."""
    found = look.seen(FileVersion(name, end, 1, ""), end)
    assert found is not None
    return found


def test_a_shorter_copy_is_one_that_was_seen(tmp_path: Path) -> None:
    """A file that ends before what is planned by now is a copy if one was seen that ends there, with these bytes."""
    look = beside(tmp_path, log=b"0123456789", log1=b"0123", log2=b"01x3", log3=b"01234", log4=b"0")
    file = growing("log", at=10, digest=digest(look, "log", 10))
    file.earlier = ((2, digest(look, "log", 2), 1), (4, digest(look, "log", 4), 2))
    assert look.is_copy(version(tmp_path, "log1"), file)
    assert not look.is_copy(version(tmp_path, "log2"), file), "it has the first two bytes, but not the first four"
    assert not look.is_copy(version(tmp_path, "log3"), file), "it begins as a copy does, and goes on"
    assert not look.is_copy(version(tmp_path, "log4"), file), "it reaches no position"
    (tmp_path / "another").write_bytes(b"0123")
    assert not look.is_copy(version(tmp_path, "another"), file)
    assert look.is_copy(version(tmp_path, "another", file.identity), file), (
        "its number tells that it is the file itself"
    )
    assert Growing.of(file.to_json()).earlier == file.earlier
    file.closed = True
    assert Growing.of(file.to_json(), closed=True).earlier == (), "a closed file does not grow"


def test_a_copy_that_is_as_long_has_all_of_it(tmp_path: Path) -> None:
    """A copy that may have all that was read must have it; of a file of which nothing was read each name like its own is one."""
    look = beside(tmp_path, log=b"0123", log1=b"0123456", log2=b"012x")
    file = growing("log", at=4, digest=digest(look, "log", 4))
    assert look.is_copy(version(tmp_path, "log1"), file)
    assert not look.is_copy(version(tmp_path, "log2"), file)
    assert look.is_copy(version(tmp_path, "log2"), growing("log"))


def test_where_a_copy_ends_is_remembered(tmp_path: Path) -> None:
    """Of a shorter file with the same bytes; the latest few are kept, each once."""
    look = beside(tmp_path, log=b"0123456789", log1=b"0123", log2=b"01x3", log3=b"", log4=b"0123456789")
    file = growing("log", at=10, digest=digest(look, "log", 10))
    for name in ("log2", "log3", "log4"):
        look.mark(file, version(tmp_path, name))
        assert file.earlier == ()
    look.mark(file, version(tmp_path, "log1"))
    look.mark(file, version(tmp_path, "log1"))
    assert [mark[:2] for mark in file.earlier] == [(4, digest(look, "log", 4))]
    for size in range(5, 9):
        (tmp_path / "log1").write_bytes(b"0123456789"[:size])
        look.mark(file, version(tmp_path, "log1"))
    assert [mark[0] for mark in file.earlier] == [5, 6, 7, 8]


def test_files_that_are_away_are_remembered_for_a_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Files of which something was read are remembered, the latest of them, until they come back, which they do once."""
    monkeypatch.setattr(growth, "_AWAY_NS", 100)
    monkeypatch.setattr(growth, "_AWAY_FILES", 2)
    look = beside(tmp_path, log=b"0123", other=b"0123")
    away = Away()
    away.note(growing("unread", "1"), 1000)
    assert away.to_json() == []
    read = [growing(name, str(number), 4, digest(look, "log", 4)) for number, name in enumerate(("a", "log", "c"), 1)]
    for file in read:
        away.note(file, 1000)
    assert [file[0] for file, _ in away.to_json()] == ["log", "c"]
    assert away.back(version(tmp_path, "other"), look) is None
    assert Away(away.to_json()).back(version(tmp_path, "log"), look) == read[1]
    other = version(tmp_path, "other", "2")
    assert away.back(other._replace(modified_ns=2), look) is None, (
        "a number and a short beginning under another name are not enough"
    )
    assert away.back(other, look) is read[1]
    assert away.back(other, look) is None
    assert away.back(FileVersion("c", 3, 1, ""), look) is None, "it is shorter than what was read"
    away.note(growing("late", "4", 4, "d"), 1099)
    assert [file[0] for file, _ in away.to_json()] == ["c", "late"]
    away.note(growing("unread", "1"), 1100)
    assert [file[0] for file, _ in away.to_json()] == ["late"]
