"""A user's cache, and directories for temporary files, also on a machine where the user has none."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import pytest

from penstock.errors import StorageError
from penstock.storage import cache_directory, cached, can_write, free_bytes, listening


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory for temporary files."""
    path = tmp_path / "temporary"
    path.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    return path


@pytest.fixture(params=["unwritable", "nameless", "file"])
def homeless(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the user no home that can be written to."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    (tmp_path / "file").touch()
    home = {"unwritable": "/proc", "nameless": "~", "file": str(tmp_path / "file")}[request.param]
    if request.param == "nameless":
        monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    monkeypatch.setenv("HOME", home)


@pytest.mark.usefixtures("homeless")
def test_cache_of_a_user_without_a_home(temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache is then our directory among the temporary ones, closed to others, and files kept there are found."""
    monkeypatch.chdir(tmp_path)
    assert cached("x") is None
    assert list(temporary.iterdir()) == []
    directory = Path(cache_directory())
    assert directory.parent == temporary
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    (directory / "x").touch()
    assert cached("x") == str(directory / "x")
    assert not list(tmp_path.glob("~*")), "a home that is not known is no directory of that name here"


def test_home_that_is_not_there_is_not_made(temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The HOME of user `nobody` may not exist: asking for the cache must not create it, not even for root."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "nonexistent"))
    assert cached("x") is None
    assert Path(cache_directory()).parent == temporary
    assert not (tmp_path / "nonexistent").exists()


@pytest.mark.usefixtures("homeless")
def test_cache_of_a_stranger_is_not_taken(temporary: Path) -> None:
    """Anybody could create a directory with our name: a JVM would map and run what lies there, so it is refused."""
    theirs = temporary / f"penstock-{os.getuid()}"
    theirs.mkdir()
    theirs.chmod(0o777)
    (theirs / "x").touch()
    assert cached("x") is None
    with pytest.raises(StorageError, match="is not a directory of user"):
        cache_directory()


def test_cache_where_it_is_named(temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """XDG_CACHE_HOME counts if it is an absolute path, as its specification says; a look creates nothing."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cached("x") is None
    assert cache_directory() == f"{tmp_path}/.cache/penstock"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "named"))
    assert cached("x") is None
    assert not (tmp_path / "named").exists()
    assert cache_directory() == f"{tmp_path}/named/penstock"


def test_directories_that_cannot_be_written(tmp_path: Path) -> None:
    """Writing is tried, because neither permissions nor a user id show whether it works; the trial leaves nothing behind."""
    assert can_write(str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    assert not can_write("/proc")
    assert not can_write(str(tmp_path / "missing"))
    assert free_bytes(str(tmp_path)) > 0
    with pytest.raises(StorageError):
        free_bytes(str(tmp_path / "missing"))


def test_socket_with_too_long_a_name(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket whose path is too long is refused."""
    long = temporary / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with pytest.raises(OSError, match="too long"):
        listening("fork")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_directory_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk accepts the name of a file but not a byte: a JVM with that directory would not start."""
    assert can_write(str(tmp_path))
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: open("/dev/full", "wb", buffering=0))  # noqa: SIM115
    assert not can_write(str(tmp_path))
