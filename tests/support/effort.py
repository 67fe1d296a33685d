"""How far a test goes that could run for hours, and from which seed."""

from __future__ import annotations

import os
from typing import TypeVar

_EVERYTHING = os.environ.get("PENSTOCK_EXPLORE", "0") not in {"", "0"}
_Value = TypeVar("_Value")


def effort(gate: _Value, everything: _Value) -> _Value:
    """Return `everything` for `make explore`, else `gate`, which is enough to meet every moment and to find what each rule is for."""
    return everything if _EVERYTHING else gate


def soak_seed() -> int:
    """Return the seed of a soak, a new one each time unless PENSTOCK_SEED gives it, and print it so that the run can be repeated."""
    seed = int(os.environ.get("PENSTOCK_SEED") or int.from_bytes(os.urandom(4), "big"))
    print(f"PENSTOCK_SEED={seed}")  # noqa: T201 - it is repeated by this
    return seed
