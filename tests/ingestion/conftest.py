"""What tests of ingests have: the commands, as those of the command line have them, and others that cost no start."""

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
    """Return what begins commands that cost no start."""
    with forking(tmp_path_factory.mktemp("commands")) as begins:
        yield begins
