"""The keeper: a small process that closes what time closes, and has the last word.

Problem. An idle stream has no batches, so nothing of the sink runs; and nothing tells a sink that its query has ended.
Measured on Spark 4.3: a thread in the Python worker that commits dies with the worker, which Spark kills after a minute
without work and at the end of the JVM, without `atexit` or `finally`.

Idea. The commit that leaves parts open starts a process of its own (one a sink and driver, in a session of its own, so
that it outlives both). It rolls parts whose age or idleness is over, and publishes everything when the query is said to have
ended or its driver is gone, which is a JVM, or an ingest without one; then it ends. It only does what any driver could do,
through the ledger: if it is never started or is killed, parts stay open until the next start of the query, or
`penstock finish`.

Keeper and batch must not meet, or the batch would lose (failure 3 of `sink.sink`). Both take a lock on this host: `begin`
notes that a batch is in flight, `commit` that it is over, and the keeper does nothing in between. After a batch that
failed it waits for the next one, or for the end.

When a part will be too old is told by the clock, and waited for by one that is never set: where the first falls back, the keeper looks anew
when it would have, and closes what a clock that was ahead has written (see `rolling`).
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
from penstock.errors import PenstockError
from penstock.options import SINK, parse
from penstock.query.driver import is_alive, query_of, running
from penstock.storage import HostFact, locate

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.sink.sink import Sink

_POLL_SECONDS = 0.2
_ENDING_SECONDS = 5.0
_LOOK_SECONDS = 0.002
_children: dict[int, subprocess.Popen[bytes]] = {}  # the keepers that this process has started, by their numbers


def fact_of(sink: Sink, driver: str) -> HostFact:
    """Return the fact that the processes of one driver share about one sink; its name begins with that of the query."""
    return HostFact(_named(query_of(driver)) + _named(json.dumps([sink.root, sink.sink_id, driver])))


def _named(text: str) -> str:
    return xxhash.xxh3_64_hexdigest(text.encode())


def batch_begins(fact: HostFact, driver: str) -> None:
    """Keep the keeper away until `batch_ends`; waits until it is done with what it does now.

    Also one that was told that the query has ended, and has not looked yet: the query was started again.
    """
    with fact.locked() as state:
        state.pop("ended", None)
        state["busy"] = True
        state["jvm"] = _process_of(driver)


def batch_ends(fact: HostFact, sink: Sink, driver: str, *, parts_open: bool) -> None:
    """Let the keeper act again; start it if there is something to keep."""
    with fact.locked() as state:
        state["busy"] = False
        if parts_open and not is_alive(state.get("keeper")):
            state.update(_description(sink, driver))
            state["keeper"] = _start(fact)
        elif not parts_open and not state.get("keeper"):
            state.clear()


def _description(sink: Sink, driver: str) -> dict[str, Any]:
    return {
        "options": sink.options.given_of(SINK),  # what rolls parts needs no stage, and a file holds no function
        "sink": sink.sink_id,
        "owner": driver,
        "jvm": _process_of(driver),
    }


def _process_of(driver: str) -> list[Any] | None:
    """Return the number and the start of the driver's process: a JVM, or an ingest that runs without one."""
    process = running(driver)
    return [process.pid, process.create_time()] if process else None


def _start(fact: HostFact) -> int:
    command = [sys.executable, "-m", "penstock.sink.keeper", fact.name]
    nowhere = subprocess.DEVNULL  # the worker's pipes lead to the JVM, which it outlives
    keeper = subprocess.Popen(command, stdin=nowhere, stdout=nowhere, stderr=nowhere, start_new_session=True)  # noqa: S603 - our own interpreter
    _reap()
    _children[keeper.pid] = keeper
    return keeper.pid


def _reap() -> None:
    """Look for the end of those that this process has started: until then each is a process that does not run and is there."""
    for pid, keeper in list(_children.items()):
        if keeper.poll() is not None:
            del _children[pid]


def sweep() -> None:
    """Remove the facts of drivers that died between `batch_begins` and a keeper. What is held belongs to a living one."""
    for fact in HostFact.all():
        with contextlib.suppress(BlockingIOError), fact.locked(wait=False) as state:
            if not is_alive(state.get("keeper")) and not _same(state.get("jvm")):
                state.clear()


def _same(process: list[Any] | None) -> bool:
    """Tell whether the JVM is still there, and not another process by the same number."""
    try:
        return process is not None and psutil.Process(process[0]).create_time() == process[1]
    except psutil.NoSuchProcess:
        return False


def finish(sink: Sink, driver: str) -> None:
    """Publish what is open, if the sink is still this driver's, and end its keeper. Waits for what the keeper does."""
    fact = fact_of(sink, driver)
    with fact.locked() as state:
        _end(state.get("keeper"), fact)
        state.clear()
        if sink.ledger.head().owner == driver:
            sink.finish(driver)


def _end(pid: int | None, fact: HostFact) -> None:
    """End the keeper of a fact that the caller holds, and so does nothing now.

    The number may be another process's by now, so that one is asked what it is. The worker that has started the keeper looks for its end
    only when it ends itself, which may be much later: until then the number is there, and nothing that runs.
    """
    with contextlib.suppress(psutil.Error):
        keeper = psutil.Process(pid) if pid else None
        if keeper is None or keeper.cmdline()[-1:] != [fact.name]:
            return
        keeper.kill()
        until = clock.monotonic() + _ENDING_SECONDS
        while is_alive(pid) and clock.monotonic() < until:
            clock.sleep(_LOOK_SECONDS)
        _reap()


def query_ended(query: str, is_over: Callable[[], bool]) -> None:
    """Publish what this query (of this host's user) has left open, here and now, and have its keepers end.

    `is_over` is asked while no batch can begin: ends are heard late, and the query may have been started again. Another driver of the
    query that was stopped while it held its fact is not waited for: it may stand for ever, and is fenced when it goes on.
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
    """Note in a fact that the caller holds that its query has ended, once, and publish what is open if there is a sink."""
    if "owner" not in state or state.get("ended") or not is_over():
        return
    state["ended"] = True
    if "sink" in state:
        _act(state, over=True)


def run(name: str) -> None:
    """Keep one sink until its query has ended, its JVM is gone, or there is nothing open any more."""
    fact = HostFact(name)
    look_ns, waited = 0, 0.0  # by either clock, whichever is there first
    while True:
        with fact.locked() as state:
            if "sink" not in state:
                state.clear()
                return
            over = state.get("ended") or not _same(state["jvm"])
            if over or (not state["busy"] and (clock.now_ns() >= look_ns or clock.monotonic() >= waited)):
                look_ns = _act(state, over=over)
                waited = clock.monotonic() + (look_ns - clock.now_ns()) / clock.SECOND_NS
            if look_ns < 0:
                state.clear()
                return
        clock.sleep(_POLL_SECONDS)


def _act(state: dict[str, Any], *, over: bool) -> int:
    """Finish, or roll what is due; return the time of the next look, negative when there is nothing left to keep."""
    from penstock.sink.sink import Sink  # looking for a keeper needs none of it, and it takes its time

    options = parse(SINK, state["options"], what="sink", noted=True)
    storage, root = locate(options["path"])
    sink = Sink(storage, root, options, state["sink"])
    try:
        if over:
            sink.finish(state["owner"])
            return -1
        sink.roll(state["owner"])
    except PenstockError:
        return -1  # another driver has the sink, or it needs a person: the next start will say what is wrong
    expiry = sink.limits.next_expiry_ns(sink.ledger.head().open)
    return -1 if expiry is None else expiry


if __name__ == "__main__":
    sweep()
    run(sys.argv[1])
