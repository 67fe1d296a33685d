"""Tables over outputs that are not on a disk of this host: on a real HDFS, and in an object store."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from penstock import unique
from penstock.catalogs import delta
from penstock.catalogs.follower import catalog
from penstock.errors import OptionError
from penstock.options import SINK, parse
from penstock.sink.sink import Batch, Sink
from penstock.storage import locate
from tests.support import stores

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.hdfs import MiniHdfs
    from tests.support.stores import StoreServer

TABLE = "logs.events"


def publish(url: str, number: int) -> list[str]:
    """Publish a batch with two Parquet files, driving the sink as Spark does; return the paths of all its files."""
    storage, root = locate(url)
    options = {"path": root, "format": "parquet", "bucketBy": "k={k}", "dropBucketColumns": "true"}
    sink = Sink(storage, root, parse(SINK, options, what="sink"), "s")
    rows = pa.record_batch({"id": pa.array([number, number], pa.int64()), "k": ["a b", "c"]})
    batch = Batch("q", number, f"offsets of {number}", final=True)
    begun = sink.begin("a driver", batch)
    sink.commit(batch, [sink.write(begun, "q", number, 0, rows.schema, iter([rows]))])
    sink.finish("a driver")
    return sorted(f"{root}/{file.path}" for file in sink.ledger.history())


def followed(url: str, kind: str, tmp_path: Path) -> None:
    """Add two batches to a table, the second one by two followers at once; each file is there once."""
    pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}[kind])
    place = f"sqlite:///{tmp_path}/catalog.db"
    given: dict[str, Any] = {"delta": True} if kind == "delta" else {"iceberg": TABLE, "catalog": place}
    publish(url, 0)
    assert [catalog(url, **given).files for _ in range(2)] == [2, 0]
    files = publish(url, 1)
    with ThreadPoolExecutor(2) as both:
        done = [both.submit(catalog, url, **given) for _ in range(2)]
    assert sum(each.result().files for each in done) == 2
    if kind == "delta":
        import deltalake  # noqa: PLC0415 - optional

        table = deltalake.DeltaTable(url, storage_options=delta.options())
        assert sorted(uri.replace("%20", " ") for uri in table.file_uris()) == files
        assert sorted(table.to_pyarrow_table()["id"].to_pylist()) == [0, 0, 1, 1]
        return
    from pyiceberg.catalog.sql import SqlCatalog  # noqa: PLC0415 - optional

    opened = SqlCatalog("penstock", uri=place, warehouse=str(tmp_path)).load_table(TABLE)
    assert sorted(opened.inspect.files()["file_path"].to_pylist()) == files
    with pytest.raises(OptionError, match="is on no disk of this host.*--catalog with a name .*or with a file such as"):
        catalog(url, iceberg=TABLE)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_an_output_on_hdfs(hdfs: MiniHdfs, tmp_path: Path, kind: str) -> None:
    """A table over HDFS lists the right files; Iceberg needs a catalogue elsewhere, because its file cannot lie beside them."""
    followed(f"{hdfs.url}/{unique.token()}", kind, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_an_output_in_a_store_of_objects(
    moto: StoreServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The same in an object store, with keys and address from the environment."""
    stores.use(moto, monkeypatch)
    followed(f"s3://bucket/{unique.token()}", kind, tmp_path)
