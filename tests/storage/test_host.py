"""A user's cache, and directories for temporary files: on a machine that has none of the user's, too."""

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
    """Return where temporary files go."""
    path = tmp_path / "temporary"
    path.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    return path


@pytest.fixture(params=["unwritable", "nameless", "file"])
def homeless(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the user have no home to write to."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    (tmp_path / "file").touch()
    home = {"unwritable": "/proc", "nameless": "~", "file": str(tmp_path / "file")}[request.param]
    if request.param == "nameless":
        monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    monkeypatch.setenv("HOME", home)


@pytest.mark.usefixtures("homeless")
def test_cache_of_a_user_without_a_home(temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a directory of ours among the temporary ones, closed to others, and what is kept there is found."""
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
    """Nobody's HOME may not exist: to ask where the cache is must not make it, root's question neither."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "nonexistent"))
    assert cached("x") is None
    assert Path(cache_directory()).parent == temporary
    assert not (tmp_path / "nonexistent").exists()


@pytest.mark.usefixtures("homeless")
def test_cache_of_a_stranger_is_not_taken(temporary: Path) -> None:
    """Anybody may make a directory under the name of ours: what lies there, a JVM would map and run."""
    theirs = temporary / f"penstock-{os.getuid()}"
    theirs.mkdir()
    theirs.chmod(0o777)
    (theirs / "x").touch()
    assert cached("x") is None
    with pytest.raises(StorageError, match="is not a directory of user"):
        cache_directory()


def test_cache_where_it_is_named(temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """XDG_CACHE_HOME is taken if it is a path from the root, as its specification says; nothing is made by looking."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cached("x") is None
    assert cache_directory() == f"{tmp_path}/.cache/penstock"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "named"))
    assert cached("x") is None
    assert not (tmp_path / "named").exists()
    assert cache_directory() == f"{tmp_path}/named/penstock"


def test_directories_that_cannot_be_written(tmp_path: Path) -> None:
    """It is tried, since neither modes nor a user's number say it; nothing is left of that."""
    assert can_write(str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    assert not can_write("/proc")
    assert not can_write(str(tmp_path / "missing"))
    assert free_bytes(str(tmp_path)) > 0
    with pytest.raises(StorageError):
        free_bytes(str(tmp_path / "missing"))


def test_socket_with_too_long_a_name(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused, and not left open."""
    long = temporary / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with pytest.raises(OSError, match="too long"):
        listening("fork")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_directory_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk takes the name of a file and not a byte of it: a JVM that is sent there does not start."""
    assert can_write(str(tmp_path))
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: open("/dev/full", "wb", buffering=0))  # noqa: SIM115
    assert not can_write(str(tmp_path))
