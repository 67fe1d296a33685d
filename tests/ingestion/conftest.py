"""Fixtures for tests of ingests: the commands as the command line has them, and commands that start without delay."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cli.conftest import penstock, pipeline
from tests.support.forked import Commands, forking

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["commands", "penstock", "pipeline"]


@pytest.fixture(scope="session")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    """Yield an object that starts commands without the start-up time of an interpreter."""
    with forking(tmp_path_factory.mktemp("commands")) as begins:
        yield begins
