"""State files that earlier versions wrote: the current code reads them, with the content that they had."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import clock
from penstock.cli import state
from penstock.errors import FilesCleaned
from penstock.options import SOURCE, parse
from penstock.query.checkpoint import Checkpoint
from penstock.query.offset import summed
from penstock.sink.handover import take_back, taker
from penstock.sink.telling import Telling
from penstock.source.clean import Cleaner
from penstock.source.cleaned import Reached, check_not_cleaned_since
from penstock.source.noted import SchemaNotes
from penstock.source.pinned import Moment, pins
from penstock.source.plan import Planner
from penstock.storage import LocalStorage
from penstock.testing import FakeClock
from penstock.verify import verify
from penstock.wal import Log, Manager
from penstock.windows import WindowStore
from tests.support.damage import damages
from tests.support.keyed import run, writing
from tests.support.keys import STAGING_KEY, STAGING_VARIABLE
from tests.support.output import QUERY, Output
from tests.support.samples import (
    DAYS,
    DAYS_SCHEMA,
    DEAD_KEY,
    FACT,
    KEYS,
    LOG,
    MANY,
    MANY_SCHEMA,
    READER,
    SCHEMAS,
    SIGHTS,
    TAKER,
    TIMES,
    WINDOWS,
    host_fact,
)
from tests.support.scene import EXPECTED, FORMS, Scene, rows

FORMATS = Path(__file__).resolve().parent / "data/formats"
VERSIONS = sorted(path.name for path in FORMATS.iterdir())


@pytest.fixture(params=VERSIONS)
def samples(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a copy of the samples of a version."""
    copied = Path(shutil.copytree(FORMATS / request.param, tmp_path / request.param))
    copied.chmod(0o700)  # a host fact requires it, and a checkout does not keep it
    return copied


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the staging key where the samples say that it is."""
    monkeypatch.setenv(STAGING_VARIABLE, STAGING_KEY)


@pytest.fixture
def time() -> Iterator[FakeClock]:
    fake = FakeClock(1_000_060)
    with clock.use(fake):
        yield fake


@pytest.mark.parametrize("form", FORMS)
def test_an_output_goes_on(samples: Path, time: FakeClock, form: str) -> None:
    """B28, F37: an output with finished, unpublished and open parts is listed, verified and continued: every row, once."""
    if not (samples / "outputs" / form).exists():
        pytest.skip(f"{samples.name} had no {form}")
    scene = Scene(Output(samples / "outputs" / form, time), FORMS[form])
    root = str(scene.output.root)
    head = scene.sink().ledger.head()
    assert (head.n, head.last_batch(QUERY), head.total_rows) == (4, 2, 9)
    report = verify(root)
    assert report.ok
    assert (report.output.sinks[0].rows, report.output.sinks[0].owed_files) == (
        9 if form.startswith("growing") else 6,
        1,
    )
    assert state.files(root).facts["rows"] == (0 if form.startswith("growing") else 6)
    scene.go_on()
    assert rows(scene.visible()) == EXPECTED
    assert verify(root).ok


def test_a_sink_is_rebuilt_from_its_samples(samples: Path, time: FakeClock) -> None:
    """Without its query a sink uses its noted options and can be finished."""
    for form in (path.name for path in (samples / "outputs").iterdir()):
        root = samples / "outputs" / form
        state.finish(str(root), None)
        assert verify(str(root)).ok
        assert sum(rows(Scene(Output(root, time), {}).visible()).values()) == 9


def test_batches_go_on(samples: Path, time: FakeClock) -> None:
    """Keys in a record and in tables are known, a new one is written, and the one whose driver died is written again."""
    output = Output(samples / "batches", time)
    root = str(output.root)
    head = writing(LocalStorage(), root, None).keyed.sink.ledger.head()
    assert (len(head.written_tables) > 0, list(head.writing)) == (True, [DEAD_KEY])
    assert output.lines() == sorted(KEYS)
    assert all(run(writing(LocalStorage(), root, key), {0: ["again"]}).repeated for key in KEYS)
    for key in (DEAD_KEY, "day/3"):
        assert run(writing(LocalStorage(), root, key), {0: [key]}).rows == 1
    assert output.lines() == sorted([*KEYS, DEAD_KEY, "day/3"])
    assert verify(root).ok


def test_offsets_and_plans_are_read(samples: Path, tmp_path: Path) -> None:
    """The offsets of a checkpoint give their plans, one of which is in a separate file, and the cursor to continue from."""
    checkpoint = Checkpoint(str(samples / "checkpoint"))
    current = checkpoint.current()
    assert current is not None
    assert (current.query, current.number, current.final) == (QUERY, 1, False)
    assert checkpoint.numbers("commits") == [0]
    options = parse(SOURCE, {"path": str(tmp_path)}, what="source")
    planner = Planner(
        LocalStorage(),
        str(tmp_path),
        options,
        divisible=lambda _: True,
        state=(LocalStorage(), str(samples / "checkpoint/penstock")),
    )
    found = []
    for batch in checkpoint.numbers("offsets"):
        [offset] = checkpoint.offsets(batch)
        assert offset is not None
        found.append([(s.file.path, s.file.modified_ns, s.start, s.end) for s in planner.splits(offset)])
    (a, at_a), (b, at_b), (c, at_c) = [(name, seconds * 10**9) for name, seconds in TIMES.items()]
    assert found == [[(a, at_a, 0, 8), (b, at_b, 0, 4)], [(b, at_b, 4, 8), (c, at_c, 0, 8)]]
    assert len(list((samples / "checkpoint/penstock").iterdir())) == 1


def test_a_log_goes_on(samples: Path) -> None:
    """A log of windows is verified, restored, and continued."""
    log = str(samples / "log")
    found: dict[int, list[bytes]] = {}
    assert Log(log).verify().epoch == 3
    with Manager(log, found.__setitem__) as manager:
        assert manager.restore(0) == len(LOG) - 1
        assert found == dict(enumerate(LOG[1:], 1))
        manager.append(b"more")
        manager.end_window(len(LOG))
    with Manager(log, found.__setitem__) as manager:
        manager.restore(len(LOG) - 1)
    assert found[len(LOG)] == [b"more"]


def test_windows_go_on(samples: Path) -> None:
    """A window store has the windows that were saved and not forgotten, and continues after them."""
    for last in (4, 5):
        with WindowStore(str(samples / "windows")) as store:
            found = {(window, owner): store.load(window, owner) for window, owner in WINDOWS}
            assert found == {key: artifact if key[0] > 1 else None for key, artifact in WINDOWS.items()}
            assert (store.largest_completed([0]), store.largest_completed()) == (last, 2)
            store.save(5, b"more")


def test_host_fact_is_read(samples: Path) -> None:
    """A fact written by another process of the host is read."""
    with host_fact(samples).locked() as found:
        assert found == FACT


def test_every_change_of_a_host_fact(samples: Path) -> None:
    """A fact that was cut or altered counts as lost, as it may be at any time, and can be replaced."""
    path = samples / "host-fact.json"
    for what, broken in damages(path.read_bytes()):
        path.write_bytes(broken)
        with host_fact(samples).locked() as found:
            assert found in ({}, FACT), what
            found.clear()
        assert not path.exists()


def test_noted_schemas_are_read(samples: Path) -> None:
    """Both versions of a noted schema are read, the second with its reported changes, and each binds from its batch on."""
    notes = SchemaNotes(LocalStorage(), str(samples / "schemas"))
    assert [note.schema for note in notes.all()] == SCHEMAS
    assert [(note.batch, note.inferred) for note in notes.all()] == [(0, True), (2, False)]
    assert notes.all()[1].changes == ("column 'naïve' (string) is new", "column 'id' was int, and is bigint now")
    assert [len(notes.bound(committed)) for committed in (-1, 0, 1, 2)] == [0, 1, 1, 2]


def test_days_and_who_was_told_of_them(samples: Path, time: FakeClock) -> None:
    """Days were reported as complete, and one was reopened; the function's next start sends only the events that it did not get before."""
    time.seconds = 1_800_000_060
    output = Output(samples / "days", time)
    output.schema = DAYS_SCHEMA
    sink = output.sink(**DAYS)
    marks = [mark for record in range(1, 5) for mark in sink.ledger.read(record).ready.marks]
    assert [(mark.kind, mark.bucket[-2:]) for mark in marks] == [("ready", "29"), ("ready", "30"), ("reopened", "29")]
    assert sink.ledger.head().ready.waiting.keys() == {"dt=2026-01-29", "dt=2026-01-31"}
    assert sorted(path.parent.name for path in output.root.rglob("_SUCCESS")) == ["dt=2026-01-30"]
    assert verify(str(output.root)).ok
    told: list[dict[str, Any]] = []
    telling = Telling(sink, "catalogue:register", lambda: told.extend)
    sink.begin("d2")
    telling.begin("d2")
    output.batch(sink, 3, {0: ["3|2026-02-01T02:00:00Z"]}, mark="m3", owner="d2", final=True)
    telling.tell("d2")
    assert [(event["event"], event["bucket"][-2:]) for event in told[:1]] == [("reopened", "29")]
    assert {("ready", "29"), ("ready", "31")} <= {(event["event"], event["bucket"][-2:]) for event in told}
    assert len(output.lines()) == 7


def test_a_ledger_that_was_taken_over_from_goes_on(samples: Path, time: FakeClock) -> None:
    """It names who has taken over, keeps its rows, and is its own query's again once that has taken back what it reads."""
    output = Output(samples / "taken", time)
    sink = output.sink(rollRows="3")
    records = [sink.ledger.read(n) for n in range(1, sink.ledger.head().n + 1)]
    assert [(record.owner, record.taken_by) for record in records[-2:]] == [(f"taken:{TAKER}", TAKER), ("d2", TAKER)]
    assert {record.taken_by for record in records[:-2]} == {""}
    assert (taker(sink.ledger.head()), verify(str(output.root)).ok) == (TAKER, True)
    take_back(sink, sink.ledger.head())
    output.batch(sink, 2, {0: ["2"]}, owner="d2")
    sink.finish("d2")
    assert (taker(sink.ledger.head()), output.lines()) == ("", ["0", "0", "1", "1", "2"])
    assert verify(str(output.root)).ok


def test_notes_of_a_reader_go_on(samples: Path) -> None:
    """A checkpoint that does not know what was cleaned is refused; one that does keeps the notes of files that wait."""
    storage, root = LocalStorage(), str(samples / "readers")
    home = samples / "readers/_penstock-readers" / READER
    offset = {"v": 1, "reader": READER, "cursor": None, "recent": {}}
    with pytest.raises(FilesCleaned, match="found 0 files planned, expected 1 or more"):
        check_not_cleaned_since(storage, root, summed(offset | {"read": [0, 0]}))
    check_not_cleaned_since(storage, root, summed(offset | {"read": [1, 8]}))
    cleaner = Cleaner(storage, root, archive=None, retention_ns=0, selects={})
    for reached, left in ((2, 1), (1, 0)):
        cleaner.drop_undone(READER, Reached(0, reached))
        assert len(list(home.glob("read-*.json"))) == left
    assert sorted(path.name for path in home.iterdir()) == ["cleaned-0-1", "reader.json"]


def test_what_was_found_at_named_paths_is_read(samples: Path) -> None:
    """A note of another run counts for a replayed batch, whatever is at the paths now."""
    notes = pins((LocalStorage(), str(samples / "named")), Moment(QUERY, 7, 0, "another"))
    now: dict[str, Any] = {path: [1, 2, "3"] for path in SIGHTS}
    assert notes.agreed(now, reasons=True) == {path: [sight] for path, sight in SIGHTS.items()}


def test_many_open_parts_are_gone_on_with(samples: Path, time: FakeClock) -> None:
    """An output whose record names a table of open parts is verified and continued: every row of table and record, once."""
    output = Output(samples / "many", time)
    output.schema = MANY_SCHEMA
    sink = output.sink(**MANY)
    head = sink.ledger.head()
    assert (len(head.open.tables), head.open.rows, len(head.open), len(head.finished)) == (1, 6, 5, 1)
    assert verify(str(output.root)).ok
    output.batch(sink, 2, {0: ["3|d"], 1: ["3|e"]})
    sink.finish("d1")
    assert output.lines() == sorted(["0"] * 6 + ["1", "1", "2", "3", "3"])
    assert verify(str(output.root)).ok
