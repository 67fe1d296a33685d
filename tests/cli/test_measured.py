"""What the listener takes from a batch: its offset, its ledger, its phases; run without Spark, with the objects that Spark passes."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from penstock.metrics.meter import Meter

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import Pipeline


class Option:
    """Scala's Option of a string."""

    def __init__(self, value: str | None) -> None:
        self._value = value

    def isDefined(self) -> bool:  # noqa: N802 - Scala's name
        return self._value is not None

    def get(self) -> str | None:
        return self._value


class Session:
    """A session with one query; its plan has the options of the sink."""

    def __init__(self, options: dict[str, str]) -> None:
        plan = SimpleNamespace(writeOptions=lambda: SimpleNamespace(get=lambda name: Option(options.get(name))))
        java = SimpleNamespace(streamingQuery=lambda: SimpleNamespace(logicalPlan=lambda: plan))
        self.streams = SimpleNamespace(get=lambda _: SimpleNamespace(_jsq=java))


def test_a_batch_is_measured_by_its_offset_and_its_ledger(pipeline: Callable[..., Pipeline]) -> None:
    """Input and output counts are those of offset and ledger, and phases are in seconds; a query with neither of ours is not reported."""
    measuring = pytest.importorskip("penstock.spark.measuring")
    run = pipeline(query="4f6f7c1e")
    run.put("a.txt", "one", "two")
    run.run(finish=False)
    meter, session = Meter(), Session({"path": str(run.dst)})
    listener = measuring.MeasuringListener(cast("Any", session), meter)
    source = SimpleNamespace(endOffset=json.dumps(run.offset))
    progress = SimpleNamespace(
        id=run.query, batchId=0, sources=[source], durationMs={"addBatch": 250, "triggerExecution": 500}
    )
    listener.onQueryProgress(SimpleNamespace(progress=progress))
    [subject] = meter.subjects()
    values = {name: value for (name, label), value in subject.values.items() if not label}
    expected = {
        "rows": 2,
        "input_files": 1,
        "input_bytes": 8,
        "left_files": 0,
        "open_parts": 1,
        "open_rows": 2,
        "batch": 0,
    }
    assert {name: values[name] for name in expected} == expected
    assert subject.values["phase_seconds", "addBatch"] == 0.25
    before = meter.heartbeat(run.query)
    listener.onQueryIdle(SimpleNamespace(id=run.query))
    assert (meter.heartbeat(run.query) or 0) >= (before or 0) > 0
    listener.onQueryTerminated(SimpleNamespace(id=run.query))
    foreign = SimpleNamespace(id="other", batchId=0, sources=[SimpleNamespace(endOffset="17")], durationMs={})
    listener.onQueryProgress(SimpleNamespace(progress=foreign))
    assert list(meter.subjects()) == []
