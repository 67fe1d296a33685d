"""How far a test goes that could go on for hours."""

from __future__ import annotations

import os
from typing import TypeVar

_EVERYTHING = os.environ.get("PENSTOCK_EXPLORE", "0") not in {"", "0"}
_Value = TypeVar("_Value")


def effort(gate: _Value, everything: _Value) -> _Value:
    """Return the first, with which `make test` meets every moment and finds what each rule is for, or that of `make explore`."""
    return everything if _EVERYTHING else gate
