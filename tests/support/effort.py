"""How far a test goes that could go on for hours, and from which seed."""

from __future__ import annotations

import os
from typing import TypeVar

_EVERYTHING = os.environ.get("PENSTOCK_EXPLORE", "0") not in {"", "0"}
_Value = TypeVar("_Value")


def effort(gate: _Value, everything: _Value) -> _Value:
    """Return the first, with which `make test` meets every moment and finds what each rule is for, or that of `make explore`."""
    return everything if _EVERYTHING else gate


def soak_seed() -> int:
    """Return the seed of a soak, another one each time unless PENSTOCK_SEED says which, and print it for who wants to repeat it."""
    seed = int(os.environ.get("PENSTOCK_SEED") or int.from_bytes(os.urandom(4), "big"))
    print(f"PENSTOCK_SEED={seed}")  # noqa: T201 - it is repeated by this
    return seed
