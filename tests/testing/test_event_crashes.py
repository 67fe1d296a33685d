"""A reader of events next to a sink, at every call and over power cuts: the events that it received remain, and their files are there.

The reader reads before each call that changes the disk, so it also sees what is not durable yet. After the cut, its events must be
the first ones of the ledger, and each of their files must be visible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.options import SINK, parse
from penstock.sink.events import EventLog, EventPosition
from penstock.sink.sink import Sink
from penstock.storage import entry_at
from penstock.testing import Crashable, CrashDisk, CrashHdfs, ObjectStore, explore
from tests.support.effort import effort
from tests.testing.sink_program import ROOT, SinkProgram, Step

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.storage import Storage

ROLL, FINISH = Step(what="roll"), Step(what="finish")
SPANS = {
    "bucketBy": "t={time:%Y-%m-%dT%H%M%S}/k={k}",
    "dropBucketColumns": "true",
    "partitionReady": "success-file,event",
    "partitionReadyDelay": "0s",
}
SCRIPTS: dict[str, tuple[list[Step], dict[str, str]]] = {
    "files": ([Step((3, 2)), Step((2, 0)), ROLL, Step((1, 4)), FINISH], {"rollSize": "60", "rollInactivity": "30s"}),
    "a file a batch": ([Step((2,)), Step((1, 2)), Step((1,))], {"rollBatches": "1"}),
    "spans of time": ([Step((3,)), Step((2, 1)), Step(()), FINISH], SPANS | {"rollRows": "2"}),
}


class Reached(int):
    """The driver's step, as Spark's checkpoint records it, and the marks of the events that the reader received."""

    given: tuple[str, ...]

    def __new__(cls, step: int, given: tuple[str, ...] = ()) -> Reached:
        reached = super().__new__(cls, step)
        reached.given = given
        return reached

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int) and int(self) == int(other) and self.given == getattr(other, "given", ())

    def __hash__(self) -> int:
        return hash((int(self), self.given))


def log_on(storage: Storage) -> EventLog:
    """Return the events for a reader without memory."""
    sink: Any = Sink(storage, ROOT, parse(SINK, {"path": ROOT}, what="sink"), "s")
    return EventLog(sink.ledger, "s", "the ledger")


class Watched:
    """A disk that calls a reader before each call of the program."""

    def __init__(self, disk: Crashable, look: Callable[[], None]) -> None:
        self._disk, self._look = disk, look

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def storage(self) -> Any:
        """Return a storage on the disk that calls the reader."""
        return _WatchedStorage(self._disk.storage(), self._look)


class _WatchedStorage:
    def __init__(self, storage: Storage, look: Callable[[], None]) -> None:
        self._storage, self._look = storage, look

    def __getattr__(self, name: str) -> Any:
        if name in {"publish", "put_if_absent", "create", "delete", "persist"}:
            self._look()
        return getattr(self._storage, name)


class EventsProgram(SinkProgram):
    """A sink, and a reader whose own checkpoint outlives the cuts."""

    def run(self, disk: Crashable, rest: Callable[[], None]) -> None:
        def look() -> None:
            before = getattr(self.memory, "given", ())
            new = log_on(disk.storage()).after(EventPosition(len(before), before[-1] if before else ""))
            self.memory = Reached(self.memory, before + tuple(event.position_after.mark for event in new))

        super().run(Watched(disk, look), rest)
        look()

    def __setattr__(self, name: str, value: Any) -> None:
        """When the driver notes its next step, keep the events received so far."""
        if name == "memory" and not isinstance(value, Reached):
            value = Reached(value, getattr(getattr(self, "memory", None), "given", ()))
        super().__setattr__(name, value)

    def check(self, disk: Crashable, *, final: bool) -> list[str]:
        """Read as the reader does after the cut."""
        storage = disk.storage()
        events = log_on(storage).after(EventPosition())
        given = getattr(self.memory, "given", ())
        marks = tuple(event.position_after.mark for event in events)
        common = min(len(given), len(marks))  # the note that the last files are published is never synced
        complaints = [] if marks[:common] == given[:common] else ["events that were given are others now"]
        if given:
            log_on(storage).after(EventPosition(len(given), given[-1]))  # raises the error that the reader would get
        complaints += [
            f"event without its file: {event.path}"
            for event in events
            if event.path is not None and entry_at(storage, f"{ROOT}/{event.path}") is None
        ]
        said = {event.bucket: event.kind for event in events if event.path is None}
        complaints += [
            f"{bucket} is {kind}, and that is not what _SUCCESS says"
            for bucket, kind in said.items()
            if final and (entry_at(storage, f"{ROOT}/{bucket}/_SUCCESS") is not None) != (kind == "ready")
        ]
        return complaints + super().check(disk, final=final)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("profile", [CrashDisk, CrashHdfs, ObjectStore], ids=["disk", "hdfs", "objects"])
def test_what_a_reader_was_given_outlives_every_power_cut(name: str, profile: Callable[..., Crashable]) -> None:
    """Cut at any call of the sink and again in the recovery: no received event is lost or changed, and none precedes its file."""
    program = EventsProgram(*SCRIPTS[name])
    report = explore(program, profile=profile, images_max=4, states_max=effort(125, 5000))
    assert not report.complaints, report.first
    assert report.states >= 25


def test_a_reader_that_does_not_wait_for_the_note_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exploration complains without the rule that the last record only counts once it is noted as published."""
    monkeypatch.setattr("penstock.sink.ledger.Look.is_published", lambda self, state: True)
    report = explore(EventsProgram(*SCRIPTS["a file a batch"]), images_max=4, states_max=250)
    assert report.complaints
