"""Situations from other file sources' test suites, with options as users give them: each record once, or a named failure. Without Spark."""

from __future__ import annotations

import bz2
import errno
import gzip
import json
import lzma
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from penstock.errors import BadFile, FileChanged, FilesCleaned, OptionError, StorageError
from penstock.formats.ddl import parsed
from penstock.options import SOURCE, parse
from penstock.source import configured
from tests.support.driven import TEXT, DrivenSource

SKIPPABLE = b"\x50\x2a\x4d\x18\x04\0\0\0abcd"  # a frame of zstd that holds no data
# A block of bgzip is gzip with an extra field in its header; the blocks of the others begin behind ten bytes.
BGZIP_BLOCK = bytes.fromhex("1f8b08040000000000ff0600424302001c00") + gzip.compress(b"1\n", mtime=0)[10:]
ODD_NAMES = [
    *(
        b"sp ace",
        b"per%20cent",
        b"com,ma",
        b"ha#sh",
        b"qu?est",
        b"co:lon",
        b"new\nline",
        b"non\xffutf",
        b"-dash",
        b"x" * 255,
        b"--",
    ),
    *(
        b"br{a}ce",
        b"st*ar",
        b"[set]",
        b"back\\slash",
        b'quo"te',
        b"tab\tx",
        b"trail ",
        b"k=v",
        b"~",
        "e\u0301".encode(),
        "\u00e9".encode(),
    ),
]


class Folder:
    """An input directory; `run` plans and reads batches like a driver and its tasks, each driver with its own options."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seconds = 1000
        self.at: dict[str, Any] = {}

    def put(self, name: str | bytes, data: bytes) -> Path:
        """Write a file that is one second newer than the one before."""
        path = Path(os.fsdecode(os.path.join(os.fsencode(self.path), os.fsencode(name))))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        self.seconds += 1
        os.utime(path, (self.seconds, self.seconds))
        return path

    def planned(self, ddl: str = "value string", **options: str) -> Callable[[], list[Any]]:
        """Plan one batch with a new driver; return the function that reads it."""
        checked = parse(SOURCE, {"path": str(self.path), "settle": "0"} | options, what="source")
        how = configured.reading(checked, str(parsed(ddl)))
        planner = configured.planner(checked, how)
        start = self.at or planner.initial()
        self.at = json.loads(json.dumps(planner.latest(start)))
        tasks = planner.tasks(self.at) if self.at != start else []
        read = configured.rows
        return lambda: [v for task in tasks for b in read(checked, how, tuple(task)) for v in b.column(0).to_pylist()]

    def run(self, batches: int = 1, **options: str) -> list[list[Any]]:
        """Return the rows of that many batches."""
        return [self.planned(**options)() for _ in range(batches)]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    (tmp_path / "in").mkdir()
    return Folder(tmp_path / "in")


def test_files_of_any_name_are_read(folder: Folder) -> None:
    """HZ-25: a file with any name that the file system accepts is planned, opened and read once, in any batches."""
    for number, name in enumerate(ODD_NAMES):
        folder.put(name, b"%d\n" % number)
    rows = folder.run(len(ODD_NAMES), maxFilesPerTrigger="1")
    assert rows == [[str(number)] for number in range(len(ODD_NAMES))]
    assert folder.run() == [[]]


def test_members_frames_and_names_in_capitals(folder: Folder) -> None:
    """HZ-24, IBM-6: everything after the first member counts, also empty members and frames without data; lines may span members."""
    folder.put("a.gz", gzip.compress(b"1\n2") + gzip.compress(b"") + gzip.compress(b"\n3\n"))
    folder.put("b.BZ2", bz2.compress(b"4\n5") + bz2.compress(b"6\n"))
    folder.put("c.zst", zstandard.compress(b"7\n") + SKIPPABLE + zstandard.compress(b"8\n"))
    folder.put("d.deflate", zlib.compress(b"9\n"))
    folder.put("e.gz", b"")
    folder.put("f.gz", gzip.compress(b""))
    assert folder.run() == [["1", "2", "3", "4", "56", "7", "8", "9"]]


@pytest.mark.parametrize(
    "behind", [b"garbage", bytes(100), gzip.compress(b"3\n", mtime=0)[:-3]], ids=["garbage", "zeros", "half"]
)
def test_what_is_no_member_after_one_is_named(folder: Folder, behind: bytes) -> None:
    """HZ-24: bytes after a member that are not a member, even zeros, make a bad file: lines read before them are not returned alone."""
    folder.put("a.gz", gzip.compress(b"1\n2\n") + behind)
    with pytest.raises(BadFile, match=r"a\.gz': not a whole gzip file"):
        folder.run()


def test_half_a_file_and_then_other_options(folder: Folder) -> None:
    """APX-7, APX-8: half of the records are read, then tasks, ranges and limits change: exactly the rest comes, then later files."""
    for name in "abcd":
        folder.put(name, b"%(n)b1\n%(n)b2\n%(n)b3\n" % {b"n": name.encode()})
    expected = [f"{name}{number}" for name in "abcdefgh" for number in (1, 2, 3)]
    half = [row for rows in folder.run(3, maxBytesPerTrigger="6") for row in rows]
    assert half == expected[:6]
    for name in "efgh":
        folder.put(name, b"%(n)b1\n%(n)b2\n%(n)b3\n" % {b"n": name.encode()})
    rest = [row for rows in folder.run(3, tasks="2", splitSize="1", maxFilesPerTrigger="3") for row in rows]
    assert sorted(rest) == expected[6:]
    assert folder.run() == [[]]


def test_blocks_of_two_bytes_in_batches_of_twenty(folder: Folder) -> None:
    """APX-21, APX-22, APX-24, APX-34: 12 files of 11 bytes make 72 blocks in batches of 20 bytes, and 12 values without a block size."""
    for number in range(12):
        folder.put(f"f{number:02}", b"%011d" % number)
    blocks = {"ddl": "value binary", "format": "binary", "blockSize": "2", "maxBytesPerTrigger": "20"}
    batches = folder.run(9, **blocks)
    assert max(map(len, batches)) == 11  # 20 bytes are six blocks of a file and five of the next
    assert sum(map(len, batches)) == 72
    assert b"".join(block for batch in batches for block in batch) == b"".join(
        b"%011d" % number for number in range(12)
    )
    folder.at = {}
    assert [len(rows) for rows in folder.run(ddl="value binary", format="binary")] == [12]


def test_records_over_blocks_of_eight_bytes(folder: Folder) -> None:
    """APX-38: nine lines of two files, one without a final line end, in any ranges; as blocks of 8, with the short last blocks."""
    folder.put("a", b"1234\n567890\nabcde\nfgh\ni\njklmop")
    folder.put("b", b"qr\nstuvw\nxyz\n")
    lines = ["1234", "567890", "abcde", "fgh", "i", "jklmop", "qr", "stuvw", "xyz"]
    for size in ("1", "3", "8", "1m"):
        folder.at = {}
        assert folder.run(splitSize=size) == [lines]
    folder.at = {}
    blocks = [b"1234\n567", b"890\nabcd", b"e\nfgh\ni\n", b"jklmop", b"qr\nstuvw", b"\nxyz\n"]
    assert folder.run(ddl="value binary", format="binary", blockSize="8", splitSize="3") == [blocks]


def swapped(path: Path, by: Callable[[Path], object]) -> None:
    """Replace a file by something else."""
    path.unlink()
    by(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.write_bytes(b"1\n"),
        lambda path: path.unlink(),
        lambda path: swapped(path, Path.mkdir),
        lambda path: swapped(path, os.mkfifo),
        lambda path: swapped(path, lambda there: there.symlink_to("nothing")),
        lambda path: path.rename(path.with_name("b")),
    ],
    ids=["grows", "vanishes", "directory", "pipe", "dangling link", "renamed"],
)
@pytest.mark.parametrize("data", [b"", b"1\n2\n"])
def test_what_was_planned_is_another_thing_when_it_is_read(
    folder: Folder, change: Callable[[Path], object], data: bytes
) -> None:
    """HZ-13, HZ-14, HZ-17: a planned file, even an empty one, that has become something else is an error with its name."""
    path = folder.put("a", data)
    read = folder.planned()
    change(path)
    with pytest.raises(FileChanged, match="/in/a' (was planned and is gone|changed after it was planned)"):
        read()


def test_an_empty_file_that_gets_data_whatever_its_time(folder: Folder) -> None:
    """HZ-13: a file planned as empty yields nothing; with data it is a new version, even with the same or an older time."""
    for seconds in (2000, 1000, 999):
        folder.at = {}
        path = folder.put("a", b"")
        os.utime(path, (1000, 1000))
        assert folder.run() == [[]]
        path.write_bytes(b"1\n")
        os.utime(path, (seconds, seconds))
        assert folder.run(2) == [["1"], []]


def test_an_older_checkpoint_after_files_that_were_archived(folder: Folder) -> None:
    """HZ-22: files archived since are not found by themselves, which is an error; put back as it says, they are read, and so are others."""
    archive = folder.path.with_name("archive")
    options: dict[str, Any] = {"cleanSource": "archive", "sourceArchiveDir": str(archive)}
    folder.put("a", b"a\n")
    assert folder.run(**options) == [["a"]]
    older = folder.at
    for name in ("b", "c"):
        folder.put(name, name.encode())
        assert folder.run(**options) == [[name]]
    assert folder.run(**options) == [[]]  # finds nothing, and cleans the last batch
    assert not list(folder.path.glob("[abc]"))
    folder.put("d", b"d")
    folder.at = older
    with pytest.raises(FilesCleaned, match="put back from an older copy"):
        folder.run(**options)
    for name in ("b", "c"):
        (archive / name).rename(folder.path / name)
    for note in folder.path.glob("_penstock-readers/*/cleaned-*"):
        note.unlink()
    assert folder.run(2, **options) == [["b", "c", "d"], []]


@pytest.mark.parametrize(("directories", "name"), [(19, "f" * 255), (21, "f")], ids=["file", "directory"])
def test_what_lies_too_deep_for_a_path_is_told(folder: Folder, directories: int, name: str) -> None:
    """Who makes directories step by step, as `cd` and `tar` do, gets deeper than a path can say: that is not passed over in silence."""
    at = os.open(folder.path, os.O_RDONLY)
    for _ in range(directories):
        os.mkdir("d" * 200, dir_fd=at)
        above, at = at, os.open("d" * 200, os.O_RDONLY, dir_fd=at)
        os.close(above)
    os.close(os.open(name, os.O_CREAT | os.O_WRONLY, dir_fd=at))
    os.close(at)
    with pytest.raises(StorageError, match="its path has 4[0-9]{3} bytes there, and at most [0-9]{4} are possible"):
        folder.run(recursiveFileLookup="true")


def test_a_link_to_a_name_that_no_file_can_have_leads_nowhere(folder: Folder) -> None:
    """Such a link is one that leads nowhere: what lies beside it is read."""
    folder.put("a", b"1\n")
    (folder.path / "link").symlink_to("x" * 300)
    assert folder.run(followSymlinks="true") == [["1"]]


@pytest.mark.parametrize("others", [[], ["a"]])
def test_a_pipe_or_device_that_is_named_itself_is_refused(folder: Folder, others: list[str]) -> None:
    """`ingest <(zcat a.gz)` names a pipe. It is no empty file, of which nothing would be read with success."""
    folder.put("a", b"1\n")
    os.mkfifo(folder.path / "pipe")
    paths = json.dumps([str(folder.path / name) for name in others])
    for path in (str(folder.path / "pipe"), "/dev/null"):
        with pytest.raises(OptionError, match="is a pipe, a socket or a device"):
            Folder(Path(path)).planned(**({"paths": paths} if others else {}))
    assert Folder(folder.path / "pipe").run(strictMode="false") == [[]]


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("bgzip.gz", BGZIP_BLOCK + BGZIP_BLOCK, ["1", "1"]),
        ("gz", b"1\n", ["1"]),
        ("a.gz.txt", b"1\n", ["1"]),
        ("a.gz ", b"1\n", ["1"]),
        ("padded.xz", lzma.compress(b"1\n") + bytes(8) + lzma.compress(b"2\n"), ["1", "2"]),
        ("none.xz", lzma.compress(b"1\n", check=lzma.CHECK_NONE), ["1"]),
        ("delta.xz", lzma.compress(b"1\n", filters=[{"id": lzma.FILTER_DELTA}, {"id": lzma.FILTER_LZMA2}]), ["1"]),
        ("two.deflate", zlib.compress(b"1\n") + zlib.compress(b"2\n"), ["1", "2"]),
        ("no size.zst", zstandard.ZstdCompressor(write_content_size=False).compress(b"1\n"), ["1"]),
        ("nothing.zst", SKIPPABLE, []),
    ],
)
def test_what_compressors_make_under_options_of_theirs(
    folder: Folder, name: str, data: bytes, expected: list[str]
) -> None:
    """Fields in the header of gzip, padding between streams of xz, filters, frames without a size: and endings that are none."""
    folder.put(name, data)
    assert folder.run() == [expected]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("old.xz", lzma.compress(b"1\n", format=lzma.FORMAT_ALONE)),
        ("raw.deflate", zlib.compress(b"1\n")[2:-4]),
        ("half a frame.zst", zstandard.compress(b"1\n") + SKIPPABLE[:-1]),
        ("legacy.lz4", b"\x02\x21\x4c\x18" + b"\x03\0\0\0\x201\n"),
        ("framed.snappy", b"\xff\x06\0\0sNaPpY"),
        ("behind.bz2", bz2.compress(b"1\n") + bytes(2)),
    ],
)
def test_what_only_looks_like_its_ending_is_a_bad_file(folder: Folder, name: str, data: bytes) -> None:
    """Other forms of the same codec have other endings, or none here: nothing is read of them, and each is named."""
    folder.put(name, data)
    with pytest.raises(BadFile, match=f"{name}': not a whole"):
        folder.run()


@pytest.mark.parametrize("seconds", [-(2**31), -1, 2**31, 2**33, 15_032_385_535])
def test_the_first_and_the_last_times_that_disks_have(folder: Folder, seconds: int) -> None:
    """From 1901 to 2446: what has a time before now is read, in its order, and what has a later one hides nothing."""
    path = folder.put("odd", b"odd\n")
    os.utime(path, (seconds, seconds))
    folder.put("now", b"now\n")
    assert folder.run(2) == [["odd", "now"] if seconds < 0 else ["now"], []]


@pytest.mark.parametrize(
    ("data", "ddl", "options"),
    [
        (
            b"x\n",
            "m struct<path: string, modified: timestamp, size: bigint, offset: bigint>, value string",
            {"metadataColumn": "m"},
        ),
        (b'{"b":1}\n', "r string, a bigint", {"format": "json", "rescuedDataColumn": "r"}),
        (
            b"x\n",
            "_bad struct<path: string, offset: bigint, record: binary, reason: string>, a bigint",
            {"format": "json", "badRecords": "quarantine", "badRecordColumn": "_bad"},
        ),
        (b"x\n", "path string, modified timestamp, size bigint, identity string", {"emit": "files"}),
    ],
    ids=["metadata", "rescued", "bad", "files"],
)
def test_a_name_that_is_no_text_is_told_as_text_in_each_column(
    folder: Folder, data: bytes, ddl: str, options: dict[str, str]
) -> None:
    """Strings of Spark are UTF-8: what a name has otherwise is U+FFFD there, and the rest says which file it is."""
    folder.put(b"non\xffutf", data)
    ((told,),) = [folder.planned(ddl, **options)()]
    assert f"{folder.path}/non\ufffdutf" in str(told)


def test_one_file_by_its_name(folder: Folder) -> None:
    """IBM-1: three lines of the file that `path` names are three rows, and after a restart no more."""
    path = folder.put("a", b"1\n2\n3\n")
    assert folder.run(2, path=str(path)) == [["1", "2", "3"], []]


def test_every_window_is_replayed_alone_and_in_its_order(tmp_path: Path) -> None:
    """APX-10, APX-11, SPK-7: each batch of one file or of more gives a driver that has only its offset the same rows in their order."""
    for limit, first in (("1", ["a0", "a1"]), ("2", ["a0", "a1", "b0", "b1"])):
        source = DrivenSource(TEXT, path=str(tmp_path), settle="0", maxFilesPerTrigger=limit)
        for seconds, name in enumerate("abcd"):
            (tmp_path / name).write_text(f"{name}0\n{name}1\n")
            os.utime(tmp_path / name, (seconds, seconds))
        batches = []
        while source.plan():
            batches.append(source.read())
        assert batches[0] == first
        for number in reversed(range(len(batches))):
            other = DrivenSource(TEXT, **source.given)
            other.log = [source.log[number]]  # those before it were deleted
            assert other.read() == batches[number]


@pytest.mark.parametrize("replayed", [0, 1, 2])
def test_what_a_replay_reads_is_planned_no_more(folder: Folder, replayed: int) -> None:
    """APX-13: the last batch is repeated as often as you like: none of its files comes back in a later one."""
    for name in "abc":
        folder.put(name, name.encode())
    assert folder.run(maxFilesPerTrigger="2") == [["a", "b"]]
    checked = parse(SOURCE, {"path": str(folder.path), "settle": "0"}, what="source")
    for _ in range(replayed):
        how = configured.reading(checked, str(parsed("value string")))
        tasks = configured.planner(checked, how).tasks(folder.at)
        assert [
            v for task in tasks for b in configured.rows(checked, how, tuple(task)) for v in b.column(0).to_pylist()
        ] == [
            "a",
            "b",
        ]
    assert folder.run(2) == [["c"], []]


@pytest.mark.parametrize("read", range(6))
def test_a_file_of_which_some_lines_were_read(folder: Folder, read: int) -> None:
    """APX-9: a driver dies when none, some or all of five lines are in a batch: the next one begins with the line after them."""
    folder.put("a", b"0\n1\n2\n3\n4\n")
    if read:
        assert folder.run(maxBytesPerTrigger=str(2 * read)) == [[str(n) for n in range(read)]]
    assert folder.run(2) == [[str(n) for n in range(read, 5)], []]


def test_tasks_share_the_files_among_themselves(folder: Folder) -> None:
    """APX-4, APX-5, APX-40: four files in two tasks, two each and none in both; two drivers share them out in the same way."""
    for name in "abcd":
        folder.put(name, b"1\n2\n")
    options = {"path": str(folder.path), "settle": "0", "tasks": "2"}
    source = DrivenSource(TEXT, **options)
    assert source.plan()
    shares = []
    for planner in (source.planner, DrivenSource(TEXT, **options).planner):
        tasks = planner.tasks(json.loads(source.log[-1]))
        shares.append([{split.file.path for split in task} for task in tasks])
    assert shares[0] == shares[1]
    assert [len(share) for share in shares[0]] == [2, 2]
    assert set.union(*shares[0]) == set("abcd")


def test_sources_that_share_a_directory_by_names(folder: Folder) -> None:
    """APX-6: two sources with patterns of their own read five of ten files each; the first refuses `1_file`, the second takes it."""
    for number in range(10):
        folder.put(f"{number}_partition_00{number * 37}", b"%d\n" % number)
    folder.put("1_file", b"more\n")
    assert folder.run(pattern=r"[02468]_.*") == [["0", "2", "4", "6", "8"]]
    folder.at = {}
    assert folder.run(pattern=r"[13579]_.*") == [["1", "3", "5", "7", "9", "more"]]


FILES = "path string, modified timestamp, size bigint, identity string"


def test_the_scan_alone(folder: Folder) -> None:
    """IBM-7, APX-18, APX-25, APX-27, APX-28: names in batches of four, also repeated; what comes later is in the next."""
    for number in range(12):
        folder.put(f"f{number:02}", b"%011d" % number)
    scan: dict[str, Any] = {"ddl": FILES, "emit": "files", "maxFilesPerTrigger": "4"}
    found = []
    for _ in range(3):
        read = folder.planned(**scan)
        names = read()
        assert read() == names
        found += names
    assert found == [f"{folder.path}/f{number:02}" for number in range(12)]
    assert folder.run(**scan) == [[]]
    after_all = folder.at
    folder.put("later", b"12 + 1 bytes.")
    assert folder.run(**scan) == [[f"{folder.path}/later"]]
    folder.at = after_all
    blocks = folder.run(2, ddl="value binary", format="binary", blockSize="2")
    assert list(map(len, blocks)) == [7, 0]


def test_ranges_have_a_length_of_their_own(folder: Folder) -> None:
    """APX-37: without `splitSize` a task reads 32 MiB, whatever blocks the storage has."""
    os.truncate(folder.put("a", b""), (64 << 20) + 1)
    source = DrivenSource(TEXT, path=str(folder.path), settle="0")
    assert source.plan()
    tasks = source.planner.tasks(json.loads(source.log[-1]))
    assert [split.end - split.start for task in tasks for split in task] == [32 << 20, 32 << 20, 1]


def test_files_are_put_together_from_their_blocks(folder: Folder) -> None:
    """APX-39: blocks of ten bytes of three files, one in a directory, in four batches: by path and place they are the files again."""
    files = {"a": b"a" * 6 + b"b" * 7, "b": bytes(range(52)), "d/c": b"thirteen more"}
    for name, data in files.items():
        folder.put(name, data)
    schema = "m struct<path: string, modified: timestamp, size: bigint, offset: bigint>, value binary"
    options = {"format": "binary", "blockSize": "10", "recursiveFileLookup": "true", "metadataColumn": "m"}
    source = DrivenSource(str(parsed(schema)), path=str(folder.path), settle="0", maxBytesPerTrigger="20", **options)
    made: dict[str, bytes] = {}
    counts: dict[str, int] = {}
    for place, block in source.run():
        name = place["path"].removeprefix(f"{folder.path}/")
        assert place["offset"] == len(made.get(name, b""))
        made[name] = made.get(name, b"") + block
        counts[name] = counts.get(name, 0) + 1
    assert made == files
    assert counts == {"a": 2, "b": 6, "d/c": 2}
    assert len(source.log) == 4


def test_a_storage_that_fails_is_no_bad_file(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """HZ-28, HZ-29: what is set aside is what is wrong itself: an outage fails the batch, and a later try has all of its files."""
    for name in "abc":
        folder.put(name, b'{"v": "%b"}\n' % name.encode())
    ddl = "v string, _bad struct<path: string, offset: bigint, record: binary, reason: string>"
    aside: dict[str, Any] = {
        "badFiles": "quarantine",
        "badRecords": "quarantine",
        "changedFiles": "quarantine",
        "badRecordColumn": "_bad",
    }
    read = folder.planned(ddl, format="json", **aside)

    def fails(*_: object) -> bytes:
        raise OSError(errno.EIO, "the disk does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pread", fails)
        patched.setattr(os, "preadv", fails)
        with pytest.raises(StorageError, match="does not answer"):
            read()
    assert read() == ["a", "b", "c"]
    assert folder.run(ddl=ddl, format="json", **aside) == [[]]
