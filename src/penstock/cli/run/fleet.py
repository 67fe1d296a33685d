"""All pipelines of a command: started, looked after, replaced by a reload, stopped.

A reload has three rules. A pipeline that the new file has unchanged runs on and notices nothing. A pipeline that
changed or is gone is drained as at a stop. Its successor starts when it has ended, never beside it: two queries with
one checkpoint would fence each other. A successor is any pipeline that claims what the old one has, also under another
name; so is a pipeline that an earlier reload has stopped, and that this reload brings back as it was. A file with a
mistake changes nothing.

Two commands with one file: each file is locked while it is run, and the second command says so before it starts
anything. The lock is for people; the ledger makes sure that nothing is written twice.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from penstock import clock
from penstock.cli.run.runner import Runner
from penstock.cli.run.status import Phase, PipelineStatus, Told

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.cli.run.plan import FleetPlan, Planned
    from penstock.cli.run.runner import Ingest
    from penstock.cli.run.status import Watcher

_log = logging.getLogger("penstock.run")


class Fleet:
    """The pipelines of one command, by name. Only one thread may use it."""

    def __init__(self, plan: FleetPlan, ingest: Ingest, watchers: Iterable[Watcher] = ()) -> None:
        self.plan = plan
        self._ingest = ingest
        self._watchers = tuple(watchers)
        self._runners: dict[str, Runner] = {}
        self._told: dict[str, Told] = {}
        self._successors: dict[str, Planned] = {}
        self._stopping = False

    def start(self) -> None:
        """Start every pipeline of the plan."""
        for planned in self.plan.pipelines.values():
            self._begin(planned)

    def _begin(self, planned: Planned) -> None:
        before = self._told.get(planned.name)
        first = PipelineStatus(planned.name, since_ns=clock.now_ns())
        if before is not None:  # the counts of this command continue
            first = PipelineStatus(
                planned.name, since_ns=clock.now_ns(), retries=before.status.retries, fenced=before.status.fenced
            )
        self._told[planned.name] = Told(self._watchers, first)
        runner = Runner(planned, self._ingest, self._told[planned.name], self.plan.secrets)
        self._runners[planned.name] = runner
        for watcher in self._watchers:
            watcher.changed(first, first)
        runner.start()

    @property
    def statuses(self) -> list[PipelineStatus]:
        """Return the status of each pipeline, by name. Any thread may call it."""
        return [told.status for _, told in sorted(self._told.copy().items())]

    @property
    def stopping(self) -> bool:
        """Whether all pipelines were asked to end."""
        return self._stopping

    @property
    def over(self) -> bool:
        """Whether nothing runs, and nothing is to be started."""
        return not self._successors and all(runner.over for runner in self._runners.values())

    def tick(self) -> None:
        """Start each pipeline whose predecessor has ended by now; forget those that are gone. To be called again and again."""
        for name, runner in list(self._runners.items()):
            if runner.over and name not in self.plan.pipelines and not self._stopping:
                del self._runners[name], self._told[name]
                for watcher in self._watchers:
                    watcher.gone(name)
        for name, planned in list(self._successors.items()):
            if self._may_begin(planned):
                del self._successors[name]
                self._begin(planned)

    def _may_begin(self, planned: Planned) -> bool:
        """Tell whether no running pipeline holds what this one claims."""
        mine = set(planned.claims)
        return all(runner.over or mine.isdisjoint(runner.planned.claims) for runner in self._runners.values())

    def take(self, fresh: FleetPlan) -> None:
        """Switch to what the files ask for now."""
        if (fresh.master, fresh.config) != (self.plan.master, self.plan.config):
            _log.warning("reload: changes to [spark] take effect at the next start")
        self._successors.clear()
        before, self.plan = self.plan, fresh
        stopped = [name for name, runner in self._runners.items() if self._must_end(name, runner)]
        for name in stopped:
            self._runners[name].stop(before.drain)
        for name, planned in fresh.pipelines.items():
            failed = name in self._told and self._told[name].status.phase == Phase.FAILED
            if name not in self._runners or name in stopped or failed:
                self._successors[name] = planned
        self.tick()
        _log.info("reloaded: %d pipelines, %d of them new or changed, %d gone", *self._counts(before, stopped))

    def _must_end(self, name: str, runner: Runner) -> bool:
        """Tell whether the running pipeline is not the planned one, or was asked to end by a reload that has been reverted since."""
        return runner.asked or self.plan.pipelines.get(name) != runner.planned

    def _counts(self, before: FleetPlan, stopped: list[str]) -> tuple[int, int, int]:
        now, then = self.plan.pipelines.keys(), before.pipelines.keys()
        return len(now), len(now - then) + len(now & set(stopped)), len(then - now)

    def stop(self, seconds: float) -> None:
        """Have all end within `seconds`."""
        self._stopping = True
        self._successors.clear()
        for runner in self._runners.values():
            runner.stop(seconds)

    def join(self, seconds: float) -> list[str]:
        """Wait for all to end; return the names of those that have not ended after `seconds`."""
        until = clock.monotonic() + seconds
        return [name for name, runner in self._runners.items() if not runner.join(until - clock.monotonic())]
