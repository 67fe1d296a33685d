"""Drivers, tasks, speculative copies, keepers and tools on one output: a state machine of everything that may happen to them.

A and B are drivers of one checkpoint, C is a driver of another checkpoint with the same sink id, D one of a third with another id.
Each call is an `Actor` and may stop before any system call while the others go on. Spark behaves here as
measured: its offset log has the batch before the batch begins, a failed batch is aborted with its tasks' reports, and a
restarted driver begins with the last batch of the log, whether it was committed or not.
"""

from __future__ import annotations

import re
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count, islice
from typing import TYPE_CHECKING, Any
from unittest import mock

from hypothesis import currently_in_test_context, note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from penstock import clock, unique
from penstock.cli import state as tools
from penstock.errors import (
    CheckpointMismatch,
    CommitError,
    Fenced,
    NotThere,
    OptionError,
    PenstockError,
    StorageError,
    UsageError,
)
from penstock.options import SINK, parse
from penstock.sink.decide import Rules, decide
from penstock.sink.sink import Batch, Begun, Committed, Sink, TaskResult
from penstock.storage import LocalStorage
from penstock.testing import CrashDisk, FakeClock, compare, visible
from penstock.verify.files import check_files
from tests.support import decisions
from tests.testing import actors
from tests.testing.actors import Actor, Stop
from tests.testing.sink_program import ROOT, TEXT

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.sink.ledger import State

FOLD = 2  # records, instead of 128, so that a stopped driver's record number is free again sooner
MERGED = 2  # folds, instead of 16
STANDING_MAX = 5
OPTIONS: dict[str, dict[str, str]] = {
    "a file a batch": {"rollBatches": "1"},
    "parts that span batches": {"rollSize": "1m"},
    "a growing file": {"growing": "true", "fileName": "all-{sink}.txt"},
    "parts that fill": {"rollSize": "40", "rollInactivity": "30s"},
    "parts of two batches": {"rollBatches": "2", "mergeBelow": "1"},
    "parts that age": {"rollRows": "3", "rollInterval": "30m"},
}
CALLS = ("", "link", "link", "link", "fsync", "unlink", "open", "scandir", "stat", "write")
_ROW = re.compile(rb"(\w+)-(\d+)-\d+-\d+\n")

Rows = tuple[int, ...]  # of each writer


@dataclass
class Query:
    """A query as its checkpoint records it: the last planned batch, the last batch noted as done, and the rows of each."""

    name: str
    sink: str
    planned: int = -1
    done: int = -1
    acknowledged: int = -1  # the last batch with rows whose commit has returned
    rows: list[Rows] = field(default_factory=list)

    def task(self, number: int, writer: int) -> list[bytes]:
        """Return the rows of one task."""
        return [f"{self.name}-{number}-{writer}-{row}\n".encode() for row in range(self.rows[number][writer])]

    def lines(self) -> set[bytes]:
        """Return every row that was ever planned."""
        tasks = [(number, writer) for number, rows in enumerate(self.rows) for writer in range(len(rows))]
        return {line for task in tasks for line in self.task(*task)}


@dataclass
class Driver:
    """A driver of a query. `life` counts its JVMs: the same JVM is the same owner of the sink."""

    name: str
    query: Query
    life: int = 0
    actor: Actor | None = None
    batch: Batch | None = None
    begun: Begun | None = None
    results: dict[int, TaskResult] = field(default_factory=dict)
    twins: dict[int, TaskResult] = field(default_factory=dict)
    done: Committed | None = None

    @property
    def owner(self) -> str:
        """Return its name in the ledger."""
        return f"{self.name}{self.life}"

    @property
    def idle(self) -> bool:
        """Tell whether it has nothing to do."""
        return self.actor is None or self.actor.done


def _locate(*_: object, **__: object) -> tuple[LocalStorage, str]:
    return actors.storage(), ROOT


_stops = st.none() | st.builds(Stop, st.sampled_from(CALLS), st.integers(1, 4))
_rows = st.lists(st.integers(0, 3), min_size=1, max_size=2).map(tuple)
_drivers = st.integers(0, 3)
_any_standing = st.integers(0, STANDING_MAX - 1)


class SinkMachine(RuleBasedStateMachine):
    """See the module. Fails with the first thing of which a reader of the output, or a user of the sink, may complain."""

    def __init__(self) -> None:
        super().__init__()
        self._clock = FakeClock()
        tokens = count(1)
        self._around = ExitStack()
        self._around.enter_context(clock.use(self._clock))
        self._around.enter_context(unique.use(lambda: f"{next(tokens):032d}"))
        self._around.enter_context(mock.patch("penstock.sink.ledger.FOLD", FOLD))
        self._around.enter_context(mock.patch("penstock.sink.folds.MERGED", MERGED))
        self._around.enter_context(mock.patch.object(tools, "locate", _locate))
        self._around.enter_context(mock.patch("penstock.sink.sink.decide", self._decide))
        self._queries = [Query("q", "s"), Query("c", "s"), Query("d", "d")]
        q, c, d = self._queries
        self._all = [Driver("A", q), Driver("B", q), Driver("C", c), Driver("D", d)]
        self._actors: list[Actor] = []
        self._complaints: list[str] = []
        self._seen: Counter[bytes] = Counter()
        self._shown: dict[tuple[str, str], bytes | None] | None = None
        self._disk = CrashDisk()
        self._options: dict[str, str] = {}

    @initialize(options=st.sampled_from(list(OPTIONS)))
    def start(self, options: str) -> None:
        """Make the output directory."""
        self._options = OPTIONS[options]
        self._mount(CrashDisk())
        LocalStorage(self._disk).make_directory(ROOT)

    def standing(self) -> list[Actor]:
        """Return the actors that have begun something and stand still."""
        return [actor for actor in self._actors if not actor.done]

    # -- what happens ----------------------------------------------------------------------------------------------

    @rule(which=_drivers, rows=_rows, stop=_stops, replay=st.booleans(), final=st.booleans(), twins=st.booleans())
    def batch(
        self, which: int, rows: Rows, stop: Stop | None, *, replay: bool = False, final: bool = False, twins: bool = False
    ) -> None:  # fmt: skip
        """A driver runs the next batch, or the last one again. `twins`: the results of the second attempts are used where there are any."""
        driver = self._all[which]
        if driver.idle and not self._crowded():
            self._batch(driver, rows, stop, replay=replay, final=final, twins=twins)
            self._look()

    @rule(which=_drivers, times=st.integers(1, 4))
    def batches(self, which: int, times: int) -> None:
        """A driver runs some batches without being stopped."""
        for _ in range(times if self._all[which].idle else 0):
            self._batch(self._all[which], (2, 1))
        self._look()

    @precondition(lambda self: self.standing())
    @rule(which=_any_standing, stop=_stops, fails=st.sampled_from([False, False, True]))
    def go_on(self, which: int, stop: Stop | None, *, fails: bool = False) -> None:
        """A stopped actor goes on; the call before which it stands may fail."""
        standing = self.standing()
        self._run(standing[which % len(standing)], stop, fails=fails)
        self._look()

    @precondition(lambda self: self.standing())
    @rule(which=_any_standing, jvm=st.booleans())
    def kill(self, which: int, *, jvm: bool) -> None:
        """A stopped actor is killed; a driver dies with its JVM, or only the Python process of that call dies."""
        standing = self.standing()
        actor = standing[which % len(standing)]
        actor.kill()
        for driver in self._all:
            if driver.actor is actor:
                driver.life += jvm
                driver.begun = None
        self._look()

    @rule(which=_drivers, writer=st.integers(0, 1), stop=_stops)
    def twin(self, which: int, writer: int, stop: Stop | None) -> None:
        """A task is tried a second time; its result may be used, or it ends long after the batch."""
        driver = self._all[which]
        begun, batch = driver.begun, driver.batch
        if begun is None or batch is None or writer >= len(driver.query.rows[batch.number]) or self._crowded():
            return

        def work() -> None:
            result = self._write(driver, begun, batch, writer)
            if driver.begun is begun:
                driver.twins[writer] = result

        self._start(f"twin of {driver.name}", work, stop)
        self._look()

    @rule(which=_drivers)
    def again(self, which: int) -> None:
        """A commit that has returned is requested once more, because Spark has not received its answer."""
        driver = self._all[which]
        batch, done = driver.batch, driver.done
        if driver.idle and batch is not None and done is not None:
            self._start(f"{driver.name} again", lambda: self._commit(driver, batch), None)
            self._look()

    @rule(which=_drivers, finish=st.booleans(), stop=_stops)
    def keep(self, which: int, stop: Stop | None, *, finish: bool) -> None:
        """The keeper of a driver rolls or finishes, at any time, although a real keeper waits for the batch."""
        driver, owner = self._all[which], self._all[which].owner

        def work() -> object:
            sink = self._sink(driver.query)
            return sink.finish(owner) if finish else sink.roll(owner)

        if driver.batch is not None and not self._crowded():
            self._start(f"keeper of {driver.name}", work, stop)
            self._look()

    @rule(clean=st.booleans(), part=st.sampled_from([None, 0, 1]), stop=_stops)
    def tool(self, stop: Stop | None, *, clean: bool, part: int | None = None) -> None:
        """A user runs `penstock clean --yes`, `penstock finish` or `penstock finish --part` while everything else goes on."""

        def work() -> object:
            if clean:
                return tools.clean(ROOT, yes=True)
            return tools.finish(ROOT, None, None if part is None else self._open_part(part))

        if not self._crowded():
            self._start("clean" if clean else "finish", work, stop)
            self._look()

    def _open_part(self, number: int) -> str:
        """Return the name of an open part, as `penstock status` shows it, or an invented name if no part is open."""
        names = [part["part"] for sink in tools.status(ROOT).facts["sinks"] for part in sink["open"]]
        return names[number % len(names)] if names else "none"

    @rule(seconds=st.sampled_from([-3600, 40, 3600]))
    def jump(self, seconds: int) -> None:
        """The clock is set."""
        self._clock.seconds += seconds

    @precondition(lambda self: self.standing())
    @rule(image=st.integers(0, 11))
    def power_cut(self, image: int) -> None:
        """All processes die, and only some of the unsynced data survives: none, if `image` is 0."""
        self._end_all()
        images = list(islice(self._disk.images(image, limit=12), image + 1))
        self._seen.clear()
        self._mount(CrashDisk(images[-1]))
        for driver in self._all:
            driver.life += 1
            driver.actor = driver.begun = driver.batch = driver.done = None
        self._look()

    # -- the end ---------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        """Let every actor end; start each query once more, finish, and look for every row."""
        try:
            if not self._complaints:
                self._settle()
        finally:
            self._end_all()
            self._around.close()

    def _settle(self) -> None:
        while standing := self.standing():
            self._run(standing[0], None)
            self._look()
        for query in self._queries:
            if query.planned > query.done:
                self._succeed(self._batch(Driver("Z", query), ()))
        if any(query.planned >= 0 for query in self._queries):
            self._succeed(self._start("the end", lambda: tools.finish(ROOT, None), None))
            found, _ = check_files(LocalStorage(self._disk), ROOT, lambda *_: None)
            assert found.problems == ()
        lost = {line for query in self._queries for line in query.lines()} - self._seen.keys()
        assert not lost, f"lost {sorted(lost)}"

    def _succeed(self, actor: Actor) -> None:
        assert actor.error is None, f"nobody is in the way, and {actor.name} fails with {actor.error!r}"
        self._look()

    # -- how ---------------------------------------------------------------------------------------------------------

    def _batch(
        self, driver: Driver, rows: Rows, stop: Stop | None = None, *, replay: bool = False, final: bool = False, twins: bool = False
    ) -> Actor:  # fmt: skip
        query = driver.query
        if query.planned == query.done and not (replay and query.planned >= 0):
            query.planned += 1
            query.rows.append(rows)
        number = query.planned
        driver.batch = batch = Batch(query.name, number, f"m{number}", final)
        driver.begun, driver.done, driver.results, driver.twins = None, None, {}, {}

        def work() -> None:
            driver.begun = begun = self._sink(query).begin(driver.owner, batch)
            try:
                for writer in range(len(query.rows[number])):
                    driver.results[writer] = self._write(driver, begun, batch, writer)
                if twins:
                    driver.results.update(driver.twins)
                driver.done = self._commit(driver, batch)
            except PenstockError:
                self._sink(query).abort(driver.results.values())
                raise
            query.done = max(query.done, number)
            if any(query.rows[number]):
                query.acknowledged = max(query.acknowledged, number)

        driver.actor = Actor(f"{driver.name} {number}", self._disk, work)
        self._actors.append(driver.actor)
        self._run(driver.actor, stop)
        return driver.actor

    def _commit(self, driver: Driver, batch: Batch) -> Committed:
        """Commit. A replaced driver must be refused, and a refused commit must not be in the ledger."""
        begun, reader = driver.begun, self._reader(driver.query).ledger
        assert begun is not None
        replaced = reader.head().epoch > begun.epoch
        try:
            done = self._sink(driver.query).commit(batch, list(driver.results.values()))
        except (Fenced, CommitError) as error:
            if driver.done is None and begun.write in {reader.read(n).write for n in reader.numbers()}:
                self._complaints.append(f"{driver.name} was refused ({error}), and its record is there")
            raise
        if replaced:
            self._complaints.append(f"{driver.name} was replaced, and has committed")
        return done

    def _decide(self, head: State, batch: Batch | None, results: list[TaskResult], rules: Rules, **named: Any) -> State:
        """Decide as the sink does, and complain if the decision is invalid."""
        state = decide(head, batch, results, rules, **named)
        try:
            decisions.check(head, batch, results, rules, state, **named)
        except AssertionError as error:
            self._complaints.append(f"record {state.n} is no decision to take: {error}")
        return state

    def _write(self, driver: Driver, begun: Begun, batch: Batch, writer: int) -> TaskResult:
        query = driver.query
        rows = iter([b"".join(query.task(batch.number, writer))])
        return self._sink(query).write(begun, query.name, batch.number, writer, TEXT, rows)

    def _sink(self, query: Query) -> Sink:
        """Return the sink as a newly started process has it."""
        options = parse(SINK, {"path": ROOT, "format": "text"} | self._options, what="sink")
        return Sink(actors.storage(), ROOT, options, query.sink)

    def _reader(self, query: Query) -> Sink:
        """Return the sink for a reader."""
        return Sink(LocalStorage(self._disk), ROOT, parse(SINK, {"path": ROOT}, what="sink"), query.sink)

    def _start(self, name: str, work: Callable[[], object], stop: Stop | None) -> Actor:
        actor = Actor(name, self._disk, work)
        self._actors.append(actor)
        self._run(actor, stop)
        return actor

    def _run(self, actor: Actor, stop: Stop | None, *, fails: bool = False) -> None:
        actor.run(stop, fails=fails)
        if not actor.done:
            _note(f"{actor.name} stands before {actor.at}")
        elif actor.error is not None:
            _note(f"{actor.name} ends with {actor.error!r}")
            if not self._may_happen(actor):
                raise actor.error

    def _may_happen(self, actor: Actor) -> bool:
        """Tell whether an actor may end with this error: replaced, too late, refused by the disk; but never because it finds damage."""
        if type(actor.error) is CheckpointMismatch:  # it stood still while others went on with its checkpoint
            driver = next((driver for driver in self._all if driver.actor is actor), None)
            return driver is not None and driver.batch is not None and driver.batch.number < driver.query.planned
        if isinstance(actor.error, OptionError):  # --part named a part that is closed by now
            return "is not open in" in str(actor.error)
        return type(actor.error) in {Fenced, CommitError, NotThere, StorageError, UsageError}

    def _crowded(self) -> bool:
        return len(self.standing()) >= STANDING_MAX

    def _end_all(self) -> None:
        for actor in self.standing():
            actor.kill()

    # -- what a reader sees ----------------------------------------------------------------------------------------

    def _mount(self, disk: CrashDisk) -> None:
        self._disk, self._shown = disk, None
        disk.watch = lambda *_: self._read()

    def _look(self) -> None:
        """Compare the output with the acknowledged rows; fail on the first difference."""
        self._read()
        for query in self._queries:
            if query.acknowledged >= 0 and self._last(query) < query.acknowledged:
                self._complaints.append(f"batch {query.acknowledged} of {query.name} was acknowledged and is lost")
        assert not self._complaints, self._complaints

    def _read(self) -> None:
        """Look at the output as `cat` would; most calls change only hidden files, and then there is nothing to check."""
        if (shown := _shown(self._disk)) == self._shown:
            return
        self._shown = shown
        lines = Counter(
            line for data in visible(self._disk.storage(), ROOT).values() for line in data.splitlines(keepends=True)
        )
        if "growing" in self._options:  # a reader may find an incomplete last row, or what a power cut left of it
            lines = Counter({line: n for line, n in lines.items() if line.endswith(b"\n") and b"\0" not in line})
        if lines == self._seen:
            return
        offered = [line for query in self._queries for line in query.lines()]
        last = {query.name: self._last(query) for query in self._queries}
        batches = {line: match for line in offered if (match := _ROW.fullmatch(line))}
        committed = [line for line, match in batches.items() if int(match[2]) <= last[match[1].decode()]]
        found = compare(lines.elements(), acknowledged=committed, offered=offered).complaints(final=False)
        self._complaints += found + [f"gone {line!r}" for line in self._seen.keys() - lines.keys()]
        self._seen = lines

    def _last(self, query: Query) -> int:
        return self._reader(query).ledger.head().last_batch(query.name)


def _shown(disk: CrashDisk) -> dict[tuple[str, str], bytes | None]:
    """Return the contents of all visible files. This is cheaper than reading them: unchanged contents are the same object."""
    return {
        (folder, name): disk._contents.get(inode)
        for folder, names in disk._tree.items()
        if "/_" not in folder and "/." not in folder
        for name, inode in names.items()
        if not name.startswith(("_", "."))
    }


def _note(text: str) -> None:
    if currently_in_test_context():
        note(text)
