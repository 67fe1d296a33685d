"""A file that is split over batches changes in between: its rest is read once, or the error says what to do. Without Spark."""

from __future__ import annotations

import json
import logging
import os
import random
import re
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import clock
from penstock.errors import FileChanged, OptionError
from penstock.formats import ReadFormat
from penstock.formats.ddl import parsed
from penstock.options import SOURCE, parse
from penstock.query.offset import summed
from penstock.source import begun, configured, scan
from penstock.source.plan import Planner
from penstock.source.read import Reading
from penstock.storage import LocalStorage
from tests.support.follows import follows

TEXT = pa.schema([("value", pa.string())])
SECOND = 1_000_000_000
RECORDS = [f"record {number:02}" for number in range(20)]  # 10 bytes each, including the line feed


class Query:
    """A query that splits one file over batches; `rows` are the rows read. One driver plans all batches, or a new one plans each."""

    def __init__(self, path: Path, *, restart: bool, **options: str) -> None:
        self.path = path
        self.rows: list[str] = []
        self._restart = restart
        self._options = parse(
            SOURCE, {"path": str(path), "maxBytesPerTrigger": "45", "settle": "0"} | options, what="source"
        )
        self._reading = Reading(LocalStorage(), str(path), ReadFormat("text", TEXT))
        self._planner = self._new()
        self.at: dict[str, Any] = self._planner.initial()

    def _new(self) -> Planner:
        return Planner(
            LocalStorage(), str(self.path), self._options, divisible=self._reading.divisible, reach=self._reading.reach
        )

    def put(self, lines: list[str], seconds: float = 1000) -> Path:
        """Write the file."""
        file = self.path / "big"
        file.write_text("".join(f"{line}\n" for line in lines))
        os.utime(file, ns=(int(seconds * SECOND),) * 2)
        return file

    def batch(self) -> bool:
        """Run one batch; tell whether there was any."""
        self._planner = self._new() if self._restart else self._planner
        end = json.loads(json.dumps(self._planner.latest(self.at)))
        if end == self.at:
            return False
        self.rows += [
            v for task in self._planner.tasks(end) for b in self._reading.batches(task) for v in b.column(0).to_pylist()
        ]
        self.at = end
        return True

    def rest(self) -> None:
        """Run all remaining batches."""
        while self.batch():
            pass


@pytest.fixture(params=[False, True], ids=["one process", "restarts"])
def query(tmp_path: Path, request: pytest.FixtureRequest) -> Query:
    """Return a query that has read the first nine of twenty records."""
    path = tmp_path / "in"
    path.mkdir()
    made = Query(path, restart=request.param)
    made.put(RECORDS)
    made.batch()
    made.batch()
    assert made.rows == RECORDS[:9]
    return made


def test_file_grows_while_it_is_read(query: Query, caplog: pytest.LogCaptureFixture) -> None:
    """HZ-14: lines are added between two batches of a file: rows already read stay, the rest and the new lines are read once."""
    more = [f"added {number}" for number in range(5)]
    with caplog.at_level(logging.WARNING, "penstock.source"):
        query.put([*RECORDS, *more], 2000)
        query.batch()
        query.put([*RECORDS, *more, *more], 3000)
        query.rest()
    assert query.rows == [*RECORDS, *more, *more]
    assert "it has changed after them, and reading continues from there" in caplog.text


def test_file_changes_while_there_is_no_time_to_look_at_old_files(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HZ-14: a machine so busy that a scan looks at no file again: the rest is planned of what is there now, not of what was listed."""
    monkeypatch.setattr(scan, "_LOOKED_AHEAD_SECONDS", 0.0)
    for seconds in (2000, 3000):
        query.put([*RECORDS, "added"], seconds)
        query.batch()
    query.rest()
    assert query.rows == [*RECORDS, "added"]


def test_record_after_the_cut_is_mended(query: Query) -> None:
    """A record after the cut is corrected and becomes longer: each record is read once, the corrected one in its new form."""
    mended = [*RECORDS[:15], "record 15, mended", *RECORDS[16:]]
    query.put(mended, 2000)
    query.rest()
    assert query.rows == mended


@pytest.mark.parametrize("change", ["rewritten", "shorter", "gone"])
@follows("PST-203")
def test_what_was_read_is_another(query: Query, change: str) -> None:
    """The part that was read has changed, or the file is gone: no record is guessed; following the advice, the query ends well."""
    file = query.path / "big"
    if change == "rewritten":
        query.put(["another", *RECORDS], 2000)
    elif change == "shorter":
        query.put(RECORDS[:4], 2000)
    else:
        file.unlink()
    with pytest.raises(FileChanged, match="its first 90 bytes were read in earlier batches.*--give-up-rest") as raised:
        query.batch()
    with pytest.raises(FileChanged):
        query.batch()
    command = re.search(r"`(touch -d \S+)`", str(raised.value))
    assert command is not None
    query.put(RECORDS, 0)
    subprocess.run([*command[1].split(), str(file)], check=True)
    query.rest()
    assert query.rows == RECORDS


def test_copy_is_put_back(query: Query) -> None:
    """A file with another inode but the same name, size and time counts as the file."""
    file = query.path / "big"
    file.rename(query.path.parent / "kept")
    query.put(RECORDS)
    query.rest()
    assert query.rows == RECORDS


@pytest.mark.slow
def test_rest_is_waited_for_until_it_stands_still(query: Query) -> None:
    """While the file is being rewritten nothing is planned of it, and no error is raised about its temporary beginning."""
    query._options = parse(
        SOURCE, {"path": str(query.path), "maxBytesPerTrigger": "45", "settle": "300ms"}, what="source"
    )
    query._planner = query._new()
    query.put([], clock.now_ns() / SECOND)
    assert not query.batch()
    query.put([*RECORDS, "more"], clock.now_ns() / SECOND)
    assert not query.batch()
    clock.sleep(0.35)
    query.rest()
    assert query.rows == [*RECORDS, "more"]


def test_version_before_comes_back_after_the_end(query: Query) -> None:
    """Once the rest of the new version was read, the old version is done, too: when it comes back, it is not read from its beginning."""
    query.put([*RECORDS, "more"], 1001)
    query.rest()
    query.put(RECORDS, 1000)
    query.rest()
    assert query.rows == [*RECORDS, "more"]


def test_offset_that_has_no_digest(query: Query) -> None:
    """An older offset does not show what was read: the changed file is refused, and the version that was cut continues."""
    query.at = summed({name: value for name, value in query.at.items() if name not in {"cut_digest", "sum"}})
    query._restart = True
    query.put([*RECORDS, "more"], 2000)
    with pytest.raises(FileChanged, match="nobody can tell where the rest is"):
        query.batch()
    query.put(RECORDS)
    query.rest()
    assert query.rows == RECORDS


def test_pattern_that_leaves_the_file_out(query: Query) -> None:
    """HZ-20: a file that was begun is read to its end, even if another pattern would now exclude it."""
    query._options = parse(SOURCE, {"path": str(query.path), "pattern": "other", "settle": "0"}, what="source")
    query._planner = query._new()
    query.rest()
    assert query.rows == RECORDS


def rest_of(path: Path, at: dict[str, Any], **options: str) -> tuple[list[Any], dict[str, Any]]:
    """Return the rows of the next batch as a new driver with these options plans and reads it, and the batch's end offset."""
    checked = parse(SOURCE, {"path": str(path), "settle": "0"} | options, what="source")
    how = configured.reading(
        checked, str(parsed("value binary" if options.get("format") == "binary" else "value string"))
    )
    planner = configured.planner(checked, how)
    end = json.loads(json.dumps(planner.latest(at or planner.initial())))
    tasks = planner.tasks(end) if end != at else []
    return [
        v for task in tasks for b in configured.rows(checked, how, tuple(task)) for v in b.column(0).to_pylist()
    ], end


@pytest.mark.parametrize(
    "other", [{"lineSep": "1"}, {"encoding": "UTF-16LE"}, {"format": "binary"}, {"format": "binary", "blockSize": "80"}]
)
def test_rest_by_options_that_cut_elsewhere(query: Query, other: dict[str, str]) -> None:
    """Failure 14: another separator, encoding or block size silently left records around the cut out, or read them twice."""
    with pytest.raises(
        OptionError, match="its first 90 bytes were read in earlier batches.*set format, encoding, lineSep"
    ):
        rest_of(query.path, query.at, **other)
    assert rest_of(query.path, query.at)[0] == RECORDS[9:]


def test_rest_by_options_that_cut_at_the_same_place(query: Query) -> None:
    """Allowed are an encoding that can read the rest, as a bad record's error advises, and a separator that occurs at the cut."""
    for other in ({"encoding": "ISO-8859-1"}, {"lineSep": "\n"}, {"encodingErrors": "replace"}, {"splitSize": "10"}):
        assert rest_of(query.path, query.at, **other)[0] == RECORDS[9:]


def test_rest_by_blocks_of_another_size(tmp_path: Path) -> None:
    """Failure 14: 300 of 1,000 bytes were read: blocks of 200 bytes then left 100 out, and blocks of 70 read 20 twice."""
    (tmp_path / "f").write_bytes(bytes(1000))
    blocks = {"format": "binary", "blockSize": "100"}
    rows, at = rest_of(tmp_path, {}, **blocks, maxBytesPerTrigger="250")
    assert [len(row) for row in rows] == [100] * 3
    for size in ("200", "70"):
        with pytest.raises(OptionError, match="blockSize"):
            rest_of(tmp_path, at, format="binary", blockSize=size)
    assert [len(row) for row in rest_of(tmp_path, at, format="binary", blockSize="150")[0]] == [150] * 4 + [100]


@pytest.mark.slow
@pytest.mark.parametrize("seen", [4, 20, begun.SEEN_BYTES])
@pytest.mark.parametrize("seed", range(20))
def test_any_changes_of_a_file_that_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, seen: int
) -> None:
    """Records after the cut are added, corrected or removed at any time: each is read as it was in the file when its batch was read."""
    monkeypatch.setattr(begun, "SEEN_BYTES", seen)
    draw = random.Random(seed)  # noqa: S311 - which records change is no secret
    lines = [f"{number:03}{'x' * draw.randrange(9)}" for number in range(40)]
    query = Query(tmp_path, restart=bool(seed % 2))
    query.put(lines)
    for step in range(1, 100):
        if not query.batch():
            break
        done = len(query.rows)
        assert query.rows == lines[:done]
        if draw.random() < 0.4 and done < len(lines):
            at = draw.randrange(done, len(lines) + 1)
            lines[at:] = [
                f"{number + 1000 * step:05}{'y' * draw.randrange(9)}" for number in range(draw.randrange(1, 20))
            ]
            query.put(lines, 1000 + step)
    assert query.rows == lines
