"""Both databases, for real: every test that asks for `place` runs on each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.database import At, Place


@pytest.fixture
def at() -> Iterator[At]:
    """Yield a function that makes a place from a url; its connections are closed after the test."""
    made: list[Place] = []

    def place(url: str) -> Place:
        made.append(Place(url))
        return made[-1]

    yield place
    for each in made:
        each.close()


@pytest.fixture(params=[pytest.param("postgresql", marks=pytest.mark.slow), "sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path, at: At) -> Place:
    """Return a place in one of the two databases."""
    return at(f"sqlite://{tmp_path}/x.db" if request.param == "sqlite" else request.getfixturevalue("postgres").url)
