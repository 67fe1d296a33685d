"""A storage that consists of one file, `toy.py`, and one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from penstock.errors import OptionError
from penstock.ingestion.places import checkpoint_place
from penstock.options import SINK, parse
from penstock.query.batch import Batch
from penstock.sink.sink import Sink
from penstock.storage import Storage, _locate, locate
from tests.storage import toy
from tests.support.driven import TEXT, DrivenSource
from tests.support.storage_contract import InTurnContract, StorageContract

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def line(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Register the toy's scheme, as the one line of a storage does."""
    monkeypatch.setitem(_locate.BY_SCHEME, "toy:", toy.located)
    yield
    toy.FILES.clear()


class TestToyStorage(InTurnContract, StorageContract):
    """The promises that every storage keeps."""

    @pytest.fixture
    def storage(self) -> Storage:
        return toy.ToyStorage()

    @pytest.fixture
    def root(self) -> str:
        return "toy:/root"


def test_a_checkpoint_is_refused_where_spark_cannot_write() -> None:
    """A storage with directories that the JVM does not know cannot hold a checkpoint: Spark would fail with a stack trace."""

    class WithDirectories(toy.ToyStorage):
        has_directories = True

    with pytest.raises(
        OptionError, match="the checkpoint would be in DST, where Spark's JVM cannot write; give a checkpoint"
    ):
        checkpoint_place(WithDirectories(), "toy:/out/checkpoint", None)


def test_a_stream_reads_and_writes_a_storage_that_is_one_file_and_one_line() -> None:
    """A source reads lines from one toy address, a sink writes them to another, and they are read again from there, in batches."""
    storage, _ = locate("toy:/in")
    storage.put_if_absent("toy:/in/0.log", b"0 one\n0 two\n")
    source = DrivenSource(TEXT, path="toy:/in", format="text", settle="0s")
    sink = Sink(storage, "toy:/out", parse(SINK, {"path": "toy:/out", "format": "text"}, what="sink"), "s")
    schema = pa.schema([("value", pa.string())])
    for number in range(2):
        assert source.plan()
        batch = Batch("q", number)
        begun = sink.begin("driver", batch)
        rows = (each.cast(schema) for each in source.batches())
        sink.commit(batch, [sink.write(begun, "q", number, 0, schema, rows)])
        storage.put_if_absent(f"toy:/in/{number + 1}.log", f"{number + 1} one\n{number + 1} two\n".encode())
    sink.finish("driver")
    read = DrivenSource(TEXT, path="toy:/out", format="text", settle="0s").run()
    assert sorted(read) == ["0 one", "0 two", "1 one", "1 two"]
