"""Passes what the processes of a query count (`tally`) to the process that measures the query, on the driver's host.

The process that commits belongs to Spark and is not the one that answers monitors, and this host is the only connection between the
two. So the process that measures a query makes a fact of this host, and the commit of a batch adds to it, if it is there. If nobody
measures, nothing is written. The fact is not durable; when it is lost, a monitor misses some numbers. `docs/formats/host-fact.md`
describes its contents.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import psutil
import xxhash

from penstock import tally
from penstock.errors import StorageError
from penstock.storage import HostFact, is_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

# When this process ends, the fact has no owner any more. The facts of the keeper name their process in the same way.
_COUNTS, _PROCESS = "counts", "jvm"
_PHASED = {tally.SYNCS, tally.SYNC_SECONDS}


def measure(query: str) -> None:
    """Start counting the batches of a query, until `forget` or the end of this process."""
    this = psutil.Process()
    with _unless_away(), _fact(query).locked(wait=False) as state:
        state.setdefault(_COUNTS, {})
        state[_PROCESS] = [this.pid, this.create_time()]


def counts(query: str) -> dict[str, float]:
    """Return what was counted for a query since `measure`."""
    with _unless_away(), _known(query) as state:
        return dict(state.get(_COUNTS, {}))
    return {}


def forget(query: str) -> None:
    """Stop counting the query."""
    with _unless_away(), _known(query) as state:
        state.clear()


def note(query: str, phases: Iterable[tuple[str, Mapping[str, float]]]) -> None:
    """Add what was counted in phases of a batch, if somebody measures the query. Never raises, and never waits."""
    with _unless_away(), _known(query) as state:
        if _COUNTS in state:
            sums = Counter(state[_COUNTS])
            for phase, amounts in phases:
                sums.update(
                    {f"{name} {phase}" if name in _PHASED else name: amount for name, amount in amounts.items()}
                )
            state[_COUNTS] = dict(sums)


@contextmanager
def _known(query: str) -> Iterator[dict[str, Any]]:
    """Yield the fact of a query, an empty one if nobody measures it; `BlockingIOError` if another process holds it."""
    fact = _fact(query)
    if not is_file(fact.path):
        yield {}
        return
    with fact.locked(wait=False) as state:
        yield state


def _unless_away() -> suppress:
    """Continue without the numbers if another process holds the fact, or if it is not available."""
    return suppress(OSError, StorageError)


def _fact(query: str) -> HostFact:
    return HostFact(f"measured-{xxhash.xxh3_64_hexdigest(query.encode())}")
