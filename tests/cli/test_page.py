"""The live page: facts that equal the commands', other people's text shown as text, access control, and nothing that grows."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from penstock import clock
from penstock.cli import verified
from penstock.cli.ingest import Request
from penstock.cli.page import board as boards
from penstock.cli.page import door as doors
from penstock.cli.page import draw, outputs
from penstock.cli.page.board import Board
from penstock.cli.page.commands import WatchedOutputs
from penstock.cli.page.door import Door, is_loopback, token_at
from penstock.cli.page.ingest import IngestPage, WatchedIngest
from penstock.cli.page.markup import html
from penstock.cli.page.outputs import WatchedOutput
from penstock.cli.page.request import PageRequest, requested
from penstock.cli.page.sections import OVERVIEW, anchor, sections
from penstock.cli.page.server import PageApplication
from penstock.cli.page.trends import KEPT, Trend, Trends
from penstock.cli.page.watched import Described, Failures, Views
from penstock.cli.run.measured import Measuring
from penstock.cli.run.status import Phase
from penstock.errors import OptionError, StorageError, UsageError
from penstock.ingestion.ingested import Ingested
from penstock.metrics.meter import Meter
from penstock.metrics.server import answering, monitors
from penstock.storage import LocalStorage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.cli.conftest import Pipeline, Said

JSON_SCHEMA = json.dumps({
    "type": "struct",
    "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}],
})  # fmt: skip
HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(1)>\u202e'
STATE = Ingested(3, 5, 500, 2, 20, 70, 4, 40, 6, query="q-1", open_parts=1, aside_records=9, late_files=1)
TOKEN = "a-token-that-is-long-enough"  # noqa: S105 - opens what the test serves


class Seen(HTMLParser):
    """What a browser makes of a page: its elements with their attributes, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def has_nothing_active(self) -> bool:
        """Tell whether the page has no script but its own, no style, no handler, and nothing that is loaded."""
        active = {"script", "style", "img", "iframe", "object", "embed", "base"}
        scripts = [attrs for tag, attrs in self.elements if tag in active]
        named = [name for _, attrs in self.elements for name in attrs]
        return scripts in ([], [{"src": "page.js", "defer": "defer"}]) and not any(
            name.startswith("on") or name == "style" for name in named
        )


def watched(name: str = "logs", sink: str = "/out") -> tuple[Views, WatchedIngest]:
    """Return the page of one pipeline, and the object that reports the pipeline's state to it."""
    meter, failures = Meter(), Failures()
    views = Views(meter, failures)
    views.watched = ingest = WatchedIngest(Described(name, "/in", sink), (Measuring(meter), failures))
    return views, ingest


def shown(views: Views) -> Seen:
    return Seen("".join(sections(views.all()).values()))


@pytest.fixture
def quarantined(pipeline: Callable[..., Pipeline]) -> Pipeline:
    """Return an output with rows and set-aside records of two batches, in finished and in open files."""
    made = pipeline(
        schema=JSON_SCHEMA, source={"format": "json", "badRecords": "quarantine"},
        sink_options={"format": "json", "bucketBy": "b={id}"},
    )  # fmt: skip
    made.put("one.json", '{"id": 1}', "first " + HOSTILE)
    made.run()
    made.put("two.json", '{"id": 2}', "second " + HOSTILE)
    made.run(finish=False)
    return made


def test_page_has_what_status_has(quarantined: Pipeline, penstock: Callable[..., Said]) -> None:
    """For an output that this process does not write, the page has the rows, parts, files by bucket and set-aside records of `status`."""
    views = Views(Meter(), Failures(), WatchedOutputs(str(quarantined.dst)))
    views.look()
    [view] = views.all()
    [sink] = penstock("status", quarantined.dst, "--json").facts["sinks"]
    assert (view.count("rows"), view.count("output_files"), view.count("aside", "record")) == (
        sink["rows"],
        sink["files"],
        2,
    )
    assert [(bucket, each.files, each.rows) for bucket, each in view.output.buckets] == [("b=1", 1, 1)]
    assert [line["bytes"][:6] for line in view.output.aside] == ["second", "first "]
    assert view.output.plan == (1, 1, os.path.getsize(quarantined.src / "two.json"))
    page = shown(views)
    assert "PST-201" in page.text
    assert f"{quarantined.src}/one.json:10" in page.text
    assert "b=2" in page.text


def test_strangers_text_stays_text(quarantined: Pipeline) -> None:
    """Names, records and messages with markup, quotes and bidirectional marks are shown as written, and do nothing."""
    views, ingest = watched(HOSTILE, str(quarantined.dst))
    ingest.progress(replace(STATE, query=quarantined.query))
    ingest._told.failed(StorageError(f"no such file {HOSTILE}"), f"no such file {HOSTILE}")
    views.look()
    page = shown(views)
    assert page.has_nothing_active()
    assert "\u202e" not in page.text
    assert HOSTILE.replace("\u202e", "\\u202e") in page.text
    assert f"second {HOSTILE}".replace("\u202e", "\\u202e") in page.text
    identities = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
    assert len(identities) == len(set(identities))


def test_every_picture_and_table_has_words(quarantined: Pipeline) -> None:
    """Every picture has a text that says what it shows; a table has a caption and headers; no level of headings is skipped."""
    views, ingest = watched(sink=str(quarantined.dst))
    ingest.progress(replace(STATE, query=quarantined.query))
    views.look()
    page = shown(views)
    pictures = [attrs for tag, attrs in page.elements if tag == "svg"]
    assert pictures
    assert all(
        attrs.get("aria-hidden") == "true" or (attrs["role"], bool(attrs["aria-label"])) == ("img", True)
        for attrs in pictures
    )
    tags = [tag for tag, _ in page.elements]
    assert tags.count("caption") == tags.count("table") > 2
    assert all(attrs.get("scope") == "col" for tag, attrs in page.elements if tag == "th")
    levels = [int(tag[1]) for tag in tags if tag in {"h1", "h2", "h3"}]
    assert levels[0] == 2
    assert all(after - before <= 1 for before, after in pairwise(levels))


def test_failures_are_shown_with_their_advice() -> None:
    """The last failures of a pipeline, with their whole messages, repeated ones counted, only the last few; removed with the pipeline."""
    views, ingest = watched()
    for number in (*range(9), 9, 9):
        ingest._told.failed(StorageError("x"), f"disk {number} does not answer; look at its server")
    ingest._told.phase(Phase.BACKING_OFF, next_ns=5)
    page = shown(views)
    assert "disk 9 does not answer; look at its server" in page.text
    assert "2 times in a row" in page.text
    assert "disk 4 " not in page.text
    assert "backing off, PST-500" in page.text
    views.failures.gone("logs")
    assert views.failures.of("logs") == ()


def test_late_files_are_named(pipeline: Callable[..., Pipeline]) -> None:
    """Files that came too late are listed by name, with what to do about them."""
    made = pipeline(source={"lateness": "1s"})
    made.put("b", "now")
    made.run()
    late = made.put("a", "late")
    os.utime(late, (1, 1))
    made.put("c", "new")
    made.run()
    views = Views(Meter(), Failures(), WatchedOutputs(str(made.dst)))
    views.look()
    assert [path for path, _, _ in views.all()[0].output.late] == ["a"]
    assert "penstock late" in shown(views).text


def test_history_is_read_once(pipeline: Callable[..., Pipeline], monkeypatch: pytest.MonkeyPatch) -> None:
    """Finished files are read a piece at each look, then only new ones; sums are kept for the newest buckets, up to a bound."""
    monkeypatch.setattr(outputs, "_EVENTS", 2)
    monkeypatch.setattr(outputs, "BUCKETS", 3)
    made = pipeline(sink_options={"bucketBy": "b={value}"})
    made.put("a", "1", "2", "3", "4", "5")
    made.run()
    output = WatchedOutput(str(made.dst), made.query)
    looks = [output.look() for _ in range(4)]
    assert [look.counting for look in looks] == [True, True, False, False]
    assert [look.all_buckets for look in looks] == [2, 4, 5, 5]
    assert [bucket for bucket, _ in looks[-1].buckets] == ["b=5", "b=4", "b=3"]
    made.put("b", "3")
    made.run()
    assert [(bucket, each.files) for bucket, each in output.look().buckets] == [("b=3", 2), ("b=5", 1), ("b=4", 1)]


def test_an_output_that_is_put_back_is_counted_anew(pipeline: Callable[..., Pipeline]) -> None:
    """If the ledger is not the one seen before, the counts are dropped, and the page goes on."""
    made = pipeline(sink_options={"bucketBy": "b={value}"})
    made.put("a", "1", "2")
    made.run()
    output = WatchedOutput(str(made.dst), made.query)
    assert output.look().all_buckets == 2
    assert output._history is not None
    output._history._at = output._history._at._replace(number=99)
    assert (output.look().all_buckets, output.newest.problem) == (0, None)


def test_what_cannot_be_seen_is_told(pipeline: Callable[..., Pipeline], tmp_path: Path) -> None:
    """The page reports an output that does not exist yet, or whose ledger is damaged; the rest of the page is unaffected."""
    assert WatchedOutput(str(tmp_path / "none"), "q").look().problem == "nothing was written here yet"
    made = pipeline()
    made.put("a", "1")
    made.run()
    records = sorted((made.dst / "_penstock" / "q" / "ledger").glob("0*"))
    next(path for path in reversed(records) if path.suffix == "").write_text("damaged")
    views, ingest = watched(sink=str(made.dst))
    ingest.progress(replace(STATE, query="q"))
    views.look()
    page = shown(views)
    assert "is damaged" in page.text
    assert "70" in page.text


def test_verify_leaves_what_it_saw(quarantined: Pipeline, penstock: Callable[..., Said]) -> None:
    """The last verdict of verify is in `status` and on the page, with the files finished since; a later verdict replaces it."""
    assert penstock("status", quarantined.dst, "--json").facts["verified"] is None
    assert penstock("verify", quarantined.dst).status == 0
    quarantined.sink().finish()
    assert penstock("status", quarantined.dst, "--json").facts["verified"]["ok"]
    assert "verified last at" in penstock("status", quarantined.dst).out
    views = Views(Meter(), Failures(), WatchedOutputs(str(quarantined.dst)))
    views.look()
    assert "whole and once" in shown(views).text
    assert "1 row finished since" in shown(views).text
    (quarantined.dst / "stranger.json").write_text("{}\n")
    assert penstock("verify", quarantined.dst).status == 1
    views.look()
    assert "not well: 1 problem" in shown(views).text
    assert "verify has found problems" in shown(views).text
    assert len(list((quarantined.dst / "_penstock").glob("verified-*"))) == 1


def test_verify_where_nothing_may_be_written(quarantined: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without write permission for the output can still verify it; a truncated note of a verdict is ignored."""

    def refused(*_: Any) -> None:
        message = "read only"
        raise StorageError(message)

    proof = verified.LastProof(ok=True, time_ns=1, problems=0, proved=None, files=1, rows={"q": 1})
    storage, root = LocalStorage(), str(quarantined.dst)
    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "put_if_absent", refused)
        verified.leave(storage, root, proof)
    assert verified.last(storage, root) is None
    verified.leave(storage, root, proof)
    assert verified.last(storage, root) == proof
    [note] = (quarantined.dst / "_penstock").glob("verified-*")
    note.write_bytes(note.read_bytes()[:-9])
    assert verified.last(storage, root) is None


# -- numbers over time -------------------------------------------------------------------------------------------


def test_trends_are_bounded_and_begin_anew() -> None:
    """A day of samples is kept as five minutes; after counters went back, rates begin anew, with nothing from before."""
    trend = Trend()
    for at in range(10_000):
        trend.take(float(at), {("rows", ""): at * 10.0})
    assert len(trend.samples) == KEPT
    assert set(trend.rows_written) == {10.0}
    trend.take(10_001.0, {("rows", ""): 5.0})
    assert trend.rows_written == []


def test_the_first_sample_is_no_rate() -> None:
    """What a pipeline did before it was first seen is not its rate of the seconds since; a pipeline that is gone is forgotten."""
    trends = Trends()
    trends.sample(0.0, {"a": {}})
    trends.sample(2.0, {"a": {("rows", ""): 1e9}})
    assert trends.of("a").rows_written == []
    trends.sample(4.0, {})
    assert trends.of("a").samples == Trend().samples


def test_what_stays_the_same_is_not_drawn_anew() -> None:
    """A plot keeps its places in time: a flat line takes two points however long it is, and five idle minutes give the same text."""
    flat, peak = (
        html(draw.plot(numbers, "x", places=149)) for numbers in ([0.0] * 149, [0.0] * 100 + [1.0] + [0.0] * 48)
    )
    assert flat.count(",") == 2 + 4
    assert peak.count(",") == 5 + 7
    assert html(draw.plot([0.0] * 149, "x", places=149)) == flat
    assert html(draw.plot([], "x", places=149)).count(",") == 0


def test_seconds_of_batches_are_those_of_what_ended() -> None:
    """While no batch ends, the plot stays the same."""
    trend = Trend()
    phase = ("phase_seconds", "triggerExecution")
    for at, batches, seconds in ((0, 0, 0), (2, 2, 3), (4, 2, 3), (6, 3, 4)):
        trend.take(at, {("batches", ""): batches, phase: seconds})
    assert trend.batch_seconds == [1.5, 1.5, 1.0]


# -- who may look ------------------------------------------------------------------------------------------------


def environ(path: str = "/", method: str = "GET", **more: Any) -> dict[str, Any]:
    return {"PATH_INFO": path, "REQUEST_METHOD": method, "HTTP_HOST": "localhost:8080", **more}


class Answered:
    """The answer of an application to one request, without a server."""

    def __init__(self, application: PageApplication, **request: Any) -> None:
        self.status = ""
        self.headers: dict[str, str] = {}
        self.body = b"".join(application(environ(**request), self._start))

    def _start(self, status: str, headers: list[tuple[str, str]]) -> None:
        self.status, self.headers = status, dict(headers)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "_GUESS_SECONDS", 0.0)


def application(token: str | None = None) -> PageApplication:
    return PageApplication(Board(watched()[0]), Door(token), "pipelines.toml")


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "", "[2001:db8::1]:8080"]
)
def test_another_sites_name_gets_nothing(host: str) -> None:
    """A request for another site's name that leads to this machine is refused: that site's scripts could read it (DNS rebinding)."""
    for path in ("/", "/events", "/page.js"):
        answer = Answered(application(), path=path, HTTP_HOST=host)
        assert answer.status.startswith("403")


@pytest.mark.parametrize("host", ["localhost", "localhost:8080", "127.0.0.1:8080", "127.8.8.8", "[::1]:8080"])
def test_this_machines_names_are_answered(host: str) -> None:
    """A request for any of this machine's names gets the page, with a policy that allows nothing from outside, and no caching."""
    answer = Answered(application(), HTTP_HOST=host)
    assert answer.status.startswith("200")
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'")
    assert "unsafe" not in policy
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert Seen(answer.body.decode()).has_nothing_active()


@pytest.mark.usefixtures("quick")
def test_a_token_is_asked_for_once() -> None:
    """Without the token only a form is shown; a browser that sent it gets a cookie that scripts cannot read; programs send it each time."""
    page = application(TOKEN)
    assert Answered(page, HTTP_HOST="far.example").headers["Location"] == "/login"
    assert Answered(page, path="/events").status.startswith("401")
    assert b'type="password"' in Answered(page, path="/login").body
    form = f"token={TOKEN}".encode()
    given = Answered(page, path="/login", method="POST", CONTENT_LENGTH=str(len(form)), **{"wsgi.input": _Body(form)})
    assert given.status.startswith("303")
    cookie = given.headers["Set-Cookie"]
    assert {"HttpOnly", "SameSite=Strict"} <= set(cookie.split("; "))
    assert TOKEN not in cookie
    assert Answered(page, HTTP_COOKIE=cookie.partition(";")[0]).status.startswith("200")
    assert Answered(application(TOKEN), HTTP_COOKIE=cookie.partition(";")[0]).status.startswith("200")  # over a restart
    assert Answered(application(TOKEN + "2"), HTTP_COOKIE=cookie.partition(";")[0]).status.startswith("303")
    assert Answered(page, HTTP_AUTHORIZATION=f"Bearer {TOKEN}").status.startswith("200")


class _Body:
    def __init__(self, data: bytes) -> None:
        self.data = data

    def read(self, size: int) -> bytes:
        return self.data[:size]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("header", [
    {"HTTP_AUTHORIZATION": "Bearer wrong"}, {"HTTP_AUTHORIZATION": "Basic x"}, {"HTTP_COOKIE": "penstock_page=wrong"},
    {"HTTP_COOKIE": "penstock_page=\xff"}, {"HTTP_COOKIE": ";;=\x00"}, {"HTTP_AUTHORIZATION": "Bearer \udce9"},
])  # fmt: skip
def test_a_wrong_token_opens_nothing(header: dict[str, str]) -> None:
    """Whatever is in the token's place, damaged headers too, is refused, and nothing fails."""
    assert Answered(application(TOKEN), path="/events", **header).status.startswith("401")


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("length", ["", "x", "-1", "99999999"])
def test_a_form_that_is_none_is_refused(length: str) -> None:
    """A form without a length, or too long, is not read; a wrong token is reported, with the form again."""
    page = application(TOKEN)
    answer = Answered(
        page, path="/login", method="POST", CONTENT_LENGTH=length, **{"wsgi.input": _Body(b"token=wrong")}
    )
    assert answer.status[:3] in {"400", "403"}
    wrong = Answered(page, path="/login", method="POST", CONTENT_LENGTH="11", **{"wsgi.input": _Body(b"token=wrong")})
    assert wrong.status.startswith("403")
    assert b"That is not the token." in wrong.body


def test_guesses_are_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer to a wrong token is delayed; the answer to the right one is not."""
    waits: list[float] = []
    monkeypatch.setattr(clock, "sleep", waits.append)
    door = Door(TOKEN)
    assert [door.fits("wrong"), door.fits(TOKEN), door.fits("")] == [False, True, False]
    assert waits == [0.5, 0.5]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_the_page_is_read_only(method: str) -> None:
    """No method that could change something is answered, and the page offers nothing to change."""
    assert Answered(application(), method=method).status.startswith("405")


def test_a_head_has_no_body() -> None:
    """HEAD answers as GET does, without the body."""
    answer = Answered(application(), method="HEAD")
    assert (answer.status, answer.body) == ("200 OK", b"")
    assert Answered(application(), path="/nothing").status.startswith("404")


def test_tokens_by_reference_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An address other than this machine's needs a token, given as a reference, not as a value; it must be long, and is in no message."""
    with pytest.raises(OptionError, match=r"--page-token file:PATH or env:NAME"):
        token_at(None, "0.0.0.0")  # noqa: S104 - it is refused
    with pytest.raises(OptionError, match="never what it is") as refused:
        token_at(TOKEN, "127.0.0.1")
    assert TOKEN not in str(refused.value)
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    assert token_at(f"file:{tmp_path}/token", "0.0.0.0") == TOKEN  # noqa: S104 - nothing listens there
    monkeypatch.setenv("SHORT", "short")
    with pytest.raises(OptionError, match="5 characters, expected 16"):
        token_at("env:SHORT", "127.0.0.1")
    assert token_at(None, "127.0.0.1") is None
    assert [is_loopback(host) for host in ("localhost", "::1", "127.9.9.9", "10.0.0.1", "example.com")] == [
        True,
        True,
        True,
        False,
        False,
    ]
    with pytest.raises(OptionError, match="is for --page") as told:
        requested(None, TOKEN)
    assert TOKEN not in told.value.message  # a reference was expected, and the token itself was given


# -- what is sent ------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def served(views: Views, others: Any = None) -> Iterator[tuple[str, Board]]:
    """Serve a page whose sections are made when the test says so: its board has no threads of its own."""
    board = Board(views)
    with answering("127.0.0.1:0", PageApplication(board, Door(None), "pipelines.toml", others), name="--page") as url:
        try:
            yield url, board
        finally:
            board.close()


class Stream:
    """The events of a page, as a browser reads them."""

    def __init__(self, url: str) -> None:
        self.response = urllib.request.urlopen(f"{url}/events", timeout=10)  # noqa: S310 - an address of this test

    def next(self) -> tuple[str, dict[str, Any]]:
        """Return the next event: its kind and its data."""
        lines = [self.response.readline().decode().strip() for _ in range(3)]
        return lines[0].removeprefix("event: "), json.loads(lines[1].removeprefix("data: "))


@pytest.mark.slow
def test_what_has_changed_is_sent() -> None:
    """A viewer gets all sections once, then those that change; a viewer who leaves makes room for another."""
    views, ingest = watched()
    with served(views) as (url, board):
        board.now()
        stream = Stream(url)
        assert stream.next()[0] == "hello"
        kind, first = stream.next()
        assert (kind, first["order"]) == ("change", [OVERVIEW, anchor("logs")])
        assert set(first["html"]) == set(first["order"])
        ingest.progress(STATE)
        board.now()
        assert "70" in stream.next()[1]["html"][OVERVIEW]
        board.now()  # nothing has changed
        before = ingest.status("logs")
        views.failures.changed(before, replace(before, failures=1, error="x", error_code="PST-1"))
        board.now()
        assert set(stream.next()[1]["html"]) == {anchor("logs")}
        stream.response.close()


@pytest.mark.slow
def test_too_many_viewers_are_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each viewer takes a thread, so their number is limited; a viewer above the limit is told to try again later."""
    monkeypatch.setattr(boards, "VIEWERS", 1)
    with served(watched()[0]) as (url, board):
        board.now()
        stream = Stream(url)
        stream.next()
        with pytest.raises(urllib.error.HTTPError, match="503"):
            Stream(url)
        stream.response.close()


@pytest.mark.slow
def test_metrics_at_the_same_address() -> None:
    """Page and metrics at one address are answered by one server; each is the same as alone."""
    views, ingest = watched()
    ingest.progress(STATE)
    with served(views, monitors(views.meter)) as (url, _):
        for path, text in (("/metrics", "penstock_rows_total{"), ("/health", '"ok": true'), ("/", "Pipelines")):
            with urllib.request.urlopen(url + path, timeout=10) as response:  # noqa: S310 - an address of this test
                assert text in response.read().decode()


def test_nobody_looks_nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a viewer no output is read and no section is made, however long the page is served."""
    views, _ = watched()
    looks, ticks = [], threading.Semaphore(0)
    monkeypatch.setattr(Views, "look", lambda _: looks.append(1))
    monkeypatch.setattr(clock, "sleep", lambda _: ticks.acquire(timeout=0.05))
    board = Board(views)
    board.start()
    for _ in range(20):
        ticks.release()
    assert (looks, board._sections) == ([], {})
    with board.viewer():
        assert board.after(0, 5.0) is not None
        while not looks:
            ticks.release()
    board.close()
    for _ in range(5):
        ticks.release()


def test_a_page_that_fails_is_not_the_end(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """An error while an output is read is logged, and the page shows the rest."""
    views, ingest = watched()
    ingest.progress(STATE)

    def broken(_: Views) -> None:
        message = "a fault"
        raise ValueError(message)

    monkeypatch.setattr(Views, "look", broken)
    assert "70" in Board(views).now()[OVERVIEW]
    assert "could not be looked at" in caplog.text


def test_a_storage_that_hangs_holds_up_no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """While an output does not answer, the page still shows what is in memory, and no second look queues up after the one that hangs."""
    views, ingest = watched()
    ingest.progress(STATE)
    looks: list[int] = []
    answers = threading.Event()

    def hanging(_: Views) -> None:
        looks.append(1)
        answers.wait(30)

    monkeypatch.setattr(boards, "_PATIENCE_SECONDS", 0.01)
    monkeypatch.setattr(Views, "look", hanging)
    board = Board(views)
    assert ["70" in board.now()[OVERVIEW] for _ in range(3)] == [True] * 3
    assert looks == [1]
    answers.set()


def test_secrets_are_masked(tmp_path: Path) -> None:
    """A value that a pipeline file took from a secret file is nowhere on the page, nor is the password of an address."""
    meter, failures = Meter(), Failures()
    views = Views(meter, failures, masked=lambda text: text.replace("hush", "***"))
    views.watched = WatchedIngest(
        Described("logs", "s3://user:pass@bucket/hush", f"{tmp_path}/hush"), (Measuring(meter), failures)
    )
    views.look()
    page = shown(views).text
    assert "hush" not in page
    assert "user:pass" not in page
    assert "***" in page


def test_page_of_what_is_no_output(penstock: Callable[..., Said], tmp_path: Path) -> None:
    """`penstock page` on a directory that no sink has written ends at once with an error; a public address needs a token."""
    with pytest.raises(UsageError, match="no output of Penstock"):
        WatchedOutputs(str(tmp_path))
    assert penstock("page", tmp_path).status == 2
    (tmp_path / "_penstock").mkdir()
    said = penstock("page", tmp_path, "--at", "0.0.0.0:0")
    assert (said.status, "--page-token" in said.err) == (2, True)
    assert "only this machine, with --at :8080" in said.err
    assert "--at='x': expected HOST:PORT" in penstock("page", tmp_path, "--at", "x").err
    with pytest.raises(OptionError, match="expected HOST:PORT"):
        PageRequest("8080").door()


@pytest.mark.slow
def test_page_of_an_output_as_a_command(quarantined: Pipeline) -> None:
    """`penstock page DST` prints its address, shows the output, and ends with status 0 at SIGTERM, also while somebody looks."""
    command = [sys.executable, "-m", "penstock", "page", str(quarantined.dst), "--at", "127.0.0.1:0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    try:
        assert process.stderr is not None
        url = process.stderr.readline().split()[0]
        with urllib.request.urlopen(url, timeout=30) as response:  # noqa: S310 - an address of this test
            assert "PST-201" in response.read().decode()
        stream = Stream(url)
        assert [stream.next()[0], stream.next()[0]] == ["hello", "change"]
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_page_of_one_ingest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`penstock ingest --page` serves before Spark is up, prints its address, and shows the state that the ingest reports."""
    (tmp_path / "in").mkdir()
    ingest = Request.of([str(tmp_path / "in")], str(tmp_path / "out"), ({}, []), ({}, []), None, None)
    page = IngestPage(PageRequest("127.0.0.1:0"), ingest)
    with page.served():
        url = capsys.readouterr().err.split()[1]
        for state, text in ((None, "starting"), (STATE, "running"), (replace(STATE, waiting=True), "waiting")):
            if state is not None:
                page.progress(state)
            with urllib.request.urlopen(url, timeout=30) as response:  # noqa: S310 - an address of this test
                shown_text = response.read().decode()
            assert text in shown_text
            assert f"{tmp_path}/in" in shown_text
