"""Who may commit: the driver that took the sink over last. Spark does not enforce it, so each sink remembers who that is.

1. Driver A is stopped in front of its commit of batch 1: SIGSTOP, a paused machine, a long stop of its JVM.
2. Driver B takes over, repeats batch 1 and commits 2. A goes on.

So a batch begins by writing its driver down where the last batch is, and a commit by another one is `Fenced`. A sink that
counts how often it was taken over (its *epoch*) also tells a driver from what the same driver was before.

The comparison must hold at the moment of the commit: the sink makes it under the lock, or by the conditional put, that
commits.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import Fenced


@dataclass(frozen=True)
class Claim:
    """A driver's right to commit; `epoch` where the sink counts. Either may be unknown to the caller."""

    driver: str = ""
    epoch: int | None = None

    def holds(self, held: Claim) -> bool:
        """Tell whether this is still the claim that the sink has."""
        if self.epoch is not None and held.epoch is not None:
            return self.epoch == held.epoch
        return self.driver == held.driver


def check(sink: str, held: Claim, mine: Claim) -> None:
    """Raise `Fenced` unless the sink, which is called `sink` in the message, has the claim of the caller."""
    if not mine.holds(held):
        raise overtaken(sink, held, mine)


def overtaken(sink: str, held: Claim, mine: Claim) -> Fenced:
    """Return the error of a driver that was replaced by another one."""
    name = f" {mine.driver!r}" if mine.driver else ""
    epoch = "" if mine.epoch is None else f"has epoch {mine.epoch} and "
    since = "" if held.epoch is None else f" (epoch {held.epoch})"
    msg = (
        f"{sink} belongs to driver {held.driver!r}{since} by now; this driver{name} {epoch}has changed nothing; stop it, or "
        "let it start again to take the sink over"
    )
    return Fenced(msg)
