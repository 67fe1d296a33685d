"""Which driver may commit: the one that took over the sink last. Spark does not enforce it, so each sink remembers its driver.

1. Driver A is stopped before its commit of batch 1: SIGSTOP, a paused machine, a long pause of its JVM.
2. Driver B takes over, repeats batch 1 and commits 2. A continues.

So beginning a batch records its driver where the last batch is recorded, and a commit by another driver is `Fenced`. A sink that counts
how often it was taken over (its *epoch*) can also tell a driver from an earlier take-over by the same driver.

The comparison must hold at the moment of the commit: the sink makes it under the lock, or with the conditional put, that commits.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import Fenced


@dataclass(frozen=True)
class Claim:
    """A driver's right to commit; `epoch` if the sink counts. The caller may not know one of them."""

    driver: str = ""
    epoch: int | None = None

    def holds(self, held: Claim) -> bool:
        """Tell whether this is still the claim that the sink holds."""
        if self.epoch is not None and held.epoch is not None:
            return self.epoch == held.epoch
        return self.driver == held.driver


def check(sink: str, held: Claim, mine: Claim) -> None:
    """Raise `Fenced` unless the sink holds the claim of the caller; messages call the sink `sink`."""
    if not mine.holds(held):
        raise overtaken(sink, held, mine)


def overtaken(sink: str, held: Claim, mine: Claim) -> Fenced:
    """Return the error for a driver that was replaced by another one."""
    name = f" {mine.driver!r}" if mine.driver else ""
    epoch = "" if mine.epoch is None else f"has epoch {mine.epoch} and "
    since = "" if held.epoch is None else f" (epoch {held.epoch})"
    msg = (
        f"{sink} belongs to driver {held.driver!r}{since} by now; this driver{name} {epoch}has changed nothing; stop it, or "
        "let it start again to take the sink over"
    )
    return Fenced(msg)
