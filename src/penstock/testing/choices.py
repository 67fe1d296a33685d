"""Chooses which of the many states that a crash may leave are looked at."""

from __future__ import annotations

import random
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

IMAGES_MAX = 24  # for one moment; if there are more, they are drawn at random


def combinations_of(choices: Sequence[Sequence[Any]], seed: int | str, *, limit: int) -> Iterator[tuple[Any, ...]]:
    """Yield one of each choice: every combination if there are at most `limit`, otherwise so many, drawn by `seed`.

    If they are drawn, the first two are the extremes: the first of each choice, and the last of each.
    """
    if prod(map(len, choices)) <= limit:
        yield from product(*choices)
        return
    yield tuple(choice[0] for choice in choices)
    yield tuple(choice[-1] for choice in choices)
    draw = random.Random(seed)  # noqa: S311 - which images are looked at is no secret
    for _ in range(limit - 2):
        yield tuple(draw.choice(choice) for choice in choices)
