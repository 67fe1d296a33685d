"""`penstock run`: pipelines side by side, each with its own schedule and failures; reloaded, drained, and locked by one command."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.cli.process import Interrupted, Stop
from penstock.cli.run import plan as plans
from penstock.cli.run.commands import attend
from penstock.cli.run.fleet import Fleet
from penstock.cli.run.locks import Locks, Renewal, read_anew
from penstock.cli.run.logs import Journal, JsonLines, PlainLines, logged
from penstock.cli.run.references import Secrets
from penstock.cli.run.runner import is_final, next_ns
from penstock.cli.run.status import Phase, PipelineStatus
from penstock.clock import SECOND_NS
from penstock.errors import (
    DamagedState,
    Fenced,
    Locked,
    NotThere,
    OptionError,
    PenstockError,
    SchemaChanged,
    StorageError,
)
from penstock.ingestion.ingested import Ingested
from tests.support.cluster import kill
from tests.support.wait import PATIENCE_SECONDS, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from penstock.cli.run.plan import Planned
    from tests.cli.conftest import Said

NOTHING = Ingested(-1, 0, 0, 0, 0, 0, 0, 0, 0, query="q")


class Ingests:
    """Replaces `penstock.ingest`: the test scripts the outcomes of each pipeline, by name."""

    def __init__(self) -> None:
        self.scripts: dict[str, list[BaseException | None]] = {}
        self.calls: list[str] = []
        self.active: set[str] = set()
        self.outputs: list[str] = []
        self.clashes: list[str] = []
        self.state: dict[str, Ingested] = {}
        self.looks = True  # a new look for each report; otherwise the last look is reported again

    def __call__(self, planned: Planned, progress: Callable[[Ingested], None]) -> Ingested:
        name = planned.name
        self.calls.append(name)
        if name in self.active or planned.request.dst in self.outputs:
            self.clashes.append(name)
        self.active.add(name)
        self.outputs.append(planned.request.dst)
        try:
            script = self.scripts.get(name, [])
            outcome = script.pop(0) if script else None
            progress(self.state.setdefault(name, NOTHING))
            if outcome is not None:
                raise outcome
            while planned.schedule.watch:
                progress(replace(self.state[name]) if self.looks else self.state[name])
                time.sleep(0.005)
        except KeyboardInterrupt:  # like `penstock.ingest`, which reports how far it came
            progress(self.state[name])
            raise
        finally:
            self.active.discard(name)
            self.outputs.remove(planned.request.dst)
        return self.state[name]

    def commit(self, name: str, *, waiting: bool = False) -> None:
        """Make the ingest of a pipeline commit a batch."""
        before = self.state[name]
        self.state[name] = replace(before, batch=before.batch + 1, rows=before.rows + 10, waiting=waiting)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "in").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


@pytest.fixture
def ingests() -> Ingests:
    return Ingests()


def text(*names: str, schedule: str = "watch", retry: str = "first = '10ms', most = '20ms'", drain: str = "5s") -> str:
    """Return a file with these pipelines."""
    head = f'drain = "{drain}"\n'
    return head + "".join(
        f'[pipelines.{name}]\nsource.path = "in"\nsink.path = "out-{name}"\nschedule = "{schedule}"\nretry = {{ {retry} }}\n'
        for name in names
    )


@pytest.fixture
def start(place: Path, ingests: Ingests) -> Iterator[Callable[..., Fleet]]:
    """Start the pipelines of a text; all have ended after the test."""
    fleets: list[Fleet] = []

    def started(content: str) -> Fleet:
        (place / "p.toml").write_text(content)
        fleets.append(Fleet(plans.plan("p.toml"), ingests, [Journal()]))
        fleets[-1].start()
        return fleets[-1]

    yield started
    for fleet in fleets:
        fleet.stop(0)
        assert fleet.join(PATIENCE_SECONDS) == []


def ticked(fleet: Fleet) -> bool:
    fleet.tick()
    return True


def reloaded(fleet: Fleet, locks: Locks) -> bool:
    fresh = read_anew("p.toml", fleet.plan.secrets, locks)
    if fresh is not None:
        fleet.take(fresh)
    return fresh is not None


def phases(fleet: Fleet) -> dict[str, Phase]:
    return {status.name: status.phase for status in fleet.statuses}


def status_of(fleet: Fleet, name: str) -> PipelineStatus:
    return next(status for status in fleet.statuses if status.name == name)


def test_one_fails_and_the_others_go_on(start: Callable[..., Fleet], ingests: Ingests) -> None:
    """A pipeline that keeps failing is retried, with waits in between; its neighbour is not affected."""
    ingests.scripts["bad"] = [StorageError("the disk is away")] * 1000
    fleet = start(text("bad", "good"))
    wait_for(lambda: status_of(fleet, "bad").failures > 5, "failures")
    bad = status_of(fleet, "bad")
    assert (bad.error, bad.error_code) == ("the disk is away", "PST-500")
    assert ingests.calls.count("good") == 1
    assert status_of(fleet, "good").phase == Phase.RUNNING


def test_it_goes_on_where_it_is_well_again(start: Callable[..., Fleet], ingests: Ingests) -> None:
    """After a failure, the next committed batch resets the pipeline to healthy; only the count of retries stays."""
    ingests.scripts["p"] = [StorageError("away"), RuntimeError("of a kind\nthat nobody knows"), None]
    fleet = start(text("p"))
    wait_for(lambda: ingests.calls.count("p") == 3 and "p" in ingests.active, "a third try")
    assert (status_of(fleet, "p").error, status_of(fleet, "p").failures) == (
        "RuntimeError: of a kind that nobody knows",
        2,
    )
    ingests.commit("p")
    wait_for(lambda: not status_of(fleet, "p").failures, "a good batch")
    assert (status_of(fleet, "p").error, status_of(fleet, "p").retries) == (None, 2)


@pytest.mark.parametrize(
    "error", [Fenced("x"), DamagedState("x"), SchemaChanged("x"), OptionError("x")], ids=lambda error: error.code
)
def test_what_no_time_mends_is_given_up(start: Callable[..., Fleet], ingests: Ingests, error: PenstockError) -> None:
    """Errors that would repeat, errors that need a person, and a pipeline that another command runs are not retried."""
    ingests.scripts["p"] = [error]
    fleet = start(text("p"))
    wait_for(lambda: fleet.over, "the end")
    status = status_of(fleet, "p")
    assert (status.phase, status.error_code, ingests.calls) == (Phase.FAILED, error.code, ["p"])
    assert status.fenced == isinstance(error, Fenced)


def test_an_input_that_is_not_there_may_come() -> None:
    """An option that names a missing path may work later; the same kind of error with another cause does not."""
    error = OptionError("SRC does not exist")
    assert is_final(error)
    error.__cause__ = NotThere("x")
    assert not is_final(error)


def test_one_that_runs_once_is_done_or_given_up(start: Callable[..., Fleet], ingests: Ingests) -> None:
    """A pipeline that runs once ends when its input is in; one that fails is retried as often as the file says."""
    ingests.scripts["bad"] = [StorageError("x")] * 10
    fleet = start(text("good", "bad", schedule="once", retry="first = '1ms', attempts = 3"))
    wait_for(lambda: fleet.over, "the end")
    assert phases(fleet) == {"good": Phase.DONE, "bad": Phase.FAILED}
    assert (ingests.calls.count("good"), ingests.calls.count("bad")) == (1, 3)


def test_a_stop_waits_for_the_batch_under_way(start: Callable[..., Fleet], ingests: Ingests) -> None:
    """A pipeline in the middle of a batch is stopped after it, and one that waits for input at once."""
    fleet = start(text("busy", "idle"))
    wait_for(lambda: len(ingests.active) == 2, "both")
    ingests.commit("idle", waiting=True)
    fleet.stop(60)
    wait_for(lambda: phases(fleet)["idle"] == Phase.STOPPED, "the idle one")
    time.sleep(0.1)
    assert phases(fleet)["busy"] == Phase.DRAINING
    ingests.commit("busy")
    wait_for(lambda: fleet.over, "the busy one")
    state = status_of(fleet, "busy").state
    assert state is not None
    assert (state.batch, state.rows) == (0, 10)


def test_a_stop_does_not_go_by_an_earlier_look(start: Callable[..., Fleet], ingests: Ingests) -> None:
    """A waiting ingest looks once a second and reports more often: a batch that began since the last look is still waited for."""
    fleet = start(text("busy"))
    wait_for(lambda: ingests.active, "it")
    ingests.looks = False
    ingests.commit("busy", waiting=True)
    wait_for(lambda: phases(fleet)["busy"] == Phase.WAITING, "a look")
    time.sleep(0.1)
    fleet.stop(60)
    time.sleep(0.1)
    assert phases(fleet)["busy"] == Phase.DRAINING
    ingests.state["busy"] = replace(ingests.state["busy"], waiting=False)
    time.sleep(0.1)
    assert phases(fleet)["busy"] == Phase.DRAINING
    ingests.commit("busy")
    wait_for(lambda: fleet.over, "its batch")


def test_a_stop_is_bounded(start: Callable[..., Fleet], ingests: Ingests) -> None:
    """A batch that does not end in time is interrupted; pipelines that still have not ended are named."""
    fleet = start(text("slow"))
    wait_for(lambda: ingests.active, "it")
    begin = time.monotonic()
    fleet.stop(0.3)
    assert fleet.join(0.05) == ["slow"]
    assert fleet.join(PATIENCE_SECONDS) == []
    assert 0.25 < time.monotonic() - begin < 5


def test_a_stop_ends_waits(start: Callable[..., Fleet], ingests: Ingests) -> None:
    """A stop waits neither for a back-off of an hour nor for the next cron time."""
    ingests.scripts["bad"] = [StorageError("x")]
    content = text("bad", retry="first = '1h', most = '1h'") + text("later").partition("\n")[2].replace(
        '"watch"', "{ cron = '0 0 1 1 *' }"
    )
    fleet = start(content)
    wait_for(lambda: phases(fleet) == {"bad": Phase.BACKING_OFF, "later": Phase.WAITING}, "both")
    assert status_of(fleet, "later").next_ns > time.time_ns()
    fleet.stop(3600)
    assert fleet.join(PATIENCE_SECONDS) == []
    assert ingests.calls == ["bad"]


def test_a_reload_leaves_alone_what_is_unchanged(
    start: Callable[..., Fleet], ingests: Ingests, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A changed file stops what changed or was removed after its batch, starts what is new, and leaves the rest in its first run."""
    fleet = start(text("same", "changes", "goes"))
    wait_for(lambda: len(ingests.active) == 3, "all")
    content = text("same", "new") + text("changes").partition("\n")[2].replace("out-changes", "elsewhere")
    (place / "p.toml").write_text(content)
    with Locks() as locks, caplog.at_level(logging.INFO, "penstock"):
        assert reloaded(fleet, locks)
    assert "3 pipelines, 2 of them new or changed, 1 gone" in caplog.text
    wait_for(lambda: "new" in ingests.active, "the new one")
    wait_for(lambda: ticked(fleet) and phases(fleet)["changes"] == Phase.DRAINING, "its batch")
    ingests.commit("changes")
    ingests.commit("goes")
    wait_for(lambda: ticked(fleet) and ingests.calls.count("changes") == 2, "the changed one")
    wait_for(lambda: ticked(fleet) and set(phases(fleet)) == {"same", "changes", "new"}, "the end of one")
    assert (ingests.calls.count("same"), ingests.clashes) == (1, [])


def test_a_reload_of_a_bad_file_changes_nothing(
    start: Callable[..., Fleet], ingests: Ingests, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A file with a mistake, or no file at all, is reported with its line, and everything keeps running."""
    fleet = start(text("p"))
    wait_for(lambda: ingests.active, "it")
    with Locks() as locks:
        (place / "p.toml").write_text(text("p", "q") + "nonsense = 1\n")
        assert not reloaded(fleet, locks)
        (place / "p.toml").unlink()
        assert not reloaded(fleet, locks)
    assert "nothing is changed" in caplog.text
    assert "p.toml:12: pipelines.q.nonsense: unknown key" in caplog.text
    assert ingests.active == {"p"}


def test_a_reload_that_gets_no_answer_keeps_nobody_from_a_stop(
    start: Callable[..., Fleet], ingests: Ingests, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """If something that a file refers to hangs (here a module), that is reported, and SIGTERM still ends everything in its bound.

    When it answers in the end, the reload takes effect.
    """
    fleet = start(text("p"))
    wait_for(lambda: ingests.active, "it")
    (place / "p.toml").write_text(text("p", "q") + 'transform = "that_waits:same"\n')
    (place / "that_waits.py").write_text(WAITS)
    reload, stop = threading.Event(), Stop()
    with Locks() as locks, Renewal("p.toml", fleet.plan.secrets, locks, silence=0.3) as renewal:
        over = threading.Thread(target=attend, args=(fleet, renewal, stop, reload, lambda: False), daemon=True)
        over.start()
        reload.set()
        wait_for(lambda: "do not answer" in caplog.text, "the word")
        (place / "go").touch()
        wait_for(lambda: ingests.active == {"p", "q"}, "the answer")
        sys.modules.pop("that_waits")
        (place / "go").unlink()
        reload.set()
        wait_for(lambda: caplog.text.count("do not answer") == 2, "the next word")
        stop.interrupt = Interrupted(signal.SIGTERM)
        over.join(PATIENCE_SECONDS)
        assert not over.is_alive()
        (place / "go").touch()


def test_of_two_reloads_the_later_one_counts(
    start: Callable[..., Fleet], place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """If files were read twice before the result was used, the second version counts, and the first does not come after it."""
    fleet = start(text("p"))
    with (
        caplog.at_level(logging.WARNING, "penstock"),
        Locks() as locks,
        Renewal("p.toml", fleet.plan.secrets, locks) as renewal,
    ):
        for number, name in enumerate(("first", "second"), 1):
            (place / "p.toml").write_text(text("p", name))
            renewal.ask()
            wait_for(lambda number=number: renewal._answered == number, "the answer")  # type: ignore[misc]  # - a default binds it
        fresh = renewal.taken()
        assert fresh is not None
        assert set(fresh.pipelines) == {"p", "second"}
        assert renewal.taken() is None


WAITS = """
import pathlib, time

while not pathlib.Path("go").exists():
    time.sleep(0.01)

def same(batch):
    return batch
"""


def test_secrets_of_a_reload_are_masked(start: Callable[..., Fleet], ingests: Ingests, place: Path) -> None:
    """A secret that only the new file refers to is in no line of the log, nor is one that the old file referred to."""
    written: list[str] = []
    for name in ("old", "new"):
        (place / name).write_text(f"{name}-s3cr3t")
    content = text("p") + 'checkpoint = "${file:old}"\n'
    fleet = start(content)
    wait_for(lambda: ingests.active, "it")
    (place / "p.toml").write_text(content.replace("file:old", "file:new"))
    with logged(written.append, fleet.plan.secrets, as_json=False), Locks() as locks:
        assert reloaded(fleet, locks)
        logging.getLogger("penstock.ingest").warning("%s %s", "old-s3cr3t", "new-s3cr3t")
    assert any("warning: *** ***" in line for line in written)  # the ingest that drains may write after the reload


def test_a_reload_tries_again_what_was_given_up(start: Callable[..., Fleet], ingests: Ingests) -> None:
    """A reload starts a pipeline that was given up even if its file is unchanged: its cause was fixed elsewhere."""
    ingests.scripts["p"] = [DamagedState("restore it")]
    fleet = start(text("p", "q"))
    wait_for(lambda: phases(fleet)["p"] == Phase.FAILED, "the failure")
    with Locks() as locks:
        assert reloaded(fleet, locks)
    wait_for(lambda: ticked(fleet) and ingests.active == {"p", "q"}, "both")
    assert ingests.calls.count("q") == 1


@pytest.mark.parametrize("between", ["changed", "gone"])
def test_a_change_that_is_taken_back_while_it_is_taken(
    start: Callable[..., Fleet], ingests: Ingests, place: Path, between: str
) -> None:
    """A pipeline that one reload stops and the next restores is started again, and never next to its own old run."""
    content = text("p", "q")
    fleet = start(content)
    wait_for(lambda: len(ingests.active) == 2, "both")
    other = text("q") if between == "gone" else text("p", "q").replace("out-p", "elsewhere")
    with Locks() as locks:
        for changed in (other, content):
            (place / "p.toml").write_text(changed)
            assert reloaded(fleet, locks)
            wait_for(lambda: phases(fleet)["p"] == Phase.DRAINING, "its last batch")
    ingests.commit("p")
    wait_for(lambda: ticked(fleet) and ingests.calls.count("p") == 2, "its second run")
    wait_for(lambda: ticked(fleet) and ingests.active == {"p", "q"}, "both again")
    assert (ingests.calls.count("q"), ingests.clashes) == (1, [])


@pytest.mark.parametrize(
    "renamed",
    [{"p": "fresh"}, {"p": "q", "q": "p"}, {"p": "q", "q": "fresh"}],
    ids=["a new name", "exchanged", "shifted"],
)
def test_a_pipeline_that_gets_another_name_waits_for_itself(
    start: Callable[..., Fleet], ingests: Ingests, place: Path, renamed: dict[str, str]
) -> None:
    """A renamed pipeline starts after the old one with the same output has ended: otherwise one would fence the other for good."""
    fleet = start(text("p", "q", "r"))
    wait_for(lambda: len(ingests.active) == 3, "all")
    changed = text("p", "q", "r")
    for before, after in renamed.items():
        changed = changed.replace(f"[pipelines.{before}]", f"[pipelines. {after}]")
    (place / "p.toml").write_text(changed.replace("[pipelines. ", "[pipelines."))
    with Locks() as locks:
        assert reloaded(fleet, locks)
    wait_for(lambda: ticked(fleet) and phases(fleet)["p"] == Phase.DRAINING, "its last batch")
    assert not set(renamed.values()) - {"p", "q"} & ingests.active
    for before in renamed:
        ingests.commit(before)
    wait_for(
        lambda: ticked(fleet) and phases(fleet).keys() == fleet.plan.pipelines.keys() == ingests.active,
        "them as they are now",
    )
    assert (ingests.clashes, ingests.calls.count("r"), fleet.over) == ([], 1, False)


def test_a_second_command_says_so(place: Path) -> None:
    """A running file is locked; a second command with it, or with its directory, is refused before it starts anything."""
    (place / "p.toml").write_text(text("p"))
    path = str(place / "p.toml")
    with Locks() as first:
        first.take([path])
        first.take([path])
        with Locks() as second, pytest.raises(Locked, match="is run by another penstock run"):
            second.take([path])
        (place / "p.toml").unlink()
        (place / "p.toml").write_text(text("p"))
        first.take([path])  # as a reload does
        with Locks() as second, pytest.raises(Locked):
            second.take([path])
    with Locks() as second:
        second.take([path])


def test_a_file_that_an_editor_has_replaced_is_held(place: Path) -> None:
    """Editors write a new file and rename it: the command locks the file that has the name now, without a reload."""
    (place / "p.toml").write_text(text("p"))
    path = str(place / "p.toml")
    with Locks() as first:
        first.take([path])
        (place / "p.toml~").write_text(text("p", "q"))
        (place / "p.toml~").rename(path)
        first.keep()
        with Locks() as second, pytest.raises(Locked, match="is run by another penstock run"):
            second.take([path])
        (place / "p.toml").unlink()
        first.keep()  # the file does not exist: nothing to lock, and no reason to end


def test_files_that_cannot_be_held_leave_those_that_are(place: Path) -> None:
    """A reload that includes a file of another command changes nothing, including the locks."""
    mine, new, theirs = (str(place / f"{name}.toml") for name in ("mine", "new", "theirs"))
    for path in (mine, new, theirs):
        (place / path).write_text(text("p"))
    with Locks() as first, Locks() as other:
        first.take([mine])
        other.take([theirs])
        with pytest.raises(Locked, match="theirs"):
            first.take([new, theirs])
        with Locks() as third:
            third.take([new])
            with pytest.raises(Locked, match="mine"):
                third.take([mine])


@pytest.mark.parametrize(
    ("cron", "zone", "now", "due"),
    [
        ("5 * * * *", "UTC", "2026-01-01T00:05:00", "2026-01-01T01:05:00"),
        ("30 2 * * *", "Europe/Berlin", "2026-01-01T00:00:00", "2026-01-01T01:30:00"),
        ("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00", "2026-03-29T01:00:00"),  # no 02:30 that night
        ("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00", "2026-10-25T00:30:00"),  # two of them in this one
        ("0 0 29 2 *", "UTC", "2026-01-01T00:00:00", "2028-02-29T00:00:00"),
    ],
)
def test_times_of_cron(cron: str, zone: str, now: str, due: str) -> None:
    """Times are in the pipeline's zone, also when clocks change; the same minute is not due twice."""
    at = datetime.fromisoformat(now).replace(tzinfo=timezone.utc)
    following = next_ns(cron, zone, round(at.timestamp()) * SECOND_NS)
    assert datetime.fromtimestamp(following / SECOND_NS, timezone.utc).isoformat()[:19] == due


def test_logs_have_pipeline_query_and_batch(start: Callable[..., Fleet], ingests: Ingests) -> None:
    """Each JSON line names its pipeline, query and batch, and has no secret; lines for people have no control characters."""
    written: list[str] = []
    with logged(written.append, Secrets({"hunter2"}), as_json=True):
        fleet = start(text("p"))
        wait_for(lambda: ingests.active, "it")
        ingests.commit("p")
        wait_for(lambda: written, "a line")
        logging.getLogger("penstock.ingest").warning("the password is %s", "hunter2")
        fleet.stop(0)
        fleet.join(PATIENCE_SECONDS)
    entries = [json.loads(line) for line in written]
    batch = entries[0]
    assert (batch["pipeline"], batch["query"], batch["batch"], batch["rows"], batch["level"]) == (
        "p",
        "q",
        0,
        10,
        "info",
    )
    assert "the password is ***" in [entry["message"] for entry in entries]
    record = logging.LogRecord("penstock.run", logging.WARNING, "", 0, "a\x1b[31m\nb", None, None)
    assert [line.partition("Z ")[2] for line in PlainLines().format(record).splitlines()] == [
        "warning: a\\x1b[31m",
        "warning: b",
    ]
    assert "\n" not in JsonLines().format(record)


def test_nobody_reads_the_lines_any_more(capsys: pytest.CaptureFixture[str]) -> None:
    """A log into a closed pipe (`| head -1`) stops nothing, and does not print a traceback for each line on stderr."""
    written: list[str] = []

    def write(line: str) -> None:
        written.append(line)
        raise BrokenPipeError

    with logged(write, Secrets(), as_json=True):
        for _ in range(3):
            logging.getLogger("penstock.run").info("a line")
    assert (len(written), capsys.readouterr().err) == (1, "")


spark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.xdist_group("command")]


class TestProcess:
    pytestmark = spark

    def test_three_pipelines_with_a_bad_one(
        self, place: Path, running: Callable[..., Running], penstock: Callable[..., Said]
    ) -> None:
        """Three pipelines in one process, killed and restarted: every row is there once, and the bad one continues when its input comes.

        A scrape has the numbers of each ledger, by pipeline, and the page at the same address shows them; all are healthy, and ready once
        the bad one is. A reload adds one, a second command with the file is refused, and SIGTERM ends all within the bound, with status 0.
        """
        content = text("a", "b", "bad", drain="20s").replace(
            'source.path = "in"', 'source = { path = "in", settle = "0s" }'
        )
        (place / "p.toml").write_text(
            content.replace(
                'path = "in", settle = "0s" }\nsink.path = "out-bad"', 'path = "come" }\nsink.path = "out-bad"'
            )
        )
        put(place / "in" / "0.txt", "one\ntwo\n")
        port = free_port()
        command = running("--metrics", f":{port}")
        command.until(lambda: lines(place / "out-a" / "_penstock") and ready(command, "a", "b"), "both")
        command.until(lambda: {"a", "b"} <= batches_told(port), "what Spark tells")
        measured = samples(port)
        for name in ("a", "b"):
            [sink] = penstock("status", f"out-{name}", "--json").facts["sinks"]
            mine = [(measure, labels, value) for measure, labels, value in measured if labels["pipeline"] == name]
            assert [value for measure, _, value in mine if measure == "penstock_rows_total"] == [sink["rows"]] == [2]
            phases = {labels["phase"] for measure, labels, _ in mine if measure == "penstock_phase_seconds_total"}
            assert {"addBatch", "latestOffset", "triggerExecution"} <= phases
        assert json.loads(scrape(port, "health"))["pipelines"].keys() == {"a", "b", "bad"}
        kill(command.process)
        put(place / "in" / "1.txt", "three\n")
        port = free_port()
        command = running("--metrics", f":{port}", "--page", f":{port}")
        command.until(lambda: command.last("a", "rows") == command.last("b", "rows") == 3, "three rows")
        texts = ("out-a", "out-b", "PST-101", "does not exist", '<td data-head="Rows">3</td>')
        command.until(lambda: all(text in scrape(port, "") for text in texts), "the page")
        again = penstock("run", "p.toml")
        assert (again.status, "run by another penstock run" in again.err) == (1, True)
        assert any("does not exist" in entry["message"] for entry in command.entries)
        (place / "come").mkdir()
        put(place / "come" / "0.txt", "came\n")
        command.until(lambda: command.last("bad", "rows") == 1, "what came")
        assert json.loads(scrape(port, "ready"))["ok"]
        more = text("more", schedule="once").partition("\n")[2]
        (place / "p.toml").write_text((place / "p.toml").read_text() + more)
        command.process.send_signal(signal.SIGHUP)
        command.until(
            lambda: "done" in [e["message"] for e in command.entries if e.get("pipeline") == "more"], "the new one"
        )
        command.process.send_signal(signal.SIGTERM)
        assert command.process.wait(timeout=PATIENCE_SECONDS) == 0
        for name, source in (("a", "in"), ("b", "in"), ("more", "in"), ("bad", "come")):
            verified = penstock("verify", f"out-{name}", "--source", source)
            assert verified.status == 0, verified.out + verified.err
        assert lines(place / "out-a") == lines(place / "out-b") == lines(place / "out-more") == ["one", "three", "two"]

    @pytest.mark.parametrize(
        "number", [pytest.param(signal.SIGINT, marks=pytest.mark.soak), signal.SIGTERM], ids=["int", "term"]
    )
    def test_a_signal_to_the_whole_group_drains(
        self, place: Path, running: Callable[..., Running], penstock: Callable[..., Said], number: int
    ) -> None:
        """Ctrl-C and `timeout` signal every process of the group: Spark and its workers still finish the batch under way.

        The same holds when a terminal is closed (SIGHUP), which the command treats as a reload.
        """
        (place / "slow.py").write_text(SLOW)
        content = text("a", drain="60s").replace('source.path = "in"', 'source = { path = "in", settle = "0s" }')
        (place / "p.toml").write_text(f'{content}transform = "slow:slow"\n')
        put(place / "in" / "0.txt", "one\n")
        command = running()
        command.until(lambda: command.last("a", "rows") == 1, "a batch")
        os.killpg(command.process.pid, signal.SIGHUP)
        command.until(lambda: any("reloaded" in entry["message"] for entry in command.entries), "the reload")
        put(place / "in" / "1.txt", "two\n")
        command.until((place / "begun-two").exists, "a batch under way")
        os.killpg(command.process.pid, number)
        assert command.process.wait(timeout=PATIENCE_SECONDS) == 0, command.entries[-3:]
        command.end()
        done = command.entries[-1]
        assert (done["pipelines"][0]["rows"], done["late"], done["failed"]) == (2, [], [])
        assert lines(place / "out-a") == ["one", "two"]
        assert penstock("verify", "out-a", "--source", "in", "--transform", "slow:slow").status == 0


SLOW = """
import pathlib, time

def slow(batch):
    for line in batch.column(0).to_pylist():
        begun = pathlib.Path(f"begun-{line}")
        if not begun.exists():
            begun.touch()
            time.sleep(3)
    return batch
"""


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def samples(port: int) -> list[tuple[str, dict[str, str], float]]:
    families = text_string_to_metric_families(scrape(port, "metrics"))
    return [(sample.name, sample.labels, sample.value) for family in families for sample in family.samples]


def batches_told(port: int) -> set[str]:
    return {labels["pipeline"] for name, labels, value in samples(port) if name == "penstock_batches_total" and value}


def scrape(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=10) as response:
        return str(response.read().decode())


def put(path: Path, content: str) -> None:
    path.write_text(content)
    os.utime(path, (path.stat().st_mtime - 60,) * 2)


def lines(directory: Path) -> list[str]:
    return sorted(
        line
        for path in directory.rglob("*")
        if path.suffix in {".txt", ".part", ".pack"}
        for line in path.read_bytes().decode(errors="replace").splitlines()
    )


def ready(command: Running, *names: str) -> bool:
    return all(command.last(name, "rows") == 2 for name in names)


class Running:
    """`penstock run p.toml --json` in a process of its own, and what it has logged so far."""

    def __init__(self, place: Path, *options: str) -> None:
        arguments = [sys.executable, "-m", "penstock.cli", "run", "p.toml", "--json", *options]
        self.process = subprocess.Popen(arguments, cwd=place, stdout=subprocess.PIPE, text=True, start_new_session=True)
        self.entries: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def end(self) -> None:
        kill(self.process)
        self._reader.join(10)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.entries.append(json.loads(line))

    def last(self, pipeline: str, field: str) -> Any:
        values = [entry[field] for entry in self.entries if entry.get("pipeline") == pipeline and field in entry]
        return values[-1] if values else None

    def until(self, condition: Callable[[], object], what: str) -> None:
        wait_for(lambda: condition() or self.process.poll() is not None, what, 120)
        assert self.process.poll() is None, self.entries[-5:]


@pytest.fixture
def running(place: Path) -> Iterator[Callable[..., Running]]:
    """Start the command; if it still runs after the test, it is killed."""
    commands: list[Running] = []

    def start(*options: str) -> Running:
        commands.append(Running(place, *options))
        return commands[-1]

    yield start
    for command in commands:
        command.end()
