"""Commands on an output in an object store: what they find, what they refuse, and the doctor that races conditional puts."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.catalogs.follower import catalog
from penstock.cli.doctor import _look_at
from penstock.cli.state import clean
from penstock.errors import OptionError, UnfitStore
from penstock.ingestion.call import IngestCall
from penstock.ingestion.ingest import check
from penstock.options import SINK, parse
from penstock.sink.sink import Batch, Sink
from penstock.storage import _contest, check_fit, contest, locate, names_at
from penstock.storage._objects import ObjectStorage
from penstock.unique import token
from tests.support.follows import follows
from tests.support.stores import Relay, StoreServer, use

pytestmark = pytest.mark.slow  # starts a server


@pytest.fixture
def store(moto: StoreServer, monkeypatch: pytest.MonkeyPatch) -> StoreServer:
    use(moto, monkeypatch)
    monkeypatch.setattr(_contest, "_ROUNDS", 5)
    return moto


def written(address: str) -> Sink:
    """Return a sink that has published a batch of two lines."""
    storage, root = locate(address)
    sink = Sink(storage, root, parse(SINK, {"path": root, "rollBatches": "1"}, what="sink"), "sink")
    begun = sink.begin("driver", Batch("query", 0, ""))
    result = sink.write(begun, "query", 0, 0, pa.schema([("value", pa.string())]), [b"one\ntwo\n"])
    sink.commit(Batch("query", 0, ""), [result])
    return sink


def test_uploads_that_nobody_finished_are_cleaned(store: StoreServer) -> None:
    """A copy or a long file that a kill cut off leaves an upload that no listing shows; `clean` reports and removes it."""
    storage, root = locate("s3://bucket/cleaned")
    assert isinstance(storage, ObjectStorage)
    with closing(store.client()) as client:
        client.create_multipart_upload(Bucket="bucket", Key="cleaned/k=a/part-1.txt")
        client.create_multipart_upload(Bucket="bucket", Key="elsewhere/part-1.txt")
    sink = written("s3://bucket/cleaned")
    assert sink.ledger.head().finished
    for yes in (False, True):
        (left,) = clean("s3://bucket/cleaned", yes=yes).facts["files"]
        assert (left["path"], left["what"]) == (f"{root}/k=a/part-1.txt", "upload that nobody finished")
    assert clean("s3://bucket/cleaned", yes=True).facts["files"] == []
    assert len(list(storage.abandoned("s3://bucket/elsewhere", 1 << 62))) == 1


def test_the_doctor_races_puts(store: StoreServer) -> None:
    """A store that lets one writer at a time win is fine; nothing is left of the race."""
    assert [finding.state for finding in _look_at("s3://bucket/well")] == ["ok", "ok"]
    assert names_at(locate("s3://bucket")[0], "s3://bucket/well") == []


@follows("PST-541")
def test_a_store_that_tells_several_yes_is_found_and_refused(
    store: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The doctor finds a server that ignores the condition of a put, and a sink there is refused until the server is fixed."""
    with Relay(store, careless=True) as careless:
        monkeypatch.setenv("AWS_ENDPOINT_URL", careless.endpoint)
        use_anew(monkeypatch)
        broken = contest(*locate("s3://bucket/unfit"))
        assert broken is not None
        assert "more than one of 32" in broken
        assert findings_of("s3://bucket/unfit") == ["problem"]
    monkeypatch.setenv("AWS_ENDPOINT_URL", store.endpoint)
    use_anew(monkeypatch)
    storage, root = locate("s3://bucket/unfit")
    with pytest.raises(UnfitStore, match="does not keep it from that"):
        written(root)
    assert findings_of(root) == ["ok", "ok"]
    check_fit(storage, f"{root}/_penstock")
    written(root)


def findings_of(address: str) -> list[str]:
    """Return the states of the doctor's findings."""
    return [finding.state for finding in _look_at(address)]


def use_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drop the storage clients of this process."""
    from penstock.storage import _objects_native  # noqa: PLC0415 - here alone

    monkeypatch.setattr(_objects_native, "_clients", {})


@pytest.mark.parametrize(
    ("source", "sink", "words"),
    [
        ({"cleanSource": "delete"}, {}, "moves nothing"),
        ({"cleanSource": "archive", "sourceArchiveDir": "s3://bucket/archive"}, {}, "moves nothing"),
        ({"follow": "true"}, {}, "objects do not grow"),
        ({}, {"growing": "true", "fileName": "all"}, "growing=true"),
    ],
)
def test_what_stores_cannot_do_is_refused(
    store: StoreServer, tmp_path: Path, source: dict[str, str], sink: dict[str, str], words: str
) -> None:
    """A store cannot move files, and objects cannot grow: options that need that are refused before anything is read or written."""
    place = f"s3://bucket/{token()}"
    storage, _ = locate(place)
    storage.put_if_absent(f"{place}/in/a.txt", b"one\n")
    with pytest.raises(OptionError, match=words):
        check(IngestCall(f"{place}/in", f"{place}/out", source=source, sink=sink, checkpoint=f"{tmp_path}/checkpoint"))
    assert names_at(storage, place) == ["in"]


@pytest.mark.parametrize("checkpoint", [None, "s3://bucket/checkpoint"])
def test_a_checkpoint_that_spark_cannot_write_is_refused_before_it_starts(
    store: StoreServer, tmp_path: object, checkpoint: str | None
) -> None:
    """Spark's JVM has no jar for a store: an ingest with its checkpoint there is refused, with a place that works; nothing is created."""
    storage, _ = locate("s3://bucket")
    storage.put_if_absent(f"s3://bucket/in/{checkpoint is None}", b"one\n")
    with pytest.raises(OptionError, match="--checkpoint /var"):
        check(IngestCall("s3://bucket/in", "s3://bucket/out", source={}, sink={}, checkpoint=checkpoint))
    assert names_at(storage, "s3://bucket/out") == []
    check(
        IngestCall(
            "s3://bucket/in", "s3://bucket/out", source={}, sink={}, checkpoint=os.fspath(f"{tmp_path}/checkpoint")
        )
    )


def test_finished_files_of_a_store_are_in_tables(
    store: StoreServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Delta table in the store itself and an Iceberg table with a local catalog: each file once, over two runs, read by other engines."""
    deltalake = pytest.importorskip("deltalake", reason="deltalake is not installed (pip install 'penstock[delta]')")
    pytest.importorskip("pyiceberg", reason="pyiceberg is not installed (pip install 'penstock[iceberg]')")
    storage, root = locate("s3://bucket/tables")
    sink = Sink(storage, root, parse(SINK, {"path": root, "rollBatches": "1", "format": "parquet"}, what="sink"), "s")
    rows = pa.record_batch({"id": [1, 2], "name": ["a", "b"]})
    kinds: list[dict[str, Any]] = [
        {"delta": True},
        {"iceberg": "logs.events", "catalog": f"sqlite:///{tmp_path}/c.db"},
    ]
    for number in range(3):
        begun = sink.begin("driver", Batch("query", number, str(number)))
        sink.commit(
            Batch("query", number, str(number)), [sink.write(begun, "query", number, 0, rows.schema, iter([rows]))]
        )
        if number != 1:
            assert [catalog(root, **kind).files for kind in kinds] == [max(number, 1)] * 2
    assert [catalog(root, **kind).files for kind in kinds] == [0, 0]
    options = {"allow_http": "true", "endpoint": store.endpoint}
    assert deltalake.DeltaTable(root, storage_options=options).to_pyarrow_table().num_rows == 6
    from pyiceberg.catalog.sql import SqlCatalog  # noqa: PLC0415 - optional

    listed = SqlCatalog("penstock", uri=f"sqlite:///{tmp_path}/c.db").load_table("logs.events").inspect.files()
    assert sorted(listed["file_path"].to_pylist()) == [f"{root}/part-s-0-{number}.parquet" for number in range(3)]
    assert sum(listed["record_count"].to_pylist()) == 6
