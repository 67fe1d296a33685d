"""Holds the newest values of each query in memory: the measuring code writes them, the exporters read them."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock import clock
from penstock.clock import SECOND_NS
from penstock.metrics.names import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    Key = tuple[str, str]  # a measure and the value of its label, "" if it has none


@dataclass
class Subject:
    """What is measured: a pipeline, a query, or a query of a pipeline. `beaten` is when it last made progress, by `clock.monotonic`."""

    pipeline: str = ""
    query: str = ""
    values: dict[Key, float] = field(default_factory=dict)
    beaten: float | None = None


class Meter:
    """The values of all subjects. Any thread may call; a call waits at most as long as a copy takes."""

    def __init__(self, process: Callable[[], Mapping[str, float]] | None = None) -> None:
        """Set a function that returns values of the process itself, by measure, with the label after a blank."""
        self._process = process
        self._lock = threading.Lock()
        self._subjects: dict[str, Subject] = {}
        self._listeners: list[Callable[[str, str, Mapping[str, float]], None]] = []

    def pipeline(self, name: str, query: str = "") -> None:
        """Measure a pipeline, from now on together with this query of Spark, if it has one.

        Values that Spark has reported for the query before it was known to belong to the pipeline become the pipeline's.
        """
        with self._lock:
            subject = self._subjects.setdefault(f"pipeline {name}", Subject(name))
            subject.query = query or subject.query
            early = self._subjects.pop(f"query {query}", None)
            if early is not None:
                subject.values = early.values | subject.values
                subject.beaten = early.beaten if subject.beaten is None else subject.beaten

    def forget(self, name: str) -> None:
        """Remove a pipeline or a query."""
        with self._lock:
            self._subjects.pop(f"pipeline {name}", None)
            self._subjects.pop(f"query {name}", None)

    def set(self, name: str, values: Mapping[str, float | None]) -> None:
        """Set values of a pipeline or a query, by measure; `None` removes a value."""
        self._enter(name, {(measure, ""): value for measure, value in values.items()}, adds=False)

    def add(self, name: str, values: Mapping[str, float], label: str = "") -> None:
        """Add to values, by measure."""
        self._enter(name, {(measure, label): value for measure, value in values.items()}, adds=True)

    def labelled(self, name: str, measure: str, values: Mapping[str, float], *, adds: bool = False) -> None:
        """Set, or with `adds` add to, values of one measure, by label."""
        self._enter(name, {(measure, label): value for label, value in values.items()}, adds=adds)

    def instead(self, name: str, measure: str, values: Mapping[str, float]) -> None:
        """Replace all values of one measure, by label; labels that are not given are removed."""
        with self._lock:
            known = self._of(name).values
            for key in [key for key in known if key[0] == measure]:
                del known[key]
            known.update({(measure, label): value for label, value in values.items()})

    def beat(self, name: str) -> None:
        """Note that a pipeline or a query makes progress."""
        self.set(name, {"heartbeat_timestamp_seconds": clock.now_ns() / SECOND_NS})
        with self._lock:
            self._of(name).beaten = clock.monotonic()

    def is_pipeline(self, query: str) -> bool:
        """Tell whether a query belongs to a pipeline, and is measured as that."""
        with self._lock:
            return any(subject.query == query and subject.pipeline for subject in self._subjects.values())

    def heartbeat(self, name: str) -> float | None:
        """Return when it last made progress, by `clock.monotonic`, because a machine's wall clock may be set."""
        with self._lock:
            return self._of(name).beaten

    def subjects(self) -> Iterator[Subject]:
        """Yield all subjects with their present values."""
        with self._lock:
            subjects = [Subject(each.pipeline, each.query, dict(each.values)) for each in self._subjects.values()]
        yield from subjects
        if self._process is not None and (own := self._process()):
            yield Subject(values={_key(name): value for name, value in own.items()})

    def on_batch(self, listener: Callable[[str, str, Mapping[str, float]], None]) -> None:
        """Call a function with pipeline, query and the seconds of the phases, for each batch that ends."""
        self._listeners.append(listener)

    def count(self, name: str, amounts: Mapping[str, float]) -> None:
        """Add to values; names are measures, with the label after a blank, as in `penstock.tally`."""
        self._enter(name, {_key(text): amount for text, amount in amounts.items()}, adds=True)

    def batch(self, query: str, phases: Mapping[str, float]) -> None:
        """Count a batch that has ended, with the seconds of its phases."""
        self.add(query, {"batches": 1})
        self.labelled(query, "phase_seconds", phases, adds=True)
        self.beat(query)
        with self._lock:
            pipeline = self._of(query).pipeline
        for listener in self._listeners:
            listener(pipeline, query, phases)

    def _of(self, name: str) -> Subject:
        """Return the subject of a pipeline, or of a query, which may belong to a pipeline; the caller holds the lock."""
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
