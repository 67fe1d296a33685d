"""The newest values of each query, in memory: written by those who measure, read by those who tell."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock import clock
from penstock.clock import SECOND_NS
from penstock.metrics.names import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    Key = tuple[str, str]  # a measure and the value of its label, "" where it has none


@dataclass
class Subject:
    """What is measured: a pipeline, a query, or a query of a pipeline. `beaten`: when it was last seen to get on, by `clock.monotonic`."""

    pipeline: str = ""
    query: str = ""
    values: dict[Key, float] = field(default_factory=dict)
    beaten: float | None = None


class Meter:
    """The values, by who they are of. Any thread may call; nothing waits but for the length of a copy."""

    def __init__(self, process: Callable[[], Mapping[str, float]] | None = None) -> None:
        """Take what tells of this process as such, by measure, a label behind a blank."""
        self._process = process
        self._lock = threading.Lock()
        self._subjects: dict[str, Subject] = {}
        self._listeners: list[Callable[[str, str, Mapping[str, float]], None]] = []

    def pipeline(self, name: str, query: str = "") -> None:
        """Have a pipeline measured, from now on as this query of Spark's, if it has one.

        What Spark has told of the query before anybody knew whose it is becomes the pipeline's.
        """
        with self._lock:
            subject = self._subjects.setdefault(f"pipeline {name}", Subject(name))
            subject.query = query or subject.query
            early = self._subjects.pop(f"query {query}", None)
            if early is not None:
                subject.values = early.values | subject.values
                subject.beaten = early.beaten if subject.beaten is None else subject.beaten

    def forget(self, name: str) -> None:
        """Tell no more of a pipeline or a query."""
        with self._lock:
            self._subjects.pop(f"pipeline {name}", None)
            self._subjects.pop(f"query {name}", None)

    def set(self, name: str, values: Mapping[str, float | None]) -> None:
        """Take in values of a pipeline or a query, by measure; `None`: there is none any more."""
        self._enter(name, {(measure, ""): value for measure, value in values.items()}, adds=False)

    def add(self, name: str, values: Mapping[str, float], label: str = "") -> None:
        """Count up."""
        self._enter(name, {(measure, label): value for measure, value in values.items()}, adds=True)

    def labelled(self, name: str, measure: str, values: Mapping[str, float], *, adds: bool = False) -> None:
        """Take in values of one measure by its label."""
        self._enter(name, {(measure, label): value for label, value in values.items()}, adds=adds)

    def instead(self, name: str, measure: str, values: Mapping[str, float]) -> None:
        """Take in all there are of one measure by its label: what is not among them is told no longer."""
        with self._lock:
            known = self._of(name).values
            for key in [key for key in known if key[0] == measure]:
                del known[key]
            known.update({(measure, label): value for label, value in values.items()})

    def beat(self, name: str) -> None:
        """Note that it gets on."""
        self.set(name, {"heartbeat_timestamp_seconds": clock.now_ns() / SECOND_NS})
        with self._lock:
            self._of(name).beaten = clock.monotonic()

    def is_pipeline(self, query: str) -> bool:
        """Tell whether a query is that of a pipeline, which is measured as such."""
        with self._lock:
            return any(subject.query == query and subject.pipeline for subject in self._subjects.values())

    def heartbeat(self, name: str) -> float | None:
        """Return when it was last seen to get on, by `clock.monotonic`: what time a machine takes it to be may be set meanwhile."""
        with self._lock:
            return self._of(name).beaten

    def subjects(self) -> Iterator[Subject]:
        """Yield who is measured, with the values of this moment."""
        with self._lock:
            subjects = [Subject(each.pipeline, each.query, dict(each.values)) for each in self._subjects.values()]
        yield from subjects
        if self._process is not None and (own := self._process()):
            yield Subject(values={_key(name): value for name, value in own.items()})

    def on_batch(self, listener: Callable[[str, str, Mapping[str, float]], None]) -> None:
        """Have a function called with pipeline, query and the seconds of its phases, for each batch that ended."""
        self._listeners.append(listener)

    def count(self, name: str, amounts: Mapping[str, float]) -> None:
        """Count up; names are measures, with the label behind a blank, as in `penstock.tally`."""
        self._enter(name, {_key(text): amount for text, amount in amounts.items()}, adds=True)

    def batch(self, query: str, phases: Mapping[str, float]) -> None:
        """Take in a batch that ended, with the seconds of its phases."""
        self.add(query, {"batches": 1})
        self.labelled(query, "phase_seconds", phases, adds=True)
        self.beat(query)
        with self._lock:
            pipeline = self._of(query).pipeline
        for listener in self._listeners:
            listener(pipeline, query, phases)

    def _of(self, name: str) -> Subject:
        """Return the subject of a pipeline, or of a query, which may be that of a pipeline; the lock is held."""
        if (subject := self._subjects.get(f"pipeline {name}")) is not None:
            return subject
        of_pipeline = (subject for subject in self._subjects.values() if subject.query == name)
        return next(of_pipeline, None) or self._subjects.setdefault(f"query {name}", Subject(query=name))

    def _enter(self, name: str, values: Mapping[Key, float | None], *, adds: bool) -> None:
        assert all(measure in BY_NAME for measure, _ in values)  # noqa: S101 - the table has every name, once
        with self._lock:
            known = self._of(name).values
            for key, value in values.items():
                if value is None:
                    known.pop(key, None)
                else:
                    known[key] = known.get(key, 0.0) + value if adds else value


def _key(name: str) -> Key:
    measure, _, label = name.partition(" ")
    return measure, label
