"""Whatever happens to a log's files: an error that names file and offset, or a prefix of what was appended. Never a hole."""

from __future__ import annotations

import errno
import os
import shutil
from itertools import pairwise, permutations
from pathlib import Path

import pytest

from penstock.errors import DamagedState, OptionError, PositionError, StorageError
from penstock.testing import CrashDisk, Fault, FaultySystem
from penstock.wal import RECORD_BYTES_MAX, Log, Position, Reader, Writer, form
from tests.support.damage import damages, exchange, flipped, put_back, unsynced
from tests.support.effort import effort

RECORDS = [b"%d:" % n * (n % 7 * 9) for n in range(24)]


@pytest.fixture
def log(root: str) -> Path:
    """Return a log of three segments: single records and groups, some of them empty, all acknowledged."""
    with Writer(root, segment_size=1100, storage=unsynced()) as writer:
        for start in range(0, len(RECORDS), 3):
            writer.append(RECORDS[start])
            writer.flush()
            writer.append_many(RECORDS[start + 1 : start + 3])
            writer.flush()
    assert len(list(Path(root).iterdir())) == 3
    return Path(root)


def ends(log: Path) -> list[int]:
    """Return how many records come before each segment."""
    with Reader(str(log)) as reader:
        batches = list(reader.batches())
    return [min(b.sequence for b in batches if b.segment == number) for number in (1, 2, 3)]


@pytest.mark.slow
def test_every_change_of_every_byte(log: Path) -> None:
    """A segment that is cut anywhere, has a bit flipped anywhere, or is zeroed gives an error that names it, or has a torn end.

    Only the last segment may have a torn end, and only where nothing later was synced; no record is ever wrong. Then the
    log is written on: if it cannot be read it cannot be written either; otherwise a reader gets all records, also the new one.
    """
    before = ends(log)
    for number in (1, 2, 3):
        path = log / f"{number:012d}.wal"
        data = path.read_bytes()
        for what, broken in damages(data, every=effort(7, 3) if number < 3 else effort(2, 1)):
            exchange(path, broken)
            where = f"{what} of segment {number}"
            try:
                with Reader(str(log)) as reader:
                    read = list(reader)
                assert read == RECORDS[: len(read)], where
                assert len(read) >= before[number - 1], where
                assert number == 3 or len(read) == len(RECORDS), where  # data after the end of the log does not count
                assert "flipped" not in what or len(read) >= len(RECORDS) - 2, where
            except DamagedState as error:
                assert path.name in str(error), where  # noqa: PT017 - one of both is right, by what was damaged
                assert number < 3 or "cut" not in what, where
                if number == 3:  # a writer reads no other segment
                    with pytest.raises(DamagedState):
                        Writer(str(log))
                continue
            with put_back(log):
                with Writer(str(log), storage=unsynced()) as writer:
                    writer.append(b"more")
                with Reader(str(log)) as reader:
                    assert list(reader) == [*read, b"more"], where
        path.write_bytes(data)


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 2, 3])
def test_repair_keeps_what_is_right(log: Path, number: int) -> None:
    """After a repair of any damage, the log can be read up to the damage and written on; everything that was cut is kept in copies."""
    path = log / f"{number:012d}.wal"
    data = path.read_bytes()
    kept, before = 0, ends(log)[number - 1]
    for what, broken in damages(data, every=37):
        with put_back(log) as files:
            path.write_bytes(broken)
            copies = Log(str(log), storage=unsynced()).repair()
            with Reader(str(log), mode="strict") as reader:
                read = list(reader)
            assert read == RECORDS[: len(read)], what
            assert len(read) >= before, what
            for copy in copies:
                name = Path(copy).name.removesuffix(".broken")
                assert Path(copy).read_bytes() == (broken if name == path.name else files[name]), what
                assert Path(copy).stat().st_mode & 0o777 == 0o600
            with Writer(str(log), storage=unsynced()) as writer:
                writer.append(b"more")
            with Reader(str(log), mode="strict") as reader:
                assert list(reader) == [*read, b"more"], what
            assert Log(str(log), storage=unsynced()).repair() == [], what
            kept += len(copies)
    assert kept


def test_positions_of_what_was_cut_are_not_given_again(log: Path) -> None:
    """After a repair, new records get segments of their own: a reader whose position was after the cut is refused."""
    with Reader(str(log)) as reader:
        given = {batch.position(0): batch.sequence for batch in reader.batches()}
        given[reader.position] = reader.sequence
    path = log / "000000000001.wal"
    path.write_bytes(flipped(path.read_bytes(), 300))
    assert len(Log(str(log)).repair()) == 3
    with Reader(str(log)) as reader:
        kept = len(list(reader))
    with Writer(str(log)) as writer:
        new = [writer.append(b"new") for _ in RECORDS]
    assert not given.keys() & set(new)
    for position, sequence in given.items():
        if sequence > kept:
            with pytest.raises(PositionError):
                Reader(str(log), start=position)


def test_segments_that_were_removed_exchanged_or_of_another_log(log: Path, tmp_path: Path) -> None:
    """A segment that is missing in the middle, in another's place, or of another log, is damage; missing at the start, it was purged."""
    names = sorted(path.name for path in log.iterdir())
    other = tmp_path / "other"
    with Writer(str(other), segment_size=1100) as writer:
        for record in RECORDS:
            writer.append_many([record])
            writer.flush()
    with put_back(log):
        (log / names[1]).unlink()
        with pytest.raises(DamagedState, match=names[1]), Reader(str(log)) as reader:
            list(reader)
    for one, two in permutations(names, 2):
        with put_back(log) as files:
            (log / one).write_bytes(files[two])
            with pytest.raises(DamagedState, match="moved here"), Reader(str(log)) as reader:
                list(reader)
    for name in names[1:]:
        with put_back(log):
            shutil.copy(other / name, log / name)
            with pytest.raises(DamagedState), Reader(str(log)) as reader:
                list(reader)
    with put_back(log):
        first = ends(log)[1]
        (log / names[0]).unlink()
        with Reader(str(log)) as reader:
            assert list(reader) == RECORDS[first:]


@pytest.mark.parametrize("number", [4, 9])
def test_nothing_is_appended_after_a_segment_that_was_put_there(log: Path, tmp_path: Path, number: int) -> None:
    """A foreign segment after the end, next to it or after a gap: a writer that opens the log gets an error, and repair cuts it off."""
    other = tmp_path / "other"
    with Writer(str(other), segment_size=200, storage=unsynced()) as writer:
        for record in range(10):
            writer.append(b"%d" % record * 60)
    shutil.copy(other / f"{number:012d}.wal", log)
    with pytest.raises(DamagedState, match=f"{number:012d}.wal' was not written after .*000000000003.wal'"):
        Writer(str(log))
    assert len(Log(str(log)).repair()) >= 1
    with Writer(str(log)) as writer:
        writer.append(b"more")
    assert list(Reader(str(log))) == [*RECORDS, b"more"]


def test_nothing_is_appended_after_a_segment_that_is_missing(root: str) -> None:
    """A segment before the last two is missing: a writer that opens the log gets an error; put back, all is well; repair cuts there."""
    for record in range(6):
        with Writer(root, storage=unsynced()) as writer:
            writer.append(b"%d" % record)
    missing = Path(root) / "000000000003.wal"
    data = missing.read_bytes()
    missing.unlink()
    with pytest.raises(
        DamagedState, match="000000000004.wal' was not written after .*000000000002.wal'.*restore the log from"
    ):
        Writer(root)
    missing.write_bytes(data)
    with Writer(root) as writer:
        writer.append(b"6")
    assert list(Reader(root)) == [b"%d" % record for record in range(7)]
    missing.unlink()
    assert len(Log(root).repair()) == 4
    with Writer(root) as writer:
        writer.append(b"7")
    assert list(Reader(root)) == [b"0", b"1", b"7"]


def test_a_pipe_in_the_place_of_a_segment(log: Path) -> None:
    """Nobody waits for a writer to the pipe: it is an error that names the pipe."""
    os.mkfifo(log / "000000000004.wal")
    for refused in (
        lambda: list(Reader(str(log))),
        lambda: Writer(str(log)),
        Log(str(log)).verify,
        Log(str(log)).repair,
    ):
        with pytest.raises(StorageError, match="000000000004.wal"):
            refused()


def test_a_repair_leaves_newer_versions_alone(log: Path) -> None:
    """F-W21: an older Penstock does not cut a log that a newer one continues; it does cut a version that only a bit flip made."""
    path = log / "000000000003.wal"
    data, before = path.read_bytes(), ends(log)[2]
    for number in (1, 3):
        with put_back(log) as files:
            changed = log / f"{number:012d}.wal"
            newer = files[changed.name]
            changed.write_bytes(newer[:8] + b"\2" + newer[9:80] + bytes(8) + newer[88:])
            kept = changed.read_bytes()
            with pytest.raises(DamagedState, match=f"{changed.name}' has format version 2, expected 1"):
                Log(str(log)).repair()
            assert sorted(path.name for path in log.iterdir()) == sorted(files)
            assert changed.read_bytes() == kept
    path.write_bytes(flipped(data, 9))
    assert Log(str(log)).repair() == [f"{path}.broken"]
    with Writer(str(log)) as writer:
        writer.append(b"more")
    assert list(Reader(str(log))) == [*RECORDS[:before], b"more"]


def test_an_older_copy_of_the_last_segment(log: Path) -> None:
    """An earlier copy of a segment, put back after another segment was begun, is damage: it is shorter than the next one says."""
    last = log / "000000000003.wal"
    data = last.read_bytes()
    with Writer(str(log)) as writer:
        writer.append(b"more")
    with Reader(str(log)) as reader:
        cut = [b.at for b in reader.batches() if b.segment == 3][-1]
    last.write_bytes(data[:cut])
    with pytest.raises(
        DamagedState, match=rf"000000000003.wal' is damaged at byte {cut}: found .* expected that of byte {len(data)}"
    ):
        list(Reader(str(log)))


def test_newer_versions_and_types(log: Path) -> None:
    """A segment of a newer version is refused; a group of an unknown type is skipped if it is marked as skippable."""
    path = log / "000000000003.wal"
    data = path.read_bytes()
    path.write_bytes(data[:8] + b"\2" + data[9:])
    with pytest.raises(DamagedState, match="has format version 2, expected 1"):
        list(Reader(str(log)))
    header = form.decode_header(data, "x")
    assert header is not None
    for flags in (0, form.MAY_SKIP):
        check = int.from_bytes(data[-8:], "little")
        group, check = form.encode_group([b"new"], [3], len(RECORDS), 0, check ^ header.salt)
        body = group[:4] + bytes([9, flags]) + group[6:-8]
        seed = int.from_bytes(data[-8:], "little") ^ header.salt
        path.write_bytes(data + body + form.checksum(body, seed).to_bytes(8, "little"))
        if flags:
            assert list(Reader(str(log))) == RECORDS
        else:
            with pytest.raises(DamagedState, match="type 9"):
                list(Reader(str(log)))


def test_salvage_passes_over_what_is_damaged(log: Path) -> None:
    """If a group in each segment and a header are damaged, salvage reads all other groups, in order, and reports what it left out."""
    with Reader(str(log)) as reader:
        batches = list(reader.batches())
    hit = [next(b for b in batches if b.segment == 1 and b.sequence > 2), [b for b in batches if b.segment == 3][1]]
    for batch in hit:
        path = log / f"{batch.segment:012d}.wal"
        path.write_bytes(flipped(path.read_bytes(), batch.at + 9))
    second = log / "000000000002.wal"
    second.write_bytes(flipped(second.read_bytes(), 20))
    reader = Reader(str(log), mode="salvage")
    expected = [r for b in batches if b not in hit and b.segment != 2 for r in b.records()]
    assert list(reader) == expected
    assert [(Path(s.path).name[11], s.start, s.end) for s in reader.skipped] == [
        ("1", hit[0].at, hit[0].end),
        ("2", 0, second.stat().st_size),
        ("3", hit[1].at, hit[1].end),
    ]


def test_a_salvage_that_is_asked_again(log: Path) -> None:
    """Damage that it skipped at the end is reported once, however often the end is read; records appended after it are read."""
    path = log / "000000000003.wal"
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + b"rubbish" * 9)
    with Reader(str(log), mode="salvage") as reader:
        assert [list(reader) for _ in range(3)] == [RECORDS, [], []]
        assert [(s.start, s.end) for s in reader.skipped] == [(size, size + 63)]
        with Writer(str(log)) as writer:
            writer.append(b"more")
        assert list(reader) == [b"more"]
        assert len(reader.skipped) == 1


def test_a_salvage_of_a_log_that_holds_its_own_begin(root: str) -> None:
    """A damaged record that contains a copy of the segment has valid-looking groups in it: they are older, and are not read twice."""
    path = Path(root) / "000000000001.wal"
    with Writer(root) as writer:
        writer.append(b"first")
        writer.flush()
        writer.append(path.read_bytes())
        writer.flush()
        writer.append(b"last")
    path.write_bytes(flipped(path.read_bytes(), 150))
    with Reader(root, mode="salvage") as reader:
        assert list(reader) == [b"first", b"last"]


def test_a_number_that_is_left_out(log: Path) -> None:
    """A group with a valid checksum that is not the next in sequence is damage."""
    path = log / "000000000003.wal"
    data = path.read_bytes()
    header = form.decode_header(data, "x")
    assert header is not None
    group, _ = form.encode_group(
        [b"x"], [1], len(RECORDS) + 1, len(data), int.from_bytes(data[-8:], "little") ^ header.salt
    )
    path.write_bytes(data + group)
    with pytest.raises(DamagedState, match=f"number, expected record {len(RECORDS)}"):
        list(Reader(str(log)))


def test_the_second_group_of_a_flush_alone(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two groups are written together and a power cut keeps only the second: that is a torn end, because neither was acknowledged."""
    monkeypatch.setattr("penstock.wal.writer.GROUP_BYTES", 200)
    path = Path(root) / "000000000001.wal"
    with Writer(root) as writer:
        writer.append(b"first")
        writer.flush()
        at = path.stat().st_size
        writer.append(bytes(100))
        writer.append(b"third" * 20)
    data = path.read_bytes()
    group = form.group_bytes(1, 100)
    assert len(data) == at + 2 * group
    path.write_bytes(data[:at] + bytes(group - 8) + data[at + group - 8 :])  # the sector that both groups share is kept
    assert list(Reader(root)) == [b"first"]
    assert Log(root).info().torn == 2 * group
    with Writer(root) as writer:
        writer.append(b"more")
    assert list(Reader(root)) == [b"first", b"more"]


def test_a_header_that_tore(log: Path) -> None:
    """A new segment with part of a header, or zeros as long as a header, holds nothing: it is skipped, and its number is not reused."""
    data = (log / "000000000003.wal").read_bytes()
    for header in (b"", data[:40], data[:40] + bytes(48), bytes(88)):
        with put_back(log):
            (log / "000000000004.wal").write_bytes(header)
            assert list(Reader(str(log), mode="strict")) == RECORDS
            with Writer(str(log)) as writer:
                assert writer.append(b"more") == (5, form.FIRST_ENTRY)
            assert list(Reader(str(log))) == [*RECORDS, b"more"]
            assert Log(str(log)).repair() == []


def test_two_that_go_on_after_the_same_one(root: str, tmp_path: Path) -> None:
    """The last one counts; a writer continues after it, whatever is in between."""
    with Writer(root) as writer:
        writer.append(b"first")
    other = tmp_path / "other"
    shutil.copytree(root, other)
    (other / "000000000002.wal").touch()
    for directory, record in ((root, b"overtaken"), (other, b"second")):
        with Writer(directory) as writer:
            writer.append(record)
    shutil.copy(other / "000000000003.wal", root)
    assert list(Reader(root)) == [b"first", b"second"]
    with Writer(root) as writer:
        writer.append(b"third")
    assert list(Reader(root)) == [b"first", b"second", b"third"]
    assert Log(root).repair() == []


def test_each_repair_keeps_its_own_copy(log: Path) -> None:
    """Later damage of the same segment is cut as the first was, and its copy is kept next to the first."""
    path = log / "000000000003.wal"
    kept = []
    for at in (-9, -200):
        path.write_bytes(flipped(path.read_bytes(), path.stat().st_size + at))
        kept.append(path.read_bytes())
        assert len(Log(str(log)).repair()) == 1
    assert [(log / f"{path.name}.broken{n}").read_bytes() for n in ("", ".2")] == kept


def test_torn_end_is_the_end_or_an_error(log: Path) -> None:
    """Garbage or zeros after the last record: the end for `tail`, an error for `strict`; `info` reports it, and nothing cuts it off."""
    path = log / "000000000003.wal"
    data = path.read_bytes()
    for rubbish in (b"x", b"rubbish" * 9, b"\5\0\0\0" + b"x" * 60, bytes(4096), data[88:120]):
        path.write_bytes(data + rubbish)
        assert list(Reader(str(log))) == RECORDS
        assert Log(str(log)).verify().torn == len(rubbish)
        with pytest.raises(
            DamagedState, match=rf"damaged at byte {len(data)}: found {len(rubbish)} bytes of a torn write"
        ):
            list(Reader(str(log), mode="strict"))


@pytest.mark.slow
def test_positions_that_are_none(log: Path) -> None:
    """A position inside a record, before what was purged, or after the end is refused; every position that was given is accepted."""
    with Reader(str(log)) as reader:
        given = {}
        while True:
            given[reader.position] = reader.sequence
            if not reader.advance():
                break
        end = reader.position
    for position, sequence in given.items():
        with Reader(str(log), start=position) as reader:
            assert (reader.sequence, reader.position) == (sequence, position)
            assert list(reader) == RECORDS[sequence:]
    ends_and_begins = [(size_of(log, n) + form.GROUP_HEAD_BYTES, form.FIRST_ENTRY) for n in (1, 2, 3)]
    good = given.keys() | {Position(n, at) for n, both in enumerate(ends_and_begins, 1) for at in both}
    for position in (Position(n, offset) for n in (1, 2, 3) for offset in range(1, size_of(log, n) + 64)):
        if position not in good:
            with pytest.raises(PositionError, match=f"^.PST-104. {position} is not a position of"):
                pytest.fail(f"taken: {Reader(str(log), start=position).position}")
    for far in (Position(4, 120), Position(3, end.offset + 8), Position(0, 120)):
        with pytest.raises(PositionError):
            Reader(str(log), start=far)
    Log(str(log)).purge(end)
    with pytest.raises(PositionError, match="it was purged; the first position is 3:120"):
        Reader(str(log), start=next(iter(given)))


def test_a_record_that_looks_like_an_entry(root: str) -> None:
    """A position inside a record is refused, even if the bytes there could be the entry of a record after the last one."""
    with Writer(root) as writer:
        at = writer.append((1).to_bytes(8, "little") * 4)
    for step in (1, 2, 3):
        with pytest.raises(PositionError, match="inside a record"):
            Reader(root, start=Position(at.segment, at.offset + 8 * step))


def test_a_position_of_a_damaged_record(log: Path) -> None:
    """In each segment, the error reports damage, not a position that the log never gave; after the damage the log can be read."""
    with Reader(str(log)) as reader:
        batches = list(reader.batches())
    for number in (1, 2, 3):
        path = log / f"{number:012d}.wal"
        own = [batch for batch in batches if batch.segment == number]
        data = path.read_bytes()
        for hit, behind in pairwise(own):
            for at in (hit.at, hit.at + 33, hit.end - 9, hit.end - 1):
                path.write_bytes(flipped(data, at))
                if at < hit.end - 1:  # that byte is also the seed of the next record
                    assert list(Reader(str(log), start=behind.position(0))) == RECORDS[behind.sequence :]
                for index in range(hit.count):
                    with pytest.raises(DamagedState, match=f"{path.name}' is damaged at byte {hit.at}"):
                        list(Reader(str(log), start=hit.position(index)))
        path.write_bytes(data)


def size_of(log: Path, number: int) -> int:
    """Return the length of a segment, which is where it ends."""
    return (log / f"{number:012d}.wal").stat().st_size


def test_texts_that_are_no_positions() -> None:
    """A position is parsed only from the text form that it gives."""
    assert Position.parse(str(Position(3, 1024))) == (3, 1024)
    for text in ("", "3", "3:", ":1", "-1:3", "3:1024 ", "a:b", "3:1e3", "9999999999999:1", "٣:١٢٠"):
        with pytest.raises(OptionError):
            Position.parse(text)


def test_records_that_are_too_long(root: str) -> None:
    """A record of the maximum length is accepted and read, in a segment of its own; a longer one is refused, and nothing else."""
    with Writer(root, segment_size="1m") as writer:
        writer.append(b"before")
        long = writer.append(bytes(RECORD_BYTES_MAX))
        for attempt in (writer.append, lambda record: writer.append_many([b"x", record])):
            with pytest.raises(OptionError, match="too long"):
                attempt(bytes(RECORD_BYTES_MAX + 1))
        behind = writer.append(b"behind")
        writer.flush()
    assert (long.segment, behind.segment) == (2, 3)
    with Reader(root) as reader:
        assert [len(record) for record in reader] == [6, RECORD_BYTES_MAX, 6]


def test_a_length_that_lies_allocates_nothing(log: Path) -> None:
    """E5: a group that claims to be 4 GB long is reported as torn or damaged at once, and is not read into memory."""
    path = log / "000000000003.wal"
    data = path.read_bytes()
    path.write_bytes(data + (0xFFFFFFF8).to_bytes(4, "little") + bytes([1, 0, 0, 0]) + bytes(64))
    assert list(Reader(str(log))) == RECORDS


@pytest.mark.slow
@pytest.mark.parametrize("fault", [Fault(errno.ENOSPC), Fault(errno.EIO), Fault(errno.EIO, applied=True)], ids=str)
def test_every_call_fails_once(fault: Fault) -> None:
    """Whichever call fails while a log is written, rolled, purged or repaired: a typed error, and afterwards the log continues."""
    from tests.testing.test_sink_faults import run  # noqa: PLC0415 - what runs a program up to a typed error
    from tests.testing.wal_program import RepairProgram, WalProgram  # noqa: PLC0415 - what is run up to a typed error

    failed = set()
    for make in (lambda: WalProgram([1, 3, 2, 1], segment_size=400, purge=True), lambda: RepairProgram(2)):
        for at in range(1, 10_000):
            program, disk = make(), CrashDisk()
            if isinstance(program, RepairProgram):
                program.prepare(disk.storage())
            faulty = FaultySystem(disk, fault, at)
            error = run(program, faulty, 1)
            where = f"{fault} at call {at}, {faulty.failed}: {error}"
            assert not disk.descriptors, where
            assert run(program, disk, 2) is None, where
            worst = CrashDisk(next(disk.images()))
            assert program.check(worst, final=True) == [], where
            if faulty.failed is None:
                break
            failed.add(faulty.failed)
    assert {"open", "write", "fdatasync", "fsync", "unlink", "link", "scandir"} <= failed


def test_a_medium_that_is_read_only_is_read(log: Path) -> None:
    """A log in a read-only directory is read and verified; no lock file is needed."""
    for path in (*log.iterdir(), log):
        os.chmod(path, 0o500 if path == log else 0o400)
    try:
        assert list(Reader(str(log))) == RECORDS
        assert Log(str(log)).verify().records == len(RECORDS)
    finally:
        log.chmod(0o700)
