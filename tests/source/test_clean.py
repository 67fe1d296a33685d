"""What happens to files after they were read: archived or deleted, each only when nobody needs it any more. Without Spark."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import stat
import tempfile
from pathlib import Path
from typing import Any

import pytest

from penstock import clock, failpoints
from penstock.errors import FileChanged, OptionError
from penstock.source.archive import archived_files
from penstock.source.clean import Cleaner
from penstock.source.cleaned import Reached, home_of
from penstock.source.plan import Planner
from penstock.source.scan import Scan
from penstock.storage import LocalStorage, entry_at, names_at
from penstock.testing import CrashHdfs, FakeClock
from tests.support import storage_contract as contract
from tests.support.driven import TEXT, DrivenSource

SECOND = 1_000_000_000


class Query(DrivenSource):
    """A source over a directory, whose files are cleaned at the calls that Spark makes."""

    planner: Planner

    def __init__(self, path: Path, **options: Any) -> None:
        super().__init__(TEXT, **{"path": str(path), "settle": "0s", "recursiveFileLookup": "true", **options})

    def read(self, number: int = -1) -> list[Any]:
        """Read a batch of the log, and clean the preceding one, as happens when Spark replays a batch."""
        if len(self.log) > 1:
            self.planner.clean(json.loads(self.log[-2]))
        return super().read(number)


def put(path: Path, text: str = "x\n", seconds: float = 1_000_000_000) -> Path:
    """Write a file with this modification time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, ns=(int(seconds * SECOND),) * 2)
    return path


def there(path: Path) -> list[str]:
    """Return the files below a directory, without our notes."""
    files = (str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())
    return sorted(file for file in files if not file.startswith("_penstock"))


def left_over(path: Path) -> list[str]:
    """Return the notes that cleaning has left behind, apart from those that name the reader, and its one mark of how far it is cleaned."""
    names = [file.name for file in (path / "_penstock-readers").rglob("*") if file.is_file()]
    marks = [name for name in names if name.startswith("cleaned-")]
    return [name for name in names if name != "reader.json" and name not in marks[:1]]


def archiving(src: Path, old: Path, **options: str) -> Query:
    return Query(src, cleanSource="archive", sourceArchiveDir=str(old), **options)


def test_files_are_archived_by_their_paths_when_the_next_batch_is_planned(src: Path, old: Path) -> None:
    """SPK-9: a batch's files are archived once it is committed, not before; names with blanks, % and bytes that are not text stay."""
    names = ["a b/c%20d.txt", "e.txt", os.fsdecode(b"f\xff.txt"), "-g/~h.txt"]
    for number, name in enumerate(names):
        put(src / name, f"{name!r}\n", 1_000_000_000 + number)
    query = archiving(src, old, maxFilesPerTrigger="3")
    assert query.plan()
    query.read()
    assert (len(there(src)), there(old)) == (4, [])
    assert query.plan()
    assert len(there(src)) == 1
    query.read()
    assert not query.plan()
    assert (there(src), there(old)) == ([], sorted(names))
    assert left_over(src) == []


def test_nothing_is_deleted_before_all_that_this_host_wrote_is_durable(
    src: Path, old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failure 8: Spark does not sync its commit log. A power cut must not take the record of a batch and leave its files deleted."""
    seen: list[list[str]] = []
    monkeypatch.setattr(LocalStorage, "persist_all", lambda _: seen.append(there(src)))
    (src / "other").mkdir()
    for query in (Query(src, cleanSource="delete"), archiving(src / "other", old)):
        put(Path(query.options["path"]) / "a")
        query.plan()
        query.read()
        assert not query.plan()
        assert there(Path(query.options["path"])) == []
    assert seen == [["a"]]


def test_a_file_that_was_cut_goes_with_its_last_range(src: Path, old: Path) -> None:
    """A file that a byte limit splits over several batches is archived when its last range is committed."""
    put(src / "long.txt", "".join(f"{n}\n" for n in range(1000)))
    query = archiving(src, old, maxBytesPerTrigger="1000")
    seen = []
    while query.plan():
        query.rows += query.read()
        seen.append(there(src))
    assert seen == [["long.txt"]] * 4
    assert there(old) == ["long.txt"]
    assert query.rows == [str(n) for n in range(1000)]


def test_what_is_archived_keeps_its_permissions_and_time(src: Path, old: Path) -> None:
    """In the archive a file keeps its permissions and its modification time."""
    put(src / "a").chmod(0o640)
    archiving(src, old).run()
    info = (old / "a").stat()
    assert (stat.S_IMODE(info.st_mode), info.st_mtime) == (0o640, 1_000_000_000)


def test_a_changed_file_is_never_cleaned(src: Path, old: Path) -> None:
    """A new version that was not read stays for the next batch, although the version before it is cleaned."""
    put(src / "a", "1\n")
    query = archiving(src, old)
    query.plan()
    query.read()
    put(src / "a", "2\n", 1_000_000_001)
    assert query.run() == ["2"]
    assert there(src) == []


@pytest.mark.parametrize("mode", ["archive", "delete"])
def test_a_file_that_is_replaced_in_the_moment_of_its_cleaning_is_kept(
    src: Path, old: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Another file takes the name between the check of a file and its move: the new file is read, and not archived or deleted unread."""
    put(src / "a", "1\n")
    query = archiving(src, old) if mode == "archive" else Query(src, cleanSource="delete")
    query.plan()
    query.read()
    take = LocalStorage.take

    def replaced(self: LocalStorage, source: str, target: str) -> None:
        put(src / ".new", "2\n", 1_000_000_001).rename(source)
        monkeypatch.setattr(LocalStorage, "take", take)
        take(self, source, target)

    monkeypatch.setattr(LocalStorage, "take", replaced)
    assert query.run() == ["2"]
    assert there(src) == []
    assert left_over(src) == []


def test_a_file_that_comes_while_another_is_looked_at_is_not_replaced(
    src: Path, old: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A file that was moved by mistake does not overwrite the file that has taken its place; it is kept, and a warning says so."""
    put(src / "a", "1\n")
    query = archiving(src, old)
    query.plan()
    query.read()
    take = LocalStorage.take

    def replaced(self: LocalStorage, source: str, target: str) -> None:
        put(src / ".new", "2\n", 1_000_000_001).rename(source)
        take(self, source, target)
        put(Path(source), "3\n", 1_000_000_002)
        monkeypatch.setattr(LocalStorage, "take", take)

    monkeypatch.setattr(LocalStorage, "take", replaced)
    assert query.run() == ["3"]
    assert "was replaced while it was cleaned" in caplog.text
    kept = [file for file in (src / "_penstock-readers").rglob("a") if file.is_file()]
    assert [file.read_text() for file in kept] == ["2\n"]


def test_nothing_is_replaced_in_the_archive(src: Path, old: Path) -> None:
    """A producer that reuses one name gets each day archived; an existing file in the archive stays; readers tell the days apart."""
    (old).mkdir()
    put(old / "today.json.gz", "mine", 5)
    query = archiving(src, old)
    for day in range(3):
        put(src / "today.json.gz", "", 1_000_000_000 + day)
        query.plan()
        query.planner.latest(json.loads(query.log[-1]))
    times = [1_000_000_000 + day for day in range(3)]
    assert there(old) == ["today.json.gz", *(f"today~{time}000000000.json.gz" for time in times)]
    assert (old / "today.json.gz").read_text() == "mine"
    originals = {(file.path, file.modified_ns // SECOND) for file in archived_files(LocalStorage(), str(old))}
    assert originals == {("today.json.gz", time) for time in (5, *times)}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["archive", "delete"])
@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize(
    "point",
    [
        "source.clean",
        "storage.take",
        "source.clean.taken",
        "storage.publish",
        "storage.publish.linked",
        "storage.delete",
    ],
)
def test_a_driver_that_dies_while_it_cleans_is_gone_on_with(
    src: Path, old: Path, point: str, at: int, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the driver dies, the next one cleans what is left, reads nothing twice and leaves no notes behind."""

    class Dead(BaseException):
        """The driver dies here."""

    hits = []

    def hit(name: str) -> None:
        hits.append(name)
        if hits.count(point) == at:
            raise Dead

    for name in ("d/a", "d/b", "c"):
        put(src / name, f"{name}\n")
    query = archiving(src, old) if mode == "archive" else Query(src, cleanSource="delete")
    query.plan()
    rows = query.read()
    put(src / "e", "e\n", 1_000_000_001)
    with monkeypatch.context() as patched:
        patched.setattr(failpoints, "hit", hit)
        with contextlib.suppress(Dead):
            query.plan()
    query.restart()
    if len(query.log) == 1:
        rows += query.run()
    else:
        rows += query.read()
        query.plan()
    assert sorted(rows) == ["c", "d/a", "d/b", "e"]
    assert there(src) == []
    assert there(old) == (["c", "d/a", "d/b", "e"] if mode == "archive" else [])
    assert left_over(src) == []


def test_a_batch_is_cleaned_though_its_driver_died_before_it_was_told(src: Path, old: Path) -> None:
    """The driver dies after it has logged the offset of the next batch: the replay of that batch cleans the one before."""
    put(src / "a")
    query = archiving(src, old)
    query.plan()
    query.read()
    put(src / "b", "y\n", 1_000_000_001)
    bare = Query(src)  # plans like the driver, but cleans nothing
    query.log.append(json.dumps({**bare.planner.latest(json.loads(query.log[-1]))}))
    query.restart()
    assert query.read() == ["y"]
    assert there(src) == ["b"]


def test_a_replay_reads_what_was_archived(src: Path, old: Path) -> None:
    """A batch whose files were already archived yields the same rows when it is replayed: it reads the archive."""
    for number in range(3):
        put(src / "d" / f"{number}", f"{number}\n", 1_000_000_000 + number)
    query = archiving(src, old)
    query.plan()
    rows = query.read()
    query.planner.clean(json.loads(query.log[-1]))
    assert there(src) == []
    assert query.read() == rows == ["0", "1", "2"]
    put(old / "d" / "1", "other\n", 7)
    with pytest.raises(FileChanged, match="was planned and is gone"):
        query.read()


def test_retention_counts_from_when_a_file_was_read(src: Path, old: Path) -> None:
    """With retention=1h files stay for an hour after their batch, across a restart; then they and all notes about them go."""
    put(src / "a")
    now = FakeClock(1_000_001_000.0)
    with clock.use(now):
        query = archiving(src, old, retention="1h")
        query.run()
        now.sleep(3599)
        query.restart()
        query.run()
        assert (there(src), there(old)) == (["a"], [])
        now.sleep(2)
        query.restart()
        query.run()
    assert (there(src), there(old)) == ([], ["a"])
    assert left_over(src) == []


def test_a_file_goes_when_every_source_has_read_it(src: Path, old: Path, caplog: pytest.LogCaptureFixture) -> None:
    """HZ-27: of two sources that clean one directory the slower one keeps a file there; a source that does not read the file does not."""
    caplog.set_level(logging.WARNING)
    fast, slow = archiving(src, old), archiving(src, old, maxFilesPerTrigger="1")
    other = archiving(src, old, pathGlobFilter="*.csv")
    for query, name in ((fast, "0.txt"), (slow, "0.txt"), (other, "0.csv")):
        put(src / name, "first\n", 1)
        query.plan()
        query.read()
    for number in (1, 2):
        put(src / f"{number}.txt", f"{number}\n", 1_000_000_000 + number)
    fast.run()
    assert "another source that cleans this directory has not read them yet" in caplog.text
    assert there(src)[-2:] == ["1.txt", "2.txt"]
    slow.rows += slow.read()
    while slow.plan():
        slow.rows += slow.read()
        fast.run()
    assert slow.rows[-2:] == ["1", "2"]
    fast.run()
    slow.run()
    assert "1.txt" not in there(src)
    assert "2.txt" in there(old)
    assert not [name for name in left_over(src) if name.startswith("taken")]


def test_a_source_that_will_not_come_back_is_named_and_can_be_taken_out(
    src: Path, old: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The advice of the warning works: once the notes of the other source are removed, the files that waited for it are cleaned."""
    dead = archiving(src, old)
    put(src / "0", "first\n", 1)
    dead.plan()
    dead.read()
    query = archiving(src, old)
    query.run()
    put(src / "1", "1\n", 1_000_000_001)
    query.run()
    assert "1" in there(src)
    advised = caplog.text.rsplit("remove '", 1)[1].split("'", maxsplit=1)[0]
    for file in sorted(Path(advised).rglob("*"), reverse=True):
        file.unlink()
    Path(advised).rmdir()
    query.run()
    assert there(src) == []
    assert left_over(src) == []


def test_sources_that_clean_one_directory_agree(src: Path, old: Path) -> None:
    """Of two sources on one directory, one may not archive while the other deletes: the last one would decide."""
    first, second = archiving(src, old), Query(src, cleanSource="delete")
    put(src / "a")
    first.plan()
    first.read()
    second.plan()
    for _ in range(2):  # whoever asks again is refused again, and not taken for one that has said that it cleans
        with pytest.raises(OptionError, match="another source, with cleanSource=archive"):
            second.planner.clean(json.loads(second.log[-1]))
        assert there(src) == ["a"]
    first.run()
    assert (there(src), there(old)) == ([], ["a"])
    assert left_over(src) == []


def test_a_file_that_cannot_be_moved_is_told_and_tried_again(
    src: Path, old: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk does not stop the query; the file stays, a warning names it, and it goes once there is room, also in another process."""
    put(src / "a")
    query = archiving(src, old)
    query.plan()
    query.read()
    failpoints.arm("storage.take=nospace@1")
    try:
        assert not query.plan()
    finally:
        failpoints.arm("")
    assert "cannot be cleaned, which is tried again" in caplog.text
    query.restart()
    query.run()
    assert (there(src), there(old)) == ([], ["a"])
    assert left_over(src) == []


@pytest.mark.parametrize(
    ("name", "taken"), [("x" * 250, "x" * 250), ("sub/a", "sub")], ids=["name too long", "file in the way"]
)
def test_a_file_that_the_archive_cannot_take_is_back_at_once(
    src: Path, old: Path, name: str, taken: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It was taken out of the directory by then. It does not stay where nobody looks, and that it could not be moved is told."""
    put(src / name)
    in_the_way = put(old / taken, "of yesterday\n")
    query = archiving(src, old)
    query.plan()
    query.read()
    assert not query.plan()
    assert there(src) == [name]
    assert "cannot be cleaned, which is tried again" in caplog.text
    in_the_way.unlink()
    assert query.run() == []
    assert (there(src), there(old)) == ([], [name])
    assert left_over(src) == []


@pytest.mark.parametrize("archive", ["/old", None])
def test_files_of_hdfs_are_cleaned(tmp_path: Path, archive: str | None) -> None:
    """The same on HDFS, where a file has no identity and one rename moves it: archived or deleted, but never a changed file."""
    with clock.use(FakeClock(1_700_000_000)):
        hdfs = CrashHdfs().storage()
        hdfs.make_directory("/in/d")
        contract.put(hdfs, "/in/d/a b%", b"1\n")
        contract.put(hdfs, "/in/c", b"2\n")
        selects = {"pathGlobFilter": None, "pattern": None, "recursiveFileLookup": True, "partitionColumns": "auto"}
        cleaner = Cleaner(hdfs, "/in", archive=archive, retention_ns=0, selects=selects)
        cleaner.check()
        read = [arrival.file for arrival in Scan.of(hdfs, "/in", Query(tmp_path).options).refresh().came]
        clock.sleep(5.0)
        hdfs.delete("/in/c")
        contract.put(hdfs, "/in/c", b"3\n")
        cleaner.clean("reader", read, "batch", Reached(0, 2))
        assert hdfs.read("/in/c") == b"3\n"
        assert "cleaned-0-2" in names_at(hdfs, home_of("/in", "reader"))
        assert entry_at(hdfs, "/in/d/a b%") is None
        if archive:
            assert hdfs.read("/old/d/a b%") == b"1\n"
            assert [file.path for file in archived_files(hdfs, archive)] == ["d/a b%"]


def test_an_output_of_ours_may_be_cleaned_as_an_input(src: Path) -> None:
    """Cleaning the output of another query leaves nothing there that could be taken for a sink of that output."""
    (src / "_penstock/sink").mkdir(parents=True)
    put(src / "part-0.txt")
    assert Query(src, cleanSource="delete").run() == ["x"]
    assert [path.name for path in (src / "_penstock").iterdir()] == ["sink"]


def test_links_are_not_cleaned(src: Path, old: Path, tmp_path: Path) -> None:
    """A symbolic link stays, and so does its target, which lies elsewhere."""
    put(tmp_path / "real", "x\n")
    (src / "link").symlink_to(tmp_path / "real")
    query = archiving(src, old, followSymlinks="true")
    assert query.run() == ["x"]
    assert ((src / "link").is_symlink(), (tmp_path / "real").exists()) == (True, True)


@pytest.mark.parametrize("follow", ["false", "true"])
def test_a_link_to_a_file_that_is_cleaned_is_left_out(
    src: Path, old: Path, caplog: pytest.LogCaptureFixture, follow: str
) -> None:
    """The file was moved after the first of two batches, and the link to it in the second one led nowhere: the query could not go on."""
    put(src / "a", "x\ny\n")
    (src / "b").symlink_to(src / "a")
    query = archiving(src, old, maxFilesPerTrigger="1", maxBytesPerTrigger="2", followSymlinks=follow)
    assert query.run() == ["x", "y"]
    assert ((src / "b").is_symlink(), (src / "a").exists(), (old / "a").read_text()) == (True, False, "x\ny\n")
    assert "not read: symbolic links in " in caplog.text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cleanSource": "archive"}, "needs a sourceArchiveDir"),
        ({"cleanSource": "delete", "sourceArchiveDir": "{old}"}, "is for cleanSource=archive"),
        ({"sourceArchiveDir": "{old}"}, "is for cleanSource=archive"),
        ({"retention": "1h"}, "retention is for cleanSource=archive or cleanSource=delete"),
        ({"cleanSource": "delete", "emit": "files"}, "emit=files would take files away"),
        ({"cleanSource": "delete", "badFiles": "quarantine"}, "remove files of which badFiles=quarantine takes no row"),
        ({"cleanSource": "archive", "sourceArchiveDir": "{src}/done"}, "would be read again"),
        ({"cleanSource": "archive", "sourceArchiveDir": "{src}"}, "could be read again"),
        ({"cleanSource": "archive", "sourceArchiveDir": "{src}/.."}, "could be read again"),
        ({"cleanSource": "archive", "sourceArchiveDir": "hdfs://x/y"}, "another file system"),
        ({"cleanSource": "tidy"}, "cleanSource"),
        ({"cleanSource": "delete", "retention": "5"}, "retention"),
    ],
)
def test_bad_options_are_refused_before_anything_is_read(
    src: Path, old: Path, options: dict[str, str], words: str
) -> None:
    """Each bad value and each impossible pair is refused when the query is defined or started, and the error says what is expected."""
    with pytest.raises(Exception, match=words):
        Query(src, **{name: text.format(src=src, old=old) for name, text in options.items()})


def test_an_output_of_sparks_file_sink_is_not_cleaned(src: Path) -> None:
    """Spark's source refuses this, too: the log of the sink goes on listing the files, and every read of Spark's failed."""
    (src / "_spark_metadata").mkdir()
    with pytest.raises(OptionError, match=r"the log of Spark's own file sink, .* with `penstock adopt (\S+)`"):
        Query(src, cleanSource="delete")
    assert not (src / "_penstock-readers").exists()
    (src / "_spark_metadata").rmdir()  # `penstock adopt` moves it away
    Query(src, cleanSource="delete")


def test_an_archive_on_another_file_system_is_refused(src: Path) -> None:
    """SPK-9: moving a file there would mean copying it; the query refuses this when it starts, and leaves nothing there."""
    places = [Path("/dev/shm"), Path(tempfile.gettempdir())]  # noqa: S108 - tests are in memory or on a disk, so one is another
    others = [place for place in places if place.is_dir() and place.stat().st_dev != src.stat().st_dev]
    if not others:
        pytest.skip("no other file system to be had on this machine")
    with tempfile.TemporaryDirectory(dir=others[0]) as there_:
        with pytest.raises(OptionError, match="expected a directory on the same file system"):
            archiving(src, Path(there_))
        assert [file for file in Path(there_).rglob("*") if file.is_file()] == []


def test_an_archive_that_takes_no_files_is_told_though_the_trial_stays(src: Path, old: Path) -> None:
    """If neither moving a file on trial succeeds nor removing it afterwards, the message is about moving."""
    failpoints.arm("storage.publish=error,storage.delete=error")
    try:
        with pytest.raises(OptionError, match="expected a directory on the same file system"):
            archiving(src, old)
    finally:
        failpoints.arm("")


def test_an_archive_inside_the_directory_needs_a_hidden_name(src: Path) -> None:
    """An archive whose name begins with '_' or '.' is not read, so it may lie inside."""
    put(src / "d/a")
    query = archiving(src, src / "_old")
    assert query.run() == ["x"]
    assert query.run() == []
    assert there(src) == ["_old/_penstock-archive.json", "_old/d/a"]


def test_an_archive_is_that_of_one_directory(src: Path, old: Path, tmp_path: Path) -> None:
    """A second directory with the same archive is refused: files with equal names would be mixed up. The advice works."""
    archiving(src, old)
    (tmp_path / "in2").mkdir()
    with pytest.raises(OptionError, match="is the archive of") as raised:
        archiving(tmp_path / "in2", old)
    Path(str(raised.value).rsplit("remove '", 1)[1].split("'", maxsplit=1)[0]).unlink()
    archiving(tmp_path / "in2", old)


def test_a_file_that_was_reported_is_not_cleaned(src: Path, old: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file that came too late was never read, so it stays where it is."""
    put(src / "a", "a\n", 1_000_000_000)
    query = archiving(src, old, lateness="10s")
    query.run()
    put(src / "late", "late\n", 1_000)
    assert query.run() == []
    query.restart()
    query.run()
    assert there(src) == ["late"]
    assert "not read" in caplog.text


def test_an_old_checkpoint_goes_on_with_cleaning(src: Path, old: Path) -> None:
    """A query that ran without cleanSource cleans the batch that it continues from, and those that follow."""
    put(src / "a", "a\n", 1)
    query = Query(src)
    query.run()
    query.given |= {"cleanSource": "archive", "sourceArchiveDir": str(old)}
    query.restart()
    put(src / "b", "b\n", 1_000_000_001)
    assert query.run() == ["b"]
    assert (there(src), there(old)) == ([], ["a", "b"])


def test_an_old_checkpoint_goes_on_with_cleaning_in_mid_batch(src: Path, old: Path) -> None:
    """The batch in flight is replayed first: what is cleaned before it, and what is cleaned after it, is cleaned by one reader."""
    query = Query(src, maxFilesPerTrigger="1")
    for number in range(4):
        put(src / f"f{number}", f"{number}\n", number + 1)
    for _ in range(2):
        query.plan()
    query.given |= {"cleanSource": "archive", "sourceArchiveDir": str(old)}
    query.restart()
    query.planner.clean(*map(json.loads, query.log))
    query.read()
    assert query.run() == ["2", "3"]
    assert (there(src), there(old)) == ([], ["f0", "f1", "f2", "f3"])
