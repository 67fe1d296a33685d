"""Keys that a real MinIO restricts by policies: missing rights are reported before Spark starts, and the minimum is enough."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import AccessRefused, StorageError
from penstock.ingestion.call import IngestCall
from penstock.ingestion.ingest import check
from penstock.options import SINK, parse
from penstock.sink.sink import Batch, Sink
from penstock.storage import _objects_native, locate, names_at
from penstock.verify import verify
from tests.support.driven import TEXT, DrivenSource
from tests.support.required import missing_store
from tests.support.stores import KEY, SECRET, NoStore, StoreServer, running, use

pytestmark = pytest.mark.slow  # starts a server

READ = ["s3:GetObject"]
WRITE = [*READ, "s3:PutObject", "s3:DeleteObject"]
_numbers = count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    """Return a MinIO with a bucket; required if PENSTOCK_REQUIRE_STORES names it (`make test-stores`)."""
    try:
        with running("minio", tmp_path_factory.mktemp("minio")) as server:
            server.make("bucket")
            yield server
    except NoStore as error:
        missing_store("minio", error)


@pytest.fixture
def place(server: StoreServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return an address that no other test uses, with one input object, for keys with all rights."""
    use(server, monkeypatch)
    place = f"s3://bucket/{next(_numbers)}"
    locate(place)[0].put_if_absent(f"{place}/in/a.txt", b"one\ntwo\n")
    return place


@pytest.fixture
def limited(server: StoreServer, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that gives this process keys with only the rights in these policy statements."""

    def limit(*statements: dict[str, Any]) -> None:
        import boto3  # noqa: PLC0415 - of the extra

        policy = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", **each} for each in statements]}
        made = boto3.client(
            "sts",
            endpoint_url=server.endpoint,
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
            region_name="us-east-1",
        )
        with closing(made) as client:
            keys = client.assume_role(
                RoleArn="arn:aws:iam::0:role/any", RoleSessionName="limited", Policy=json.dumps(policy)
            )["Credentials"]
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", keys["AccessKeyId"])
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", keys["SecretAccessKey"])
        monkeypatch.setenv("AWS_SESSION_TOKEN", keys["SessionToken"])
        monkeypatch.setattr(_objects_native, "_clients", {})

    return limit


def objects(place: str, actions: list[str], below: str = "") -> dict[str, Any]:
    """Return the statement that allows these actions on the objects below a place."""
    return {"Action": actions, "Resource": [f"arn:aws:s3:::{place.removeprefix('s3://')}/{below}*"]}


def listing(**condition: Any) -> dict[str, Any]:
    """Return the statement that allows listing the bucket."""
    return {"Action": ["s3:ListBucket"], "Resource": ["arn:aws:s3:::bucket"], **condition}


def checked(place: str, tmp_path: Path) -> None:
    """Check an ingest as the command does before it starts Spark."""
    check(IngestCall(f"{place}/in", f"{place}/out", source={}, sink={}, checkpoint=f"{tmp_path}/checkpoint"))


@pytest.mark.parametrize("right", ["list", "s3:GetObject", "s3:PutObject", "s3:DeleteObject"])
def test_a_right_that_a_policy_does_not_give_is_told_before_spark_starts(
    place: str, tmp_path: Path, limited: Callable[..., None], right: str
) -> None:
    """One right is missing: the error has the store's own words, the path, and the rights that are needed."""
    rights = [action for action in WRITE if action != right]
    limited(objects(place, rights), *([] if right == "list" else [listing()]))
    with pytest.raises(AccessRefused, match=r"AccessDenied|Access Denied|403") as raised:
        checked(place, tmp_path)
    assert place in str(raised.value)
    assert "get, put, delete, list" in str(raised.value)
    limited(objects(place, WRITE), listing())
    checked(place, tmp_path)


def test_a_right_that_is_there_for_the_input_alone_is_told(
    place: str, tmp_path: Path, limited: Callable[..., None]
) -> None:
    """Keys may use the input but not the output, or the other way round: the error names the place that is refused."""
    limited(objects(place, WRITE, "in/"), listing())
    with pytest.raises(AccessRefused, match=rf"{place}/out"):
        checked(place, tmp_path)
    limited(objects(place, WRITE, "out/"), listing())
    with pytest.raises(AccessRefused, match=rf"{place}/in"):
        checked(place, tmp_path)


def test_the_least_that_is_enough(place: str, tmp_path: Path, limited: Callable[..., None]) -> None:
    """Get and list the input; get, put, delete and list the output: that is enough to read, write, publish and verify."""
    prefixes = [f"{place.removeprefix('s3://bucket/')}/{name}" for name in ("in", "in/*", "out", "out/*")]
    listed = listing(Condition={"StringLike": {"s3:prefix": prefixes}})
    limited(objects(place, READ, "in/"), objects(place, WRITE, "out/"), listed)
    checked(place, tmp_path)
    source = DrivenSource(TEXT, path=f"{place}/in", settle="0")
    lines = "".join(f"{line}\n" for line in source.run())
    storage, root = locate(f"{place}/out")
    sink = Sink(storage, root, parse(SINK, {"path": root, "rollBatches": "1"}, what="sink"), "sink")
    for number in range(2):
        batch = Batch("query", number, "")
        begun = sink.begin("driver", batch)
        written = sink.write(begun, "query", number, 0, pa.schema([("value", pa.string())]), [lines.encode()])
        sink.commit(batch, [written])
    assert verify(root).ok
    assert [name for name in names_at(storage, root) if name[0] != "_"] == ["part-sink-0-0.txt", "part-sink-0-1.txt"]
    with pytest.raises(StorageError, match=f"{place}/in"):
        storage.put_if_absent(f"{place}/in/b.txt", b"")
