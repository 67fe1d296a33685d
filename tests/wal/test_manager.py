"""The log of an operator, as users of its model call it: serializers, single records, and where a replay starts and ends."""

from __future__ import annotations

import json
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import DamagedState, OptionError, PositionError, UsageError
from penstock.storage import TEMPORARY
from penstock.testing import CrashDisk, explore
from penstock.wal import Manager, Position, Reader, Writer
from tests.support.effort import effort
from tests.testing.wal_program import CheckpointProgram


def _filled(root: str, windows: dict[int, list[bytes]], **options: Any) -> list[Position]:
    """Write windows, each after the remains of one that never ended; return the positions after them."""
    given_at = []
    for window, records in windows.items():
        with Manager(root, [].append, **options) as manager:
            manager.append(b"never ended")
        with Manager(root, [].append, **options) as manager:
            for record in records:
                manager.append(record)
            given_at.append(manager.end_window(window))
    return given_at


def test_records_come_back_one_at_a_time(root: str) -> None:
    """H3: a `recover` with one parameter gets the records after the checkpoint, in order, one at a time."""
    _filled(root, {w: [b"%d-%d" % (w, n) for n in range(w % 3)] for w in range(6)})
    found: list[bytes] = []
    with Manager(root, found.append) as manager:
        assert manager.restore(1) == 5
        assert found == [b"2-0", b"2-1", b"4-0", b"5-0", b"5-1"]
        assert manager.restore(4) == 5
    assert found[5:] == [b"5-0", b"5-1"]


@pytest.mark.parametrize(
    ("recover", "singly"),
    [
        (lambda record: None, True),
        (lambda record, more=None: None, True),
        ([].append, True),
        (lambda window, records: None, False),
        (lambda *window: None, False),
        ({}.__setitem__, False),
    ],
)
def test_parameters_tell_how_recover_is_called(root: str, recover: Any, singly: bool) -> None:
    """A function with one required parameter gets records; one with two gets a window and its records; built-in functions too."""
    with Manager(root, recover) as manager:
        assert manager._singly is singly


def test_a_large_window_comes_back_in_bounded_memory(root: str) -> None:
    """A window of 60 MiB is handed back record by record: opening and restoring it hold only a few MiB at a time."""
    record, count = bytes(60 << 10), 1024
    with Manager(root, [].append) as manager:
        for _ in range(count):
            manager.append(record)
        manager.end_window(0)
    lengths: list[int] = []
    tracemalloc.start()
    try:
        with Manager(root, lambda record: lengths.append(len(record))) as manager:
            manager.restore()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert lengths == [len(record)] * count
    assert peak < 16 << 20


@pytest.mark.parametrize("serializer", [json, pickle])
def test_records_are_what_a_serializer_takes(root: str, serializer: Any) -> None:
    """Any object or module with `dumps` and `loads` works, for bytes or text; records come back unchanged."""
    records = [{"a": 1, "b": [None, "\u00e4"]}, "text", 3, []]
    with Manager(root, print, serializer=serializer) as manager:
        for record in records:
            manager.append(record)
        manager.end_window(0)
    found: list[Any] = []
    with Manager(root, found.append, serializer=serializer) as manager:
        manager.restore()
    assert found == records


def test_text_that_is_not_utf_8_is_refused_in_words(root: str) -> None:
    """Half a surrogate pair, which JSON can escape but `ensure_ascii=False` does not: the error used to be Python's own."""
    with Manager(root, print, serializer=Shouting()) as manager:
        with pytest.raises(OptionError, match="returned text that is not UTF-8"):
            manager.append("\ud800")
        manager.append("fine")
        manager.end_window(0)


class Shouting:
    """A serializer for text."""

    dumps = staticmethod(str.upper)
    loads = staticmethod(bytes.decode)


@pytest.mark.parametrize("to", ["window", "checkpoint"])
def test_replay_after_an_append_is_refused(root: str, to: str) -> None:
    """A replay to the checkpoint dropped the record of an open window, and the window then ended without that record."""
    with Manager(root, print) as manager:
        for window in range(3):
            manager.append(b"%d" % window)
            manager.end_window(window)
    restored: list[bytes] = []
    with Manager(root, restored.append) as manager:
        manager.append(b"early")
        with pytest.raises(
            UsageError, match="1 records of a window that is open.*call restore before the first append"
        ):
            manager.restore(1, to=to)
        manager.end_window(3)
    with Manager(root, restored.append) as manager:
        manager.restore()
    assert restored == [b"0", b"1", b"2", b"early"]


def test_what_is_no_serializer_is_refused_before_there_is_a_log(root: str) -> None:
    """An object without `dumps` or `loads`, and one that does not produce bytes, are refused by name."""
    for wrong, says in ((object(), "serializer.dumps"), (type("Half", (), {"dumps": repr}), "serializer.loads")):
        with pytest.raises(OptionError, match=says):
            Manager(root, print, serializer=wrong)  # type: ignore[arg-type]
    assert not Path(root).exists()
    numbers: Any = type("Numbers", (), {"dumps": staticmethod(len), "loads": staticmethod(len)})
    with Manager(root, print, serializer=numbers) as manager, pytest.raises(OptionError, match="a record is a int"):
        manager.append("abc")


def test_record_that_the_serializer_does_not_take(root: str) -> None:
    """For a log written with another serializer, the error says which record, what was found, and what to do; the advice works."""
    _filled(root, {0: [b"\xff\xfe"]})
    with (
        Manager(root, print, serializer=json) as manager,
        pytest.raises(DamagedState, match=r"at 1:\d+ .*give the serializer"),
    ):
        manager.restore()
    found: list[bytes] = []
    with Manager(root, found.append) as manager:
        manager.restore()
    assert found == [b"\xff\xfe"]


def test_replay_begins_where_the_state_was_saved(root: str) -> None:
    """`set_start` takes the positions that `end_window` and `position` gave, over segments and restarts, and replays what comes after."""
    windows = {w: [b"%d-%d" % (w, n) for n in range(w % 3)] for w in range(7)}
    positions = _filled(root, windows, segment_size=200)
    for saved, position in enumerate(positions):
        found: list[tuple[int, list[bytes]]] = []
        with Manager(root, lambda w, records, found=found: found.append((w, records))) as manager:
            manager.set_start(Position.parse(str(position)))
            assert manager.restore() == 6
        assert found == [(w, records) for w, records in windows.items() if w > saved]
    with Manager(root, found.append) as manager:
        manager.set_start(manager.position)
        found.clear()
        assert manager.restore() == 6
    assert found == []


def test_positions_that_are_given_can_be_read_from(root: str) -> None:
    """At a position given by `append`, `end_window` or `position`, a reader finds that record, or the one that comes next."""
    with Manager(root, print, segment_size=200) as manager:
        for window in range(5):
            at = [manager.append(b"%d-%d" % (window, n)) for n in range(3)]
            behind = manager.end_window(window)
            assert behind == manager.position
            for number, position in enumerate(at):
                with Reader(root, start=position) as reader:
                    assert next(iter(reader)) == b"\0%d-%d" % (window, number)
            with Reader(root, start=behind) as reader:
                assert list(reader) == []
                manager.append(b"x")
                manager.end_window(window + 100) if window == 4 else None


def test_start_inside_a_window_is_refused(root: str) -> None:
    """A position after a window's first record would lose that record: `PositionError`, and nothing is handed back."""
    with Manager(root, print) as manager:
        at = [manager.append(b"a"), manager.append(b"b")]
        manager.end_window(3)
    found: list[bytes] = []
    with Manager(root, found.append) as manager:
        with pytest.raises(PositionError, match="lies inside window 3 .* after 1 of its records"):
            manager.set_start(at[1])
        with pytest.raises(PositionError):
            manager.set_start(Position(9, 0))
        manager.set_start(at[0])
        manager.restore()
    assert found == [b"a", b"b"]


def test_start_that_was_purged_is_refused(root: str) -> None:
    """A state saved before committed windows that were purged is refused; the replay never starts somewhere else."""
    positions = _filled(root, {w: [b"x" * 90] for w in range(6)}, segment_size=120)
    with Manager(root, print) as manager:
        assert manager.committed(3)
        with pytest.raises(PositionError):
            manager.set_start(positions[0])


def test_replay_to_the_checkpoint_drops_what_is_after(root: str) -> None:
    """F-W15, APX-62: windows up to the checkpoint come back, later ones are dropped and written anew; the old ones never come back."""
    _filled(root, {w: [b"old %d" % w] for w in range(6)})
    for _ in range(2):  # a crash after the drop changes nothing
        found: list[bytes] = []
        with Manager(root, found.append) as manager:
            assert manager.restore(2, to="checkpoint") == 2
            assert manager.restore() == 2, "nor in a second replay of this process"
        assert found == [b"old 0", b"old 1", b"old 2"] * 2
    with Manager(root, found.append) as manager:
        assert manager.flushed == 2
        manager.restore(2, to="checkpoint")
        for window in (3, 5):
            manager.append(b"new %d" % window)
            manager.end_window(window)
    found = []
    with Manager(root, found.append) as manager:
        assert manager.restore() == 5
    assert found == [b"old 0", b"old 1", b"old 2", b"new 3", b"new 5"]


def test_start_before_windows_that_were_dropped_and_ended_again(root: str) -> None:
    """The first attempt ended 3 and 5, the second one 3, 4 and 5: a start after 3 that met the old end of 5 began there, without 4."""
    with Manager(root, print) as manager:
        manager.end_window(3)
        saved = manager.position
        at = [manager.append(b"old"), manager.append(b"old")]
        manager.end_window(5)
    with Manager(root, print) as manager:
        manager.restore(3, to="checkpoint")
        for window in (4, 5):
            manager.append(b"new %d" % window)
            manager.end_window(window)
    for to in ("window", "checkpoint"):
        found: list[bytes] = []
        with Manager(root, found.append) as manager:
            with pytest.raises(PositionError, match="lies inside window 5"):
                manager.set_start(at[1])
            manager.set_start(saved)
            assert manager.restore(5, to=to) == 5
        assert found == [b"new 4", b"new 5"]


def test_windows_over_segments_that_are_full_and_one_that_is_not(root: str) -> None:
    """APX-60, APX-61, APX-67: what was committed goes with its whole segments, at once or with a later commit; all other records stay."""
    windows = {window: [b"%d" % window * 90] * 32 for window in range(3)}
    size = 2 << 10  # less than a window
    _filled(root, windows, segment_size=size)
    found: list[bytes] = []
    with Manager(root, found.append, segment_size=size) as manager:
        assert manager.restore() == 2
        assert found == [record for records in windows.values() for record in records]  # 96 records
        gone = manager.committed(1)
        assert gone
    with Manager(root, (after := list[bytes]()).append, segment_size=size) as manager:  # a crash
        assert manager.restore(1) == 2
        assert after == windows[2]
        manager.append(b"anew")
        manager.end_window(3)
        assert min(manager.committed(3)) > max(gone)
    with Manager(root, (last := list[bytes]()).append, segment_size=size) as manager:
        assert manager.restore(2) == 3
    assert last == [b"anew"]


def test_replay_to_the_checkpoint_from_a_start(root: str) -> None:
    """With both limits: from the position in the saved state to the checkpoint, and nothing else."""
    positions = _filled(root, {w: [b"%d" % w] for w in range(8)})
    found: list[bytes] = []
    with Manager(root, found.append) as manager:
        manager.set_start(positions[1])
        assert manager.restore(5, to="checkpoint") == 5
    assert found == [b"2", b"3", b"4", b"5"]


def test_replay_to_a_checkpoint_that_the_log_does_not_have(root: str) -> None:
    """A checkpoint after the end, or earlier windows that were purged and not declared saved: refused, and nothing is dropped."""
    _filled(root, {w: [b"x" * 90] for w in range(6)}, segment_size=120)
    with Manager(root, print) as manager:
        with pytest.raises(DamagedState, match="has lost its end"):
            manager.restore(9, to="checkpoint")
        with pytest.raises(OptionError, match="expected 'window' or 'checkpoint'"):
            manager.restore(1, to="end")
        manager.committed(2)
    with Manager(root, print) as manager:
        with pytest.raises(DamagedState, match="committed and purged"):
            manager.restore(4, to="checkpoint")
        assert manager.flushed == 5


def test_temporaries_that_a_crash_has_left_are_removed(root: str) -> None:
    """Temporary files of a failed put are removed when the log is opened for writing; copies of a repair, and segments, stay."""
    _filled(root, {0: [b"a"]})
    stray, kept = Path(root) / f"{TEMPORARY}0123", Path(root) / "000000000009.wal.broken"
    for path in (stray, kept):
        path.write_bytes(b"x")
    with Writer(root):
        assert not stray.exists()
        assert kept.exists()


@pytest.mark.slow
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["window", "die", "checkpoint", "restart"]), st.integers(0, 3)),
        min_size=1,
        max_size=14,
    )
)
@settings(max_examples=effort(25, 3000), deadline=None)
def test_any_history_of_windows_deaths_and_drops(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    """Compared with a model in memory: after any windows, deaths within one, restarts and drops, the valid records come back."""
    root = str(tmp_path_factory.mktemp("log") / "log")
    model: dict[int, list[bytes]] = {}
    manager = Manager(root, print, segment_size=150)
    made = 0
    for what, number in steps:
        if what == "window":
            window = max(model, default=-1) + 1 + number % 2
            model[window] = [b"%d" % (made + n) for n in range(number)]
            made += number
            for record in model[window]:
                manager.append(record)
            manager.end_window(window)
            continue
        if what == "die":
            for _ in range(number):
                manager.append(b"never")
        manager.close()
        found: dict[int, list[bytes]] = {}
        manager = Manager(root, found.__setitem__, segment_size=150)
        if what == "checkpoint" and model:
            to = sorted(model)[number % len(model)]
            model = {window: records for window, records in model.items() if window <= to}
            assert manager.restore(to, to="checkpoint") == to
        else:
            assert manager.restore() == max(model, default=-1)
        assert found == model
    manager.close()


@pytest.mark.slow
def test_a_drop_that_is_crashed_anywhere() -> None:
    """The replay to the checkpoint loses power at each call, and again in the recovery: the operator ends in the same state."""
    report = explore(CheckpointProgram(5), profile=CrashDisk, images_max=6, states_max=effort(1000, 100_000))
    assert not report.complaints, report.first
    assert report.states > 100
