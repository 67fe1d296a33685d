"""What a test needs and this machine lacks: a reason to skip the test, or to fail it where `make` has promised that it is there."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def missing(name: str, reason: object) -> NoReturn:
    """Skip the test, or fail it where PENSTOCK_REQUIRE_<name> is set."""
    if os.environ.get(f"PENSTOCK_REQUIRE_{name}", "0") not in {"", "0"}:
        pytest.fail(f"PENSTOCK_REQUIRE_{name} is set, but {reason}", pytrace=False)
    pytest.skip(str(reason))


def missing_store(kind: str, reason: object) -> NoReturn:
    """Skip the test, or fail it where PENSTOCK_REQUIRE_STORES names this kind of store."""
    if kind in os.environ.get("PENSTOCK_REQUIRE_STORES", "").split(","):
        pytest.fail(f"PENSTOCK_REQUIRE_STORES names it, but {reason}", pytrace=False)
    pytest.skip(str(reason))
