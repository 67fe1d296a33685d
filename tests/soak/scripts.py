"""Random scripts for the crash explorer: a few steps of a sink, drawn from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass

from penstock.testing import Report, explore
from tests.testing.sink_program import SinkProgram, Step

STATES_MAX = 10_000  # for one script; many scripts find more than one that is explored completely
_CHOICES = {
    "rollSize": ("1", "30", "60", "1m"),
    "rollRows": ("1", "2", "3"),
    "rollBatches": ("1", "2"),
    "rollInterval": ("30s", "50s", "90s"),
    "rollInactivity": ("30s", "50s"),
    "mergeBelow": ("1", "20", "1m"),
    "compression": ("gzip",),
    "bucketBy": ("k={k}",),
}


@dataclass(frozen=True)
class Script:
    """A program, and how deeply and widely it is crashed."""

    seed: int
    steps: list[Step]
    options: dict[str, str]
    row_bytes: int
    abandoned: bool
    depth: int
    images_max: int

    def explore(self, states_max: int) -> Report:
        """Explore it."""
        program = SinkProgram(self.steps, self.options, row_bytes=self.row_bytes, abandoned=self.abandoned)
        return explore(program, depth=self.depth, seed=self.seed, images_max=self.images_max, states_max=states_max)


def script(seed: int) -> Script:
    """Return the script of this seed."""
    chance = random.Random(f"{seed} script")  # noqa: S311 - repeatable
    steps = [Step(_rows(chance)), *(_step(chance) for _ in range(chance.randint(1, 5)))]
    last = Step(_rows(chance), "final") if chance.random() < 0.3 else Step(what="finish")
    options = {name: chance.choice(values) for name, values in _CHOICES.items() if chance.random() < 0.3}
    if "bucketBy" in options:
        options["dropBucketColumns"] = "true"  # text has one column
    if chance.random() < 0.2:
        options = {"growing": "true", "fileName": "all.txt"}
    row_bytes = chance.choice((12, 12, 12, 3000))
    return Script(
        seed,
        [*steps, last],
        options,
        row_bytes,
        chance.random() < 0.2,
        chance.choice((1, 2, 2, 3)),
        chance.choice((4, 8, 24)),
    )


def _step(chance: random.Random) -> Step:
    drawn = chance.random()
    if drawn < 0.2:
        return Step(what="roll")
    return Step(what="finish") if drawn < 0.25 else Step(_rows(chance))


def _rows(chance: random.Random) -> tuple[int, ...]:
    return tuple(chance.randint(0, 4) for _ in range(chance.randint(0, 3)))
