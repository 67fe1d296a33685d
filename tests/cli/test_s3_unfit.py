"""Servers that look like object stores but let several writers win: the doctor finds them, and no sink writes there."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pyarrow as pa
import pytest

from penstock.cli.doctor import _look_at
from penstock.errors import UnfitStore
from penstock.options import SINK, parse
from penstock.sink.sink import Batch, Sink
from penstock.storage import locate
from tests.support.stores import UNFIT, NoStore, StoreServer, running, use

RACES = 10  # each run is 25 rounds; how many of them such a server fails is random


@pytest.fixture(params=UNFIT)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[StoreServer]:
    """Return each of these servers that PENSTOCK_REQUIRE_STORES names: its jars are downloaded."""
    if request.param not in os.environ.get("PENSTOCK_REQUIRE_STORES", "").split(","):
        pytest.skip("make test-stores fetches its jars")
    try:
        with running(request.param, tmp_path_factory.mktemp(request.param)) as server:
            use(server, monkeypatch)
            yield server
    except NoStore as error:
        pytest.fail(f"PENSTOCK_REQUIRE_STORES names it, but {error}", pytrace=False)


def test_a_server_that_lets_several_win_is_found(server: StoreServer) -> None:
    """The doctor reports the broken promise, and from then on a sink on that output is refused, with the way out."""
    address = f"{server.make('bucket')}/out"
    findings = next(
        (each for each in (list(_look_at(address)) for _ in range(RACES)) if each[-1].state == "problem"), None
    )
    assert findings is not None, f"{server.kind} passed {RACES} times"
    assert "rounds" in findings[-1].text or "another file" in findings[-1].text, findings[-1]
    storage, root = locate(address)
    sink = Sink(storage, root, parse(SINK, {"path": root}, what="sink"), "sink")
    with pytest.raises(UnfitStore, match="take another store"):
        sink.write(
            sink.begin("driver", Batch("query", 0, "")), "query", 0, 0, pa.schema([("value", pa.string())]), [b"one\n"]
        )
