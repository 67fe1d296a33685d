"""Which process runs which test: as xdist decides it, in less time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdist.scheduler import LoadGroupScheduling

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController


class ForgetfulScheduling(LoadGroupScheduling):  # type: ignore[misc]  # xdist has no type hints
    """Forgets what a process has done: xdist counts all of it anew behind each test, which is a square of their number."""

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        """Note that a test is done, and drop its group with the last of it."""
        super().mark_test_complete(node, item_index, duration)
        units = self.assigned_work[node]
        group = self._split_scope(self.registered_collections[node][item_index])
        if all(units[group].values()):
            del units[group]
