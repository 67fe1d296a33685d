"""`penstock reset`: a query reads its source from the beginning again. Without Spark; killed at every durable step."""

from __future__ import annotations

import os
import shutil
import socket
from collections import Counter
from typing import TYPE_CHECKING

import pytest

import penstock as public
from penstock import failpoints
from penstock.errors import FilesCleaned, Locked, OptionError
from penstock.query import driver
from tests.support.damage import tree
from tests.support.dying import dying

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import Pipeline, Said

DEAD = f"{socket.gethostname()}:999999999:1:q"  # no process has this number


@pytest.fixture
def query(pipeline: Callable[..., Pipeline]) -> Pipeline:
    """Return an ingest that has read `a` and `b`, in two batches."""
    ingest = pipeline(owner=DEAD)
    ingest.put("a", "one")
    ingest.run()
    ingest.put("b", "two")
    ingest.run()
    return ingest


def lines(query: Pipeline) -> Counter[str]:
    """Return how often each line is in the output."""
    return Counter(line for path in query.dst.glob("*.txt") for line in path.read_text().splitlines())


def runs(query: Pipeline, count: int = 4) -> None:
    """Start the query several times, as its user would."""
    for _ in range(count):
        query.run()


def test_what_would_be_read_again_is_told_and_nothing_is_changed(
    penstock: Callable[..., Said], query: Pipeline
) -> None:
    """Without --yes it lists the files that would be read again, without files that were never read, and no file is changed."""
    query.put("c", "three")
    before = tree(query.root)
    said = penstock("reset", query.src, query.dst, "--json")
    none: dict[str, object] = {"batch": None, "reset": False, "late": [], "passed_over": []}
    assert said.facts == {"ok": True, "files": ["a", "b"], "bytes": 8, "rows": 2} | none
    shown = penstock("reset", query.src, query.dst)
    assert "would read 2 files (8 B) again" in shown.out
    assert "nothing was changed: --yes does it" in shown.out
    assert public.reset(query.src, query.dst).files == ("a", "b")
    assert tree(query.root) == before
    runs(query)
    assert lines(query) == {"one": 1, "two": 1, "three": 1}


def test_all_is_read_again_once(penstock: Callable[..., Said], query: Pipeline) -> None:
    """With --yes the next start reads the whole source once more, whatever is run again; the earlier output stays."""
    said = penstock("reset", query.src, query.dst, "--yes")
    assert (said.status, "the next start reads 2 files (8 B) again" in said.out) == (0, True)
    query.put("c", "three")
    runs(query)
    assert lines(query) == {"one": 2, "two": 2, "three": 1}
    assert query.batch > 3  # no file number is used again


def test_a_second_reset_before_the_query_was_started_does_nothing(
    penstock: Callable[..., Said], query: Pipeline
) -> None:
    """Run twice, the command has everything read again once, and the second run says that there is nothing to do."""
    assert penstock("reset", query.src, query.dst, "--yes").status == 0
    said = penstock("reset", query.src, query.dst, "--yes")
    assert (said.status, said.out) == (0, "nothing would be read again: nothing was read\n")
    runs(query)
    assert lines(query) == {"one": 2, "two": 2}
    penstock("reset", query.src, query.dst, "--yes")
    runs(query)
    assert lines(query) == {"one": 3, "two": 3}


def test_reset_killed_at_each_step(
    penstock: Callable[..., Said], query: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before or after each durable step and run again, the command has everything read again once."""
    for step in range(8):
        with dying(monkeypatch, step, ("put_if_absent", "persist", "make_directory", "delete")) as died:
            status = penstock("reset", query.src, query.dst, "--yes").status
        assert status == (130 if died() else 0)
    runs(query)
    assert lines(query) == {"one": 2, "two": 2}


def test_batches_after_a_reset_are_replayed(penstock: Callable[..., Said], query: Pipeline) -> None:
    """The driver dies after the ledger put of each batch, of the reset and of the reading: repeated batches add nothing."""
    penstock("reset", query.src, query.dst, "--yes")
    for _ in range(4):
        query.run_twice()
    query.run()
    assert lines(query) == {"one": 2, "two": 2}


def test_files_that_came_too_late_are_read(penstock: Callable[..., Said], query: Pipeline) -> None:
    """A query that starts from the beginning has not passed over any file: files that came too late before are read then."""
    os.utime(query.put("old", "late"), (1_000_000, 1_000_000))
    query.run()
    assert penstock("late", query.src, query.dst, "--json").facts["counts"] == {"late": 1}
    told = penstock("reset", query.src, query.dst).out
    assert "would read 2 files (8 B) again, and 1 file (old), which came too late, for the first time; " in told
    facts = penstock("reset", query.src, query.dst, "--yes", "--json").facts
    assert (facts["files"], facts["late"]) == (["a", "b"], ["old"])
    runs(query)
    assert lines(query) == {"one": 2, "two": 2, "late": 1}


def test_only_what_came_too_late_would_be_read(penstock: Callable[..., Said], query: Pipeline) -> None:
    """The message `nothing would be read again` was wrong here: the files that were read are gone, but a late file would be read."""
    os.utime(query.put("old", "late"), (1_000_000, 1_000_000))
    query.run()
    for name in "ab":
        (query.src / name).unlink()
    told = penstock("reset", query.src, query.dst).out
    assert "would read nothing again, and 1 file (old), which came too late, for the first time" in told
    assert "--yes does it" in told
    said = penstock("reset", query.src, query.dst, "--yes")
    assert "the next start reads nothing again, and 1 file (old), which came too late" in said.out
    runs(query)
    assert lines(query) == {"one": 1, "two": 1, "late": 1}


def test_what_nobody_would_ever_read_is_told(penstock: Callable[..., Said], query: Pipeline) -> None:
    """With startingFrom=latest a reset starts after all present files, also unread ones: it says so before, and when it does it."""
    query.put("c", "three")
    option = ("--source-option", "startingFrom=latest")
    told = penstock("reset", query.src, query.dst, *option).out
    assert "would read nothing again, and would pass over 1 file (c), which nobody has read; " in told
    assert penstock("reset", query.src, query.dst, *option, "--json").facts["passed_over"] == ["c"]
    assert "passes over 1 file (c)" in penstock("reset", query.src, query.dst, *option, "--yes").out
    runs(query)
    assert lines(query) == {"one": 1, "two": 1}


@pytest.mark.parametrize(("starting", "again"), [("latest", {}), ("2026-01-01", {"one": 2})])
def test_the_beginning_is_that_of_starting_from(
    penstock: Callable[..., Said], pipeline: Callable[..., Pipeline], starting: str, again: dict[str, int]
) -> None:
    """The reset goes to where a new query would start: after the present files with startingFrom=latest, or at a time."""
    query = pipeline(owner=DEAD, source={"lateness": "3650d"})
    os.utime(query.put("old", "old"), (1_000_000_000, 1_000_000_000))
    query.put("a", "one")
    query.run()
    option = ("--source-option", f"startingFrom={starting}")
    said = penstock("reset", query.src, query.dst, *option, "--yes", "--json")
    assert said.facts["files"] == ([] if starting == "latest" else ["a"])
    assert said.facts["reset"]
    runs(query)
    assert lines(query) == {"old": 1, "one": 1} | again


@pytest.mark.usefixtures("nobody_is_ending")
def test_refused_while_the_query_runs(penstock: Callable[..., Said], pipeline: Callable[..., Pipeline]) -> None:
    """While the query's application lives, the reset is refused; the message gives the flag for when only the session lives on."""
    query = pipeline(owner=driver.owner("q", None))
    query.put("a", "one")
    query.run(finish=False)
    before = tree(query.root)
    said = penstock("reset", query.src, query.dst, "--yes")
    assert (said.status, "[PST-504]" in said.err, "say --query-ended" in said.err) == (1, True, True)
    with pytest.raises(Locked):
        public.reset(query.src, query.dst, confirmed=True)
    assert tree(query.root) == before
    assert public.reset(query.src, query.dst, confirmed=True, query_ended=True).batch == 1


@pytest.mark.parametrize("retention", ["0s", "365d"])
def test_what_was_not_cleaned_yet_is_read_again_before_it_is_cleaned(
    penstock: Callable[..., Said], pipeline: Callable[..., Pipeline], retention: str
) -> None:
    """Files read by the last batch, or within their retention, were cleaned by the start after a reset that had promised to read them."""
    query = pipeline(owner=DEAD, source={"cleanSource": "delete", "retention": retention})
    query.put("a", "one")
    query.run()
    query.put("b", "two")
    query.run()
    left = ["b"] if retention == "0s" else ["a", "b"]
    assert penstock("reset", query.src, query.dst, "--yes", "--json").facts["files"] == left
    assert not list(query.src.glob("_penstock-readers/*/read-*")), "another query would take what it says was read"
    runs(query)
    assert lines(query) == {"one": 1 + ("a" in left), "two": 2}
    query.put("c", "three")
    runs(query)
    assert sorted(path.name for path in query.src.glob("[a-z]")) == ([] if retention == "0s" else ["a", "b", "c"])
    assert len(list(query.src.glob("_penstock-readers/*"))) == 1, "it is the same reader, and waits for no other one"


def test_a_copy_of_before_a_reset_is_refused_if_files_were_cleaned_after_it(
    penstock: Callable[..., Said], pipeline: Callable[..., Pipeline]
) -> None:
    """After a reset files are counted anew: the copy knows of more files than were cleaned since, and not of these."""
    query = pipeline(owner=DEAD, source={"cleanSource": "delete"})
    for name in ("a", "b", "c"):
        query.put(name, name)
        query.run()
    shutil.copytree(query.dst, query.dst.with_name("copy"))
    before = query.batch, query.offset
    query.run()
    assert penstock("reset", query.src, query.dst, "--yes").status == 0
    query.put("d", "d")
    runs(query)
    assert lines(query) == dict.fromkeys("abcd", 1), "a reset goes on, though more files are marked than it has read"
    shutil.rmtree(query.dst)
    query.dst.with_name("copy").rename(query.dst)
    query.batch, query.offset = before
    query.put("e", "e")
    with pytest.raises(
        FilesCleaned, match=r"found 3 files planned, expected 1 or more after it was set back \(penstock reset\)"
    ):
        query.run()


def test_what_a_dead_driver_had_taken_away_is_told_too(
    penstock: Callable[..., Said], pipeline: Callable[..., Pipeline]
) -> None:
    """A driver dies while it cleans; its next start puts the file back and reads it again: the list did not have it."""
    query = pipeline(owner=DEAD, source={"cleanSource": "delete"})
    for name in ("a", "b"):
        query.put(name, name)
        query.run()
    failpoints.arm("source.clean.taken=error")
    with pytest.raises(OSError, match="failpoint"):
        query.run()
    failpoints.arm("")
    assert not (query.src / "b").exists()
    assert penstock("reset", query.src, query.dst, "--yes", "--json").facts["files"] == ["b"]
    runs(query)
    assert lines(query) == {"a": 1, "b": 2}


def test_refused_while_a_batch_is_in_flight(penstock: Callable[..., Said], query: Pipeline) -> None:
    """A batch that is planned and not committed comes first; the advice, to start the query once, works."""
    (query.checkpoint / "commits" / str(query.batch - 1)).unlink()
    said = penstock("reset", query.src, query.dst, "--yes")
    assert (said.status, "start the query once" in said.err) == (2, True)
    (query.checkpoint / "commits" / str(query.batch - 1)).write_text("v1\n{}\n")
    assert penstock("reset", query.src, query.dst, "--yes").status == 0


def test_a_source_that_follows_files(penstock: Callable[..., Said], pipeline: Callable[..., Pipeline]) -> None:
    """Files that grow are read from their first byte again."""
    query = pipeline(owner=DEAD, source={"follow": "true"})
    query.put("a", "one", "two")
    query.run()
    with (query.src / "a").open("a", encoding="utf-8") as file:
        file.write("three\n")
    query.run()
    assert penstock("reset", query.src, query.dst, "--yes", "--json").facts["files"] == ["a"]
    runs(query)
    assert lines(query) == {"one": 2, "two": 2, "three": 2}


def test_bad_calls(penstock: Callable[..., Said], query: Pipeline) -> None:
    """Another source, no output, and invalid parameters are refused by name."""
    other = query.root / "other"
    other.mkdir()
    assert "no query that writes" in penstock("reset", other, query.dst).err
    assert "is no output of Penstock" in penstock("reset", query.src, other).err
    with pytest.raises(OptionError, match="confirmed='yes'"):
        public.reset(query.src, query.dst, confirmed="yes")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="did you mean 'confirmed'"):
        public.reset(query.src, query.dst, confirm=True)  # type: ignore[call-arg]
