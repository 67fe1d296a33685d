"""`penstock late`: files that were not read are listed, and accepted exactly once. Without Spark; killed at every durable step."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest

import penstock as public
from penstock import clock
from penstock.errors import FileTooLate, Locked, OptionError
from penstock.query import driver
from penstock.verify import verify
from tests.support.damage import tree
from tests.support.dying import dying
from tests.support.follows import follows

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Pipeline, Said

DEAD = f"{socket.gethostname()}:999999999:1:q"  # no process has this number


def late(query: Pipeline, name: str, *lines: str, seconds: int = 1_000_000) -> Path:
    """Write a file with a time far earlier than all others."""
    clock.sleep(0.02)  # more than one tick of the kernel's clock: arrival times tell which files came after a listing
    path = query.put(name, *lines)
    os.utime(path, (seconds, seconds))
    return path


@pytest.fixture
def query(pipeline: Callable[..., Pipeline]) -> Pipeline:
    """Return an ingest that has read `a`; `old/b` and `c` came too late after that, and the query has seen both."""
    made = pipeline(source={"recursiveFileLookup": "true"}, owner=DEAD)
    made.put("a", "one")
    made.run()
    late(made, "old/b", "two", "three")
    late(made, "c", "four")
    made.run()
    return made


def lines(query: Pipeline) -> list[str]:
    """Return the lines of the output, sorted."""
    return sorted(line for path in query.dst.glob("*.txt") for line in path.read_text().splitlines())


def whys(said: Said) -> dict[str, str]:
    """Return the reason for each file that was not read, as the command prints it."""
    return {file["path"]: file["why"] for file in said.facts["files"]}


@pytest.mark.parametrize("found", [b"", b'v1\n{}\n{"v":1,"curs', b"\xff" * 64])
@pytest.mark.parametrize("command", ["late", "reset"])
def test_offset_that_was_cut_is_damage_and_no_other_query(
    penstock: Callable[..., Said], query: Pipeline, command: str, found: bytes
) -> None:
    """A truncated offset was reported as an SRC that no query has read, so its user looked for a mistake in the call."""
    offset = max((query.checkpoint / "offsets").iterdir())
    offset.write_bytes(found)
    said = penstock(command, query.src, query.dst)
    assert said.status == 3
    assert f"{str(offset)!r} is damaged or missing" in said.err


def test_what_was_not_read_is_listed(penstock: Callable[..., Said], query: Pipeline) -> None:
    """Late files, seen by the query or not, unsettled files and files from the future, each with its reason; nothing is changed."""
    late(query, "d", "five")
    (query.src / "fresh").write_text("six\n", encoding="utf-8")
    os.utime(query.put("ahead", "seven"), (4e9, 4e9))
    query.put("next", "eight")
    before = tree(query.root)
    said = penstock("late", query.src, query.dst, "--json")
    assert whys(said) == {"old/b": "late", "c": "late", "d": "late", "fresh": "held", "ahead": "future"}
    assert said.facts["counts"] == {"late": 3, "held": 1, "future": 1}
    by_path = {file["path"]: file for file in said.facts["files"]}
    assert (by_path["old/b"]["size"], by_path["old/b"]["modified"]) == (10, "1970-01-12T13:46:40.000Z")
    shown = penstock("late", query.src, query.dst)
    assert "late     old/b (10 B, of 1970-01-12T13:46:40.000Z, since 20" in shown.out
    assert tree(query.root) == before
    assert [file.path for file in public.late(query.src, query.dst).files if file.why == "late"] == ["c", "d", "old/b"]


@follows("PST-204")
def test_accepted_files_are_read_once(penstock: Callable[..., Said], query: Pipeline) -> None:
    """The next start reads accepted files once, whatever is run again; no file is touched; verify proves it."""
    times = {path: path.stat().st_mtime_ns for path in query.src.rglob("*")}
    said = penstock("late", query.src, query.dst, "--accept", "*", "--json")
    assert sorted(said.facts["accepted"]) == ["c", "old/b"]
    assert set(whys(said).values()) == {"accepted"}
    assert penstock("late", query.src, query.dst, "--accept", "*", "--json").facts["accepted"] == []
    for _ in range(4):
        query.run()
    assert lines(query) == ["four", "one", "three", "two"]
    assert {path: path.stat().st_mtime_ns for path in query.src.rglob("*")} == times
    said = penstock("late", query.src, query.dst)
    assert said.out == "every file that is there was read, or is read by the next start\n"
    found = verify(str(query.dst), str(query.src)).source
    assert found is not None
    assert found.proved
    assert (found.files, found.waiting_files) == (3, 0)


@pytest.mark.parametrize("behind", [(), ("--json",)])
def test_accept_without_a_pattern_is_all(
    penstock: Callable[..., Said], query: Pipeline, behind: tuple[str, ...]
) -> None:
    """`--accept` alone, as the last flag or before another one, accepts all late files: the next flag is not a pattern."""
    said = penstock("late", query.src, query.dst, "--accept", *behind)
    assert said.status == 0, said.err
    assert whys(penstock("late", query.src, query.dst, "--json")) == {"old/b": "accepted", "c": "accepted"}


def test_accepted_batches_are_replayed(penstock: Callable[..., Said], query: Pipeline) -> None:
    """The driver dies after the ledger put of each batch, of the acceptance and of the reading: repeated batches add nothing."""
    penstock("late", query.src, query.dst, "--accept", "*")
    for _ in range(3):
        query.run_twice()
    query.run()
    assert lines(query) == ["four", "one", "three", "two"]
    assert not public.late(query.src, query.dst).files


def test_query_that_is_no_ingest(penstock: Callable[..., Said], query: Pipeline) -> None:
    """If no options of a query were noted, the user passes them; accepted files are read once here too."""
    query.noted = None
    query.owner = f"{DEAD}2"  # a driver of the query, which notes the options it has
    query.put("new", "five")
    query.run()
    listed = penstock("late", query.src, query.dst, "--source-option", "recursiveFileLookup=true", "--json")
    assert whys(listed) == {"old/b": "late", "c": "late"}
    said = penstock(
        "late", query.src, query.dst, "--source-option", "recursiveFileLookup=true", "--accept", "*", "--json"
    )
    assert sorted(said.facts["accepted"]) == ["c", "old/b"]
    for _ in range(3):
        query.run()
    assert lines(query) == ["five", "four", "one", "three", "two"]
    assert (
        "did you mean 'recursiveFileLookup'"
        in penstock("late", query.src, query.dst, "--source-option", "recursiveFileLoockup=1").err
    )


def test_verify_tells_late_files_from_missing_ones(query: Pipeline) -> None:
    """A file that the query reported as late counts as not ingested, not as missing: what was read is in the output."""
    found = verify(str(query.dst), str(query.src)).source
    assert found is not None
    assert (found.proved, found.files, found.waiting_files) == (True, 1, 2)
    assert any("2 files came too late" in note for note in found.notes)


def test_some_are_accepted_by_path_or_glob(penstock: Callable[..., Said], query: Pipeline) -> None:
    """A glob relative to SRC selects files; one that matches none is refused, with the files that exist."""
    said = penstock("late", query.src, query.dst, "--accept", "new/*")
    assert (said.status, "[PST-101] 'new/*' is neither a late file" in said.err, "'c', 'old/b'" in said.err) == (
        2,
        True,
        True,
    )
    assert penstock("late", query.src, query.dst, "--accept", "old/*", "--json").facts["accepted"] == ["old/b"]
    for _ in range(3):
        query.run()
    assert lines(query) == ["one", "three", "two"]
    assert whys(penstock("late", query.src, query.dst, "--json")) == {"c": "late"}


def test_acceptance_killed_at_each_step(
    penstock: Callable[..., Said], query: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before or after each durable step and run again, the command accepts each file once."""
    for step in range(8):
        with dying(monkeypatch, step, ("put_if_absent", "persist", "make_directory", "delete")) as died:
            status = penstock("late", query.src, query.dst, "--accept", "*").status
        assert status == (130 if died() else 0)
    for _ in range(4):
        query.run()
    assert lines(query) == ["four", "one", "three", "two"]


def test_accepted_files_keep_the_limits_of_a_batch(
    penstock: Callable[..., Said], pipeline: Callable[..., Pipeline]
) -> None:
    """Batches of accepted files have the usual limits: files per batch and bytes; files not planned yet are kept over restarts."""
    query = pipeline(source={"maxFilesPerTrigger": "1", "maxBytesPerTrigger": "40"}, owner=DEAD)
    query.put("a", "one")
    query.run()
    numbers = [f"line {i}" for i in range(20)]
    late(query, "long", *numbers)
    late(query, "b", "two", seconds=999_999)
    query.run()
    assert penstock("late", query.src, query.dst, "--accept", "*").status == 0
    batches = 0
    while batches < 20 and len(lines(query)) < 22:
        query.run()
        batches += 1
    assert 5 < batches < 10
    query.run()
    assert lines(query) == sorted(["one", "two", *numbers])


def test_acceptance_of_what_the_query_has_not_seen(
    penstock: Callable[..., Said], pipeline: Callable[..., Pipeline]
) -> None:
    """With tooLate=fail no offset mentions the file; after its acceptance it is read, and the query continues."""
    query = pipeline(source={"tooLate": "fail"}, owner=DEAD)
    query.put("a", "one")
    query.run()
    late(query, "b", "two")
    with pytest.raises(FileTooLate, match=r"penstock late SRC DST.*--accept"):
        query.run()
    assert penstock("late", query.src, query.dst, "--accept", "b", "--json").facts["accepted"] == ["b"]
    for _ in range(3):
        query.run()
    assert lines(query) == ["one", "two"]


def test_dismissed_files_are_told_no_more(penstock: Callable[..., Said], query: Pipeline) -> None:
    """A dismissed file is neither read nor listed nor counted, over restarts; it can still be told from a file that was read."""
    assert penstock("late", query.src, query.dst, "--dismiss", "c", "--json").facts["dismissed"] == ["c"]
    for _ in range(3):
        query.run()
    assert whys(penstock("late", query.src, query.dst, "--json")) == {"old/b": "late"}
    assert penstock("status", query.dst, "--json").facts["sinks"][0]["late_files"] == 1
    assert lines(query) == ["one"]
    found = verify(str(query.dst), str(query.src)).source
    assert found is not None
    assert found.proved


@pytest.mark.usefixtures("nobody_is_ending")
@follows("PST-504")
def test_refused_while_the_query_runs(penstock: Callable[..., Said], pipeline: Callable[..., Pipeline]) -> None:
    """While the query's application lives, accepting is refused by name; the message gives the flag for when only the session lives on."""
    query = pipeline(owner=driver.owner("q", None))
    query.put("a", "one")
    query.run(finish=False)
    late(query, "b", "two")
    before = tree(query.root)
    said = penstock("late", query.src, query.dst, "--accept", "*")
    assert (said.status, "[PST-504]" in said.err, "say --query-ended" in said.err) == (1, True, True)
    with pytest.raises(Locked):
        public.late(query.src, query.dst, accept=True)
    assert whys(penstock("late", query.src, query.dst, "--json")) == {"b": "late"}
    assert tree(query.root) == before
    assert public.late(query.src, query.dst, accept=True, query_ended=True).accepted == ("b",)


def test_refused_while_a_batch_is_in_flight(penstock: Callable[..., Said], query: Pipeline) -> None:
    """After a batch that is planned and not committed nothing can be accepted; the advice, to start the query once, works."""
    (query.checkpoint / "commits" / str(query.batch - 1)).unlink()
    said = penstock("late", query.src, query.dst, "--accept", "c")
    assert (said.status, "start the query once" in said.err) == (2, True)
    (query.checkpoint / "commits" / str(query.batch - 1)).write_text("v1\n{}\n")
    assert penstock("late", query.src, query.dst, "--accept", "c").status == 0
    said = penstock("late", query.src, query.dst, "--accept", "old/b")
    assert (said.status, "by an acceptance before this one" in said.err) == (2, True)
    query.run()
    assert penstock("late", query.src, query.dst, "--accept", "old/b").status == 0
    for _ in range(3):
        query.run()
    assert lines(query) == ["four", "one", "three", "two"]


def test_counts_in_status(penstock: Callable[..., Said], query: Pipeline) -> None:
    """`status` counts the late, accepted and unsettled files of the last offset."""
    os.utime(query.put("ahead", "seven"), (4e9, 4e9))
    query.run()
    (sink,) = penstock("status", query.dst, "--json").facts["sinks"]
    names = ("late_files", "accepted_files", "held_files", "future_files")
    assert [sink[name] for name in names] == [2, 0, 0, 1]
    assert "2 files came too late, not read: see penstock late" in penstock("status", query.dst).out
    penstock("late", query.src, query.dst, "--accept", "c")
    assert "1 file came late, accepted: the next start reads them" in penstock("status", query.dst).out


@pytest.mark.slow
@pytest.mark.parametrize("name", ["[x]", "new\nline", "\udcff", "\u202egnp", "*"])
def test_hostile_names(penstock: Callable[..., Said], pipeline: Callable[..., Pipeline], name: str) -> None:
    """Any name is listed, printed as text and accepted by itself, also if it looks like a glob."""
    query = pipeline(owner=DEAD)
    query.put("a", "one")
    query.run()
    late(query, name, "two")
    query.run()
    said = penstock("late", query.src, query.dst)
    assert said.status == 0
    assert said.out.count("\n") == 1
    assert public.late(query.src, query.dst, accept=[name]).accepted == (name,)
    for _ in range(3):
        query.run()
    assert lines(query) == ["one", "two"]


def test_bad_calls(penstock: Callable[..., Said], query: Pipeline, tmp_path: Path) -> None:
    """Another source, no output, both decisions at once, and invalid patterns are refused by name, and nothing is changed."""
    other = tmp_path / "other"
    other.mkdir()
    assert "no query that writes" in penstock("late", other, query.dst).err
    assert "is no output of Penstock" in penstock("late", query.src, other).err
    assert "two decisions" in penstock("late", query.src, query.dst, "--accept", "c", "--dismiss", "c").err
    for wrong in ("", [], [3], None):
        with pytest.raises(OptionError, match="accept="):
            public.late(query.src, query.dst, accept=wrong)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="did you mean 'accept'"):
        public.late(query.src, query.dst, acept=True)  # type: ignore[call-arg]
