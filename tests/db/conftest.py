"""Both databases, real ones: every test that asks for `place` runs on each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.database import At, Place


@pytest.fixture
def at() -> Iterator[At]:
    """Return what makes a place of a url; its connections are closed behind the test."""
    made: list[Place] = []

    def place(url: str) -> Place:
        made.append(Place(url))
        return made[-1]

    yield place
    for each in made:
        each.close()


@pytest.fixture(params=[pytest.param("postgresql", marks=pytest.mark.slow), "sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path, at: At) -> Place:
    """Return a place in either database."""
    return at(f"sqlite://{tmp_path}/x.db" if request.param == "sqlite" else request.getfixturevalue("postgres").url)
