"""File names as IBM Streams' users know them: I1, I2, I3, I5 and I7 of the scenarios, as seen in the directory."""

from __future__ import annotations

import os
import re
import socket

import pytest

from penstock import failpoints
from penstock.errors import OptionError, TemplateError
from penstock.sink.byteparts import BytePart
from penstock.sink.sink import Batch, Sink
from penstock.testing import FakeClock
from tests.support.output import Output


def test_hundred_lines_a_file_from_several_writers(output: Output) -> None:
    """I2: 1000 lines of four writers at 100 rows per file make 10 files of 100, numbered from 0 without gaps."""
    sink = output.sink(rollRows="100", fileName="f%FILENUM.txt", mergeBelow="1m")
    output.batch(sink, 0, {writer: [f"{writer}-{line}" for line in range(250)] for writer in range(4)}, final=True)
    assert sorted(output.visible()) == [f"f{number}.txt" for number in range(10)]
    assert {len(text.splitlines()) for text in output.visible().values()} == {100}


def test_hundred_lines_to_one_fixed_name(output: Output) -> None:
    """I3: a fixed name is one growing file; with files that close it would be overwritten, which is refused at the start."""
    sink = output.sink(growing="true", fileName="all.txt")
    for batch in range(4):
        output.batch(sink, batch, {0: [f"{batch}-{line}" for line in range(25)]})
    assert [(name, len(text.splitlines())) for name, text in output.visible().items()] == [("all.txt", 100)]
    for name in ("all.txt", "all_%TIME.txt", "all_%HOST_%PROCID.txt"):
        with pytest.raises(TemplateError, match=r"add \{seq\}"):
            output.sink(fileName=name, rollRows="10")
    with pytest.raises(OptionError, match="rollRows says when to close"):
        output.sink(fileName="all.txt", growing="true", rollRows="10")
    with pytest.raises(TemplateError, match="needs a fixed name"):
        output.sink(fileName="all%FILENUM.txt", growing="true")


def test_limits_of_rows_bytes_and_time_stand_side_by_side(output: Output, time: FakeClock) -> None:
    """I5: whichever of three limits is reached first closes the file; IBM Streams takes only one of them."""
    sink = output.sink(rollRows="3", rollSize="20", rollInterval="10s", fileName="f%FILENUM")
    output.batch(sink, 0, {0: ["a", "b", "c", "long line 1", "long line 2", "d"]})
    time.seconds += 10
    sink.roll("d1")
    assert [text.split("\n")[:-1] for text in output.visible().values()] == [
        ["a", "b", "c"],
        ["long line 1"],
        ["long line 2", "d"],
    ]


@pytest.mark.parametrize("option", ["rollRows", "rollSize", "rollInterval", "rollInactivity", "rollBatches"])
@pytest.mark.parametrize("value", ["-1", "-5s", "-3m"])
def test_negative_limits_are_refused(output: Output, option: str, value: str) -> None:
    """I5: a limit below zero is refused at the start, by name."""
    with pytest.raises(OptionError, match=option):
        output.sink(**{option: value})


@pytest.mark.parametrize("where", ["sink.write.before-sync", "sink.write.before-pack-sync"])
def test_error_of_a_thread_in_the_background_fails_the_batch(
    output: Output, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """I7: files are synced in the background; if one fails, its task fails, and the repeated batch has each row once."""
    if where == "sink.write.before-sync":
        monkeypatch.setattr(BytePart, "stage_bytes", 1)
    sink = output.sink(fileName="f%FILENUM")
    failpoints.arm(f"{where}=error")
    with pytest.raises(OSError, match="failpoint"):
        output.batch(sink, 0, {0: ["a", "b"]})
    failpoints.arm("")
    assert output.visible() == {}
    output.batch(sink, 0, {0: ["a", "b"]}, final=True)
    assert output.lines() == ["a", "b"]


def test_closed_file_is_told_though_the_driver_dies_before_it_is_visible(output: Output) -> None:
    """I7: a closed file is reported by its record: a crash after that loses no file, and the restart reports it once."""
    failpoints.arm("sink.publish.one=error")
    with pytest.raises(OSError, match="failpoint"):
        output.batch(output.sink(rollBatches="1", fileName="f%FILENUM.txt"), 0, {0: ["a", "b"]})
    failpoints.arm("")
    sink = output.sink(rollBatches="1", fileName="f%FILENUM.txt")
    output.batch(sink, 1, {0: ["c"]}, owner="d2")
    assert [(file.path, file.bytes) for file in sink.ledger.history()] == [("f0.txt", 4), ("f1.txt", 2)]
    assert output.visible() == {"f0.txt": "a\nb\n", "f1.txt": "c\n"}


@pytest.mark.parametrize("variable", ["%host", "%Time", "%FileNum", "%pelaunchnum", "%USER", "%HOSTNAME"])
def test_variable_that_is_spelt_otherwise_is_refused(output: Output, variable: str) -> None:
    """I1: a variable in lower case is not taken as text, nor is an unknown one: both are errors at the start."""
    with pytest.raises(TemplateError, match=f"unknown variable {variable}"):
        output.sink(fileName=f"f%FILENUM_{variable}")


def test_numbers_go_on_through_restarts_rolls_and_finish(output: Output, time: FakeClock) -> None:
    """I1: %FILENUM counts on from 0: across drivers, rolls between batches, `finish`, and files that were taken away."""
    names: list[str] = []
    for driver in range(6):
        sink = output.sink(rollRows="2", rollInterval="10s", fileName="f%FILENUM.txt", mergeBelow="1")
        done = output.batch(sink, driver, {0: ["a", "b", "c"]}, owner=f"d{driver}")
        time.seconds += 11
        rolled = sink.roll(f"d{driver}") if driver % 2 else Sink.existing(sink.storage, sink.root, "s").finish()
        names += [file.path for file in (*done.files, *(rolled.files if rolled else ()))]
        for name in names:
            (output.root / name).unlink(missing_ok=True)
    assert names == [f"f{number}.txt" for number in range(12)]


def test_variables_are_fixed_when_the_file_is_opened(
    output: Output, time: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I1: host, process, attempt and time are those of the task that opened the part, whoever closes it, and whenever."""
    sink = output.sink(fileName="%HOST_%PROCID_%PEID_%PELAUNCHNUM_%TIME_%FILENUM", rollInterval="1h")
    monkeypatch.setattr(socket, "gethostname", lambda: "first")
    begun = sink.begin("d1")
    opened = time.seconds
    result = sink.write(begun, "q1", 0, 2, output.schema, output.batches(["a"]), attempt=3)
    sink.commit(Batch("q1", 0), [result])
    monkeypatch.setattr(socket, "gethostname", lambda: "second")
    monkeypatch.setattr(os, "getpid", lambda: 1)
    time.seconds += 30
    output.batch(sink, 1, {2: ["b"]}, owner="d2", final=True)
    [(name, text)] = output.visible().items()
    assert text == "a\nb\n"
    assert re.fullmatch(r"first_\d{2,}_2_3_\d{8}_\d{6}_0\.txt", name)
    assert not name.startswith("first_1_")
    assert opened < time.seconds


def test_merged_part_is_named_by_one_opener(output: Output, time: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """I1: the name of a merged part has host, batch and time of the same part: the one that was opened first."""
    sink = output.sink(
        fileName="%HOST_{batch}_{time:%S}_%FILENUM", mergeBelow="1m", rollInterval="1h", rollInactivity="1h"
    )
    monkeypatch.setattr(socket, "gethostname", lambda: "early")
    output.batch(sink, 0, {1: ["b"]})
    early = time.seconds
    time.seconds += 7
    monkeypatch.setattr(socket, "gethostname", lambda: "late")
    output.batch(sink, 1, {0: ["a"]}, final=True)
    assert list(output.visible().items()) == [(f"early_0_{int(early) % 60:02}_0.txt", "a\nb\n")]


@pytest.mark.parametrize(("name", "spec"), [("a\nb{seq}", "%H"), ("f%TIME-{seq}", "%n"), ("f%TIME-{seq}", "%H\0%M")])
def test_name_with_a_control_character_is_refused(output: Output, name: str, spec: str) -> None:
    """Object stores take no such names, and lists with one name per line cannot hold them: refused at the start, on each storage."""
    with pytest.raises(TemplateError, match="control character|the same text for every time"):
        output.sink(fileName=name, timeFormat=spec)


@pytest.mark.parametrize("name", ["f{seq}.tmp", "f{seq}.inprogress", "f{seq}._COPYING_"])
def test_name_that_sources_take_for_unfinished_is_refused(output: Output, name: str) -> None:
    """A file that none of our sources would ever read, because its name says that it is unfinished, is refused at the start."""
    with pytest.raises(TemplateError, match="readers pass over"):
        output.sink(fileName=name)
