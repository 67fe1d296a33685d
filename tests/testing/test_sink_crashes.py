"""The sink on a disk that loses power at every call: nothing lost, nothing doubled, nothing torn, nothing undecided."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import pytest

from penstock.sink import lengths, parttables
from penstock.sink.committer import Committer
from penstock.sink.ledger import Look, State
from penstock.storage import LocalStorage
from penstock.testing import Crashable, CrashDisk, CrashHdfs, Known, ObjectStore, Report, explore
from tests.support.keys import ENCRYPTED, STAGING_KEY, STAGING_VARIABLE
from tests.testing.crashes import crashed
from tests.testing.sink_program import SinkProgram, Step
from tests.testing.syncs import not_missed, places_of_syncs

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.testing.syncs import Making

ROLL, FINISH = Step(what="roll"), Step(what="finish")
MAIN = ([Step((3, 2)), Step((2, 0)), ROLL, Step((1, 4)), FINISH], {"rollSize": "60", "rollInactivity": "30s"})
ABANDONED = (MAIN[0], MAIN[1] | {"fileName": "named-{writer}-{seq}"})
GROWING = {"growing": "true", "fileName": "all.txt"}
MANY = "more open parts than a record holds"
BY_NAME = {"growing": "true", "fileName": "n{k}.txt", "dropBucketColumns": "true"}
HEADER = {"format": "csv", "header": "true"}
SCRIPTS: dict[str, tuple[list[Step], dict[str, str]]] = {  # the smallest first
    "nothing at all": ([Step(()), Step((1,)), Step(()), FINISH], {"rollSize": "60"}),
    "a growing file": ([Step((2, 1)), Step((1,)), Step((2,))], GROWING),
    "a last batch": ([Step((2, 1)), Step((1, 2), "final")], {"rollSize": "60"}),
    "members": ([Step((3, 2)), Step((2,)), FINISH], {"compression": "gzip", "rollSize": "60"}),
    "a part that spans batches": ([Step((1, 1)), Step((1, 0)), Step((1, 1)), FINISH], {"rollSize": "1m"}),
    "buckets": (
        [Step((3, 2)), Step((2, 1)), FINISH],
        {"bucketBy": "k={k}", "dropBucketColumns": "true", "rollRows": "2"},
    ),
    "old and idle": ([Step((1,)), ROLL, Step((1, 1)), ROLL, Step((1,)), FINISH], {"rollInterval": "30s"}),
    "fewer and more writers": ([Step((1, 2, 1)), Step((2,)), Step((1, 1)), FINISH], {"rollRows": "3"}),
    "headers": ([Step((3, 2)), Step((2, 1)), Step((1,)), FINISH], HEADER | {"rollSize": "60"}),
    "a growing file with a header": ([Step((2, 1)), Step((1,)), Step((2,))], HEADER | GROWING),
    "encrypted": ([Step((3, 2)), Step((2,)), FINISH], {"rollRows": "3"} | ENCRYPTED),
    "names from the data": (
        [Step((3, 2)), Step((2, 1)), FINISH],
        {"fileName": "n{k}-{seq}", "dropBucketColumns": "true", "rollRows": "2"},
    ),
    "growing files by name": ([Step((2, 1)), Step((1,)), Step((0, 2))], BY_NAME),
    MANY: (
        [Step((3, 2)), Step((1, 0)), ROLL, Step((1, 2)), FINISH],
        {"bucketBy": "k={k}", "dropBucketColumns": "true", "rollRows": "4", "rollInactivity": "30s"},
    ),
    "a file a batch": ([Step((2,)), Step((1, 2)), Step((1,))], {"rollBatches": "1"}),
}
GROW = {"a growing file", "a growing file with a header", "growing files by name"}


@pytest.fixture(autouse=True)
def few_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make two growing files exceed a record's limit, so that tables are staged; a power cut clears the memory of what was read of them."""
    monkeypatch.setattr(lengths, "IN_RECORD", 1)
    monkeypatch.setattr(lengths, "_kept", Forgetful())


@pytest.fixture(autouse=True)
def few_parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make two open parts exceed a record's limit, for the script that tests this and for tests that run all scripts."""
    monkeypatch.setattr(parttables, "_kept", Forgetful())
    monkeypatch.setattr(parttables, "_bases", Forgetful())
    monkeypatch.setattr(parttables, "_own", Forgetful())
    if getattr(request.node, "callspec", None) is None or request.node.callspec.params.get("name") == MANY:
        monkeypatch.setattr(parttables, "IN_RECORD", 1)


class Forgetful(dict[str, object]):
    """A memory that keeps nothing: each step of a program may run in another process."""

    def __setitem__(self, key: str, value: object) -> None:
        """Forget it."""


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the staging key where the encrypting sinks look for it."""
    monkeypatch.setenv(STAGING_VARIABLE, STAGING_KEY)


def explored(
    script: tuple[list[Step], dict[str, str]], profile: Callable[..., Crashable] = CrashDisk, **limits: int
) -> Report:
    """Crash a script anywhere."""
    return crashed(lambda: SinkProgram(*script), profile, **limits)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_crash_anywhere_and_again_in_the_recovery() -> None:
    """F21: parts roll by size and idleness, span batches, and are finished: crashed at each call, and so is each recovery."""
    report = explored(MAIN, states_max=2000)
    assert report.states >= 2000


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_crash_anywhere(name: str) -> None:
    """Every way in which rows become files survives a crash at each call, and at each call of the recovery."""
    report = explored(SCRIPTS[name])
    assert report.states >= 300


@pytest.mark.slow
@pytest.mark.parametrize("name", ["main", *SCRIPTS])
def test_crash_anywhere_on_hdfs(name: str) -> None:
    """The same where names are durable at once, bytes are not, and files of dead writers stay open; growing files, too."""
    report = explored(MAIN if name == "main" else SCRIPTS[name], CrashHdfs, states_max=300)
    assert report.states >= 25


@pytest.mark.slow
@pytest.mark.parametrize("name", ["main", *sorted(SCRIPTS.keys() - GROW)])
def test_crash_anywhere_on_an_object_store(name: str) -> None:
    """The same protocol works with only whole and conditional puts, at each call and each call of the recovery."""
    report = explored(MAIN if name == "main" else SCRIPTS[name], ObjectStore)
    assert report.states >= 25


@pytest.mark.slow
def test_crash_and_nobody_restarts() -> None:
    """After a crash anywhere, `penstock finish` publishes exactly what was committed, and may be crashed itself."""
    report = crashed(lambda: SinkProgram(*ABANDONED, abandoned=True), states_max=1000)
    assert report.states >= 1000


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_sync_is_needed() -> None:
    """Without any one sync of storage or sink, data is lost, torn or doubled: no sync is superfluous or untested."""
    scripts = {
        name: SCRIPTS[name] for name in ("nothing at all", "a growing file", "buckets")
    } | SCRIPTS  # the script that misses most syncs comes first
    programs: list[Making] = [partial(SinkProgram, *script) for script in [*scripts.values(), MAIN]]
    places = places_of_syncs(programs)
    assert len(places) > 8
    programs.insert(1, partial(SinkProgram, *ABANDONED, abandoned=True))  # before the programs that take longer
    assert not_missed(dict.fromkeys(places, programs), states_max=4000) == []


def publish_before_the_put(patch: pytest.MonkeyPatch) -> None:
    put = Committer.put

    def exchanged(self: Committer, state: State) -> Look:
        self.publish(state, self.ledger.look())
        return put(self, state)

    patch.setattr(Committer, "put", exchanged)


def unlink_before_the_new_name_is_durable(patch: pytest.MonkeyPatch) -> None:
    def exchanged(self: LocalStorage, source: str, target: str) -> None:
        self.stat(source)
        with suppress(FileExistsError):
            self._os.link(source, target)
        self._os.unlink(source)
        self.persist(os.path.dirname(target), [])

    patch.setattr(LocalStorage, "publish", exchanged)


def note_before_publishing(patch: pytest.MonkeyPatch) -> None:
    publish = Committer.publish

    def exchanged(self: Committer, state: State, look: Look) -> State | None:
        if not look.is_published(state) and state.finished:
            self.ledger.note_published(state.n)
        return publish(self, state, look)

    patch.setattr(Committer, "publish", exchanged)


@pytest.mark.slow
@pytest.mark.parametrize(
    "exchange", [publish_before_the_put, unlink_before_the_new_name_is_durable, note_before_publishing]
)
def test_exchanged_steps_are_noticed(
    exchange: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If two steps of a commit are exchanged, a crash shows an undecided row, or loses one."""
    exchange(monkeypatch)
    report = explore(SinkProgram(*MAIN), depth=2, states_max=20_000)
    print(f"{exchange.__name__}: {report.first}")  # noqa: T201 - the table is asked for
    assert report.complaints


@pytest.mark.slow
def test_same_seed_same_run() -> None:
    """Two explorations with one seed see the same states and the same continuations."""
    steps, options = MAIN
    first, second = (explore(SinkProgram(steps, options), seed=7, images_max=4, states_max=1000) for _ in range(2))
    assert (first.states, first.futures, first.complaints) == (second.states, second.futures, second.complaints)


@pytest.mark.slow
def test_what_is_known_is_not_explored_again() -> None:
    """After an exploration of each single crash, an exploration of crashes in recoveries has fewer states to follow."""
    known = Known()
    crash = partial(explore, profile=ObjectStore)
    crash(SinkProgram(*SCRIPTS["members"]), depth=1, known=known)
    again = crash(SinkProgram(*SCRIPTS["members"]), depth=1, known=known)
    assert (again.states, again.futures) == (0, 1)
    alone, behind = (crash(SinkProgram(*SCRIPTS["members"]), images_max=2, known=before) for before in (None, known))
    assert behind.futures < alone.futures
    assert not behind.complaints
