"""When a directory is listed again: a file in it is seen, whatever the directory's times say. Without Spark."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from penstock import clock
from penstock.source import hints
from penstock.source.cursor import FileVersion
from penstock.source.scan import Scan
from penstock.storage import Entry, LocalStorage
from penstock.testing import FakeClock

LATER = 10  # seconds after a directory's last change its times are trusted


class Watched(LocalStorage):
    """A local disk that counts listings, each taking `seconds`; with `settable` it shows only times that can be set."""

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
        return entry._replace(arrived_ns=None) if self._settable else entry


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
    """Return a scan of the directory and all directories below it."""
    return Scan(storage, str(folder), recursive=True, follow=False, accept=lambda _: True)


def came(scan: Scan) -> list[str]:
    """Return the new files that a refresh saw."""
    return [file.path for file, _ in scan.refresh().came]


def by_touch(sub: Path, tmp_path: Path) -> None:
    """Add a file, and reset the directory's time, as `touch -r` does."""
    before = sub.stat().st_mtime_ns
    (sub / "second").write_text("y")
    os.utime(sub, ns=(before, before))
    assert sub.stat().st_mtime_ns == before


def by_tar(sub: Path, tmp_path: Path) -> None:
    """Unpack an archive twice: `tar` sets the directory's time to that in the archive, both times the same."""
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
    """Add a file, and make the directory years older than before."""
    (sub / "second").write_text("y")
    os.utime(sub, (1000, 1000))


CHANGES = [by_touch, by_tar, by_copying, by_going_back]


@pytest.mark.parametrize("change", CHANGES)
def test_file_is_seen_though_its_directorys_time_stands_still(
    folder: Path, tmp_path: Path, time: FakeClock, change: Any
) -> None:
    """A directory's modification time can be set back, its change time cannot: the next trigger sees the file."""
    if change is by_tar:
        os.utime(folder / "sub", (1000, 1000))
    time.sleep(LATER)
    scan = scan_of(folder, LocalStorage())
    assert came(scan) == ["sub/first"]
    assert came(scan) == []
    change(folder / "sub", tmp_path)
    assert "sub/second" in came(scan)


def test_file_is_seen_where_no_time_shows_it(folder: Path, tmp_path: Path, time: FakeClock) -> None:
    """If a storage shows only times that can be set, everything is listed at least every half minute."""
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
    """What takes long to list is listed less often: 2 directories of 1 s each every 200 s, later faster ones every 30 s."""
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


class Looked(LocalStorage):
    """A local disk that counts looks at files, each taking ten microseconds."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0

    def stat(self, path: str) -> Entry:
        if "/f" in path:
            self.looks += 1
            clock.sleep(1e-5)
        return super().stat(path)


def test_idle_looks_at_files_take_one_percent_of_the_time(folder: Path, time: FakeClock) -> None:
    """Each trigger looked at each of 200 files, for a millisecond; with fewer looks a file rewritten in place is still seen."""
    for number in range(200):
        (folder / f"f{number}").write_text("x")
    storage = Looked()
    scan = scan_of(folder, storage)
    scan.refresh()
    time.sleep(LATER)
    scan.refresh()
    storage.looks = 0
    for _ in range(1000):
        time.sleep(0.01)
        assert not scan.refresh().came
    assert storage.looks <= (10 / 100 + 0.1) / 1e-5 + 600
    (folder / "f7").write_text("longer")
    seen: list[str] = []
    for _ in range(40):  # after a look at all files 0.2 s are due
        time.sleep(0.01)
        seen += came(scan)
    assert seen == ["f7"]


def test_directory_that_just_changed_is_listed_until_its_clock_has_gone_on(folder: Path) -> None:
    """A change within the clock tick of the last listing shows the same time, so a directory is trusted two seconds later."""
    storage = Watched()
    scan = scan_of(folder, storage)
    with clock.use(FakeClock(clock.now_ns() / 1e9)) as _:
        came(scan)
        came(scan)
    assert len(storage.listings) == 4


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_path_that_becomes_another_thing(tmp_path: Path, kind: str) -> None:
    """A directory becomes a file, or the other way round: the old content is gone, and the new content has come."""
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


class OneNumber(LocalStorage):
    """A local disk on which a new file or directory gets the inode of the one with its name before, as on disks that reuse inodes."""

    def names(self, path: str) -> dict[str, int]:
        return dict.fromkeys(super().names(path), 7)


@pytest.mark.parametrize("first", ["file", "directory"])
def test_file_and_directory_of_one_name_and_number(tmp_path: Path, first: str) -> None:
    """A file becomes a directory of the same name and inode, or the other way round: what is there is read."""
    place, inner = tmp_path / "in" / "a", tmp_path / "in" / "a" / "x"
    inner.parent.mkdir(parents=True)
    inner.write_text("x")
    scan = scan_of(tmp_path / "in", OneNumber())
    for kind in (first, "directory" if first == "file" else "file", first):
        shutil.rmtree(tmp_path / "in")
        (tmp_path / "in").mkdir()
        if kind == "file":
            place.write_text("x")
        else:
            place.mkdir()
            inner.write_text("x")
        scan.refresh()
        scan.refresh()
        assert [version.path for version in scan.files()] == (["a"] if kind == "file" else ["a/x"])


def test_what_went_is_told(folder: Path) -> None:
    """Files that are deleted, renamed, rewritten, or in a deleted directory are reported as gone; a new version as new."""
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


# -- hints ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory with more names than are listed at each change; skip if nothing can watch it."""
    made = tmp_path / "in"
    made.mkdir()
    for n in range(5):
        (made / f"f{n}").write_text("x")
    if LocalStorage().watch(str(made)) is None:
        pytest.skip("no inotify here")
    monkeypatch.setattr(hints, "_WATCHED_NAMES", 3)
    monkeypatch.setattr(hints, "_SHARE", 1e9)  # else, as few names are listed fast, the next listing is due at once
    return made


def hinted(scan: Scan) -> tuple[list[str], list[str]]:
    """Return the new and the gone files of a refresh with hints."""
    changes = scan.refresh(hints=True)
    return sorted(file.path for file, _ in changes.came), sorted(file.path for file in changes.gone)


def begin(watched: Path, storage: Watched) -> Scan:
    """Return a scan whose watch is older than its last listing: the second listing, because the directory has changed."""
    scan = scan_of(watched, storage)
    assert len(hinted(scan)[0]) == 5
    os.utime(watched)
    assert hinted(scan) == ([], [])
    storage.listings.clear()
    return scan


def test_a_large_directory_is_not_listed_for_a_new_file(watched: Path) -> None:
    """The kernel reports what comes, goes, is renamed or replaced, and directories: the same result as a listing, without one."""
    storage = Watched()
    scan = begin(watched, storage)
    (watched / "g").write_text("xy")
    (watched / "f0").unlink()
    (watched / "f1").rename(watched / "h")
    (watched / "link").symlink_to(watched / "h")
    (watched / "dangling").symlink_to(watched / "nowhere")
    (watched / ".hidden").write_text("x")
    (watched / "new").write_text("longer")
    (watched / "new").rename(watched / "f2")
    (watched / "fleeting").write_text("x")
    (watched / "fleeting").unlink()
    (watched / "deep").mkdir()
    (watched / "deep/file").write_text("x")
    assert hinted(scan) == (["deep/file", "f2", "g", "h", "link"], ["f0", "f1", "f2"])
    assert storage.listings == [str(watched / "deep")]
    assert set(scan.files()) == anew(watched)
    assert hinted(scan) == ([], [])
    (watched / "deep/file").unlink()
    (watched / "deep").rmdir()
    assert hinted(scan) == ([], ["deep/file"])
    assert set(scan.files()) == anew(watched)


def anew(folder: Path) -> set[FileVersion]:
    """Return the files that a new scan finds."""
    scan = scan_of(folder, Watched())
    scan.refresh()
    return set(scan.files())


def test_without_hints_it_is_listed(watched: Path) -> None:
    """A refresh without hints lists the directory, whatever is watched; after it, hints work again."""
    storage = Watched()
    scan = begin(watched, storage)
    (watched / "g").write_text("x")
    assert came(scan) == ["g"]
    assert storage.listings == [str(watched)]
    (watched / "h").write_text("x")
    assert hinted(scan) == (["h"], [])
    assert storage.listings == [str(watched)]


class Deaf(Watched):
    """A disk whose watches answer as the test says: nothing, or that they cannot tell."""

    answer: dict[str, Any] | None = None

    def watch(self, path: str) -> Any:
        return self

    def changes(self) -> dict[str, Any] | None:
        return self.answer


@pytest.mark.parametrize("answer", [{}, None])
def test_change_that_nobody_tells_is_listed(watched: Path, answer: dict[str, Any] | None) -> None:
    """A directory that changed although its watch reports no name, as on a network, or lost count, is listed at once."""
    storage = Deaf()
    storage.answer = {}
    scan = begin(watched, storage)
    storage.answer = answer
    (watched / "g").write_text("x")
    assert hinted(scan) == (["g"], [])
    assert storage.listings == [str(watched)]


def test_name_that_a_watch_leaves_out_is_found_within_a_minute(
    watched: Path, time: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A watch reports one name and misses another, as if another machine also writes: a listing comes nonetheless."""
    monkeypatch.setattr(hints, "_SHARE", 20)
    storage = Deaf()
    storage.answer = {}
    storage.seconds = 1.0
    scan = begin(watched, storage)
    known = scan.listed_ns
    (watched / "g").write_text("x")
    (watched / "untold").write_text("x")
    storage.answer = {"g": (watched / "g").stat().st_ino}
    assert hinted(scan) == (["g"], [])
    assert scan.listed_ns == known, "nobody may take for decided what a hint has left out"
    storage.answer = {}
    time.seconds += 15
    assert hinted(scan) == ([], [])
    time.seconds += 10
    assert hinted(scan) == (["untold"], [])
    assert scan.listed_ns > known


def test_another_directory_under_the_name_is_listed(watched: Path, tmp_path: Path) -> None:
    """The watch belongs to the former directory: the one that takes its name is listed, and then watched."""
    storage = Watched()
    scan = begin(watched, storage)
    watched.rename(tmp_path / "away")
    watched.mkdir()
    for n in range(4):
        (watched / f"n{n}").write_text("x")
    (tmp_path / "away/late").write_text("x")
    assert hinted(scan) == ([f"n{n}" for n in range(4)], [f"f{n}" for n in range(5)])
    hinted(scan)
    storage.listings.clear()
    (watched / "n9").write_text("x")
    assert hinted(scan) == (["n9"], [])
    assert storage.listings == []


def test_more_changes_than_the_kernel_keeps_are_listed(watched: Path) -> None:
    """18,000 events overflow the queue if the kernel keeps fewer: then a listing finds all files."""
    storage = Watched()
    scan = begin(watched, storage)
    for n in range(9000):
        os.close(os.open(watched / f"m{n}", os.O_CREAT | os.O_WRONLY))
        os.unlink(watched / f"m{n}")
    (watched / "last").write_text("x")
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    assert hinted(scan) == (["last"], [])
    assert (storage.listings == [str(watched)]) == (limit < 18_000)
