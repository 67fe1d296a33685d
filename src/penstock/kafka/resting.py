"""A query that has read all it may, while records are there: a transaction that nobody ends keeps them back. It is told, not failed.

1. *The producer of a transaction hangs, or is gone.* The last stable offset stays where it began; every batch is empty, and nothing
   tells this query from one whose topic is quiet. Rule: where nothing new is decided for a minute, brokers are asked what is written, and
   a warning says what waits, since when, and how to find out whose transaction it is; again every ten minutes.
2. *Transactions that come and go.* Each moves the stable offset when it ends. Rule: an offset that moves begins the minute anew.
3. *A topic that is quiet.* Rule: it is asked for once a minute, not at every trigger.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from penstock import clock

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.kafka.cluster import Asked, End
    from penstock.kafka.offset import Partition

_REST_SECONDS = 60.0  # and is asked no more often than that
_AGAIN_SECONDS = 600.0  # behind a warning
_TOLD_PARTITIONS = 10  # at a time
_log = logging.getLogger("penstock.kafka")


class Resting:
    """What one planner has seen of partitions in which nothing new is decided."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._since: dict[Partition, tuple[int, float]] = {}
        self._ask_at: dict[Partition, float] = {}

    def see(self, at: Mapping[Partition, int], ends: Mapping[Partition, End], cluster: Asked) -> None:
        """See where partitions are read up to, and where what is decided ends. Warns; raises what a question to brokers does."""
        now = clock.monotonic()
        stable = {partition: end.offset for partition, end in ends.items() if end.offset <= at[partition]}
        self._note(stable, now)
        if due := sorted(partition for partition in stable if self._ask_at[partition] <= now):
            self._ask(due, cluster, now)

    def _note(self, stable: Mapping[Partition, int], now: float) -> None:
        """Note since when which partitions rest, at which offset."""
        for partition in self._since.keys() - stable.keys():
            del self._since[partition], self._ask_at[partition]
        for partition, offset in stable.items():
            if self._since.get(partition, (None,))[0] != offset:
                self._since[partition], self._ask_at[partition] = (offset, now), now + _REST_SECONDS

    def _ask(self, due: list[Partition], cluster: Asked, now: float) -> None:
        """Ask what is written in partitions that rest, and tell where that is more than is decided."""
        written = cluster.written(due)
        held = [partition for partition in due if written[partition] > self._since[partition][0]]
        self._ask_at |= dict.fromkeys(due, now + _REST_SECONDS) | dict.fromkeys(held, now + _AGAIN_SECONDS)
        for partition in held[:_TOLD_PARTITIONS]:
            offset, since = self._since[partition]
            _log.warning("%s", self._words(partition, offset, written[partition], now - since))
        if held[_TOLD_PARTITIONS:]:
            _log.warning("transaction open: also in %d more partitions", len(held) - _TOLD_PARTITIONS)

    def _words(self, partition: Partition, offset: int, written: int, seconds: float) -> str:
        return (
            f"transaction open: partition {partition.number} of topic {partition.topic!r} has been read up to offset {offset} for "
            f"{seconds:.0f} s; what is written behind it, up to offset {written}, waits for a transaction to end, and the query with it; "
            f"{whose(partition, offset, self._servers)}"
        )


def whose(partition: Partition, offset: int, servers: str) -> str:
    """Return how to find out whose transaction is open from an offset on, and how to end it."""
    place = f"--topic {partition.topic} --partition {partition.number}"
    tool = f"kafka-transactions.sh --bootstrap-server {servers}"
    return f"`{tool} describe-producers {place}` says whose it is, and `{tool} abort {place} --start-offset {offset}` ends one that hangs"
