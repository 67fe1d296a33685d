"""An operator driven by a test: on virtual time, with a consumer that takes outputs at once, or when the test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any

from penstock.aio.function import Adapted
from penstock.aio.operator import Operator
from penstock.aio.outcome import Counts, Failure, RowOutcome
from penstock.aio.settings import Settings
from penstock.testing import run_virtual

NAMES = ("out",)


@dataclass
class Told:
    """What an operator did: outcomes in order of emission, their times, and its counts; `failure` is the error that ended it."""

    outcomes: list[RowOutcome] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    failure: Failure | None = None
    ended: float = 0.0
    stuck: int = 0

    @property
    def outs(self) -> list[Any]:
        """Return the outputs in the order in which they were emitted."""
        return [value for outcome in self.outcomes for (value,) in outcome.outputs]

    @property
    def kinds(self) -> dict[int, str]:
        """Return the kinds of the failures by row."""
        return {outcome.index: outcome.failure.kind for outcome in self.outcomes if outcome.failure}


def drive(
    fn: Any,
    rows: Iterable[Any],
    *,
    names: tuple[str, ...] = NAMES,
    meanwhile: Callable[[Operator], Coroutine[Any, Any, None]] | None = None,
    arrive: float = 0.0,
    on_error: Any = "fail",
    key: Any = None,
    share: Any = None,
    **settings: Any,
) -> Told:
    """Run the rows through an operator; one row arrives every `arrive` seconds. `meanwhile` runs concurrently."""

    async def main() -> Told:
        loop = asyncio.get_running_loop()
        told, woken = Told(), asyncio.Event()
        made = Settings(**settings)
        function = Adapted(fn)
        operator = Operator(
            function, names, made, notify=woken.set, on_error=on_error, key=key, share=share, prefix="q-0-"
        )
        beside = loop.create_task(meanwhile(operator)) if meanwhile else None

        async def feeding() -> None:
            if not arrive:
                operator.feed(rows)
            else:
                for row in rows:
                    operator.feed([row])
                    await asyncio.sleep(arrive)
            operator.end()

        feeder = loop.create_task(feeding())
        while operator.failure is None:
            taken = operator.take(1000)
            told.outcomes += taken
            told.times += [loop.time()] * len(taken)
            if not taken and operator.done:
                break
            if not taken:
                await woken.wait()
                woken.clear()
        told.ended = loop.time()
        told.failure = operator.failure.failure if operator.failure else None
        for task in (feeder, beside):
            if task is not None:
                task.cancel()
        told.stuck = await operator.close()
        told.counts = operator.counts
        return told

    return run_virtual(main())
