"""Directories that tests of a source have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def src(tmp_path: Path) -> Path:
    """Return an input directory that is empty."""
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Return the path of an archive, which is not there yet."""
    return tmp_path / "old"
