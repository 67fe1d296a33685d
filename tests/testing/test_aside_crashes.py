"""Records set aside, on a disk that loses power at every call: each record is once a row or a line about it, or not yet either."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from penstock.formats.aside import Aside, BeginAgain, about_records
from penstock.testing import Crashable, CrashDisk, CrashHdfs, ObjectStore, explore, visible
from tests.support.effort import effort
from tests.testing.sink_program import QUERY, ROOT, SinkProgram, Step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.sink.sink import Begun, Sink, TaskResult

ROLL, FINISH = Step(what="roll"), Step(what="finish")
SCRIPTS: dict[str, tuple[list[Step], dict[str, str]]] = {
    "rolled": ([Step((3, 2)), Step((2, 0)), ROLL, Step((1, 4)), FINISH], {"rollSize": "60", "rollInactivity": "30s"}),
    "open over batches": ([Step((2, 1)), Step((1, 2)), Step((2,)), FINISH], {"rollSize": "1m"}),
    "a last batch": ([Step((2, 1)), Step((3, 2), "final")], {"rollSize": "1m", "mergeBelow": "1"}),
}


class AsideProgram(SinkProgram):
    """A sink that sets every second row aside; its tasks first read rows that they have to drop and read again."""

    def _write(self, sink: Sink, begun: Begun, batch: int, number: int, writer: int) -> TaskResult:
        if begun.has(QUERY, batch):  # a committed batch is drained and not read
            return super()._write(sink, begun, batch, number, writer)
        lines = bytes(self._rows(number, writer)).splitlines(keepends=True)
        aside = Aside(restarts=True)
        return sink.write(begun, QUERY, batch, writer, self._schema, _Rows(lines, aside), aside=aside)

    def _visible(self, disk: Crashable) -> dict[str, bytes]:
        files = super()._visible(disk)
        for path, data in visible(disk.storage(), f"{ROOT}/_penstock/s/quarantine").items():
            held = [json.loads(line)["bytes"].encode() for line in data.splitlines()]
            files[f"aside/{path.removeprefix('aside-')}"] = b"".join(held)
        return {path.replace("aside/s", "aside/part-s"): data for path, data in files.items()}


class _Rows:
    """Lines of which every second one is set aside; the first read breaks off in the middle."""

    def __init__(self, lines: list[bytes], aside: Aside) -> None:
        self._lines = lines
        self._aside = aside
        self._again = False

    def __iter__(self) -> Iterator[bytes]:
        for place, line in enumerate(self._lines):
            if place % 2:
                self._aside.take(about_records("/in/a", np.array([place]), pa.array([line], pa.binary()), ["odd"]))
            else:
                yield line
        if not self._again:
            self._again = True
            raise BeginAgain


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("profile", [CrashDisk, CrashHdfs, ObjectStore], ids=["disk", "hdfs", "objects"])
def test_crash_anywhere(name: str, profile: Callable[..., Crashable]) -> None:
    """Rows and records set aside are decided together, however often the driver dies, and whatever a task has dropped."""
    report = explore(AsideProgram(*SCRIPTS[name]), profile=profile, images_max=4, states_max=effort(150, 5000))
    assert not report.complaints, report.first
    assert report.states >= 25
