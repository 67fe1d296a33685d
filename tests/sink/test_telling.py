"""`onPublish`: a function receives what was published, at least once, whoever dies and whatever the function raises."""

from __future__ import annotations

import re
import shutil
import sys
from glob import glob
from pathlib import Path
from typing import Any

import pytest

from penstock import failpoints
from penstock.cli import process
from penstock.errors import CallbackFailed, DamagedState, EventsLost, OptionError
from penstock.options import SINK, parse
from penstock.session import functions
from penstock.sink import telling as telling_of_sink
from penstock.sink.sink import Sink
from penstock.sink.telling import Telling
from tests.support.follows import follows
from tests.support.output import Output
from tests.support.wait import wait_for


class Catalogue:
    """A user's function: it keeps what it receives, call by call; it fails while `broken`."""

    def __init__(self) -> None:
        self.calls: list[list[dict[str, Any]]] = []
        self.broken = False
        self.wanted: object = None

    def register(self, events: list[dict[str, Any]]) -> object:
        if self.broken:
            msg = "the catalogue is away"
            raise ConnectionError(msg)
        self.calls.append(events)
        return self.wanted

    @property
    def paths(self) -> list[str]:
        return [event["path"] for call in self.calls for event in call]


def telling(sink: Sink, catalogue: Catalogue) -> Telling:
    """Return a new `Telling` for the catalogue, as each batch makes one."""
    return Telling(sink, "catalogue:register", lambda: catalogue.register)


def start(sink: Sink, catalogue: Catalogue) -> None:
    """Begin a batch as a driver does."""
    sink.begin("d1")
    telling(sink, catalogue).begin("d1")


def published(output: Output, sink: Sink) -> list[str]:
    """Return the paths of all published files."""
    return [f"{output.root}/{file.path}" for file in sink.ledger.history()]


def test_each_file_is_told_once_where_nothing_dies(output: Output) -> None:
    """From the first start with the option on, not earlier files: each file is reported in one call, in order, with all that is known."""
    sink, catalogue = output.sink(rollRows="1"), Catalogue()
    output.batch(sink, 0, {0: ["before"]}, mark="0")
    start(sink, catalogue)
    assert catalogue.calls == []
    for number in range(1, 4):
        output.batch(sink, number, {0: ["a", "b"]}, mark=str(number))
        telling(sink, catalogue).tell("d1")
        telling(sink, catalogue).tell("d1")
    assert [len(call) for call in catalogue.calls] == [2, 2, 2]
    assert catalogue.paths == published(output, sink)[1:]
    first = catalogue.calls[0][0]
    assert (first["event"], first["sink"], first["rows"], first["number"]) == ("published", "s", 1, 1)
    assert len(list((output.root / "_penstock/s").glob("told-*"))) == 1


def test_a_death_after_the_call_tells_again(output: Output) -> None:
    """The driver dies between the call and its note: the next start makes the same call again, and leaves nothing out."""
    sink, catalogue = output.sink(rollRows="1"), Catalogue()
    start(sink, catalogue)
    output.batch(sink, 0, {0: ["a"]}, mark="0")
    failpoints.arm("sink.told=error")
    with pytest.raises(OSError, match="failpoint"):
        telling(sink, catalogue).tell("d1")
    failpoints.arm("")
    start(sink, catalogue)
    assert catalogue.calls[0] == catalogue.calls[1]
    start(sink, catalogue)
    assert len(catalogue.calls) == 2


@follows("PST-511")
def test_a_function_that_fails_is_told_again_once_it_is_mended(output: Output) -> None:
    """Our error contains the function's, the files are visible; once the function is fixed, a restart reports them before anything new."""
    sink, catalogue = output.sink(rollRows="1"), Catalogue()
    start(sink, catalogue)
    output.batch(sink, 0, {0: ["a", "b"]}, mark="0")
    catalogue.broken = True
    for tell in (lambda: telling(sink, catalogue).tell("d1"), lambda: start(sink, catalogue)):
        with pytest.raises(
            CallbackFailed, match="failed with ConnectionError: the catalogue is away; it was given 2 events"
        ):
            tell()
    assert len(output.visible()) == 2
    catalogue.broken = False
    start(sink, catalogue)
    assert catalogue.paths == published(output, sink)


def test_what_others_publish_is_told_by_the_next_start(output: Output) -> None:
    """`finish` calls no function; the query reports what `finish` published at its next start."""
    sink, catalogue = output.sink(), Catalogue()
    start(sink, catalogue)
    output.batch(sink, 0, {0: ["a"]}, mark="0")
    telling(sink, catalogue).tell("d1")
    Sink.existing(sink.storage, sink.root, "s").finish()
    assert catalogue.calls == []
    start(sink, catalogue)
    assert catalogue.paths == published(output, sink)


@pytest.mark.parametrize("wanted", ["b=x", ["b=x", "b=no"], ["b=x/part-s-0-1.txt"]])
def test_a_function_has_parts_closed_by_their_names(output: Output, wanted: object) -> None:
    """The function returns a bucket, or a part: the running driver publishes it, and reports that, too."""
    sink, catalogue = output.sink(bucketBy="b={value}", rollRows="2"), Catalogue()
    start(sink, catalogue)
    output.batch(sink, 0, {0: ["x", "y", "z", "z"]}, mark="0")
    catalogue.wanted = wanted
    assert telling(sink, catalogue).tell("d1")
    assert catalogue.paths == [f"{output.root}/{path}" for path in ("b=z/part-s-0-0.txt", "b=x/part-s-0-1.txt")]
    assert sorted(output.visible()) == ["b=x/part-s-0-1.txt", "b=z/part-s-0-0.txt"]
    assert not telling(sink, catalogue).tell("d1")
    output.batch(sink, 1, {0: ["y"]}, mark="1")
    assert output.lines() == ["x", "y", "y", "z", "z"]


@pytest.mark.parametrize("wanted", [None, 3, {"b=y"}, [4], object()])
def test_what_a_function_returns_otherwise_means_nothing(output: Output, wanted: object) -> None:
    """A number, or any other return value, closes nothing."""
    sink, catalogue = output.sink(bucketBy="b={value}", rollRows="2"), Catalogue()
    start(sink, catalogue)
    catalogue.wanted = wanted
    output.batch(sink, 0, {0: ["y", "z", "z"]}, mark="0")
    assert not telling(sink, catalogue).tell("d1")
    assert len(output.visible()) == 1


def test_a_note_that_was_moved_here_is_refused(output: Output) -> None:
    """A note with the wrong number, or a damaged note, is named in the error, and the function is not called."""
    sink, catalogue = output.sink(rollRows="1"), Catalogue()
    output.batch(sink, 0, {0: ["a"]}, mark="0")
    start(sink, catalogue)
    (note,) = (output.root / "_penstock/s").glob("told-*")
    moved = note.rename(note.with_name("told-000000000000007.json"))
    with pytest.raises(DamagedState, match="was moved here"):
        telling(sink, catalogue).tell("d1")
    moved.write_bytes(moved.read_bytes()[:-9])
    with pytest.raises(DamagedState, match="is damaged"):
        telling(sink, catalogue).tell("d1")


@follows("PST-510")
def test_a_ledger_that_was_put_back_has_advice_for_a_function(output: Output, tmp_path: Path) -> None:
    """The advice was a new checkpoint and startingFrom, which a sink does not have: without its notes it reports only new files."""
    sink, catalogue = output.sink(rollRows="1"), Catalogue()
    start(sink, catalogue)
    output.batch(sink, 0, {0: ["a"]}, mark="0")
    telling(sink, catalogue).tell("d1")
    records = output.root / "_penstock/s/ledger"
    shutil.copytree(records, tmp_path / "copy")
    output.batch(sink, 1, {0: ["b"]}, mark="1")
    telling(sink, catalogue).tell("d1")
    shutil.rmtree(records)
    shutil.copytree(tmp_path / "copy", records)
    (output.root / "part-s-0-1.txt").unlink()
    for number in (1, 2):
        with pytest.raises(EventsLost, match="onPublish") as lost:
            start(sink, catalogue)
        output.batch(sink, number, {0: ["c", "d"]}, mark=f"other {number}")
    assert "startingFrom" not in lost.value.message
    advised = re.search(r"remove '([^']+)'", lost.value.message)
    assert advised
    for note in glob(advised[1]):
        Path(note).unlink()
    start(sink, catalogue)
    output.batch(sink, 3, {0: ["e"]}, mark="3")
    telling(sink, catalogue).tell("d1")
    assert catalogue.paths[2:] == published(output, sink)[-1:]


@pytest.mark.parametrize("value", ["register", "a:b:c", ":f", "m:", "os.path:1", "m:f()", "../m:f"])
def test_what_is_no_name_of_a_function_is_refused(value: str) -> None:
    """The name is refused without loading any module."""
    with pytest.raises(OptionError, match="expected module:function"):
        parse(SINK, {"path": "/x", "onPublish": value}, what="sink")


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("no_such_module:f", "ModuleNotFoundError"), ("os:nothing", "AttributeError"), ("os:name", "is str"),
        ("__main__:tell", "what a notebook or a script defines itself cannot be imported .* put it in a module of its own"),
        ("asyncio:sleep", "is a coroutine function"), ("pkgutil:iter_modules", "is a generator function"), ("os:getpid", "does not take"),
    ],
)  # fmt: skip
def test_a_function_that_cannot_be_told_is_refused(value: str, says: str) -> None:
    """The function is refused when the batch begins, before anything is written: also one whose call would do nothing."""
    with pytest.raises(OptionError, match=says):
        functions.told(value)


def test_a_function_that_exits_has_failed(output: Output) -> None:
    """`sys.exit` does not end our process, which could pass for success: it is an error like any other, and the call is repeated."""
    sink, catalogue = output.sink(rollRows="1"), Catalogue()
    start(sink, catalogue)
    output.batch(sink, 0, {0: ["a"]}, mark="0")
    with pytest.raises(CallbackFailed, match="failed with SystemExit: 0"):
        Telling(sink, "m:f", lambda: lambda _: sys.exit(0)).tell("d1")
    start(sink, catalogue)
    assert catalogue.paths == published(output, sink)


@pytest.mark.parametrize("kind", ["coroutine", "generator"])
def test_a_function_that_returns_what_it_would_do_was_told_nothing(output: Output, kind: str) -> None:
    """An awaitable or a generator has done nothing: it is an error, and the call is repeated once the function is fixed."""
    sink, catalogue = output.sink(rollRows="1"), Catalogue()
    start(sink, catalogue)
    output.batch(sink, 0, {0: ["a"]}, mark="0")

    async def later() -> None:
        """Return a coroutine that nobody awaits."""

    with pytest.raises(CallbackFailed, match=f"returned a {kind}, which nobody"):
        Telling(sink, "m:f", lambda: lambda _: later() if kind == "coroutine" else (n for n in [1])).tell("d1")
    start(sink, catalogue)
    assert catalogue.paths == published(output, sink)


def test_a_function_that_does_not_return_is_told(
    output: Output, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """While the function runs, a repeated warning says so, in words that the command passes on; once it has returned there is none."""
    monkeypatch.setattr(telling_of_sink, "_SILENT_SECONDS", 0.05)
    monkeypatch.setattr(telling_of_sink, "_AGAIN_SECONDS", 0.05)
    sink = output.sink(rollRows="1")
    start(sink, Catalogue())
    output.batch(sink, 0, {0: ["a"]}, mark="0")

    def register(_: object) -> None:
        wait_for(lambda: len(caplog.messages) > 1, "a second warning")

    Telling(sink, "catalogue:register", lambda: register).tell("d1")
    assert all(re.match(r"onPublish='catalogue:register' has not returned for \d+ s: ", m) for m in caplog.messages)
    assert all(process._OURS.match(message) for message in caplog.messages)
    told = len(caplog.messages)
    output.batch(sink, 1, {0: ["b"]}, mark="1")
    telling(sink, Catalogue()).tell("d1")
    assert len(caplog.messages) == told
