"""An output, a clock that does not run, and a table of each kind over the output."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import clock
from penstock.testing import FakeClock
from tests.catalogs.tables import Table
from tests.cli.conftest import penstock
from tests.support.forked import Commands, forking
from tests.support.output import Output

__all__ = ["penstock"]
LIBRARIES = {"iceberg": "pyiceberg", "delta": "deltalake"}


@pytest.fixture
def output(tmp_path: Path) -> Iterator[Output]:
    fake = FakeClock()
    with clock.use(fake):
        yield Output(tmp_path / "out", fake)


@pytest.fixture(params=LIBRARIES)
def table(request: pytest.FixtureRequest, output: Output, monkeypatch: pytest.MonkeyPatch) -> Table:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")  # polars warns because it has no planner of its own
    library = LIBRARIES[request.param]
    pytest.importorskip(library, reason=f"{library} is not installed (pip install 'penstock[{request.param}]')")
    return Table(request.param, output)


@pytest.fixture(scope="session")
def followers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    """Return a starter of `penstock catalog` without start-up costs: its libraries take seconds to import."""
    libraries = "deltalake", "pyiceberg.catalog.sql", "pyiceberg.io.pyarrow", "penstock.catalogs.follower"
    with forking(tmp_path_factory.mktemp("followers"), libraries=libraries) as commands:
        yield commands
