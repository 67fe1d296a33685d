"""Files, a database table, and a third, hand-written sink, each with the same crashes, fences and replays."""

from __future__ import annotations

import inspect
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.clock import use
from penstock.errors import PenstockError
from penstock.query import checkpoint, fence, writing
from penstock.query.order import Standing, place
from penstock.testing import FakeClock
from tests.query import toy
from tests.query.kits import FileKit, ServerKit, TableKit, ToyKit
from tests.query.suite import Kit, SinkContract

if TYPE_CHECKING:
    from tests.support.postgres import Postgres

_LINES_MAX = 100


def made(kind: type[Kit], root: Path) -> Iterator[Callable[[], Kit]]:
    """Yield a function that makes a fresh kit with its own checkpoint; the test's last kit is closed after the test."""
    kits: list[Kit] = []
    with pytest.MonkeyPatch.context() as patch:

        def new() -> Kit:
            if kits:
                kits[-1].close()
            patch.undo()
            home = root / str(len(kits))
            home.mkdir()
            kits.append(kind(home, patch))
            patch.setattr(checkpoint, "locate", lambda location, **_: (kits[-1].spark.storage, location))
            return kits[-1]

        yield new
        for kit in kits[-1:]:
            kit.close()


class TestFiles(SinkContract):
    @pytest.fixture
    def new(self, tmp_path: Path) -> Iterator[Callable[[], Kit]]:
        yield from made(FileKit, tmp_path)


class TestTable(SinkContract):
    @pytest.fixture
    def new(self, tmp_path: Path) -> Iterator[Callable[[], Kit]]:
        yield from made(TableKit, tmp_path)


class TestServer(SinkContract):
    # These would take minutes with a real server: `tests/db/test_crashes.py` kills and stops it and its drivers at each step.
    test_crash_at_every_step_and_again_in_the_recovery = None  # type: ignore[assignment]  # - no test here
    test_driver_that_stops_at_every_step_is_fenced = None  # type: ignore[assignment]  # - no test here

    @pytest.fixture
    def new(self, tmp_path: Path, postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Kit]]:
        monkeypatch.setattr(ServerKit, "url", postgres.url)
        yield from made(ServerKit, tmp_path)


class TestToy(SinkContract):
    @pytest.fixture
    def new(self, tmp_path: Path) -> Iterator[Callable[[], Kit]]:
        yield from made(ToyKit, tmp_path)


def test_a_third_sink_takes_less_than_a_hundred_lines() -> None:
    """What keeps a sink right is in `penstock.query`: a hand-written sink with its Spark data source is a page of code."""
    lines = inspect.getsource(toy.ToySink) + inspect.getsource(toy.ToyDataSource)
    assert len(lines.splitlines()) < _LINES_MAX


def _any_driver(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fence, "check", lambda *_: None)


def _any_number(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(toy, "place", lambda *_: Standing.NEXT)


def _older_is_applied(patch: pytest.MonkeyPatch) -> None:
    """Skip every batch that is not newer, like sinks that know only a number."""
    patch.setattr(
        toy, "place", lambda last, batch, _: Standing.NEXT if batch.number > last.number else Standing.APPLIED
    )


def _any_offsets(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(toy, "place", lambda last, batch, nouns: place(replace(last, fingerprint=""), batch, nouns))


def _any_query(patch: pytest.MonkeyPatch) -> None:
    """Treat the batches of all queries as one query's, and so skip every batch that is not newer."""
    patch.setattr(toy, "place", lambda last, batch, nouns: place(replace(last, query=batch.query), batch, nouns))


def _restored_or_overtaken(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(writing, "_overtaken_is_fenced", lambda *_: nullcontext())


def _plan_is_not_durable(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(checkpoint.Checkpoint, "persist", lambda *_: None)


def _checkpoint_read_again(patch: pytest.MonkeyPatch) -> None:
    commit = writing.QueryWriting.commit

    def changed(self: Any, reports: list[Any], number: int) -> None:
        commit(self, [replace(report, bound=self.bound()) for report in reports], number)

    patch.setattr(writing.QueryWriting, "commit", changed)


class _Piecewise(sqlite3.Connection):
    """A connection without transactions."""

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        """Run each statement at once."""
        return super().execute("SELECT 1" if sql in {"BEGIN IMMEDIATE", "COMMIT"} else sql, *values)


def _committed_in_two_steps(patch: pytest.MonkeyPatch) -> None:
    """Commit the rows first, then the number."""
    patch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=_Piecewise))


TAKEN_OUT: dict[Callable[[pytest.MonkeyPatch], None], str] = {
    _any_driver: "test_stale_driver_is_fenced",
    _any_number: "test_commit_that_is_called_twice",
    _older_is_applied: "test_restored_sink_is_refused",
    _any_offsets: "test_restored_checkpoint_that_read_on_is_refused",
    _any_query: "test_deleted_checkpoint_passes_over_nothing",
    _restored_or_overtaken: "test_driver_that_is_overtaken_before_it_begins_is_fenced",
    _plan_is_not_durable: "test_checkpoint_is_read_once_a_batch",
    _checkpoint_read_again: "test_checkpoint_is_read_once_a_batch",
    _committed_in_two_steps: "test_crash_at_every_step_and_again_in_the_recovery",
}


@pytest.mark.slow
@pytest.mark.parametrize("without", TAKEN_OUT, ids=lambda rule: rule.__name__.strip("_"))
def test_every_rule_is_needed(without: Callable[[pytest.MonkeyPatch], None], tmp_path: Path) -> None:
    """If any one rule is taken out of a hand-written sink, the suite's test for that failure fails."""
    test = getattr(SinkContract(), TAKEN_OUT[without])
    wanted = next(iter(inspect.signature(test).parameters))

    def run(home: Path, change: Callable[[pytest.MonkeyPatch], None]) -> None:
        home.mkdir()
        with contextmanager(made)(ToyKit, home) as new, pytest.MonkeyPatch.context() as patch, use(FakeClock()):
            given = new() if wanted == "kit" else new
            change(patch)
            test(given)

    run(tmp_path / "with", lambda _: None)
    with pytest.raises((AssertionError, PenstockError, pytest.fail.Exception)):
        run(tmp_path / "without", without)
