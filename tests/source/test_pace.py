"""When a source looks at its directory: initial delay, sleep time, and a missing directory. Without Spark."""

from __future__ import annotations

import logging
import os
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock import clock
from penstock.errors import NotThere, OptionError
from penstock.formats.schema import to_spark
from penstock.ingestion.call import IngestCall
from penstock.ingestion.ingest import check
from penstock.options import SOURCE, parse
from penstock.source import configured
from penstock.source.pace import Silence
from penstock.testing import FakeClock
from tests.source.test_read import TEXT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.source.followed import FollowPlanner
    from penstock.source.plan import Planner


@pytest.fixture
def time() -> Iterator[FakeClock]:
    """Install the process's clock for a test; the files are much older."""
    fake = FakeClock(2_000_000_000)
    with clock.use(fake):
        yield fake


def planner(folder: Path, **options: Any) -> Planner | FollowPlanner:
    """Return a new planner, as a starting driver would have."""
    given = {"path": str(folder), "settle": "0s", **{name: str(value) for name, value in options.items()}}
    checked = parse(SOURCE, given, what="source")
    return configured.planner(checked, configured.reading(checked, to_spark(TEXT)))


def put(folder: Path, name: str) -> None:
    """Write a file that has settled."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("line\n")
    os.utime(folder / name, (1_000_000_000, 1_000_000_000))


def read(source: Planner | FollowPlanner, at: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """Return the files of the next batch, and where it ends."""
    end = source.latest(at)
    return [split.file.path for split in source.splits(end)] if end is not at else [], end


FOLLOW = pytest.mark.parametrize("follow", ["false", "true"])


@FOLLOW
def test_nothing_is_looked_at_before_the_initial_delay(tmp_path: Path, time: FakeClock, follow: str) -> None:
    """A query reads nothing before its initial delay is over, and then everything; after a restart it waits again."""
    put(tmp_path / "in", "a")
    source = planner(tmp_path / "in", initialDelay="10s", follow=follow)
    at = source.initial()
    assert read(source, at) == ([], at)
    time.sleep(9.9)
    assert read(source, at) == ([], at)
    time.sleep(0.2)
    names, at = read(source, at)
    assert names == ["a"]
    put(tmp_path / "in", "b")
    again = planner(tmp_path / "in", initialDelay="10s", follow=follow)
    assert read(again, at) == ([], at)
    time.sleep(11)
    assert read(again, at)[0] == ["b"]


@FOLLOW
def test_a_run_of_what_is_there_waits_for_it(tmp_path: Path, time: FakeClock, follow: str) -> None:
    """AvailableNow, which runs only once, waits out the initial delay and then reads what is there."""
    put(tmp_path / "in", "a")
    source = planner(tmp_path / "in", initialDelay="10s", sleepTime="1h", follow=follow)
    source.prepare_available_now()
    began = time.monotonic()
    assert read(source, source.initial())[0] == ["a"]
    assert time.monotonic() >= began + 10


@FOLLOW
def test_a_directory_is_listed_once_in_its_sleep_time(tmp_path: Path, time: FakeClock, follow: str) -> None:
    """APX-29: one listing is read batch by batch; later files are seen when the sleep is over, or by a query that starts meanwhile."""
    for name in ("a", "b"):
        put(tmp_path / "in", name)
    source = planner(tmp_path / "in", sleepTime="1m", maxFilesPerTrigger="1", follow=follow)
    names, at = read(source, source.initial())
    assert names == ["a"]
    put(tmp_path / "in", "c")
    names, at = read(source, at)
    assert names == ["b"]
    time.sleep(59)
    assert read(source, at) == ([], at)
    assert read(planner(tmp_path / "in", sleepTime="1m", follow=follow), at)[0] == ["c"]
    time.sleep(2)
    assert read(source, at)[0] == ["c"]


@FOLLOW
def test_a_strict_source_fails_without_its_directory(tmp_path: Path, follow: str) -> None:
    """By default a missing directory is refused at the start, and one that disappears fails the query."""
    with pytest.raises(OptionError, match="does not exist"):
        planner(tmp_path / "in", follow=follow)
    put(tmp_path / "in", "a")
    source = planner(tmp_path / "in", follow=follow)
    _, at = read(source, source.initial())
    (tmp_path / "in").rename(tmp_path / "away")
    with pytest.raises(NotThere):
        source.latest(at)


@FOLLOW
@pytest.mark.parametrize("starting", ["earliest", "2000-01-01"])
def test_a_directory_that_is_not_there_is_waited_for(
    tmp_path: Path, follow: str, starting: str, caplog: pytest.LogCaptureFixture
) -> None:
    """IBM-3, SPK-13: a source whose directory comes later reads its files then, and has logged once that it waits."""
    if follow == "true" and starting != "earliest":
        pytest.skip("follow=true has no startingFrom")
    source = planner(tmp_path / "in", strictMode=False, follow=follow, startingFrom=starting)
    at = source.initial()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert read(source, at) == ([], at)
        put(tmp_path / "in", "a")
        assert read(source, at)[0] == ["a"]
    assert [record.getMessage().split(" (")[0].split("' ")[1] for record in caplog.records] == [
        "is not there; it is waited for",
        "is there, and is read",
    ]


def test_what_comes_with_a_directory_that_was_not_there_is_new(tmp_path: Path) -> None:
    """With startingFrom=latest, a directory that does not exist yet has no files to leave out."""
    source = planner(tmp_path / "in", strictMode=False, startingFrom="latest")
    at = source.initial()
    assert read(source, at) == ([], at)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").write_text("line\n")
    names, at = read(source, at)  # the first batch only keeps the starting point, and is empty
    clock.sleep(0.02)
    (tmp_path / "in" / "b").write_text("line\n")
    more = read(source, at)[0]
    assert sorted([*names, *more]) == ["a", "b"]


@FOLLOW
@pytest.mark.parametrize("restarted", [False, True])
def test_a_directory_that_goes_away_and_comes_back(tmp_path: Path, follow: str, *, restarted: bool) -> None:
    """A directory disappears and comes back: old files are not read again, new ones are, also after a restart in between."""
    put(tmp_path / "in", "a")
    source = planner(tmp_path / "in", strictMode=False, follow=follow)
    names, at = read(source, source.initial())
    assert names == ["a"]
    (tmp_path / "in").rename(tmp_path / "away")
    assert read(source, at) == ([], at)
    if restarted:
        source = planner(tmp_path / "in", strictMode=False, follow=follow)
        assert read(source, at) == ([], at)
    put(tmp_path / "away", "b")
    (tmp_path / "away").rename(tmp_path / "in")
    assert read(source, at)[0] == ["b"]


def test_a_directory_that_goes_away_while_it_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory that disappears during its listing is waited for, too; a subdirectory that cannot be listed is still an error."""
    put(tmp_path / "in", "a")
    source = planner(tmp_path / "in", strictMode=False, recursiveFileLookup="true")
    at = source.initial()
    listing = source._storage.names

    def going(path: str) -> Any:
        (tmp_path / "in").rename(tmp_path / "away")
        return listing(path)

    monkeypatch.setattr(source._storage, "names", going)
    assert read(source, at) == ([], at)
    monkeypatch.undo()
    (tmp_path / "away").rename(tmp_path / "in")

    def failing(path: str) -> Any:
        if path.endswith("/in"):
            return listing(path)
        raise NotThere(path)

    (tmp_path / "in" / "below").mkdir()
    monkeypatch.setattr(source._storage, "names", failing)
    with pytest.raises(NotThere):
        source.latest(at)
    monkeypatch.undo()
    assert read(source, at)[0] == ["a"]


def test_an_ingest_of_what_is_not_there_yet(tmp_path: Path) -> None:
    """An ingest refuses a missing SRC, unless the options say to wait for it."""
    source = {"format": "text"}
    with pytest.raises(OptionError, match="does not exist"):
        check(IngestCall(str(tmp_path / "in"), str(tmp_path / "out"), source=source, sink={}))
    check(IngestCall(str(tmp_path / "in"), str(tmp_path / "out"), source=source | {"strictMode": False}, sink={}))


@pytest.mark.parametrize(
    ("name", "value"), [("initialDelay", "-1s"), ("sleepTime", "soon"), ("strictMode", "maybe"), ("sleepTime", "-5s")]
)
def test_values_that_are_none(name: str, value: str) -> None:
    """IBM-11: negative times, and words that are no value, are refused with what was expected."""
    with pytest.raises(OptionError, match=f"{name}=.*expected"):
        parse(SOURCE, {"path": "x", name: value}, what="source")


def test_looks_that_find_nothing_are_put_off_by_a_share_of_the_silence(time: FakeClock) -> None:
    """Asked all the time, it looks ten times a second once it is quiet, at once after a find, and without delay at a slow pace."""
    began, looks, silence = time.seconds, [], Silence()
    while time.seconds < began + 60:
        time.seconds += 0.01
        silence.wait()
        looks.append(time.seconds - began)
        silence.looked(found=False)
    apart = [after - before for before, after in pairwise(looks)]
    assert max(apart) < 0.111
    assert apart[50] < 0.02
    assert len([look for look in looks if look > 50]) <= 101
    silence.looked(found=True)
    before = time.seconds
    silence.wait()
    assert time.seconds == before
    for _ in range(20):
        silence.looked(found=False)
        time.seconds += 1
        before = time.seconds
        silence.wait()
        assert time.seconds == before
