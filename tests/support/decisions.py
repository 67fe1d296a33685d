"""What holds for every decision of a sink: in tests by hand, in random tests, and in those of the state machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import count
from typing import Any

from penstock.query.batch import Batch
from penstock.sink.batch import DRIVER, ClosedPart, TaskResult
from penstock.sink.decide import Rules, decide, due, groups
from penstock.sink.ledger import OpenPart, State

_staged = count()


def assembled(parts: list[OpenPart], results: list[TaskResult], rules: Rules) -> list[TaskResult]:
    """Return the report of a driver that has assembled these parts."""
    closed = tuple(
        ClosedPart(
            group.bucket, group.writer, group.kind, group.opened_ns, group.first_batch, group.last_batch, group.host,
            group.pid, f"driver-{next(_staged)}.part", group.rows, group.size, "",
        )
        for group in groups(parts, rules.limits)
    )  # fmt: skip
    return [replace(results[0], writer=DRIVER, closed=closed, open=(), consumed=(), rows=0)] if parts else []


def checked(
    head: State,
    batch: Batch | None,
    results: list[TaskResult],
    rules: Rules,
    *,
    owner: str | None = None,
    taken: AbstractSet[str] = frozenset(),
) -> State:
    """Return the decision on what the tasks report and what the driver assembles for it, after checking the decision."""
    complete = results + assembled(due(head, batch, results, rules), results, rules)
    state = decide(head, batch, complete, rules, owner=owner, taken=taken)
    check(head, batch, complete, rules, state, owner=owner, taken=taken)
    return state


def check(
    head: State,
    batch: Batch | None,
    results: list[TaskResult],
    rules: Rules,
    state: State,
    *,
    owner: str | None = None,
    taken: AbstractSet[str] = frozenset(),
    lengths: Mapping[str, int] | None = None,
) -> None:
    """Assert what holds for every decision."""
    assert state == decide(head, batch, results, rules, owner=owner, taken=taken, lengths=lengths), (
        "asked twice, it decides otherwise"
    )
    written = sum(result.rows for result in results)
    grown = sum(growth.rows for growth in state.grown)
    assert state.open.rows == _rows(state.open)
    assert set(state.open.files) == {segment.file for part in state.open for segment in part.segments}
    assert _rows(head.open) + written == _rows(state.open) + _rows(state.finished) + grown
    assert state.total_rows == head.total_rows + written
    assert state.total_files == head.total_files + len(state.finished)
    assert state.total_bytes == head.total_bytes + sum(file.bytes for file in state.finished)
    assert (state.n, state.parent) == (head.n + 1, head.write)
    _check_names(head, state, taken)
    _check_parts(head, results, state)
    expected = head.batches | ({batch.query: (batch.number, batch.fingerprint)} if batch else {})
    assert state.batches == expected


def _check_names(head: State, state: State, taken: AbstractSet[str]) -> None:
    """Every file has a unique name, and no writer uses a number twice."""
    paths = [file.path for file in state.finished]
    assert len(set(paths)) == len(paths)
    assert not taken & set(paths)
    assert state.floor >= head.floor
    for writer in {int(writer) for writer in {*head.sequences, *state.sequences}}:
        assert state.sequence(writer) >= head.sequence(writer)


def _check_parts(head: State, results: list[TaskResult], state: State) -> None:
    """No part occurs twice; each is as it was before or as a task reported it; each staged range belongs to one part or file only."""
    keys = Counter(part.key for part in state.open)
    assert not keys or max(keys.values()) == 1
    known = {*head.open, *(part for result in results for part in result.open)}
    assert set(state.open) <= known
    staged = Counter((segment.file, segment.start) for part in state.open for segment in part.segments)
    staged += Counter((file.staged, 0) for file in state.finished)
    staged += Counter((segment.file, segment.start) for growth in state.grown for segment in growth.segments)
    assert not staged or max(staged.values()) == 1


def _rows(parts: Any) -> int:
    return sum(part.rows for part in parts)
