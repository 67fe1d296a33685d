"""A query that has read everything it may while records exist that an open transaction keeps back. This is reported, not failed.

1. *The producer of a transaction hangs, or is gone.* The last stable offset stays where the transaction began; every batch is empty,
   and nothing distinguishes this query from one whose topic is quiet. Rule: if nothing new is decided for a minute, brokers are asked
   what is written, and a warning says what waits, since when, and how to find out whose transaction it is; the warning is repeated
   every ten minutes.
2. *Transactions that come and go.* Each moves the stable offset when it ends. Rule: an offset that moves restarts the minute.
3. *A topic that is quiet.* Rule: brokers are asked once a minute, not at every trigger.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from penstock import clock

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.kafka.cluster import Asked, End
    from penstock.kafka.offset import Partition

_REST_SECONDS = 60.0  # brokers are also asked no more often than that
_AGAIN_SECONDS = 600.0  # after a warning
_TOLD_PARTITIONS = 10  # at a time
_log = logging.getLogger("penstock.kafka")


class Resting:
    """What one planner has seen of partitions in which nothing new is decided."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._since: dict[Partition, tuple[int, float]] = {}
        self._ask_at: dict[Partition, float] = {}

    def see(self, at: Mapping[Partition, int], ends: Mapping[Partition, End], cluster: Asked) -> None:
        """Note up to where partitions are read, and up to where records are decided. Warns; raises what a question to brokers raises."""
        now = clock.monotonic()
        stable = {partition: end.offset for partition, end in ends.items() if end.offset <= at[partition]}
        self._note(stable, now)
        if due := sorted(partition for partition in stable if self._ask_at[partition] <= now):
            self._ask(due, cluster, now)

    def _note(self, stable: Mapping[Partition, int], now: float) -> None:
        """Note since when partitions rest, and at which offset."""
        for partition in self._since.keys() - stable.keys():
            del self._since[partition], self._ask_at[partition]
        for partition, offset in stable.items():
            if self._since.get(partition, (None,))[0] != offset:
                self._since[partition], self._ask_at[partition] = (offset, now), now + _REST_SECONDS

    def _ask(self, due: list[Partition], cluster: Asked, now: float) -> None:
        """Ask what is written in partitions that rest, and warn if that is more than is decided."""
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
            f"{seconds:.0f} s; what is written after it, up to offset {written}, waits for a transaction to end, and the query with it; "
            f"{whose(partition, offset, self._servers)}"
        )


def whose(partition: Partition, offset: int, servers: str) -> str:
    """Return how to find out who has the transaction that is open from an offset on, and how to end it."""
    place = f"--topic {partition.topic} --partition {partition.number}"
    tool = f"kafka-transactions.sh --bootstrap-server {servers}"
    return f"`{tool} describe-producers {place}` says whose it is, and `{tool} abort {place} --start-offset {offset}` ends one that hangs"
