"""When a directory is listed again: whatever its times say, a file in it is seen. Without Spark."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock import clock
from penstock.source.scan import Scan
from penstock.storage import Entry, LocalStorage
from penstock.testing import FakeClock

LATER = 10  # seconds behind the last change of a directory, when its times are believed


class Watched(LocalStorage):
    """A local disk that counts listings, each of which takes `seconds`; `settable` shows no times but those that can be set."""

    def __init__(self, *, settable: bool = False) -> None:
        super().__init__()
        self.listings: list[str] = []
        self.seconds = 0.0
        self._settable = settable

    def names(self, path: str) -> dict[str, int]:
        self.listings.append(path)
        clock.sleep(self.seconds)
        return super().names(path)

    def stat(self, path: str) -> Entry:
        entry = super().stat(path)
        return replace(entry, arrived_ns=None) if self._settable else entry


@pytest.fixture
def time() -> Any:
    fake = FakeClock(clock.now_ns() / 1e9 + LATER)
    with clock.use(fake):
        yield fake


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "in"
    (made / "sub").mkdir(parents=True)
    (made / "sub/first").write_text("x")
    return made


def scan_of(folder: Path, storage: LocalStorage) -> Scan:
    """Return a scan of the directory and those below it."""
    return Scan(storage, str(folder), recursive=True, follow=False, accept=lambda _: True)


def came(scan: Scan) -> list[str]:
    """Return the files that a refresh saw come."""
    return [file.path for file, _ in scan.refresh().came]


def by_touch(sub: Path, tmp_path: Path) -> None:
    """Add a file, and set the directory's time back to what it was, as `touch -r` does."""
    before = sub.stat().st_mtime_ns
    (sub / "second").write_text("y")
    os.utime(sub, ns=(before, before))
    assert sub.stat().st_mtime_ns == before


def by_tar(sub: Path, tmp_path: Path) -> None:
    """Unpack an archive twice: `tar` sets the directory's time to the archive's, the second time as the first time."""
    (tmp_path / "packed/sub").mkdir(parents=True)
    (tmp_path / "packed/sub/second").write_text("y")
    os.utime(tmp_path / "packed/sub", (1000, 1000))
    for command in (("-cf", tmp_path / "packed", "sub"), ("-xf", sub.parent)):
        how, place, *names = map(str, command)
        subprocess.run(["/usr/bin/env", "tar", how, str(tmp_path / "a.tar"), "-C", place, *names], check=True)


def by_copying(sub: Path, tmp_path: Path) -> None:
    """Copy a directory over it with its times, as `cp -a`, `rsync -a` and backups do."""
    shutil.copytree(sub, tmp_path / "copied")
    (tmp_path / "copied/second").write_text("y")
    shutil.copystat(sub, tmp_path / "copied")
    shutil.copytree(tmp_path / "copied", sub, dirs_exist_ok=True)


def by_going_back(sub: Path, tmp_path: Path) -> None:
    """Add a file, and let the directory be years older than before."""
    (sub / "second").write_text("y")
    os.utime(sub, (1000, 1000))


CHANGES = [by_touch, by_tar, by_copying, by_going_back]


@pytest.mark.parametrize("change", CHANGES)
def test_file_is_seen_though_its_directorys_time_stands_still(
    folder: Path, tmp_path: Path, time: FakeClock, change: Any
) -> None:
    """A directory's modification time can be set back, its change time cannot: the file is seen by the next trigger."""
    if change is by_tar:
        os.utime(folder / "sub", (1000, 1000))
    time.sleep(LATER)
    scan = scan_of(folder, LocalStorage())
    assert came(scan) == ["sub/first"]
    assert came(scan) == []
    change(folder / "sub", tmp_path)
    assert "sub/second" in came(scan)


def test_file_is_seen_where_no_time_shows_it(folder: Path, tmp_path: Path, time: FakeClock) -> None:
    """Where a storage shows nothing that cannot be set, all is listed in any case: within half a minute."""
    storage = Watched(settable=True)
    scan = scan_of(folder, storage)
    assert came(scan) == ["sub/first"]
    by_touch(folder / "sub", tmp_path)
    for _ in range(29):
        time.sleep(1)
        assert came(scan) == []
    assert len(storage.listings) == 2
    time.sleep(1)
    assert came(scan) == ["sub/second"]
    assert len(storage.listings) == 4


def test_listing_in_any_case_takes_one_percent_of_the_time(folder: Path, time: FakeClock) -> None:
    """What takes long to list is listed less often: 2 directories of 1 s each every 200 s; and at once after an error."""
    storage = Watched()
    storage.seconds = 1
    scan = scan_of(folder, storage)
    came(scan)
    for _ in range(199):
        time.sleep(1)
        came(scan)
    assert len(storage.listings) == 2
    time.sleep(1)
    came(scan)
    assert len(storage.listings) == 4
    storage.seconds = 0
    time.sleep(200)
    came(scan)
    assert len(storage.listings) == 6
    time.sleep(29)
    came(scan)
    assert len(storage.listings) == 6
    time.sleep(1)
    came(scan)
    assert len(storage.listings) == 8


def test_directory_that_just_changed_is_listed_until_its_clock_has_gone_on(folder: Path) -> None:
    """A change within the tick of the last listing shows no other time: so a directory is believed two seconds later."""
    storage = Watched()
    scan = scan_of(folder, storage)
    with clock.use(FakeClock(clock.now_ns() / 1e9)) as _:
        came(scan)
        came(scan)
    assert len(storage.listings) == 4


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_path_that_becomes_another_thing(tmp_path: Path, kind: str) -> None:
    """A path that was a directory and is a file, or the other way round: what was there is gone, and what is there has come."""
    path = tmp_path / "in"
    scan = scan_of(path, LocalStorage())
    for turn in range(3):
        is_file = (turn % 2 == 0) == (kind == "file")
        if is_file:
            path.write_text("x")
        else:
            path.mkdir()
            (path / "a").write_text("x")
        changes = scan.refresh()
        assert [file.path for file, _ in changes.came] == ["" if is_file else "a"]
        assert [file.path for file in changes.gone] == ([] if turn == 0 else ["a" if is_file else ""])
        path.unlink() if is_file else shutil.rmtree(path)


def test_what_went_is_told(folder: Path) -> None:
    """Files that are deleted, renamed, rewritten, or in a directory that is gone, go; the new version comes."""
    for name in ("a", "b", "c"):
        (folder / name).write_text("x")
    scan = scan_of(folder, LocalStorage())
    assert sorted(came(scan)) == ["a", "b", "c", "sub/first"]
    (folder / "a").unlink()
    (folder / "b").rename(folder / "d")
    (folder / "c").write_text("longer")
    shutil.rmtree(folder / "sub")
    changes = scan.refresh()
    assert sorted(file.path for file in changes.gone) == ["a", "b", "c", "sub/first"]
    assert sorted(file.path for file, _ in changes.came) == ["c", "d"]
