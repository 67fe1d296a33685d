"""The keeper: a small process that closes parts when their time is up, and all parts when the query has ended.

Problem. An idle stream has no batches, so no code of the sink runs; and Spark does not tell a sink that its query has ended.
Measured on Spark 4.3: a thread in the Python worker that commits dies with the worker, which Spark kills after a minute without
work and at the end of the JVM, without `atexit` or `finally`.

Idea. The commit that leaves parts open starts a separate process, one for each sink and driver. It has its own process session,
so it outlives the worker and the JVM. It rolls parts that are too old or idle for too long. It publishes everything, and then
ends, when the query is reported to have ended or its driver is gone (a JVM, or an ingest without one). It only does what any
driver could do through the ledger: if it is never started or is killed, parts stay open until the next start of the query, or
`penstock finish`.

The keeper and a batch must not act at the same time, or the batch would lose (failure 3 of `sink.sink`). Both take a lock on this
host: `begin` notes that a batch is in flight, `commit` that it is over, and the keeper does nothing in between. After a failed
batch the keeper waits for the next batch, or for the end of the query.

If the storage fails, the keeper tries again: an idle stream has no batch that would publish its parts instead. Once the query has ended
it tries for some minutes.

The wall clock says when a part will be too old; the keeper also waits for that time by a monotonic clock. If the wall clock is
set back, the keeper still looks when the wait is over, and closes parts whose times were written by a clock that was ahead (see
`rolling`).

The commit that starts the keeper notes when the first part's time will be up. Until then, and if another process has published
everything when the query ended, the keeper only reads its note: it imports nothing that reads or writes files of data, which
would take a fifth of a second of a core and 50 MB of memory.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import psutil
import xxhash

from penstock import clock
from penstock.errors import PenstockError, StorageError
from penstock.options import SINK, parse
from penstock.query.driver import is_alive, query_of, running
from penstock.storage import HostFact, locate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from penstock.sink.openparts import OpenPart
    from penstock.sink.sink import Sink

_POLL_SECONDS = 0.2
_ENDING_SECONDS = 5.0
_LOOK_SECONDS = 0.002
_AGAIN_SECONDS = 10.0
_ENDED_SECONDS = 300.0
_PUBLISHED = "published"
_children: dict[int, subprocess.Popen[bytes]] = {}  # the keepers that this process has started, by process id


def fact_of(sink: Sink, driver: str) -> HostFact:
    """Return the fact that the processes of one driver share about one sink; its name begins with a digest of the query's id."""
    return HostFact(_named(query_of(driver)) + _named(json.dumps([sink.root, sink.sink_id, driver])))


def _named(text: str) -> str:
    return xxhash.xxh3_64_hexdigest(text.encode())


def batch_begins(fact: HostFact, driver: str) -> None:
    """Hold the keeper off until `batch_ends`; waits until it has finished what it does now.

    This also holds off a keeper that was told that the query has ended but has not acted yet: the query was started again.
    """
    with fact.locked() as state:
        for name in ("ended", "until"):
            state.pop(name, None)
        state["busy"] = True
        state["jvm"] = _process_of(driver)


def batch_ends(fact: HostFact, sink: Sink, driver: str, parts: Sequence[OpenPart]) -> None:
    """Let the keeper act again; start it if `parts` are open and no keeper runs."""
    with fact.locked() as state:
        state["busy"] = False
        if parts and _keeper_of(fact, state) is None:
            state.update(_description(sink, driver, parts))
            state["keeper"] = _start(fact)
        elif not parts and not state.get("keeper"):
            state.clear()


def _description(sink: Sink, driver: str, parts: Iterable[OpenPart]) -> dict[str, Any]:
    return {
        "look": _look(sink, parts),
        "options": sink.options.given_of(SINK),  # rolling parts needs no stage, and a file must hold no function
        "sink": sink.sink_id,
        "owner": driver,
        "jvm": _process_of(driver),
    }


def _look(sink: Sink, parts: Iterable[OpenPart]) -> list[float] | None:
    """Return when the keeper must look at the sink; `None` if no part is open."""
    look_ns = sink.limits.next_look_ns(parts, clock.now_ns())
    return None if look_ns is None else _look_at(look_ns)


def _look_at(time_ns: int) -> list[float]:
    """Return a time by the wall clock in nanoseconds, and by the monotonic clock; whichever comes first counts.

    The monotonic clock is the same in all processes of a host.
    """
    return [time_ns, clock.monotonic() + (time_ns - clock.now_ns()) / clock.SECOND_NS]


def _process_of(driver: str) -> list[Any] | None:
    """Return the id and the start time of the driver's process: a JVM, or an ingest that runs without one."""
    process = running(driver)
    return [process.pid, process.create_time()] if process else None


def _start(fact: HostFact) -> int:
    command = [sys.executable, "-m", "penstock.sink.keeper", fact.name]
    nowhere = subprocess.DEVNULL  # the worker's pipes lead to the JVM, which the keeper outlives
    keeper = subprocess.Popen(command, stdin=nowhere, stdout=nowhere, stderr=nowhere, start_new_session=True)  # noqa: S603 - our own interpreter
    _reap()
    _children[keeper.pid] = keeper
    return keeper.pid


def _reap() -> None:
    """Collect the exit status of keepers that this process has started; an ended keeper stays a zombie until then."""
    for pid, keeper in list(_children.items()):
        if keeper.poll() is not None:
            del _children[pid]


def sweep() -> None:
    """Remove the facts of drivers that died after `batch_begins` and before a keeper was started.

    A locked fact belongs to a living process.
    """
    for fact in HostFact.all():
        with contextlib.suppress(BlockingIOError), fact.locked(wait=False) as state:
            if _keeper_of(fact, state) is None and not _same(state.get("jvm")):
                state.clear()


def _keeper_of(fact: HostFact, state: Mapping[str, Any]) -> psutil.Process | None:
    """Return the keeper of a fact, which its command line names: another process may have its id by now. `None` if it has ended."""
    with contextlib.suppress(psutil.Error):
        keeper = psutil.Process(state["keeper"]) if state.get("keeper") else None
        if keeper is not None and keeper.cmdline()[-1:] == [fact.name]:  # a zombie has no command line
            return keeper
    return None


def _same(process: list[Any] | None) -> bool:
    """Tell whether the driver's process is still there, and not another process with the same id."""
    try:
        return process is not None and psutil.Process(process[0]).create_time() == process[1]
    except psutil.NoSuchProcess:
        return False


def finish(sink: Sink, driver: str) -> None:
    """Publish the open parts, if the sink still belongs to this driver, and end its keeper.

    Waits until the keeper has finished what it does.
    """
    fact = fact_of(sink, driver)
    with fact.locked() as state:
        _end(_keeper_of(fact, state))
        state.clear()
        if sink.ledger.head().owner == driver:
            sink.finish(driver)


def _end(keeper: psutil.Process | None) -> None:
    """End a keeper. The caller holds the lock of its fact, so the keeper does nothing at the moment.

    The worker that started the keeper collects its exit status only when the worker itself ends, which may be much later; until then
    the ended keeper is a zombie.
    """
    if keeper is None:
        return
    with contextlib.suppress(psutil.Error):
        keeper.kill()
        until = clock.monotonic() + _ENDING_SECONDS
        while is_alive(keeper.pid) and clock.monotonic() < until:
            clock.sleep(_LOOK_SECONDS)
        _reap()


def query_ended(query: str, is_over: Callable[[], bool]) -> None:
    """Publish, in this process, what this query (of this host's user) has left open, and have its keepers end.

    `is_over` is called while no batch can begin: the end of a query is heard late, and the query may have been started again. If
    another driver of the query was stopped while it held its fact, this call does not wait for it: it may stay stopped for ever,
    and is fenced when it continues.
    """
    for fact in HostFact.all():
        if fact.name.startswith(_named(query)):
            waits = not _stands(fact.left().get("jvm"))
            with contextlib.suppress(BlockingIOError), fact.locked(wait=waits) as state:
                _end_query(state, is_over)


def _stands(process: list[Any] | None) -> bool:
    """Tell whether the process of a driver was stopped (SIGSTOP, Ctrl-Z)."""
    try:
        return _same(process) and process is not None and psutil.Process(process[0]).status() == psutil.STATUS_STOPPED
    except psutil.NoSuchProcess:
        return False


def _end_query(state: dict[str, Any], is_over: Callable[[], bool]) -> None:
    """Note once that the query has ended, in a fact whose lock the caller holds, and publish the open parts if the fact names a sink."""
    if "owner" not in state or state.get("ended") or not is_over():
        return
    state["ended"] = True
    if "sink" in state:
        with contextlib.suppress(PenstockError):  # the keeper tries again, and the next start says what is wrong
            _act(state, over=True)
            state["ended"] = _PUBLISHED


def run(name: str) -> None:
    """Keep one sink until its query has ended, its driver is gone, or no part is open any more."""
    fact = HostFact(name)
    while True:
        with fact.locked() as state:
            if _has_nothing_to_do(state):
                state.clear()
                return
        clock.sleep(_POLL_SECONDS)


def _has_nothing_to_do(state: dict[str, Any]) -> bool:
    """Act if it is time to, and tell whether there will be nothing to do any more. The caller holds the lock of the fact."""
    if "sink" not in state or state.get("ended") == _PUBLISHED:
        return True
    over = bool(state.get("ended")) or not _same(state["jvm"])
    if over and "until" not in state:
        state |= {"look": None, "until": clock.monotonic() + _ENDED_SECONDS}
    if (state["busy"] and not over) or not _is_time(state.get("look")):
        return False
    try:
        state["look"] = _act(state, over=over)
    except StorageError:
        state["look"] = _look_at(clock.now_ns() + int(_AGAIN_SECONDS * clock.SECOND_NS))
        return over and clock.monotonic() > state["until"]
    except PenstockError:
        return True  # another driver has the sink, or a person must act: the next start will say what is wrong
    return state["look"] is None


def _is_time(look: list[float] | None) -> bool:
    """Tell whether the time of a look has come, by one of the two clocks; there is none before the first look."""
    return look is None or clock.now_ns() >= look[0] or clock.monotonic() >= look[1]


def _act(state: dict[str, Any], *, over: bool) -> list[float] | None:
    """Finish the sink, or roll parts that are due. Returns the time of the next look, `None` if there is nothing left to keep."""
    from penstock.sink.sink import Sink  # slow to import, and not needed to look for a keeper

    options = parse(SINK, state["options"], what="sink", noted=True)
    storage, root = locate(options["path"])
    sink = Sink(storage, root, options, state["sink"])
    if over:
        sink.finish(state["owner"])
        return None
    sink.roll(state["owner"])
    return _look(sink, sink.ledger.head().open)


if __name__ == "__main__":
    sweep()
    run(sys.argv[1])
