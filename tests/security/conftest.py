"""A clock that stands still, an output directory, and a directory next to it that nothing may touch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import clock
from penstock.testing import FakeClock
from tests.support.output import Output


@pytest.fixture
def output(tmp_path: Path) -> Iterator[Output]:
    fake = FakeClock()
    with clock.use(fake):
        yield Output(tmp_path / "out", fake)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """Return a directory with one file, which stands for everything that we must not read or write."""
    directory = tmp_path / "elsewhere"
    directory.mkdir()
    (directory / "secret.txt").write_text("secret\n")
    return directory
