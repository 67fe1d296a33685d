"""`penstock files --follow`: one line for each event, in ledger order, while an output is written."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import Fenced
from penstock.sink.published import Published
from penstock.storage import LocalStorage
from tests.support.wait import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.cli.conftest import Said
    from tests.support.output import Output


class Follower:
    """`penstock files --follow --json` in a process of its own, with the lines that it has printed so far."""

    def __init__(self, *arguments: object) -> None:
        command = [sys.executable, "-m", "penstock.cli", "files", *map(str, arguments), "--follow", "--json"]
        environment = os.environ | {"PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
        self.lines: list[dict[str, Any]] = []
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout
        with self.process.stdout as printed:
            for line in printed:
                if line.endswith(b"\n"):  # a line without a line end was cut off, and does not count
                    self.lines.append(json.loads(line))

    def wait_for(self, lines: int) -> None:
        """Wait until it has printed this many lines."""
        wait_for(lambda: len(self.lines) >= lines, f"{lines} lines")

    def kill(self) -> None:
        """End it as `kill -9` does; what it has printed before is read."""
        self.process.kill()
        self.process.wait()
        self._thread.join()

    def stop(self) -> dict[str, Any]:
        """Stop it with a signal; return what it prints at the end."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        self._thread.join()
        return self.lines[-1]


@pytest.fixture
def follow() -> Iterator[Callable[..., Follower]]:
    started: list[Follower] = []

    def start(*arguments: object) -> Follower:
        started.append(Follower(*arguments))
        return started[-1]

    yield start
    for follower in started:
        follower.process.kill()
        follower.process.wait()


@pytest.mark.slow
def test_what_is_published_is_printed_as_it_comes(output: Output, follow: Callable[..., Follower]) -> None:
    """It prints the existing files, then each file once as it is published; a follower that starts at a record prints it and later ones."""
    sink = output.sink(rollRows="1")
    output.batch(sink, 0, {0: ["a", "b"]}, mark="0")
    follower = follow(output.root)
    wait_for(lambda: len(follower.lines) == 2, "what is there")
    output.batch(sink, 1, {0: ["c"]}, mark="1")
    wait_for(lambda: len(follower.lines) == 3, "what came")
    last = follower.stop()
    paths = [line["path"] for line in follower.lines[:-1]]
    assert paths == [f"{output.root}/{file.path}" for file in sink.ledger.history()]
    assert last == {"ok": True, "path": str(output.root), "events": 3, "after": follower.lines[2]["after"]}
    first = follower.lines[0]
    assert (first["event"], first["sink"], first["rows"], first["batches"]) == (
        "published",
        "s",
        1,
        {"first": 0, "last": 0},
    )
    again = follow(output.root, "--from", follower.lines[2]["record"])
    wait_for(lambda: len(again.lines) == 1, "the record")
    assert again.stop()["events"] == 1
    assert again.lines[0] == follower.lines[2]


@pytest.mark.slow
def test_a_follower_that_is_killed_goes_on_after_its_last_line(output: Output, follow: Callable[..., Follower]) -> None:
    """Two sinks publish; the follower is killed at random and restarted after its last line: every file of both is reported once."""
    output.root.mkdir()
    told: list[dict[str, Any]] = []
    sinks = [output.sink(sink_id=name, rollRows="1") for name in ("a", "b")]
    for number in range(3):
        follower = follow(output.root, *(["--from", json.dumps(told[-1]["after"])] if told else []))
        for sink in sinks:
            lines = [f"{number} {line}" for line in range(20)]
            output.batch(sink, number, {0: lines}, query=sink.sink_id, mark=str(number))
        enough = random.Random(number).randint(1, 39)  # noqa: S311 - repeatable
        follower.wait_for(enough)
        if number < 2:
            follower.kill()
            told += follower.lines
    wait_for(lambda: len(told) + len(follower.lines) == 120, "all of it")
    assert follower.stop()["after"] == follower.lines[-2]["after"]
    told += follower.lines[:-1]
    for sink in sinks:
        paths = [line["path"] for line in told if line["sink"] == sink.sink_id]
        assert paths == [f"{output.root}/{file.path}" for file in sink.ledger.history()]


def test_a_place_of_an_output_that_was_emptied(penstock: Callable[..., Said], output: Output) -> None:
    """A follower that continues in an output that was emptied reports that before it prints a line, with what to do."""
    output.batch(output.sink(rollRows="1"), 0, {0: ["a", "b"]})
    reader = Published(LocalStorage(), str(output.root))
    place = json.dumps(reader.plan(reader.begin()))
    shutil.rmtree(output.root)
    output.root.mkdir()
    for again in (False, True):
        if again:
            output.batch(output.sink(rollRows="1"), 0, {0: ["c"]})
        said = penstock("files", output.root, "--follow", "--from", place)
        assert (said.status, said.out) == (1, "")
        assert "PST-510" in said.err
        assert "begin again, with --from earliest" in said.err


def test_flags_of_follow_are_refused_without_it(penstock: Callable[..., Said], output: Output) -> None:
    """Flags that would be ignored are refused, and so are an invalid start and a directory that does not exist."""
    output.batch(output.sink(rollRows="1"), 0, {0: ["a"]})
    assert "--from is for --follow" in penstock("files", output.root, "--from", "1").err
    assert "expected earliest, latest, a record" in penstock("files", output.root, "--follow", "--from", "x").err
    for place in ("nobody:1", '{"s": 1}'):
        assert f"--from={place!r} is " in penstock("files", output.root, "--follow", "--from", place).err
    assert "--from=''" in penstock("files", output.root, "--follow", "--from", "").err, (
        "a variable that is not set is no word for all"
    )
    assert "is not there" in penstock("files", output.root / "no", "--follow").err
    file = output.root / "part-s-0-0.txt"
    file.touch()
    assert "is no directory" in penstock("files", file, "--follow").err
    for name in ("../s", ""):
        assert f"--sink={name!r}: expected" in penstock("files", output.root, "--follow", "--sink", name).err


def test_lines_for_people_have_fields_between_tabs(output: Output) -> None:
    """Whatever a directory is called: it was the tabs that were shown as what a terminal hides."""
    output.batch(output.sink(rollRows="1", bucketBy="b={value}"), 0, {0: ["a\u202eb"]}, final=True)
    command = [sys.executable, "-m", "penstock.cli", "files", str(output.root), "--follow"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        fields = process.stdout.readline().rstrip("\n").split("\t")
        process.send_signal(signal.SIGTERM)
    assert fields[1:] == ["published", f"{output.root}/b=a\\u202eb/part-s-0-0.txt", "1 row", "6 B"]


def test_a_sink_that_has_written_nothing_is_told(output: Output) -> None:
    """It may come yet, so it is waited for; but its name may be misspelt, and nothing would ever be printed."""
    output.batch(output.sink(rollRows="1"), 0, {0: ["a"]})
    command = [sys.executable, "-m", "penstock.cli", "files", str(output.root), "--follow", "--sink", "S"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        assert "warning: --sink 'S' is not in " in (told := process.stderr.readline())
        assert told.endswith("there are: s\n")
        process.send_signal(signal.SIGTERM)


def test_one_part_is_finished_by_its_name(penstock: Callable[..., Said], output: Output) -> None:
    """A part is finished by the name that status shows, then a bucket by its name; the others stay open and their query continues."""
    sink = output.sink(bucketBy="b={value}")
    output.batch(sink, 0, {0: ["x", "y", "z"], 1: ["z"]}, mark="0")
    (shown,) = penstock("status", output.root, "--json").facts["sinks"]
    parts = [part["part"] for part in shown["open"]]
    assert parts[1] == "b=y/part-s-0-1.txt"
    assert parts[1] in penstock("status", output.root).out
    (file,) = penstock("finish", output.root, "--part", parts[1], "--json").facts["files"]
    assert (file["path"], file["rows"]) == (parts[1], 1)
    assert output.visible() == {parts[1]: "y\n"}
    assert penstock("finish", output.root, "--part", "b=z", "--json").facts["rows"] == 2
    with pytest.raises(Fenced):
        sink.roll("d1")
    output.batch(sink, 1, {0: ["x"]}, mark="1", owner="d2", final=True)
    assert output.lines() == ["x", "x", "y", "z", "z"]


def test_each_part_is_finished_under_the_name_that_status_shows(penstock: Callable[..., Said], output: Output) -> None:
    """A writer with parts in several buckets: all were listed with one number, which only the first had when all were finished."""

    def shown() -> list[str]:
        (sink,) = penstock("status", output.root, "--json").facts["sinks"]
        return [part["part"] for part in sink["open"]]

    def finished(*options: str) -> list[str]:
        return [file["path"] for file in penstock("finish", output.root, *options, "--json").facts["files"]]

    output.batch(output.sink(bucketBy="b={value}"), 0, {0: ["x", "y", "z"], 1: ["w"]}, mark="0")
    first = shown()
    assert first == ["b=w/part-s-1-0.txt", "b=x/part-s-0-0.txt", "b=y/part-s-0-1.txt", "b=z/part-s-0-2.txt"]
    for name in first[:2]:
        assert finished("--part", name) == [name]
    assert shown() == first[2:]
    assert finished("--part", first[3]) == [first[3]], "the one behind others has its name too"
    (left,) = shown()
    assert finished() == [left]
    assert len(output.visible()) == len(first)


def test_a_bucket_with_a_slash_after_it_is_that_bucket(penstock: Callable[..., Said], output: Output) -> None:
    """Shells complete the names of directories with a slash; such a bucket was refused as not open."""
    output.batch(output.sink(bucketBy="k={value}/l={value}"), 0, {0: ["a", "b"]}, mark="0")
    assert penstock("finish", output.root, "--part", "k=a/l=a/", "--json").facts["rows"] == 1
    assert penstock("finish", output.root, "--part", "/").status == 2
    assert penstock("finish", output.root, "--part", "").status == 2
    assert list(output.visible()) == ["k=a/l=a/part-s-0-0.txt"]


def test_a_part_that_is_not_open_is_refused_with_those_that_are(penstock: Callable[..., Said], output: Output) -> None:
    """For a part that is finished already, or never existed, the error lists the open parts, and nothing is done."""
    output.batch(output.sink(), 0, {0: ["a"]}, mark="0")
    said = penstock("finish", output.root, "--part", "b=1")
    assert said.status == 2
    assert "such as 'part-s-0-0.txt'" in said.err
    assert penstock("finish", output.root, "--part", ".", "--json").facts["rows"] == 1
    assert "such as none" in penstock("finish", output.root, "--part", ".").err
