"""A measurement decides which reader of flat JSON is tried first; it changes no row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from penstock import clock
from penstock.formats.account import Account
from penstock.formats.json.dense import DenseReader
from penstock.formats.json.exact import exact
from penstock.formats.json.frame import FrameReader
from penstock.formats.json.race import Race, race_of
from penstock.formats.json.read import JsonReader
from penstock.formats.patterns import TimeForms

if TYPE_CHECKING:
    from collections.abc import Callable

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
BLOCK = b"".join(b'{"id": %d, "name": "a name of some length"}\n' % number for number in range(8_000))


class Seconds:
    """A clock that advances with the amount read, at a different speed for each reader."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(clock, "spent", lambda: self.now)

    def take(self, seconds: float) -> bool:
        self.now += seconds
        return True


def trial(seconds: Seconds, paces: dict[str, float], name: str) -> Callable[[], object]:
    return lambda: seconds.take(paces[name])


def test_the_faster_reader_is_asked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both read a piece of the first block, and of another one now and then, because files change."""
    seconds, race = Seconds(monkeypatch), Race("a", "b")
    paces = {"a": 2.0, "b": 1.0}
    trials: list[int] = []

    def asked(block: int) -> str:
        def runs() -> dict[str, Callable[[], object]]:
            trials.append(block)
            return {name: trial(seconds, paces, name) for name in paces}

        return race.first(runs)

    assert {asked(block) for block in range(100)} == {"b"}
    paces["a"] = 0.5
    assert {asked(block) for block in range(100, 128)} == {"b"}
    assert {asked(block) for block in range(128, 200)} == {"a"}
    assert trials == [0, 64, 128, 192]


def test_what_a_process_does_for_the_first_time_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The faster reader is asked first though its first call takes ten times as long as one of the other."""
    seconds, race = Seconds(monkeypatch), Race("a", "b")
    starts = {"a": iter([0.0]), "b": iter([20.0])}
    paces = {"a": 2.0, "b": 1.0}

    def run(name: str) -> object:
        return seconds.take(next(starts[name], 0.0) + paces[name])

    assert race.first(lambda: {"a": lambda: run("a"), "b": lambda: run("b")}) == "b"


def test_small_blocks_tell_nothing_and_misses_are_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block so small that it times only the call is not measured; a reader that gives up on a block is tried second."""
    seconds, race = Seconds(monkeypatch), Race("a", "b")
    assert race.first(None) == "a"
    paces = {"a": 1.0, "b": 9.0}
    assert race.first(lambda: {name: trial(seconds, paces, name) for name in paces}) == "a"
    assert race.ask("a", lambda: None) is None
    assert race.first(None) == "b"


def test_a_reader_that_refuses_the_piece_is_tried_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a reader does not accept it has not read, however soon it says so."""
    seconds, race = Seconds(monkeypatch), Race("a", "b")
    assert race.first(lambda: {"a": lambda: None, "b": lambda: seconds.take(1.0)}) == "b"


@pytest.mark.parametrize("faster", ["dense", "frame"])
def test_rows_are_the_same_whoever_is_asked_first(monkeypatch: pytest.MonkeyPatch, faster: str) -> None:
    """Good blocks, and blocks with one line that has an escape, a null, or a key without a column."""
    race_of.cache_clear()
    asked = []
    for name, kind, method in (("dense", DenseReader, "read"), ("frame", FrameReader, "most")):
        read: Callable[..., object] = getattr(kind, method)

        def timed(
            self: object, data: bytes, *more: object, name: str = name, read: Callable[..., object] = read
        ) -> object:
            asked.append((name, len(data)))
            seconds.take(1.0 if name == faster else 2.0)
            return read(self, data, *more)

        monkeypatch.setattr(kind, method, timed)
    seconds, account, reader = Seconds(monkeypatch), Account(), JsonReader(SCHEMA, TimeForms())
    odd = [b'{"id": 1, "name": "\\u00e9"}\n', b'{"id": null, "name": "x"}\n', b'{"id": 1, "name": "x", "more": 1}\n']
    for block in [BLOCK] * 4 + [BLOCK + line for line in odd] + [BLOCK]:
        assert reader.read(block, account).equals(exact(block, SCHEMA))
    assert account.unknown == {"more": 1}
    assert [name for name, size in asked if size == len(BLOCK)][:4] == [faster] * 4


def test_the_next_reader_of_a_schema_knows_it() -> None:
    """A task has only a few blocks, and its own reader, so the reader starts with what an earlier reader of the schema measured."""
    assert race_of(SCHEMA, "a", "b") is race_of(pa.schema(list(SCHEMA)), "a", "b")
    assert race_of(SCHEMA, "a", "b") is not race_of(SCHEMA.remove(0), "a", "b")
