"""Files that grow: each record once and whole, whatever happens to the file while it is written. Without Spark.

The failures are those that users of Fluent Bit, Vector and Filebeat have reported: partial lines, records doubled by a copy or
a rename, records lost by a truncation, a reused inode.
"""

from __future__ import annotations

import gzip
import itertools
import json
import logging
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock import clock
from penstock.errors import BadRecord, FileChanged, OptionError, StorageError
from penstock.formats import families
from penstock.formats.charsets import charset
from penstock.options import SOURCE, parse
from penstock.source import configured, scan
from penstock.source.followed import FollowPlanner
from penstock.source.scan import Changes, Scan
from penstock.storage._local import LocalReadHandle
from penstock.testing import CrashHdfs, FakeClock
from tests.support.driven import TEXT, DrivenSource
from tests.support.storage_contract import put

JSON = '{"type":"struct","fields":[{"name":"n","type":"long","nullable":true,"metadata":{}}]}'
CSV = TEXT.replace('"value"', '"a"').replace("]}", ',{"name":"b","type":"long","nullable":true,"metadata":{}}]}')


class Query(DrivenSource):
    """A source that follows the files of a directory."""

    planner: FollowPlanner

    def __init__(self, path: Path, schema: str = TEXT, **options: Any) -> None:
        super().__init__(schema, **{"path": str(path), "follow": "true", **options})


def add(path: Path, data: bytes | str) -> None:
    """Append to a file, as a writer that flushes does."""
    with path.open("ab") as file:
        file.write(data.encode() if isinstance(data, str) else data)


def age(path: Path, seconds: float) -> None:
    """Let a file have been unchanged for this long."""
    then = time.time() - seconds
    os.utime(path, (then, then))


@pytest.mark.parametrize("encoding", ["UTF-8", "UTF-16LE", "UTF-16", "ISO-8859-1"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_line_that_is_flushed_byte_by_byte_is_never_cut(src: Path, encoding: str, end: str) -> None:
    """Flushed within a line, between CR and LF, within a character: no batch has a part of a line, and no line comes twice."""
    lines = ["first ü", "", "längere Zeile", "x"]
    data = "".join(line + end for line in lines).encode(encoding)
    query = Query(src, encoding=encoding)
    for byte in data:
        add(src / "app.log", bytes([byte]))
        query.run()
        assert query.rows == lines[: len(query.rows)]
    if end == "\r":
        age(src / "app.log", 600)
        query.run()
    assert query.rows == lines


@pytest.mark.parametrize("sep", ["|", "||", "aba", "\n\n"])
def test_separators_that_come_in_pieces(src: Path, sep: str) -> None:
    """APX-44: a separator that arrives byte by byte, or overlaps itself, ends a record once it is complete; until then it is held."""
    query = Query(src, lineSep=sep)
    text = sep.join(["r1", "r2", "", "r4"]) + sep
    for byte in text.encode():
        add(src / "app.log", bytes([byte]))
        query.run()
    assert query.rows == ["r1", "r2", "", "r4"]


def test_json_and_csv_grow_too(src: Path, tmp_path: Path) -> None:
    """APX-42: JSON lines and CSV with a header and line breaks inside quotes are followed record by record."""
    query = Query(src, JSON, format="json")
    for piece in ('{"n": 1}\n{"n"', ": 2}\n", '{"n": 3}'):
        add(src / "a.json", piece)
        query.run()
    assert query.rows == [(1,), (2,)]
    other = tmp_path / "csv"
    other.mkdir()
    query = Query(other, CSV, format="csv", header="true")
    for byte in b'b,a\n1,"x\ny"\n2,z\n':
        add(other / "a.csv", bytes([byte]))
        query.run()
    assert query.rows == [("x\ny", 1), ("z", 2)]


@pytest.mark.parametrize(
    ("options", "piece", "end"),
    [
        ({}, "x" * 4000, "\n"),
        ({"maxBytesPerTrigger": "50k"}, "x" * 4000, "\n"),
        ({"encoding": "UTF-16LE"}, "x\0" * 2000, "\n\0"),
        ({"lineSep": "aba"}, "bba" * 1000, "ba"),
        ({"format": "csv"}, '""\n,' * 1000, '"\n'),
        ({"format": "csv"}, '""' * 2000, '",\n'),
        ({"format": "csv", "escape": "\\", "comment": "#"}, '\\"\n#' * 1000, '"\n'),
    ],
    ids=["text", "limit", "wide", "overlap", "lines", "quotes", "escapes"],
)
def test_a_record_that_grows_slowly_is_looked_at_once(
    src: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, str], piece: str, end: str
) -> None:
    """To look for the end of a record costs what has come, not what is there; after a restart, once what is there."""
    begin = 'first,1\n"' if "format" in options else "first\n"
    begin = begin.replace("\n", "aba") if "lineSep" in options else begin
    text = begin.encode(options.get("encoding", "UTF-8"))
    query = Query(src, CSV if "format" in options else TEXT, **options)
    add(src / "app.log", text)
    assert len(query.run()) == 1
    sizes: list[int] = []
    read = LocalReadHandle.read

    def counted(handle: LocalReadHandle, offset: int, length: int) -> bytes:
        sizes.append(len(read(handle, offset, length)))
        return read(handle, offset, length)

    monkeypatch.setattr(LocalReadHandle, "read", counted)
    looks = 100
    for look in range(looks):
        add(src / "app.log", piece)
        if look == looks // 2:
            query.restart()
        assert not query.plan()
        assert not query.plan()
    whole = looks * len(piece)
    assert sum(sizes) < 2 * whole + looks * 20_000  # and what a look compares
    add(src / "app.log", end)
    assert query.plan()
    (split,) = query.planner.splits(json.loads(query.log[-1]))
    assert (split.start, split.end) == (len(text) - (piece[0] in '"\\'), (src / "app.log").stat().st_size)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"lineSep": "aba"},
        {"lineSep": "\n\n"},
        {"encoding": "UTF-16LE"},
        {"format": "csv"},
        {"format": "csv", "comment": "#"},
        {"format": "csv", "escape": "\\"},
        {"format": "csv", "escape": "\\", "comment": "#"},
    ],
)
def test_a_record_ends_in_one_place_however_it_was_looked_for(options: dict[str, str]) -> None:
    """Whatever was looked at before, and in whatever pieces, a record ends where a single look at all of it finds its end."""
    chance = random.Random(5)  # noqa: S311 - a test that can be repeated
    reading = Query(Path.cwd(), CSV if "format" in options else TEXT, **options).reading
    form, fmt = reading.form, reading.format
    assert isinstance(form, families.RecordFormat)
    known = charset(fmt.encoding, b"")
    for _ in range(300):
        text = "".join(chance.choice('"",\n\r\\#xaab') for _ in range(chance.randrange(1, 30)))
        data = (chance.choice(["", "\ufeff"]) + text).encode(fmt.encoding)
        tail, size, end = form.tail(fmt, 0, known), 0, 0
        while size < len(data) and not end:
            size = min(size + chance.randrange(1, 5), len(data))

            def read(offset: int, length: int, there: bytes = data[:size]) -> bytes:
                return there[offset : offset + length]

            end = tail.ended(read, size)
            assert end == form.tail(fmt, 0, known).ended(read, size)


def test_a_record_that_is_replaced_before_it_has_ended(src: Path) -> None:
    """What was looked through is not what is there by now: the lines that are there come at once."""
    query = Query(src)
    add(src / "app.log", "x" * 5000)
    assert not query.plan()
    (src / "app.log").write_text("1\n2\n" + "y" * 5000)
    assert query.run() == ["1", "2"]


def test_a_replay_reads_the_bytes_of_the_plan_though_the_file_has_grown(src: Path) -> None:
    """Bytes beyond the plan belong to the next batch, also after a restart, and even if the file was renamed meanwhile."""
    add(src / "app.log", "1\n2\n3")
    query = Query(src)
    query.plan()
    add(src / "app.log", "3\n4\n")
    assert query.read() == ["1", "2"]
    (src / "app.log").rename(src / "app.log.1")
    add(src / "app.log", "5\n")
    query.restart()
    assert query.read() == ["1", "2"]
    assert query.run() == ["33", "4", "5"]


def test_rotation_by_rename_reads_the_rest_of_the_old_file(src: Path) -> None:
    """The writer continues in the renamed file for a while; its lines and those of the new file come once each."""
    query = Query(src)
    add(src / "app.log", "1\n")
    assert query.run() == ["1"]
    (src / "app.log").rename(src / "app.log.1")
    add(src / "app.log.1", "2\nhal")
    add(src / "app.log", "4\n")
    assert sorted(query.run()) == ["2", "4"]
    query.restart()
    (src / "app.log.1").rename(src / "app.log.2")
    (src / "app.log").rename(src / "app.log.1")
    add(src / "app.log.2", "f\n")
    add(src / "app.log", "5\n")
    assert sorted(query.run()) == ["5", "half"]
    assert query.run() == []


def test_an_inode_that_is_used_again_is_another_file(src: Path) -> None:
    """A new file with a removed file's inode, and longer than that file, is read from its beginning."""
    query = Query(src)
    add(src / "app.log", "old 1\nold 2\n")
    query.run()
    inode = (src / "app.log").stat().st_ino
    data = "new 1\nnew 2\nnew 3\n"
    with (src / "app.log").open("r+b") as file:  # the surest way to get the same inode again
        file.truncate(0)
        file.write(data.encode())
    (src / "app.log").rename(src / "other.log")
    assert (src / "other.log").stat().st_ino == inode
    query.restart()
    assert query.run() == ["new 1", "new 2", "new 3"]


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("behind", [False, True])
def test_copy_and_truncate(src: Path, restart: bool, behind: bool) -> None:
    """The copy is not read again, except for what was not yet read of the original; the truncated file is read from its beginning."""
    query = Query(src)
    add(src / "app.log", "1\n2\n")
    query.run()
    if behind:
        add(src / "app.log", "3\n4")
    shutil.copyfile(src / "app.log", src / "app.log.1")
    assert behind or query.run() == []
    os.truncate(src / "app.log", 0)
    if restart:
        query.restart()
    add(src / "app.log", "5\n")
    assert sorted(query.run()) == (["3", "5"] if behind else ["5"])
    if behind:
        age(src / "app.log.1", 600)
        assert query.run() == ["4"]
    assert query.run() == []


def test_a_file_that_was_cut_and_has_outgrown_itself_is_read_anew(src: Path) -> None:
    """HZ-31: truncated and already longer than before at the next look: its beginning shows it, and no line is skipped."""
    query = Query(src)
    add(src / "app.log", "1\n2\n")
    query.run()
    shutil.copyfile(src / "app.log", src / "app.log.1")
    os.truncate(src / "app.log", 0)
    add(src / "app.log", "a much longer line than before\nand another\n")
    query.restart()
    assert query.run() == ["a much longer line than before", "and another"]


def test_a_copy_that_the_follower_has_overtaken_is_not_read_again(src: Path) -> None:
    """Lines that came between the copy and the truncation were read from the file itself; the shorter copy adds nothing."""
    query = Query(src)
    add(src / "app.log", "1\n2\n")
    query.run()
    shutil.copyfile(src / "app.log", src / "app.log.1")
    add(src / "app.log", "3\n")
    assert query.run() == ["3"]
    os.truncate(src / "app.log", 0)
    add(src / "app.log", "4\n")
    assert query.run() == ["4"]
    age(src / "app.log.1", 600)
    assert query.run() == []


def test_a_planned_range_is_read_of_the_copy(src: Path) -> None:
    """The file is truncated between plan and read, or batch and replay: the copy has the bytes; without a copy there is an error."""
    query = Query(src)
    add(src / "app.log", "1\n2\n")
    query.plan()
    shutil.copyfile(src / "app.log", src / "app-20260101.log")
    os.truncate(src / "app.log", 0)
    assert query.read() == ["1", "2"]
    (src / "app-20260101.log").unlink()
    with pytest.raises(FileChanged, match="was cut, replaced or removed"):
        query.read()
    (src / "restored").write_text("1\n2\n3\n")
    assert query.read() == ["1", "2"]


def test_a_file_that_is_cut_while_it_is_read_is_read_on_in_its_copy(src: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is truncated while the task has it open: its new content is never taken for what was planned."""
    lines = [f"line {number}" for number in range(5000)]
    add(src / "app.log", "".join(f"{line}\n" for line in lines))
    query = Query(src)
    query.plan()
    pread, calls = LocalReadHandle.read, []

    def cut(self: LocalReadHandle, offset: int, length: int) -> bytes:
        calls.append(offset)
        if len(calls) == 5:
            shutil.copyfile(src / "app.log", src / "app.log.1")
            os.truncate(src / "app.log", 0)
            add(src / "app.log", "something else\n" * 10_000)
        return pread(self, offset, length)

    monkeypatch.setattr(LocalReadHandle, "read", cut)
    monkeypatch.setattr(families, "BLOCK_BYTES", 4096)
    assert query.read() == lines
    assert len(calls) > 5


def test_files_that_begin_alike_are_all_read(src: Path) -> None:
    """Files with the same header line are different files: those that grow at the same time, and one with the header alone."""
    for name in ("a.log", "b.log"):
        add(src / name, "header\n")
    query = Query(src)
    assert query.run() == ["header", "header"]
    add(src / "a.log", "a\n")
    add(src / "a.log.x", "header\n")
    assert query.run() == ["a"]
    with clock.use(FakeClock(time.time() + 11)):
        assert query.run() == ["header"]
        add(src / "a.log.y", "header\nother\n")
        assert query.run() == ["header", "other"]


def test_a_file_that_is_removed_or_cut_unread_is_told(src: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A warning reports bytes that were lost unread."""
    query = Query(src)
    add(src / "a.log", "1\nhalf")
    add(src / "b.log", "1\n")
    query.run()
    query.run()
    (src / "a.log").unlink()
    os.truncate(src / "b.log", 0)
    query.run()
    assert "'a.log' was removed before it was read to its end: 4 bytes of it are lost, after byte 2" in caplog.text
    assert "'b.log' was cut or replaced: it had been read up to byte 2, has 0 bytes now" in caplog.text
    for name in "cd":  # the next batch counts the losses, and all later ones keep the count
        add(src / f"{name}.log", "1\n")
        assert query.run() == ["1"]
        assert json.loads(query.log[-1])["follow"]["lost"] == [2, 4]
        query.restart()


def test_a_file_that_stands_still_is_closed_and_goes_on_all_the_same(src: Path) -> None:
    """closeAfter: a last record without a line end is read; what is written after it later is neither lost nor doubled."""
    query = Query(src, closeAfter="1m")
    add(src / "app.log", "1\nhalf")
    assert query.run() == ["1"]
    age(src / "app.log", 61)
    assert query.run() == ["half"]
    assert json.loads(query.log[-1])["follow"]["growing"] == []
    query.restart()
    add(src / "app.log", " of it\n2\n")
    assert query.run() == [" of it", "2"]
    query.restart()
    assert query.run() == []


def test_a_closed_file_that_is_rotated_is_not_taken_for_another(src: Path) -> None:
    """Fluent Bit #11406: a closed file is renamed, and a new one takes its name: the new file is read whole, and nothing twice."""
    query = Query(src, closeAfter="1m")
    add(src / "input.log", "001\n002\n")
    age(src / "input.log", 61)
    assert query.run() == ["001", "002"]
    (src / "input.log").rename(src / "input.log.1")
    add(src / "input.log", "003\n004\n")
    query.restart()
    assert query.run() == ["003", "004"]
    assert query.run() == []


def test_rotations_while_no_query_runs(src: Path) -> None:
    """Fluent Bit #1330, Beats #45300: two rotations between two runs, one of each kind: each line of the existing files once."""
    query = Query(src)
    add(src / "app.log", "1\nhal")
    query.run()
    add(src / "app.log", "f\n")
    (src / "app.log").rename(src / "app.log.1")
    add(src / "app.log", "3\n")
    (src / "app.log.1").rename(src / "app.log.2")
    shutil.copyfile(src / "app.log", src / "app.log.1")
    os.truncate(src / "app.log", 0)
    add(src / "app.log", "4\n")
    age(src / "app.log.1", 11)
    query.restart()
    assert sorted(query.run()) == ["3", "4", "half"]


def test_a_rotated_file_is_compressed_and_its_inode_used_again(src: Path) -> None:
    """Fluent Bit #2110: between two looks the new file has got the inode of the file that was rotated away."""
    query = Query(src)
    add(src / "0.log", "1\n2\n")
    query.run()
    data = (src / "0.log").read_bytes()
    (src / "0.log.20260101.gz").write_bytes(gzip.compress(data))
    with (src / "0.log").open("r+b") as file:  # as if it had been removed and created again
        file.truncate(0)
        file.write(b"3\n4\n5\n")
    assert query.run() == ["3", "4", "5"]


def test_a_storage_without_identities(tmp_path: Path) -> None:
    """On HDFS a file has no inode: its beginning shows where it was renamed to."""
    hdfs = CrashHdfs().storage()
    hdfs.make_directory("/in")
    with clock.use(FakeClock(1_700_000_000)):
        put(hdfs, "/in/app.log", b"1\n2")
        query = Query(tmp_path)
        reading = replace(query.reading, storage=hdfs, root="/in")
        query.reading, query.planner = reading, FollowPlanner(reading, query.options)
        assert query.run() == ["1"]
        with hdfs.extend("/in/app.log", 3) as file:
            file.write(b"2\n3\n")
            file.sync()
        hdfs.publish("/in/app.log", "/in/app.log.1")
        put(hdfs, "/in/app.log", b"another 1\n")
        assert sorted(query.run()) == ["22", "3", "another 1"]
        assert query.run() == []


def lost(query: Query) -> list[int] | None:
    """Return what the newest offset reports as lost: files, and bytes."""
    count: list[int] | None = json.loads(query.log[-1])["follow"].get("lost")
    return count


def replace_whole(path: Path, data: str) -> None:
    """Replace a file by a longer version, as rsync and editors do."""
    aside = path.with_name(f".{path.name}.aside")
    aside.write_text(data)
    aside.rename(path)


@pytest.mark.parametrize("restart", [False, True])
def test_a_file_that_is_replaced_by_a_longer_version_goes_on(src: Path, restart: bool) -> None:
    """`rsync` and editors replace the inode: the file's beginning shows that it is the same log, which is continued, not reread."""
    add(src / "app.log", "1\n2\n")
    query = Query(src)
    assert query.run() == ["1", "2"]
    for lines, new in (("1\n2\n3\n", ["3"]), ("1\n2\n3\n4\n", ["4"])):
        replace_whole(src / "app.log", lines)
        if restart:
            query.restart()
        assert query.run() == new
    replace_whole(src / "app.log", "another\n")
    assert query.run() == ["another"]


def test_a_record_is_mended_in_a_followed_file(src: Path) -> None:
    """`sed -i` leaves another inode: what was read before the corrected record is not read again."""
    add(src / "a.json", '{"n": 1}\n')
    query = Query(src, JSON, format="json")
    assert query.run() == [(1,)]
    add(src / "a.json", '{"n": two}\n')
    query.plan()
    with pytest.raises(BadRecord):
        query.read()
    replace_whole(src / "a.json", (src / "a.json").read_text().replace("two", "2"))
    query.log.pop()  # as `penstock replan` does
    query.restart()
    assert query.run() == [(2,)]


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("place", ["", "below"])
def test_a_file_that_was_away_goes_on(src: Path, tmp_path: Path, place: str, restart: bool) -> None:
    """A file, or its directory, is moved away and back: nothing is read again, and what was reported as lost no longer is."""
    log = src / place / "app.log"
    log.parent.mkdir(exist_ok=True)
    add(log, "1\nhal")
    add(src / "other.log", "x\n")
    query = Query(src, recursiveFileLookup="true")
    query.run()
    moved = log if not place else log.parent
    moved.rename(tmp_path / "away")
    add(src / "other.log", "y\n")
    assert query.run() == ["y"]
    assert lost(query) == [1, 3]
    if restart:
        query.restart()
    (tmp_path / "away").rename(moved)
    add(log, "f\n")
    assert query.run() == ["half"]
    assert lost(query) is None


def test_a_file_that_was_away_and_is_another_is_read(src: Path) -> None:
    """A file that comes back under a known name with a different beginning is a new file."""
    add(src / "app.log", "1\n2\n")
    query = Query(src)
    query.run()
    (src / "app.log").unlink()
    assert query.run() == []
    add(src / "app.log", "one\ntwo\nthree\n")
    assert query.run() == ["one", "two", "three"]


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("single", [False, True])
def test_a_rotated_file_that_the_pattern_leaves_out_is_read_to_its_end(src: Path, single: bool, restart: bool) -> None:
    """`*.log`, or the file as path, and `app.log.1`: the rest of a followed file is read under any name, but no other file is."""
    add(src / "app.log", "1\n")
    query = Query(src / "app.log") if single else Query(src, pathGlobFilter="*.log")
    assert query.run() == ["1"]
    add(src / "app.log", "2\nhal")
    (src / "app.log").rename(src / "app.log.1")
    assert query.run() == ([] if single else ["2"])
    add(src / "app.log", "3\n")
    add(src / "foreign.txt", "not ours\n")
    if restart:
        query.restart()
    assert sorted(query.run()) == (["2", "3"] if single else ["3"])
    add(src / "app.log.1", "f\n")
    (src / "app.log.1").rename(src / "app.log.2")
    query.plan()
    assert query.read() == ["half"]
    (src / "app.log.2").rename(src / "app.log.3")
    query.restart()
    assert query.read() == ["half"]
    age(src / "app.log.3", 600)
    for number in (4, 5):
        add(src / "app.log", f"{number}\n")
        assert query.run() == [str(number)]
        follow = json.loads(query.log[-1])["follow"]
        assert (len(follow["growing"]), len(follow["closed"])) == (
            1,
            1,
        )  # `verify` compares it as long as it exists
        if restart:
            query.restart()
    (src / "app.log.3").unlink()
    add(src / "app.log", "6\n")
    assert query.run() == ["6"]
    assert json.loads(query.log[-1])["follow"]["closed"] == []
    assert lost(query) is None


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("single", [False, True])
def test_a_file_that_is_rotated_behind_its_header_is_read_to_its_end(src: Path, single: bool, restart: bool) -> None:
    """The header alone was read; the pattern leaves out the file's new name, and the file that took its old one has the same header."""
    log = src / "app.log"
    add(log, "header\n")
    query = Query(log) if single else Query(src, pathGlobFilter="*.log")
    assert query.run() == ["header"]
    add(log, "1\n2\n")
    log.rename(src / "app.log.1")
    add(log, "header\n3\n")
    if restart:
        query.restart()
    assert sorted(query.run()) == ["1", "2", "3", "header"]
    add(log, "4\n")
    assert query.run() == ["4"]


@pytest.mark.parametrize("likes", [False, True])
@pytest.mark.parametrize("emptied", [False, True])
def test_the_newest_copy_that_the_pattern_leaves_out_has_the_rest(src: Path, emptied: bool, likes: bool) -> None:
    """Beside it lie an older copy with the same header, and a log of a similar name whose header was taken for a copy in the making."""
    log = src / "app.log"
    add(src / "app.log.2", "header\n0\n")
    age(src / "app.log.2", 600)
    add(log, "header\n")
    query = Query(src, pathGlobFilter="*[a-z]")
    assert query.run() == ["header"]
    add(src / "app2.log", "header\n" * likes)
    add(log, "1\n")
    assert query.run() == ["1"]
    add(log, "2\n")
    shutil.copyfile(log, src / "app.log.1")
    os.truncate(log, 0)
    add(log, "" if emptied else "3\n")
    assert sorted(query.run()) == (["2"] if emptied else ["2", "3"])


def test_a_number_that_a_file_of_another_kind_uses_again(src: Path) -> None:
    """A file goes unread: another file that has its inode now, and that the pattern excludes, is not read in its place."""
    add(src / "other.log", "x\n")
    add(src / "app.log", "hal")
    query = Query(src, pathGlobFilter="*.log")
    assert query.run() == ["x"]
    (src / "app.log").rename(src / "secret.txt")  # the surest way to get the same inode again
    (src / "secret.txt").write_text("not for everybody\n")
    assert query.run() == []
    add(src / "app.log", "hal")
    query.run()
    (src / "app.log").rename(src / "app.log.1")
    add(src / "app.log.1", "f\n")
    assert query.run() == ["half"]


def test_a_copy_that_the_pattern_leaves_out_has_the_rest(src: Path) -> None:
    """Copy and truncate with `*.log`: what was not read of the original is read from its copy, and nothing is reported as lost."""
    add(src / "app.log", "1\n")
    query = Query(src, pathGlobFilter="*.log")
    query.run()
    add(src / "app.log", "2\n")
    shutil.copyfile(src / "app.log", src / "app.log.1")
    os.truncate(src / "app.log", 0)
    add(src / "app.log", "3\n")
    assert sorted(query.run()) == ["2", "3"]
    assert lost(query) is None


def test_a_link_to_a_log_that_is_rotated_where_it_lies(src: Path, tmp_path: Path) -> None:
    """As in /var/log/containers: the link leads to the new file; the rest of the old one is read in the target's directory."""
    (tmp_path / "pods").mkdir()
    add(tmp_path / "pods" / "0.log", "1\n")
    (src / "app.log").symlink_to(tmp_path / "pods" / "0.log")
    query = Query(src, followSymlinks="true")
    assert query.run() == ["1"]
    add(tmp_path / "pods" / "0.log", "2\n")
    (tmp_path / "pods" / "0.log").rename(tmp_path / "pods" / "0.log.20260101")
    add(tmp_path / "pods" / "0.log", "3\n")
    query.restart()
    query.plan()
    for _ in range(2):
        assert sorted(query.read()) == ["2", "3"]
        query.restart()


def test_a_file_whose_rotated_one_is_its_beginning_does_not_wait(src: Path) -> None:
    """A file with only a header is rotated away, and the new file grows: it was taken for an unfinished copy for as long as it grew."""
    query = Query(src, CSV, format="csv", header="true")
    add(src / "app.csv", "a,b\n")
    assert query.run() == []
    (src / "app.csv").rename(src / "app.csv.1")
    for number in range(3):
        add(src / "app.csv", f"x,{number}\n" if number else "a,b\nx,0\n")
        assert query.run() == [("x", number)]
    add(src / "app.csv-other", "a,b\ny,7\n")  # longer than the file with the header alone, and different from this one
    assert query.run() == [("y", 7)]


@pytest.mark.parametrize("read", [0, 1])
@pytest.mark.parametrize("restart", [False, True])
def test_a_copy_that_is_seen_together_with_its_longer_original_is_not_read(src: Path, read: int, restart: bool) -> None:
    """One look shows a complete copy and an original that has grown since, which is cut before the next look: no row comes twice."""
    query = Query(src)
    add(src / "app.log", "1\n" * read)
    query.run()
    add(src / "app.log", "2\n")
    shutil.copyfile(src / "app.log", src / "app.log.1")
    add(src / "app.log", "3\n")
    query.plan()  # one look
    os.truncate(src / "app.log", 0)
    if restart:
        query.restart()
    assert query.run() == []


@pytest.mark.parametrize("made", ["", "1\n"])
@pytest.mark.parametrize("grown", ["", "3\n"])
def test_a_copy_that_was_listed_while_it_was_made_is_not_read(
    src: Path, made: str, grown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One look shows a copy that is still empty, or has its first bytes; when the original is cut, the copy is complete."""
    monkeypatch.setattr(scan, "_LOOK_AGAIN", 0)  # as in a directory of many files, where each has its turn seldom
    query = Query(src)
    add(src / "app.log", "1\n2\n")
    assert query.run() == ["1", "2"]
    (src / "app.log.1").write_text(made)
    assert query.run() == []
    add(src / "app.log.1", "1\n2\n"[len(made) :])
    add(src / "app.log", grown)
    query.plan()  # one look
    os.truncate(src / "app.log", 0)
    add(src / "app.log", "4\n")
    assert query.run() == ["4"]


@pytest.mark.parametrize("reading", range(1, 5))
def test_an_original_that_is_cut_while_its_copy_is_looked_at(
    src: Path, reading: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look that finds the copy has found the original whole; it is cut before one of the next readings of that look."""
    lines = [f"a line of some length, number {number}" for number in range(200)]
    query = Query(src)
    add(src / "app.log", "\n".join(lines) + "\n")
    assert query.run() == lines
    shutil.copyfile(src / "app.log", src / "app.log.1")
    read, left = LocalReadHandle.read, [reading]
    number = str((src / "app.log").stat().st_ino)

    def raced(self: LocalReadHandle, offset: int, length: int) -> bytes:
        left[0] -= self.info().identity == number
        if not left[0]:
            os.truncate(src / "app.log", 0)
        return read(self, offset, length)

    monkeypatch.setattr(LocalReadHandle, "read", raced)
    assert not query.plan()
    assert left[0] <= 0
    add(src / "app.log", "another\n")
    assert query.run() == ["another"]


@pytest.mark.parametrize("read", [0, 1])
@pytest.mark.parametrize("grows", [False, True])
def test_a_copy_that_the_listing_missed_is_not_read(
    src: Path, read: int, grows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names are listed, a copy is made, the original grows, and sizes are taken: the size that was seen is beyond a copy that was not."""
    query = Query(src)
    add(src / "app.log", "1\n" * read)
    query.run()
    refresh = Scan.refresh

    def raced(self: Scan, *args: Any, **options: Any) -> Changes:
        monkeypatch.setattr(Scan, "refresh", refresh)
        add(src / "app.log", "2\n3\n")
        changes = self.refresh(*args, **options)
        (src / "app.log.1").write_text("1\n" * read + "2\n")  # what a copier made between names and sizes
        if grows:
            add(src / "app.log", "4\n")
        return changes

    monkeypatch.setattr(Scan, "refresh", raced)
    query.plan()  # one look
    rows = query.read()
    os.truncate(src / "app.log", 0)
    assert rows + query.run() == ["2", "3", "4"][: 2 + grows]


@pytest.mark.parametrize("header", ["", "a,b\n"])
@pytest.mark.parametrize("look", [False, True])
@pytest.mark.parametrize("behind", [0, 1])
@pytest.mark.parametrize(("kept", "move"), [(1, Path.unlink), (1, None), (3, shutil.copyfile), (3, os.replace)])
def test_a_copy_is_put_over_an_older_one(src: Path, kept: int, move: Any, behind: int, look: bool, header: str) -> None:
    """Scripts that rotate by `cp`: the copy has the name, and perhaps the number, of an older one, and no row comes twice."""
    query = Query(src, CSV, format="csv", header="true") if header else Query(src)
    log, written = src / "app.log", 0
    add(log, header)
    for turn in range(6):
        for lines, looks in ((2, True), (behind, False)):
            add(log, "".join(f"x,{number}\n" for number in range(written, written + lines)))
            written += lines
            if looks:
                query.run()
        for number in range(kept, 1, -1):
            if (src / f"app.log.{number - 1}").exists():
                move(src / f"app.log.{number - 1}", src / f"app.log.{number}")
        if kept == 1 and move and turn:
            move(src / "app.log.1")
        shutil.copyfile(log, src / "app.log.1")
        if look:
            query.run()
        os.truncate(log, 0)
        add(log, header)
        if turn % 2:
            query.restart()
        query.run()
    expected: list[Any] = [("x", number) for number in range(written)]
    assert sorted(query.rows) == (expected if header else sorted(f"x,{number}" for number in range(written)))


@pytest.mark.parametrize("looks", list(itertools.product([False, True], repeat=6)), ids=str)
def test_a_copy_over_an_older_one_is_looked_at_while_it_is_made(src: Path, looks: tuple[bool, ...]) -> None:
    """Whenever one looks at a copy that is written over an older one, also at an original of which nothing was known: no row twice."""
    query, log, copy = Query(src), src / "app.log", src / "app.log.1"
    add(log, "1\n2\n")
    shutil.copyfile(log, copy)
    os.truncate(log, 0)
    assert query.run() == ["1", "2"]
    steps: list[Callable[[], None]] = [
        lambda: add(log, "3\n4\n"),
        lambda: os.truncate(copy, 0),
        lambda: add(copy, "3\n"),
        lambda: add(copy, "4\n"),
        lambda: os.truncate(log, 0),
        lambda: add(log, "5\n"),
    ]
    for step, look in zip(steps, looks, strict=True):
        step()
        if look:
            query.run()
    query.run()
    age(copy, 600)
    query.run()
    assert sorted(query.rows) == ["1", "2", "3", "4", "5"]


def test_a_closed_log_is_cut_behind_its_copy(src: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Among many files a closed one has its turn seldom; while a copy of it waits, it is looked at each time."""
    monkeypatch.setattr(scan, "_LOOK_AGAIN", 0)
    query = Query(src, closeAfter="0")
    add(src / "app.log", "1\n2\n")
    assert query.run() == ["1", "2"]
    shutil.copyfile(src / "app.log", src / "app.log.1")
    assert query.run() == []
    os.truncate(src / "app.log", 0)
    add(src / "app.log", "3\n")
    age(src / "app.log.1", 600)
    assert query.run() == ["3"]


@pytest.mark.parametrize("restart", [False, True])
def test_a_copy_that_was_overtaken_is_known_after_a_restart(src: Path, restart: bool) -> None:
    """The offset says how far the file was planned when it was copied: another driver does not read the shorter copy again."""
    query = Query(src)
    add(src / "app.log", "1\n2\n")
    query.run()
    shutil.copyfile(src / "app.log", src / "app.log.1")
    for number in (3, 4, 5):
        add(src / "app.log", f"{number}\n")
        assert query.run() == [str(number)]
        if restart:
            query.restart()
    os.truncate(src / "app.log", 0)
    add(src / "app.log", "6\n")
    assert query.run() == ["6"]
    age(src / "app.log.1", 600)
    assert query.run() == []


def test_a_query_that_starts_between_copy_and_cut(src: Path) -> None:
    """The copy is older and shorter than its growing original: nothing of it is read twice, and the original does not wait."""
    add(src / "app.log", "1\n2\n")
    shutil.copyfile(src / "app.log", src / "app.log.1")
    add(src / "app.log", "3\n")
    query = Query(src)
    assert query.run() == ["1", "2", "3"]
    query.restart()
    add(src / "app.log", "4\n")
    assert query.run() == ["4"]
    os.truncate(src / "app.log", 0)
    add(src / "app.log", "5\n")
    assert query.run() == ["5"]
    age(src / "app.log.1", 600)
    assert query.run() == []


def test_the_copy_that_has_most_is_the_copy(src: Path) -> None:
    """Besides the new copy there is an old file with the same header alone: it is not taken for the copy."""
    query = Query(src, CSV, format="csv", header="true")
    add(src / "app.csv", "a,b\n")
    query.run()
    add(src / "app.csv", "x,1\n")
    query.run()
    add(src / "app.csv.0", "a,b\n")
    shutil.copyfile(src / "app.csv", src / "app.csv.1")
    os.truncate(src / "app.csv", 0)
    add(src / "app.csv", "a,b\nx,2\n")
    assert query.run() == [("x", 2)]
    for name in ("app.csv.0", "app.csv.1"):
        age(src / name, 600)
    assert query.run() == []


@pytest.mark.parametrize("restart", [False, True])
def test_a_new_file_with_the_header_of_a_removed_one_is_no_copy_of_it(src: Path, restart: bool) -> None:
    """Two rotations between two looks: the oldest file goes, and one comes that nobody has seen, with the header of all."""
    query = Query(src)
    add(src / "app.log.2", "header\n")
    query.run()
    add(src / "app.log.2", "1\n2\n3\n")
    assert query.run() == ["1", "2", "3"]
    (src / "app.log.2").unlink()
    if restart:
        query.restart()
    add(src / "app.log.1", "header\n4\n")
    assert query.run() == ["header", "4"]


def test_a_copy_belongs_to_the_file_of_which_it_has_most(src: Path) -> None:
    """The oldest file goes, of which the header alone was read, and a copy of the log comes, which has that header, too."""
    query = Query(src)
    add(src / "app.log.3", "header\n")
    assert query.run() == ["header"]
    add(src / "app.log", "header\n1\n2\n")
    assert query.run() == ["header", "1", "2"]
    (src / "app.log.3").unlink()
    shutil.copyfile(src / "app.log", src / "app.log.1")
    assert query.run() == []
    os.truncate(src / "app.log", 0)
    add(src / "app.log", "header\n3\n")
    assert query.run() == ["header", "3"]
    age(src / "app.log.1", 600)
    assert query.run() == []


def test_a_copy_that_keeps_the_time_of_an_idle_log_waits(src: Path) -> None:
    """`cp -p`, looked at before the cut: the copy is as old as the log by its time, and has come just now."""
    query = Query(src)
    add(src / "app.log", "1\n2\n")
    age(src / "app.log", 600)
    assert query.run() == ["1", "2"]
    shutil.copy2(src / "app.log", src / "app.log.1")
    assert query.run() == []
    os.truncate(src / "app.log", 0)
    add(src / "app.log", "3\n")
    assert query.run() == ["3"]


@pytest.mark.parametrize("over", [False, True])
def test_two_copies_between_two_looks(src: Path, over: bool) -> None:
    """The log is cut twice, and the last copy has what the log has by now: it waits, also where it was put over the first one."""
    query = Query(src)
    add(src / "app.log.1", "0\n" * over)
    add(src / "app.log", "1\n2\n3\n")
    query.run()
    query.rows.clear()
    shutil.copyfile(src / "app.log", src / "app.log.1")
    os.truncate(src / "app.log", 0)
    add(src / "app.log", "4\n")
    if not over:
        (src / "app.log.1").rename(src / "app.log.2")
    shutil.copyfile(src / "app.log", src / "app.log.1")
    assert query.run() == ["4"]
    os.truncate(src / "app.log", 0)
    assert query.run() == []
    add(src / "app.log", "5\n")
    assert query.run() == ["5"]
    for copy in src.glob("app.log.*"):
        age(copy, 600)
    assert query.run() == []


@pytest.mark.parametrize("look", [False, True])
@pytest.mark.parametrize("header", ["", "header\n"])
def test_a_copy_is_put_over_one_that_has_nothing_but_a_header(src: Path, header: str, look: bool) -> None:
    """An empty log was rotated; its copy is followed, and the next copy begins with what was read of that."""
    query = Query(src)
    add(src / "app.log.1", header + "0\n")
    query.run()
    os.truncate(src / "app.log.1", len(header))
    query.run()
    add(src / "app.log", header + "1\n2\n")
    query.run()
    query.rows.clear()
    shutil.copyfile(src / "app.log", src / "app.log.1")
    if look:
        assert query.run() == []
    os.truncate(src / "app.log", 0)
    add(src / "app.log", "3\n")
    assert query.run() == ["3"]
    age(src / "app.log.1", 600)
    assert query.run() == []


@pytest.mark.parametrize(("kept", "text"), [(0, "hal"), (2, "1\nhal")])
def test_bytes_that_were_cut_in_front_of_their_end_are_told(src: Path, kept: int, text: str) -> None:
    """A file is truncated to where it was read, or before any of it was read: bytes seen but not read are lost, and counted."""
    add(src / "other.log", "x\n")
    add(src / "app.log", text)
    query = Query(src)
    query.run()
    os.truncate(src / "app.log", kept)
    assert query.run() == []
    add(src / "app.log", "n\n")
    assert query.run() == ["n"]
    assert lost(query) == [1, 3]


@pytest.mark.skipif(
    os.geteuid() != 0, reason="who may read everything meets no permission that is missing: it is given up for a while"
)
@pytest.mark.parametrize("known", [False, True])
def test_a_file_that_may_not_be_read_is_told(src: Path, tmp_path: Path, known: bool) -> None:
    """A followed file without permission ends the query by name, even if it was never read; with permission again, nothing is missing."""
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(folder.stat().st_mode | 0o055)
    query = Query(src)
    add(src / "app.log", "1\n")
    if known:
        query.run()
        add(src / "app.log", "2\n")
    (src / "app.log").chmod(0)
    os.seteuid(65534)
    try:
        with pytest.raises(StorageError, match="Permission denied"):
            query.run()
    finally:
        os.seteuid(0)
    (src / "app.log").chmod(0o644)
    query.run()
    assert query.rows == (["1", "2"] if known else ["1"])


def test_a_single_file_is_waited_for_while_it_is_rotated(src: Path) -> None:
    """Between the rename and the new file there is no file: a query that has followed one goes on. A path that never existed is refused."""
    with pytest.raises(OptionError, match="does not exist"):
        Query(src / "app.log")
    add(src / "app.log", "1\n")
    query = Query(src / "app.log")
    assert query.run() == ["1"]
    (src / "app.log").unlink()
    assert query.run() == []
    add(src / "app.log", "2\n3\n")
    assert query.run() == ["2", "3"]


def test_a_short_file_with_the_number_of_a_removed_one_is_read(src: Path, tmp_path: Path) -> None:
    """Jobs that write the same few lines into files of their own: the next file has the number and the beginning of the last one."""
    query = Query(src)
    add(src / "monday.log", "begun\ndone\n")
    assert query.run() == ["begun", "done"]
    (src / "monday.log").rename(tmp_path / "kept")  # the surest way to get the same number again
    assert query.run() == []
    (tmp_path / "kept").write_text("begun\ndone\n")
    os.utime(tmp_path / "kept", (5, 5))
    (tmp_path / "kept").rename(src / "tuesday.log")
    assert query.run() == ["begun", "done"]
    (src / "tuesday.log").rename(tmp_path / "kept")
    assert query.run() == []
    (tmp_path / "kept").rename(src / "wednesday.log")
    assert query.run() == []  # it is the same file, unchanged


def test_a_single_file_that_becomes_a_directory_is_told(src: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As a container makes one where a file is missing: nothing would come, and nobody would know why; also after a restart."""
    log = src / "app.log"
    add(log, "1\n")
    query = Query(log)
    assert query.run() == ["1"]
    log.unlink()
    log.mkdir()
    assert query.run() == query.run() == []
    assert caplog.text.count("was a file, and is a directory now") == 1
    caplog.clear()
    query.restart()
    assert query.run() == []
    assert caplog.text.count("was a file, and is a directory now") == 1
    add(log / "a.log", "2\n")
    assert query.run() == ["2"]


def test_links_and_directories_that_are_left_out_are_told(
    src: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As a kubelet lays out the logs of its containers, as links out of their directory: nothing would be read, and nothing said."""
    (tmp_path / "pods").mkdir()
    add(tmp_path / "pods" / "0.log", "1\n")
    (src / "web.log").symlink_to(tmp_path / "pods" / "0.log")
    (src / "sub").mkdir()
    query = Query(src)
    assert query.run() == query.run() == []
    query.restart()
    assert query.run() == []
    assert "set followSymlinks=true to have them followed" in caplog.text
    assert "set recursiveFileLookup=true to have them descended into" in caplog.text


def test_limits_cut_at_records(src: Path) -> None:
    """A byte limit ends a batch after a record; a longer record is a batch of its own."""
    add(src / "a.log", "1\n22\n" + "3" * 100 + "\n4\n")
    add(src / "b.log", "5\n")
    query = Query(src, maxBytesPerTrigger="5", splitSize="3")
    seen = []
    while query.plan():
        seen.append(query.read())
    assert [row for rows in seen for row in rows] == ["1", "22", "3" * 100, "4", "5"]
    assert len(seen) > 2


def test_the_busiest_file_is_not_passed_over(src: Path) -> None:
    """If more files grow than a batch takes, each gets its turn: the busiest file is always the one written last."""
    query = Query(src, maxFilesPerTrigger="1")
    seen = []
    for number in range(9):
        for name in ("a", "b", "busy"):
            add(src / f"{name}.log", f"{name}\n")
            age(src / f"{name}.log", 60 if name != "busy" else number / 1000)
        assert query.plan()
        seen += query.read()[:1]
    assert sorted(seen) == ["a"] * 3 + ["b"] * 3 + ["busy"] * 3


def test_an_available_now_run_ends_though_files_grow(src: Path) -> None:
    """An AvailableNow run reads what exists when it begins, in as many batches as needed; the last one is marked as the last."""
    for name in "abc":
        add(src / f"{name}.log", "1\n")
    query = Query(src, maxFilesPerTrigger="2")
    query.planner.prepare_available_now()
    seen = []
    while query.plan():
        seen += query.read()
        add(src / "a.log", "more\n")
        query.planner.initial()  # Spark asks for it again at any time
    assert seen == ["1", "1", "1"]
    assert [json.loads(line).get("last") for line in query.log] == [None, True]


def test_compressed_files_are_left_out(src: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A rotated file that is compressed later is not read again, and does not stop the query."""
    caplog.set_level(logging.INFO)
    query = Query(src)
    add(src / "app.log", "1\n")
    query.run()
    (src / "app.log.gz").write_bytes(gzip.compress((src / "app.log").read_bytes()))
    (src / "app.log").unlink()
    add(src / "app.log", "2\n")
    assert query.run() == ["2"]
    assert "'app.log.gz' is compressed" in caplog.text


def test_links_to_one_file_are_one_file(src: Path) -> None:
    """A link `current.log` to today's file is the same file, and is read once."""
    add(src / "app-1.log", "1\n")
    (src / "current.log").symlink_to("app-1.log")
    query = Query(src)
    assert query.run() == ["1"]
    add(src / "app-1.log", "2\n")
    assert query.run() == ["2"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"format": "parquet"}, "format=parquet cannot be followed"),
        ({"format": "binary"}, "format=binary cannot be followed"),
        ({"encoding": "ISO-2022-JP"}, "cannot be followed"),
        ({"emit": "files"}, "emit='files' does not go with follow=true"),
        ({"cleanSource": "delete"}, "cleanSource='delete' does not go"),
        ({"batchBoundary": "file"}, "batchBoundary='file' does not go"),
        ({"startingFrom": "latest"}, "startingFrom='latest' does not go"),
        ({"startingFrom": "2026-01-31T12:00:00Z"}, "startingFrom='2026-01-31T12:00:00Z' does not go"),
        ({"decryptionKey": "env:KEY"}, "decryptionKey .* follow=true leaves such out"),
        ({"format": "json", "multiLine": "true"}, "multiLine=true takes a file for one document"),
        ({"follow": "false", "closeAfter": "1m"}, "closeAfter is for follow=true"),
        ({"closeAfter": "5"}, "closeAfter"),
        ({"follow": "maybe"}, "follow"),
    ],
)
def test_what_cannot_be_followed_is_refused_by_name(src: Path, options: dict[str, str], words: str) -> None:
    """APX-43: formats without lines, encodings whose lines cannot be found, and a start at the end are refused before anything is read."""
    value = TEXT.replace("string", "binary") if options.get("format") == "binary" else TEXT
    with pytest.raises(OptionError, match=words):
        Query(src, value, **options)


def test_a_checkpoint_is_of_one_kind(src: Path) -> None:
    """`follow` cannot be switched on or off under an old checkpoint: what was read would be read again."""
    add(src / "a", "1\n")
    query = Query(src, settle="0s")
    query.run()
    query.given["follow"] = "false"
    options = parse(SOURCE, query.given, what="source")
    plain = configured.planner(options, configured.reading(options, TEXT))
    with pytest.raises(OptionError, match="that of a source with follow=true"):
        plain.latest(json.loads(query.log[-1]))
    offset = plain.latest(plain.initial())
    with pytest.raises(OptionError, match="that of a source with follow=false"):
        Query(src).planner.latest(offset)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_any_order_of_writes_rotations_restarts_and_replays(src: Path, seed: int) -> None:
    """Random flushes, renames, copies with truncation, restarts and replays: each line once and whole; a replay has the same rows."""
    chance = random.Random(seed)  # noqa: S311 - a test that can be repeated
    query = Query(src, maxBytesPerTrigger=chance.choice(["20", "1m"]))
    written = 0
    pending = b""
    copied = False
    rotated = 0
    for _ in range(300):
        step = chance.random()
        if step < 0.5:
            if not pending:
                pending = f"line {written} {'ü' * chance.randrange(8)}\n".encode()
                written += 1
            size = chance.randrange(1, len(pending) + 1)
            add(src / "app.log", pending[:size])
            pending = pending[size:]
        elif step < 0.75 and query.plan():
            rows = query.read()
            assert query.read() == rows
            query.rows += rows
        elif step < 0.8:
            query.restart()
        elif step < 0.83 and (src / "app.log").exists() and not pending and not copied:
            (src / "app.log").rename(src / f"app.log.{rotated}")
            rotated += 1
        elif step < 0.86 and (src / "app.log").exists() and not pending and (src / "app.log").stat().st_size:
            shutil.copyfile(src / "app.log", src / f"app.log.{rotated}")
            if chance.random() < 0.5:
                query.run()
            os.truncate(src / "app.log", 0)
            rotated += 1
            if chance.random() < 0.5:
                query.restart()
            query.run()  # two truncations between two looks would be reported, not followed
    add(src / "app.log", pending)
    query.restart()
    query.run()
    numbers = sorted(int(row.split()[1]) for row in query.rows)
    assert numbers == list(range(written))


def test_state_is_that_of_the_files_that_are_there(src: Path) -> None:
    """A file that is gone leaves nothing in the offset."""
    query = Query(src, closeAfter="1m")
    for number in range(50):
        add(src / f"{number}.log", "1\n")
    query.run()
    for number in range(49):
        (src / f"{number}.log").unlink()
    add(src / "49.log", "2\n")
    query.run()
    follow = json.loads(query.log[-1])["follow"]
    assert (len(follow["growing"]), follow["closed"]) == (1, [])


def test_time_does_not_matter_but_for_closing(src: Path) -> None:
    """A clock that jumps neither loses nor doubles a record: only the bytes count."""
    now = FakeClock(time.time())
    with clock.use(now):
        query = Query(src)
        add(src / "a.log", "1\n")
        assert query.run() == ["1"]
        now.sleep(-10_000)
        add(src / "a.log", "2\n")
        assert query.run() == ["2"]
        os.utime(src / "a.log", (5, 5))
        add(src / "a.log", "3\n")
        os.utime(src / "a.log", (5, 5))
        assert query.run() == ["3"]


WRITER = """
import os, sys, time
path, lines, way = sys.argv[1], int(sys.argv[2]), sys.argv[3]
file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
for number in range(lines):
    data = b"line %d of the writer\\n" % number
    os.write(file, data[:7]); os.write(file, data[7:])
    if number % 50 == 0:
        time.sleep(0.002)
    if not os.path.exists(path) and way == "rename":
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
"""
ROTATOR = """
import os, shutil, sys, time
path, way = sys.argv[1], sys.argv[2]
for number in range(1, 1000):
    time.sleep(0.05)
    if os.path.exists(path + ".stop"):
        break
    if way == "rename":
        os.rename(path, f"{path}.{number}")
        while not os.path.exists(path) and not os.path.exists(path + ".stop"):
            time.sleep(0.001)
    else:
        shutil.copyfile(path, f"{path}.{number}")
        os.truncate(path, 0)
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["rename", "copytruncate"])
def test_logrotate_at_speed_beside_a_follower(src: Path, way: str) -> None:
    """In separate processes: with rename each line comes once; with copy and truncate none twice, and each line that a file has.

    Any other line was lost between copy and truncation, which is a weakness of that method.
    """
    path = src / "app.log"
    path.touch()
    lines = 4000
    query = Query(src, pattern=r"app\.log(\.\d+)?")
    rotator = subprocess.Popen([sys.executable, "-c", ROTATOR, str(path), way])
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(lines), way])
    try:
        while writer.poll() is None:
            if query.plan():
                rows = query.read()
                assert query.read() == rows
                query.rows += rows
            if random.random() < 0.1:  # noqa: S311 - when a driver dies
                query.restart()
    finally:
        (src / "app.log.stop").touch()
        rotator.wait()
        writer.wait()
    for file in src.glob("app.log*"):
        age(file, 600)
    query.run()
    seen = [row for row in query.rows if row.startswith("line ") and row.endswith(" of the writer")]
    expected = {f"line {number} of the writer" for number in range(lines)}
    if way == "rename":
        assert sorted(query.rows) == sorted(expected)
        return
    assert len(seen) == len(set(seen))
    kept = {line for file in src.glob("app.log*") for line in file.read_text().splitlines()} & expected
    assert kept <= set(seen) <= expected


def test_a_writer_that_does_not_append_goes_on_after_a_cut(src: Path) -> None:
    """After `copytruncate` it writes on where it was, and the disk shows zeros before that: they are bytes of its first record."""
    log = src / "app.log"
    query = Query(src)
    add(log, "1\n2\n")
    query.run()
    shutil.copy(log, src / "app.log.1")
    with log.open("r+b") as file:
        file.truncate(0)
        file.seek(4)
        file.write(b"3\n")
    query.run()
    assert query.rows == ["1", "2", "\0\0\0\0003"]
