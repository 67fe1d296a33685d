"""`partitionReady`: when a bucket of time is reported as complete, and when that is taken back."""

from __future__ import annotations

import json
import shutil
from datetime import datetime, timedelta, timezone
from pathlib import Path
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock import failpoints
from penstock.errors import EventsLost, OptionError, TemplateError
from penstock.query.batch import Batch
from penstock.query.checkpoint import Checkpoint
from penstock.query.offset import summed
from penstock.sink import ledger
from penstock.sink.buckets import DEFAULT_PARTITION, BucketTemplate
from penstock.sink.events import EventLog, EventPosition
from penstock.sink.sink import Sink
from penstock.sink.timebuckets import TimeBuckets
from tests.support.output import Output

SCHEMA = pa.schema([("value", pa.string()), ("ts", pa.timestamp("us", tz="UTC"))])
READY = {
    "format": "json",
    "bucketBy": "dt={ts:%Y-%m-%d}",
    "partitionReady": "success-file,event",
    "partitionReadyDelay": "1h",
    "rollInactivity": "30d",
    "rollInterval": "30d",
}


@pytest.fixture
def days(output: Output) -> Output:
    """Return an output for rows with times, on a clock in the year 2030."""
    output.schema = SCHEMA
    output.time.seconds = datetime(2030, 1, 1, tzinfo=timezone.utc).timestamp()
    return output


def run(output: Output, sink: Sink, number: int, *moments: str, final: bool = False) -> None:
    """Run a batch with one row per moment; a moment is written as `31T23:30` and is in January 2026."""
    lines = [f"{number}|2026-01-{moment}:00Z" for moment in moments]
    output.batch(sink, number, {0: lines}, mark=str(number), final=final)


def events(sink: Sink) -> list[str]:
    """Return the events that readers receive, in order: files by their buckets."""
    given = EventLog(sink.ledger, "s", "it").after(EventPosition())
    return [f"{event.kind} {event.bucket}" for event in given if event.is_shown]


def marked(output: Output) -> list[str]:
    """Return the buckets that have a `_SUCCESS`."""
    return sorted(str(path.parent.relative_to(output.root)) for path in output.root.rglob("_SUCCESS"))


def test_a_ledger_that_was_put_back_and_completes_the_same_day(days: Output, tmp_path: Path) -> None:
    """A restored output gets other rows, and completes the day whose completion a reader heard of last: it learns that it lost events."""
    sink = days.sink(**READY)
    run(days, sink, 0, "30T10:00")
    shutil.copytree(days.root, tmp_path / "copy")
    run(days, sink, 1, "31T01:00")
    log = EventLog(sink.ledger, "s", "it")
    *_, last = log.after(EventPosition())
    of_earlier_versions = EventPosition(last.number + 1, "e3e65f8b83ba59d4")
    assert log.after(last.position_after) == log.after(of_earlier_versions) == []
    shutil.rmtree(days.root)
    shutil.copytree(tmp_path / "copy", days.root)
    days.time.jump(1)
    run(days, sink, 1, "30T12:00", "31T01:00")
    assert events(sink) == ["published dt=2026-01-30", "ready dt=2026-01-30"]
    for reader in (log, EventLog(sink.ledger, "s", "it")):
        with pytest.raises(EventsLost, match="not the one that was given"):
            reader.after(last.position_after)


def test_a_day_is_complete_when_the_times_of_rows_are_past_it(days: Output) -> None:
    """After the delay the day's open part ends and becomes visible, before the event and the file that say that the day is complete."""
    sink = days.sink(**READY)
    run(days, sink, 0, "30T10:00", "30T11:00")
    run(days, sink, 1, "31T00:59")
    assert events(sink) == []
    assert marked(days) == []
    run(days, sink, 2, "30T23:59", "31T01:00")
    assert events(sink) == ["published dt=2026-01-30", "ready dt=2026-01-30"]
    assert marked(days) == ["dt=2026-01-30"]
    made = days.root / "dt=2026-01-30/_SUCCESS"
    assert made.stat().st_mode == (days.root / "dt=2026-01-30/part-s-0-0.json").stat().st_mode
    assert not [name for name in days.staged() if "ready" in name]
    assert sorted(days.visible(".json")) == ["dt=2026-01-30/part-s-0-0.json"]
    assert len(days.lines()) == 3
    run(days, sink, 3, "31T02:00", final=True)
    assert events(sink)[2:] == ["published dt=2026-01-31"]
    assert sink.ledger.head().ready.waiting.keys() == {"dt=2026-01-31"}


def test_a_day_whose_files_were_closed_before_is_said_complete_by_a_later_run(days: Output) -> None:
    """The query was restarted when no part of the day was open any more: the record knows that the day still waits."""
    sink = days.sink(**READY | {"rollRows": "1"})
    run(days, sink, 0, "30T10:00", "30T11:00", final=True)
    assert not sink.ledger.head().open
    days.batch(days.sink(**READY), 1, {0: ["1|2026-01-31T09:00:00Z"]}, mark="1", owner="d2")
    assert events(sink) == ["published dt=2026-01-30", "published dt=2026-01-30", "ready dt=2026-01-30"]


def ns(moment: str) -> int:
    """Return a moment of 2026 in nanoseconds."""
    return int(datetime.fromisoformat(f"2026-{moment}:00+00:00").timestamp()) * 10**9


def by_cursor(output: Output, sink: Sink, number: int, until: str, *moments: str) -> None:
    """Run a batch after which the source has read all files from before `until`."""
    lines = [f"{number}|2026-01-{moment}:00Z" for moment in moments]
    output.batch(sink, number, {0: lines}, mark=str(number), until_ns=ns(until) if until else 0)


def test_a_day_is_complete_when_the_source_is_past_it(days: Output) -> None:
    """With `partitionReadyBy=cursor` a day needs no row of a later day, and such a row ends no day; late rows reopen it."""
    sink = days.sink(**READY, partitionReadyBy="cursor")
    by_cursor(days, sink, 0, "", "30T10:00", "31T23:00")
    by_cursor(days, sink, 1, "01-31T01:00", "30T11:00")
    assert events(sink) == [], "a file of the last moment may be unread"
    by_cursor(days, sink, 2, "01-31T01:01")
    assert events(sink) == ["published dt=2026-01-30", "ready dt=2026-01-30"]
    assert marked(days) == ["dt=2026-01-30"]
    assert len(days.lines()) == 2
    by_cursor(days, sink, 3, "01-31T01:02", "30T12:00")
    assert events(sink)[2:] == ["reopened dt=2026-01-30"]
    assert marked(days) == []
    by_cursor(days, sink, 4, "02-02T00:00")
    assert events(sink)[3:] == ["published dt=2026-01-31", "ready dt=2026-01-31"]


def test_a_source_that_reads_again_completes_a_day_when_it_is_past_it_again(days: Output) -> None:
    """After `reset` the cursor goes back: a day is reopened, and not reported as complete while files of it are unread again."""
    sink = days.sink(**READY, partitionReadyBy="cursor", rollBatches="1")
    by_cursor(days, sink, 0, "01-31T02:00", "30T10:00", "30T20:00")
    assert events(sink)[-1] == "ready dt=2026-01-30"
    by_cursor(days, sink, 1, "")
    by_cursor(days, sink, 2, "01-30T12:00", "30T10:00")
    assert events(sink)[-2:] == ["reopened dt=2026-01-30", "published dt=2026-01-30"]
    by_cursor(days, sink, 3, "01-31T02:00", "30T20:00")
    assert events(sink)[-2:] == ["published dt=2026-01-30", "ready dt=2026-01-30"]
    assert len(events(sink)) == 6


def test_a_source_without_a_cursor_is_refused(days: Output) -> None:
    """If a source does not report its cursor, no day would ever be complete by the cursor: the first batch fails and says so."""
    sink = days.sink(**READY, partitionReadyBy="cursor")
    with pytest.raises(OptionError, match="or partitionReadyBy=data"):
        run(days, sink, 0, "30T10:00")
    assert not days.visible()
    run(days, days.sink(**READY, partitionReadyBy="data"), 0, "30T10:00")


def test_days_without_a_zone_end_with_the_last_zone_of_the_earth(output: Output) -> None:
    """A file's time is an instant, a day without a zone is not: the day has ended everywhere twelve hours after its end in UTC."""
    output.schema = pa.schema([("value", pa.string()), ("ts", pa.timestamp("us"))])
    output.time.seconds = datetime(2030, 1, 1, tzinfo=timezone.utc).timestamp()
    sink = output.sink(**READY, partitionReadyBy="cursor")
    output.batch(sink, 0, {0: ["0|2026-01-30T10:00:00"]}, mark="0", until_ns=ns("01-31T12:59"))
    assert events(sink) == []
    output.batch(sink, 1, {}, mark="1", until_ns=ns("01-31T13:01"))
    assert events(sink)[-1:] == ["ready dt=2026-01-30"]


def test_how_far_the_sources_of_a_checkpoint_are(tmp_path: Path) -> None:
    """The slowest source counts; a source that has read nothing is at 0; nothing is known about foreign sources and those that follow."""
    checkpoint = Checkpoint(str(tmp_path))
    (tmp_path / "offsets").mkdir()
    forms = {
        name: json.dumps(summed({"v": 1, "cursor": cursor, "recent": [], "read": [1, 1], **more}))
        for name, cursor, more in (
            ("early", [5, "a"], {}),
            ("late", [9, "a"], {"cut": ["b", 1, 2, 9, ""]}),
            ("new", None, {}),
            ("follows", [5, "a"], {"v": 2, "follow": {}}),
        )
    } | {"none": "-", "foreign": '{"topic":{"0":1}}'}
    cases = [
        ("early", 5),
        ("late early", 5),
        ("late none", 0),
        ("new late", 0),
        ("foreign late", None),
        ("follows", None),
    ]
    for number, (names, until_ns) in enumerate(cases):
        (tmp_path / f"offsets/{number}").write_text("\n".join(["v1", "{}", *(forms[name] for name in names.split())]))
        assert checkpoint.batch("q", number).read_until_ns == until_ns, names
    assert checkpoint.batch("q", 99).read_until_ns is None


def test_late_rows_reopen_a_day(days: Output) -> None:
    """F27: readers learn of late rows before they see them, `_SUCCESS` disappears before that, and returns when the last part is closed."""
    sink = days.sink(**READY | {"rollInactivity": "1m"})
    run(days, sink, 0, "30T10:00")
    run(days, sink, 1, "31T10:00")
    assert marked(days) == ["dt=2026-01-30"]
    run(days, sink, 2, "30T12:00")
    assert events(sink)[-1] == "reopened dt=2026-01-30"
    assert marked(days) == []
    run(days, sink, 3, "30T13:00")
    assert events(sink)[2:] == ["reopened dt=2026-01-30"]
    days.time.seconds += 61
    sink.roll("d1")
    assert events(sink)[2:] == [
        "reopened dt=2026-01-30",
        "published dt=2026-01-30",
        "published dt=2026-01-31",
        "ready dt=2026-01-30",
    ]
    assert marked(days) == ["dt=2026-01-30"]
    assert len(days.lines()) == 4


@pytest.mark.parametrize(
    ("change", "moment"),
    [
        ({"partitionReadyDelay": "3d"}, "30T12:00"),
        ({"timeZone": "America/Los_Angeles"}, "31T02:00"),
        ({"partitionReadyBy": "cursor"}, "30T12:00"),
        ({"partitionReady": ""}, "30T12:00"),
    ],
)
def test_a_day_is_reopened_by_a_run_with_other_options(days: Output, change: dict[str, str], moment: str) -> None:
    """The day was reported as complete; a longer delay, or another zone, makes it end later, but its new rows are late all the same."""
    sink = days.sink(**READY)
    run(days, sink, 0, "30T10:00", "31T01:00")
    assert marked(days) == ["dt=2026-01-30"]
    others = {name: value for name, value in (READY | change).items() if value}
    if "partitionReady" not in others:  # the option was left out for a while
        plain = {name: value for name, value in others.items() if not name.startswith("partition")}
        days.batch(days.sink(**plain), 1, {0: ["x|2026-02-02T10:00:00Z"]}, mark="1", owner="d2")
        others = READY
    line = f"late|2026-01-{moment}:00Z"
    number = sink.ledger.head().batches["q1"][0] + 1
    days.batch(days.sink(**others), number, {0: [line]}, mark=str(number), owner="d3", until_ns=ns("01-30T00:00"))
    assert events(sink)[-1] == "reopened dt=2026-01-30"
    assert marked(days) == []


def test_a_day_that_waits_is_complete_in_the_zone_of_a_later_run(days: Output) -> None:
    """The day's end was kept in UTC; if the next run uses a zone west of it, the day is not reported as complete in the middle."""
    sink = days.sink(**READY)
    run(days, sink, 0, "30T10:00")
    west = days.sink(**READY | {"timeZone": "America/Los_Angeles"})
    lines = [f"{moment}|2026-01-{moment}:00Z" for moment in ("30T23:00", "31T07:00")]
    days.batch(west, 1, {0: lines}, mark="1", owner="d2")
    assert events(sink) == []
    days.batch(west, 2, {0: ["2|2026-02-03T10:00:00Z"]}, mark="2", owner="d2")
    assert events(sink) == ["published dt=2026-01-30", "ready dt=2026-01-30"]


def test_late_rows_that_are_closed_at_once(days: Output) -> None:
    """A batch that closes what it writes reports the reopened bucket, its file and the ready bucket in one record, in this order."""
    sink = days.sink(**READY | {"rollBatches": "1"})
    run(days, sink, 0, "30T10:00", "31T10:00")
    assert events(sink)[-1] == "ready dt=2026-01-30"
    run(days, sink, 1, "30T12:00")
    assert events(sink)[-3:] == ["reopened dt=2026-01-30", "published dt=2026-01-30", "ready dt=2026-01-30"]
    assert marked(days) == ["dt=2026-01-30"]


def test_a_row_of_the_future_ends_no_day(days: Output) -> None:
    """A row of the year 2999 counts as a row of now: rows of today are not late."""
    days.time.seconds = datetime(2026, 1, 30, 12, tzinfo=timezone.utc).timestamp()
    sink = days.sink(**READY)
    days.batch(sink, 0, {0: ["a|2999-01-01T00:00:00Z", "b|2026-01-30T11:00:00Z"]}, mark="0")
    assert events(sink) == []
    run(days, sink, 1, "30T12:00")
    assert events(sink) == []


def test_a_clock_that_was_ahead_completes_no_day_for_years(days: Output) -> None:
    """Rows and clock were in 2031 before the clock was set right: earlier days count as late, and are complete only when they are over."""
    clock = days.time
    clock.seconds = datetime(2026, 1, 30, 10, tzinfo=timezone.utc).timestamp()
    sink = days.sink(**READY | {"rollBatches": "1"})
    run(days, sink, 0, "30T10:00")
    clock.seconds = datetime(2031, 1, 1, tzinfo=timezone.utc).timestamp()
    days.batch(sink, 1, {0: ["ahead|2031-01-01T00:00:00Z"]}, mark="1")
    assert events(sink)[-1] == "ready dt=2026-01-30", "by the clock of that batch it was over"
    clock.seconds = datetime(2026, 1, 31, 10, tzinfo=timezone.utc).timestamp()
    run(days, sink, 2, "31T10:00")
    assert events(sink)[-2:] == ["reopened dt=2026-01-31", "published dt=2026-01-31"]
    assert marked(days) == ["dt=2026-01-30"]
    run(days, sink, 3, "31T11:00")
    assert marked(days) == ["dt=2026-01-30"]
    clock.seconds = datetime(2026, 2, 1, 10, tzinfo=timezone.utc).timestamp()
    run(days, sink, 4, "31T23:59")
    assert marked(days) == ["dt=2026-01-30", "dt=2026-01-31"]
    assert not any("ready dt=2031" in event for event in events(sink))


def test_a_day_with_directories_below_it(days: Output) -> None:
    """The bucket of time is the directory of the day: the parts of all its countries are closed, and the day is reported once."""
    days.schema = pa.schema([*SCHEMA, ("country", pa.string())])
    sink = days.sink(**READY | {"bucketBy": "y={ts:%Y}/m={ts:%m}/d={ts:%d}/country={country}"})
    days.batch(sink, 0, {0: ["a|2026-01-30T10:00:00Z|de", "b|2026-01-30T10:00:00Z|fr"]}, mark="0")
    days.batch(sink, 1, {0: ["c|2026-01-31T10:00:00Z|de"]}, mark="1")
    assert events(sink)[-1] == "ready y=2026/m=01/d=30"
    assert marked(days) == ["y=2026/m=01/d=30"]
    assert len(days.visible(".json")) == 2


def test_a_day_whose_hours_are_buckets_by_now(days: Output) -> None:
    """`_SUCCESS` stayed in a day that got rows in directories by hour. It must go, and a day that waits must wait for those rows."""
    by_day = days.sink(**READY)
    run(days, by_day, 0, "29T10:00", "30T10:00", "31T00:30", final=True)
    assert marked(days) == ["dt=2026-01-29"]
    by_hour = days.sink(**READY | {"bucketBy": "dt={ts:%Y-%m-%d}/hour={ts:%H}", "partitionReadyDelay": "2h"})
    run(days, by_hour, 1, "30T23:30", "31T01:59")
    assert marked(days) == ["dt=2026-01-29"]
    run(days, by_hour, 2, "29T23:10", "30T23:40")
    assert marked(days) == []
    assert events(by_hour)[-1] == "reopened dt=2026-01-29/hour=23"
    run(days, by_hour, 3, "31T02:01")
    told = events(by_hour)
    assert told.index("published dt=2026-01-30/hour=23") < told.index("ready dt=2026-01-30")
    assert "dt=2026-01-30" in marked(days)
    run(days, by_hour, 4, "31T03:00", final=True)
    assert "dt=2026-01-29/hour=23" in marked(days)
    assert "dt=2026-01-29" not in marked(days)


def test_the_watermark_of_a_task_does_not_go_back_from_1970(days: Output) -> None:
    """The beginning of 1970 is a time like any other, and the number 0: an earlier row that comes after it does not replace it."""
    sink = days.sink(**READY)
    moments = [datetime(1970, 1, 1, tzinfo=timezone.utc), datetime(1969, 12, 31, 23, tzinfo=timezone.utc)]
    rows = [pa.RecordBatch.from_pylist([{"value": "a", "ts": moment}], schema=SCHEMA) for moment in moments]
    result = sink.write(sink.begin("d1"), "q1", 0, 0, SCHEMA, iter(rows))
    assert result.progress.watermark == 0


def test_rows_without_a_time_are_no_bucket_of_time(days: Output) -> None:
    """A row without a time has a directory that never becomes complete and delays nothing."""
    sink = days.sink(**READY)
    batch = pa.RecordBatch.from_pylist([{"value": "a", "ts": None}], schema=SCHEMA)
    result = sink.write(sink.begin("d1"), "q1", 0, 0, SCHEMA, iter([batch]))
    assert result.progress.ends == {}
    assert result.progress.watermark is None
    sink.commit(Batch("q1", 0, "0"), [result])
    run(days, sink, 1, "30T10:00")
    run(days, sink, 2, "31T01:00")
    assert events(sink) == ["published dt=2026-01-30", "ready dt=2026-01-30"]
    run(days, sink, 3, "31T02:00", final=True)
    assert events(sink)[2:] == ["published dt=2026-01-31", f"published dt={DEFAULT_PARTITION}"]
    assert marked(days) == ["dt=2026-01-30"]


@pytest.mark.parametrize(
    "point", ["sink.ledger.after-put", "sink.publish.one", "sink.publish.ready", "sink.publish.before-note"]
)
def test_a_death_while_it_is_said(days: Output, point: str) -> None:
    """B25: the driver dies after its put: readers receive nothing until the next driver has published everything; then each event once."""
    sink = days.sink(**READY)
    run(days, sink, 0, "30T10:00")
    failpoints.arm(f"{point}=error")
    with pytest.raises(OSError, match="failpoint"):
        run(days, sink, 1, "31T10:00")
    failpoints.arm("")
    assert events(sink) == []
    days.batch(days.sink(**READY), 1, {0: []}, mark="1", owner="d2")
    assert events(sink) == ["published dt=2026-01-30", "ready dt=2026-01-30"]
    assert marked(days) == ["dt=2026-01-30"]


def test_a_driver_that_stood_still_does_not_say_it_again(days: Output) -> None:
    """A reports ready and stops before `_SUCCESS`; B reopens the day; A continues: it removes the file that it makes."""
    sink = days.sink(**READY)
    run(days, sink, 0, "30T10:00")
    failpoints.arm("sink.publish.ready=error")
    with pytest.raises(OSError, match="failpoint"):
        run(days, sink, 1, "31T10:00")
    failpoints.arm("")
    stalled = sink.ledger.head()
    look = sink.ledger.look()
    successor = days.sink(**READY)
    days.batch(successor, 1, {0: []}, mark="1", owner="d2")
    days.batch(successor, 2, {0: ["late|2026-01-30T12:00:00Z"]}, mark="2", owner="d2")
    assert marked(days) == []
    sink.committer.publish(stalled, look)
    assert marked(days) == []


def test_events_only_and_files_only(days: Output) -> None:
    """`event` makes no file, `success-file` sends no event; the numbers are the same."""
    for way, told, files in (("event", 1, 0), ("success-file", 0, 1)):
        sink = days.sink(sink_id=way, **READY | {"partitionReady": way, "bucketBy": f"{way}={{ts:%Y-%m-%d}}"})
        run(days, sink, 0, "30T10:00")
        run(days, sink, 1, "31T10:00")
        assert events(sink)[1:] == [f"ready {way}=2026-01-30"] * told
        assert len(marked(days)) == files
        assert sink.ledger.head().events_before + sink.ledger.head().events == 2


def test_what_was_said_of_buckets_survives_folding(days: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers receive the same events, under the same numbers, after the records were folded."""
    monkeypatch.setattr(ledger, "FOLD", 3)
    sink = days.sink(**READY | {"rollBatches": "1"})
    for number in range(5):
        run(days, sink, number, f"{number + 10}T10:00", "09T10:00")
    before = EventLog(sink.ledger, "s", "it").after(EventPosition())
    assert len(before) > 15
    for number in range(5, 12):
        run(days, sink, number)
    assert sink.ledger.look().folded >= (before[-1].record or 0)
    assert EventLog(sink.ledger, "s", "it").after(EventPosition(), len(before)) == before
    for at in range(1, len(before)):
        assert EventLog(sink.ledger, "s", "it").at_record(before[at].record or 0).number <= at


def test_what_waits_is_forgotten_when_the_option_is_left_out(days: Output) -> None:
    """A run without the option ends parts as usual; its records keep only how many events were sent, and the latest end reported."""
    sink = days.sink(**READY)
    run(days, sink, 0, "30T10:00", "31T10:00")
    assert sink.ledger.head().ready.total == 1
    plain = {name: value for name, value in READY.items() if not name.startswith("partition")}
    days.batch(days.sink(**plain), 1, {0: ["x|2026-02-02T10:00:00Z"]}, mark="1", owner="d2")
    head = sink.ledger.head()
    assert head.ready.to_json() == {"total": 1, "said": ns("01-31T00:00") // 1000, "reckoned": "UTC by data"}
    assert head.events_before == 2


def test_a_run_that_announces_nothing_any_more_says_so(days: Output, caplog: pytest.LogCaptureFixture) -> None:
    """Its rows come into a complete day, beside a `_SUCCESS` that readers go by; a run with the option, or that never had it, is silent."""
    plain = {name: value for name, value in READY.items() if not name.startswith("partition")}
    run(days, days.sink(sink_id="other", **plain), 0, "30T10:00", "31T10:00")
    run(days, days.sink(**READY), 0, "30T10:00", "31T10:00")
    assert "partitionReady" not in caplog.text
    days.batch(days.sink(**plain), 1, {0: ["x|2026-01-30T10:00:00Z"]}, mark="1", owner="d2", final=True)
    assert "partitionReady was set for sink 's' of " in caplog.text
    assert (days.root / "dt=2026-01-30" / "_SUCCESS").exists()


@pytest.mark.parametrize(
    "options",
    [{"bucketBy": "{value}"}, {"bucketBy": "h={ts:%H}"}, {"bucketBy": "y={ts:%Y}/h={ts:%H}"}, {"bucketBy": "{ts}"}],
)
def test_directories_that_are_no_spans_of_time_are_refused(days: Output, options: dict[str, str]) -> None:
    """An hour without its day, a value, a time to the microsecond: nothing could show that they are complete."""
    with pytest.raises(TemplateError, match="expected a time from its year on"):
        days.sink(**READY | options)


def test_options_that_cannot_be_are_refused(days: Output) -> None:
    """No buckets, growing files, and unknown values of the option are refused."""
    plain = {name: value for name, value in READY.items() if name not in {"bucketBy", "rollInactivity", "rollInterval"}}
    with pytest.raises(OptionError, match="found no bucketBy"):
        days.sink(**plain)
    with pytest.raises(OptionError, match="found growing=true"):
        days.sink(**plain, growing="true", fileName="a.json")
    with pytest.raises(OptionError, match="expected success-file, event, or success-file,event"):
        days.sink(**READY | {"partitionReady": "email"})


ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu", "Australia/Lord_Howe", "America/Sao_Paulo"]
TEMPLATES = ["{ts:%Y}", "{ts:%Y-%m}", "{ts:%Y-%m-%d}", "{ts:%F}/{ts:%H}", "{ts:%Y%j}", "{ts:%Y-%m-%dT%H%M}"]


@example(datetime(2039, 7, 1, 22, 30, tzinfo=timezone.utc), "Europe/Berlin", "{ts:%Y-%m-%d}", timedelta(0))
@example(
    datetime(2010, 11, 7, 2, 20, tzinfo=timezone.utc), "America/St_Johns", "{ts:%F}/{ts:%H}", timedelta(minutes=20)
)
@example(datetime(2010, 3, 14, 3, 0, tzinfo=timezone.utc), "America/St_Johns", "{ts:%F}/{ts:%H}", timedelta(hours=1))
@example(datetime(2011, 12, 30, 9, 0, tzinfo=timezone.utc), "Pacific/Apia", "{ts:%Y-%m-%d}", timedelta(hours=1))
@given(
    moment=st.datetimes(datetime(1990, 1, 1), datetime(2040, 1, 1), timezones=st.just(timezone.utc)),
    zone=st.sampled_from(ZONES),
    template=st.sampled_from(TEMPLATES),
    later=st.timedeltas(timedelta(0), timedelta(days=3)),
)
def test_no_time_after_the_end_is_in_the_bucket(moment: datetime, zone: str, template: str, later: timedelta) -> None:
    """Across clock changes, too: a time at or after a bucket's end belongs to another directory, and the bucket's rows are before it."""
    checked = BucketTemplate.of(template, SCHEMA, zone=zone)
    buckets = TimeBuckets.of(checked, SCHEMA)
    epoch = datetime(1970, 1, 1, tzinfo=timezone.utc)
    end = buckets.end_us((moment - epoch) // timedelta(microseconds=1))
    assert end is not None
    behind = epoch + timedelta(microseconds=end) + later
    rows = pa.RecordBatch.from_pylist([{"value": "", "ts": t} for t in (moment, behind)], schema=SCHEMA)
    assert len({bucket for bucket, _ in checked.split(rows, 0)}) == 2
    assert moment < epoch + timedelta(microseconds=end) <= moment + timedelta(days=367)


def test_an_hour_that_comes_twice_ends_with_the_second(tmp_path: Path) -> None:
    """When clocks go back 02:30 occurs twice in Berlin; the hour is complete one hour later than it seems."""
    checked = BucketTemplate.of("{ts:%Y-%m-%d}/{ts:%H}", SCHEMA, zone="Europe/Berlin")
    first = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))
    end = TimeBuckets.of(checked, SCHEMA).end_us(int(first.timestamp() * 1e6))
    assert end == int(datetime(2026, 10, 25, 2, tzinfo=timezone.utc).timestamp() * 1e6)
