"""A clock that does not run, and an output directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import clock
from penstock.testing import FakeClock
from tests.support.output import Output


@pytest.fixture
def time() -> Iterator[FakeClock]:
    fake = FakeClock()
    with clock.use(fake):
        yield fake


@pytest.fixture
def output(tmp_path: Path, time: FakeClock) -> Output:
    return Output(tmp_path / "out", time)
