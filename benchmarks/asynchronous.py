"""`python -m benchmarks.asynchronous`: the asynchronous operator against a bare pool of workers.

They take turns in one process, so that drift of the machine affects all alike; the pool runs on Python's own event loop, and on one like
the operator's. A call is `asyncio.sleep`; measured is the time that the operator adds. Figures are medians; the shares are of
the pool's (or of the unordered) speed.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import threading
from typing import TYPE_CHECKING, Annotated, Any

import pyarrow as pa
import typer
from rich.console import Console
from rich.table import Table

from penstock import clock
from penstock.aio.function import Adapted
from penstock.aio.interpreter import new_loop, tuned
from penstock.aio.operator import Operator
from penstock.aio.rows import Shape
from penstock.aio.settings import Settings
from penstock.aio.stage import Place, Plan, run

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

CALL_SECONDS = 0.01
STRAGGLER_SECONDS = 1.0
ONE_IN = 100
_names = itertools.count()
Loop = asyncio.AbstractEventLoop


async def quick(row: Any) -> tuple[int]:  # noqa: ANN401, ARG001 - a number here, a row there
    """Return at once."""
    return (1,)


async def slow(row: Any) -> tuple[int]:  # noqa: ANN401, ARG001 - a number here, a row there
    """Take ten milliseconds."""
    await asyncio.sleep(CALL_SECONDS)
    return (1,)


async def straggling(row: int) -> tuple[int]:
    """Take ten milliseconds, but a second in one call of a hundred."""
    await asyncio.sleep(CALL_SECONDS if row % ONE_IN else STRAGGLER_SECONDS)
    return (1,)


def pool(fn: Any, rows: int, capacity: int, loop: Callable[[], Loop] = asyncio.new_event_loop) -> float:  # noqa: ANN401 - one of the functions above
    """Return the seconds that a bare pool of `capacity` workers takes, on Python's own event loop or another one."""

    async def main() -> None:
        left, done = iter(range(rows)), []

        async def work() -> None:
            for row in left:
                done.append(await fn(row))  # noqa: PERF401 - each when it is there

        await asyncio.gather(*(work() for _ in range(capacity)))
        assert len(done) == rows

    return timed(lambda: on(loop(), main()))


def on(loop: Loop, work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine to its end on a new event loop."""
    try:
        loop.run_until_complete(work)
    finally:
        loop.close()


def core(fn: Any, rows: int, capacity: int, **settings: Any) -> float:  # noqa: ANN401 - one of the functions above
    """Return the operator's seconds, with its outcomes taken on the same loop, which runs like a task's."""

    async def main() -> None:
        woken, count = asyncio.Event(), 0
        made = Settings(capacity=capacity, **settings)
        operator = Operator(Adapted(fn), ("out",), made, notify=woken.set, enough=max(capacity // 2, 1))
        operator.feed(range(rows))
        operator.end()
        while not operator.done or count < rows:
            taken = operator.take(rows)
            count += len(taken)
            if not taken:
                await woken.wait()
                woken.clear()
        assert count == rows
        await operator.close()

    def work() -> None:
        with tuned(capacity):
            on(new_loop(), main())

    return timed(work)


def stage(fn: Any, rows: int, capacity: int) -> float:  # noqa: ANN401 - one of the functions above
    """Return a task's seconds, from Arrow to Arrow, through the thread of the loop."""
    shape = Shape(pa.schema([pa.field("out", pa.int64())]), keep_input=True, with_error=False)
    plan = Plan(f"bench-{next(_names)}", Adapted(fn), Settings(capacity=capacity), shape, "fail")
    size = 10_000
    batches = [pa.record_batch({"n": pa.array(range(at, min(at + size, rows)))}) for at in range(0, rows, size)]
    count = 0

    def main() -> None:
        nonlocal count
        count = sum(batch.num_rows for batch in run(plan, Place("bench", 0, "bench-"), iter(batches)))

    seconds = timed(main)
    assert count == rows
    assert threading.active_count() < 2 * (next(_names) + 2)  # there is no thread for each record
    return seconds


def spark(fn: Any, rows: int, capacity: int, tasks: int) -> Callable[[], float]:  # noqa: ANN401 - one of the functions above
    """Return a function that measures a query over this number of tasks, without the session's start."""
    import penstock  # noqa: PLC0415 - only here

    session = penstock.local_session("local[2]")
    frame = penstock.async_map(session.range(0, rows, 1, tasks), fn, schema="out long", capacity=capacity)

    def once() -> float:
        return timed(lambda: frame.write.format("noop").mode("overwrite").save())

    once()
    return once


def timed(work: Callable[[], None]) -> float:
    """Return the seconds that the work takes."""
    begin = clock.monotonic()
    work()
    return clock.monotonic() - begin


def turns(repeat: int, *contenders: Callable[[], float]) -> list[float]:
    """Return the median seconds of each contender; they run in turn."""
    rounds = [[contender() for contender in contenders] for _ in range(repeat)]
    return [statistics.median(times) for times in zip(*rounds, strict=True)]


def main(
    *, scale: Annotated[float, typer.Option(help="Size of the input.")] = 1, repeat: Annotated[int, typer.Option()] = 5
) -> None:
    """Measure, and print a table: what was asked for, and what there is."""
    table = Table("what", "asked", "measured")
    for capacity, rows, asked in ((100, 20_000, "95 %"), (1000, 100_000, "85 %")):
        count = max(int(rows * scale), capacity)
        bare, alike, ours, task = turns(
            repeat,
            lambda n=count, c=capacity: pool(slow, n, c),
            lambda n=count, c=capacity: pool(slow, n, c, new_loop),
            lambda n=count, c=capacity: core(slow, n, c),
            lambda n=count, c=capacity: stage(slow, n, c),
        )
        table.add_row(f"10 ms calls, capacity {capacity}: core, of a bare pool", asked, f"{bare / ours:.0%}")
        table.add_row(f"10 ms calls, capacity {capacity}: core, of one on the same loop", "-", f"{alike / ours:.0%}")
        table.add_row(f"10 ms calls, capacity {capacity}: task, of a bare pool", "-", f"{bare / task:.0%}")
    count = max(int(20_000 * scale), ONE_IN)
    loose, strict = turns(
        repeat,
        lambda: core(straggling, count, count, ordered=False),
        lambda: core(straggling, count, count, ordered=True),
    )
    table.add_row("1 % of 1 s, within capacity: ordered, of unordered", "80 %", f"{loose / strict:.0%}")
    count = max(int(200_000 * scale), 1)
    ours, limited, task, whole = turns(
        repeat,
        lambda: core(quick, count, 100),
        lambda: core(quick, count, 100, timeout=60.0),
        lambda: stage(quick, count, 100),
        spark(quick, count, 100, tasks=1),
    )
    for what, asked, seconds in (
        ("core", "30", ours),
        ("core, with a time-out", "30", limited),
        ("task", "-", task),
        ("Spark", "40", whole),
    ):
        table.add_row(f"calls that return at once: {what}, microseconds a row", asked, f"{1e6 * seconds / count:.1f}")
    count, capacity, tasks = max(int(100_000 * scale), 1), 100, 2
    start, whole = turns(repeat, spark(slow, tasks, capacity, tasks), spark(slow, count, capacity, tasks))
    possible = count / (tasks * capacity) * CALL_SECONDS
    what = "10 ms calls, 2 tasks x capacity 100: Spark, of what is possible"
    table.add_row(f"{what}, after the start of {start:.2f} s", "90 %", f"{possible / (whole - start):.0%}")
    table.add_row(f"{what}, with it", "-", f"{possible / whole:.0%}")
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
