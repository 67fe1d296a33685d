"""Which process runs which test: what xdist decides, in less time."""

from __future__ import annotations

import importlib
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from xdist.scheduler import LoadGroupScheduling

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController


def import_in_turn(config: pytest.Config, process: dict[str, Any]) -> None:
    """Import the tests in one of xdist's processes before they are collected; each process begins with a different part of them.

    In a fresh clone pytest rewrites the assertions of each file that it imports, which takes eight seconds in all. A process
    that comes to a file later finds this done; if all began with the same file, each would do everything. Collection reports a
    file that cannot be imported.
    """
    asked = [Path(config.invocation_params.dir, argument.partition("::")[0]) for argument in config.args]
    files = [file for path in asked for file in ([path] if path.is_file() else sorted(path.rglob("test_*.py")))]
    first = len(files) * int(process["workerid"].removeprefix("gw")) // process["workercount"]
    for file in files[first:] + files[:first]:
        with suppress(Exception, pytest.skip.Exception):
            importlib.import_module(".".join(file.relative_to(config.rootpath).with_suffix("").parts))


class ForgetfulScheduling(LoadGroupScheduling):  # type: ignore[misc]  # xdist has no type hints
    """Begins groups in the order of their first tests, and forgets what a process has done.

    xdist begins with the group that has the most tests, which need not be the longest. After each test it counts again all that
    a process has done, and it searches for each test among all tests, so both take time that grows with the square of their
    number.
    """

    def schedule(self) -> None:
        """Give each process its first tests."""
        self.config.option.loadscopereorder = False
        super().schedule()

    def _assign_work_unit(self, node: WorkerController) -> None:
        """Give a process the next group of tests."""
        group, unit = self.workqueue.popitem(last=False)
        self.assigned_work.setdefault(node, {})[group] = unit
        node.send_runtest_some([self._places[test] for test, is_done in unit.items() if not is_done])

    @cached_property
    def _places(self) -> dict[str, int]:
        """The position of each test among all tests, which is the same in every process."""
        return {test: place for place, test in enumerate(self.collection)}

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        """Note that a test is done, and drop its group after the last of its tests."""
        super().mark_test_complete(node, item_index, duration)
        units = self.assigned_work[node]
        group = self._split_scope(self.registered_collections[node][item_index])
        if all(units[group].values()):
            del units[group]
