"""Object stores keep the contract, each as a real server: their own behaviour, their failures, and our messages."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from itertools import count

import pytest
import zstandard

from penstock.errors import AccessRefused, AlreadyThere, BadFile, DependencyError, NotThere, OptionError, StorageError
from penstock.storage import ObjectStorage, Storage, _objects_native, locate, names_at
from tests.support.driven import TEXT, DrivenSource
from tests.support.follows import follows
from tests.support.keys import READER_KEY, encrypted
from tests.support.objects_contract import ObjectsContract
from tests.support.required import missing_store
from tests.support.storage_contract import put
from tests.support.stores import KINDS, SECRET, NoStore, Relay, StoreServer, running, use
from tests.support.wait import wait_for

_numbers = count()
_PROCESS_SECONDS = 60.0


@pytest.fixture(scope="module", params=KINDS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    """Return each store found here; those in PENSTOCK_REQUIRE_STORES must exist (`make test-stores`)."""
    try:
        with running(request.param, tmp_path_factory.mktemp(request.param)) as server:
            server.make("contract")
            yield server
    except NoStore as error:
        missing_store(request.param, error)


@pytest.fixture
def found(server: StoreServer, monkeypatch: pytest.MonkeyPatch) -> StoreServer:
    """Return the server as this process finds it: through its environment, with new clients."""
    use(server, monkeypatch)
    return server


@pytest.fixture
def root(found: StoreServer) -> str:
    return f"{found.scheme}://contract/{next(_numbers)}"


@pytest.fixture
def storage(root: str) -> Storage:
    return locate(root)[0]


@pytest.mark.slow  # starts a server
class TestStores(ObjectsContract):
    pass


@pytest.mark.parametrize("name", ["a\nb", "\udcff\udc80", "."])
def test_names_that_are_no_keys(storage: Storage, root: str, name: str) -> None:
    """Control characters, bytes that are not Unicode and a lone dot are refused by name, and nothing is written."""
    with pytest.raises(StorageError, match="no key of an object store"):
        storage.put_if_absent(f"{root}/{name}", b"")
    assert names_at(storage, root) == []


def test_a_store_has_an_address_and_nothing_secret(found: StoreServer, root: str) -> None:
    """A used and pickled storage, its text and its paths contain neither keys nor the server; the pickle works in another process."""
    storage, path = locate(root)
    storage.put_if_absent(f"{path}/a", b"x")
    pickled = pickle.dumps(storage)
    for secret in (*found.environment.values(), SECRET):
        assert secret.encode() not in pickled
        assert secret not in f"{storage!r} {vars(storage)} {path}"
    program = "import pickle, sys; print(pickle.load(sys.stdin.buffer).read(sys.argv[1]))"
    read = subprocess.run(
        [sys.executable, "-c", program, f"{path}/a"],
        input=pickled,
        capture_output=True,
        timeout=_PROCESS_SECONDS,
        check=True,
    )
    assert read.stdout.strip() == b"b'x'"


def test_an_object_that_another_program_put_is_read(found: StoreServer, root: str) -> None:
    """Objects put by boto3 are listed and read; its empty objects for directories are skipped, also with `s3a://`."""
    if found.scheme != "s3":
        pytest.skip("boto3 speaks S3 alone")
    storage, path = locate(root.replace("s3://", "s3a://"))
    assert path == root
    prefix = root.removeprefix("s3://contract/")
    client = found.client()
    for key, data in (("d/", b""), ("d/a", b"1"), ("e/", b""), ("f", b"2")):
        client.put_object(Bucket="contract", Key=f"{prefix}/{key}", Body=data)
    client.close()
    assert sorted((entry.name, entry.is_directory) for entry in storage.list(path)) == [
        ("d", True),
        ("e", True),
        ("f", False),
    ]
    assert names_at(storage, f"{path}/d") == ["a"]
    assert names_at(storage, f"{path}/e") == []
    assert storage.read(f"{path}/d/a") == b"1"


@pytest.mark.slow  # 10 MiB for each store
def test_packed_and_encrypted_objects_are_read(root: str, storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """`.gz`, `.zst`, `.age`, nested, longer than one read, over several batches: each line once; a truncated file is named."""
    monkeypatch.setenv("PENSTOCK_TEST_KEY", READER_KEY)
    draw = random.Random(0)  # noqa: S311 - bytes that do not shrink
    lines = [draw.randbytes(500).hex() for _ in range(20_000)]
    packed = gzip.compress("\n".join(lines).encode(), 1)
    assert len(packed) > 9 << 20
    objects = {
        "a.txt.gz": packed,
        "b.txt.age": encrypted(b"one\r\ntwo\n"),
        "c.txt.gz.age": encrypted(gzip.compress(b"three\n") + gzip.compress(b"four")),
        "d.txt.zst": zstandard.compress(b"five\n"),
        "e.txt.gz": b"",
    }
    for name, data in objects.items():
        storage.put_if_absent(f"{root}/in/{name}", data)
    storage.put_if_absent(f"{root}/cut/f.txt.gz", packed[:-9])
    newest = storage.stat(f"{root}/cut/f.txt.gz").modified_ns
    wait_for(lambda: storage.now_ns() > newest, "the store's clock, which may count in seconds")
    given = {"decryptionKey": "env:PENSTOCK_TEST_KEY", "settle": "0"}
    source = DrivenSource(TEXT, path=f"{root}/in", maxFilesPerTrigger="2", **given)
    assert sorted(source.run()) == sorted([*lines, "one", "two", "three", "four", "five"])
    with pytest.raises(BadFile, match=r"f\.txt\.gz'.*not a whole gzip file"):
        DrivenSource(TEXT, path=f"{root}/cut", settle="0").run()
    with pytest.raises(OptionError, match="decryptionKey"):
        DrivenSource(TEXT, path=f"{root}/in", settle="0").run()


def test_markers_of_directories_are_no_files(storage: Storage, root: str) -> None:
    """Hadoop and EMR leave empty objects `NAME_$folder$` beside their directories: no listing shows them as files."""
    for name, data in (("d_$folder$", b""), ("d/a", b"1"), ("d/e_$folder$", b""), ("f_$folder$", b"2")):
        storage.put_if_absent(f"{root}/{name}", data)
    assert set(names_at(storage, root)) == {"d", "f_$folder$"}
    assert names_at(storage, f"{root}/d") == ["a"]
    assert [path for path, _ in storage.listed_after(root, "")] == ["d/a", "f_$folder$"]


def test_an_empty_object_with_others_below_it_is_a_directory(found: StoreServer, storage: Storage, root: str) -> None:
    """Azure's hierarchical accounts, and some programs, keep an empty object with the very name of a directory."""
    if found.kind in {"versitygw", "minio"}:
        pytest.skip("it keeps no key below another one")
    for name, data in (("d", b""), ("d/a", b"1"), ("d-e", b"")):
        storage.put_if_absent(f"{root}/{name}", data)
    assert storage.stat(f"{root}/d").is_directory
    assert storage.stat(f"{root}/d-e").is_file
    assert sorted((entry.name, entry.is_directory) for entry in storage.list(root)) == [("d", True), ("d-e", False)]
    assert [path for path, _ in storage.listed_after(root, "")] == ["d-e", "d/a"]


def test_a_bucket_that_keeps_versions(found: StoreServer) -> None:
    """A deleted object leaves a version and a delete marker: no listing shows them, and the key is free again."""
    if found.kind not in {"moto", "minio"}:
        pytest.skip("it keeps no versions as it is started here")
    bucket = found.make(f"versions{next(_numbers)}")
    with closing(found.client()) as client:
        client.put_bucket_versioning(Bucket=bucket.removeprefix("s3://"), VersioningConfiguration={"Status": "Enabled"})
    storage, path = locate(f"{bucket}/d")
    for data in (b"1", b"2"):
        storage.put_if_absent(f"{path}/a", data)
        with pytest.raises(AlreadyThere):
            storage.put_if_absent(f"{path}/a", b"other")
        assert storage.read(f"{path}/a") == data
        storage.delete(f"{path}/a")
        assert names_at(storage, path) == []
        with pytest.raises(NotThere):
            storage.stat(path)
    storage.put_if_absent(f"{path}/staged", b"3")
    storage.publish(f"{path}/staged", f"{path}/a")
    assert [(path, entry.size) for path, entry in storage.listed_after(path, "")] == [("a", 1)]


def test_a_replaced_object_of_one_length_has_another_identity(found: StoreServer, root: str) -> None:
    """Two versions of equal length within a second differ by their tags: an overwrite is noticed whatever its time."""
    if found.scheme != "s3":
        pytest.skip("boto3 speaks S3 alone")
    storage, path = locate(root)
    client = found.client()
    identities = set()
    for data in (b"one", b"two"):
        client.put_object(Bucket="contract", Key=f"{root.removeprefix('s3://contract/')}/a", Body=data)
        identities.add(storage.stat(f"{path}/a").identity)
    client.close()
    assert len(identities) == 2


@pytest.mark.slow
def test_what_a_killed_writer_has_uploaded_is_found_and_removed(found: StoreServer, root: str) -> None:
    """S50: a process killed in the middle of a long object leaves an upload that no listing shows; it is found and removed."""
    if found.scheme != "s3":
        pytest.skip("Azure forgets by itself, after a week")
    if found.kind == "minio":
        pytest.skip(
            "MinIO lists uploads of a whole key only, not of a prefix, and removes what is older than a day by itself"
        )
    storage, path = locate(root)
    assert isinstance(storage, ObjectStorage)
    program = (
        "import os, sys; from penstock.storage import locate; storage, path = locate(sys.argv[1]);"
        "file = storage.create(f'{path}/long', unique=True); [file.write(bytes(4 << 20)) for _ in range(6)];"
        "file.sync.__self__; import time; time.sleep(1); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", program, root], timeout=_PROCESS_SECONDS, check=False)
    assert names_at(storage, path) == []
    later = 1 << 62
    assert list(storage.abandoned(path, 0)) == []
    ((left, number),) = storage.abandoned(path, later)
    assert left == f"{path}/long"
    storage.drop(left, number)
    assert list(storage.abandoned(path, later)) == []


@pytest.mark.slow
def test_what_is_too_long_for_one_copy_is_copied_in_parts(
    found: StoreServer, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a limit of 12 MiB instead of 5 GiB: the object is published whole, replaces no other object, and leaves no upload."""
    if found.scheme != "s3":
        pytest.skip("only S3 has part copies")
    import obstore  # noqa: PLC0415 - of the extra

    def copy(*given: object, **options: object) -> None:
        msg = "InvalidRequest: The specified copy source is larger than the maximum allowable size"
        raise obstore.exceptions.GenericError(msg)

    monkeypatch.setattr(obstore, "copy", copy)
    monkeypatch.setattr(_objects_native, "_COPIED_BYTES", 12 << 20)
    monkeypatch.setattr(_objects_native, "_COPIED_PART_BYTES", 5 << 20)
    storage, path = locate(root)
    data = os.urandom(17 << 20)
    with storage.create(f"{path}/staged", unique=True) as file:
        file.write(data)
    storage.publish(f"{path}/staged", f"{path}/part")
    assert names_at(storage, path) == ["part"]
    assert storage.read(f"{path}/part") == data
    put(storage, f"{path}/theirs", b"theirs")
    with storage.create(f"{path}/staged", unique=True) as file:
        file.write(data)
    with pytest.raises(AlreadyThere):
        storage.publish(f"{path}/staged", f"{path}/theirs")
    calls = _objects_native.connect(storage.bucket)  # type: ignore[attr-defined]  # a store of objects
    with pytest.raises(FileExistsError):  # another program puts the key between the check and the copy
        calls.copy(storage.key(f"{path}/staged"), storage.key(f"{path}/theirs"))  # type: ignore[attr-defined]  # a store of objects
    assert storage.read(f"{path}/theirs") == b"theirs"
    if found.kind != "minio":  # MinIO lists only uploads of a whole key
        assert list(storage.abandoned(path, 1 << 62)) == []


def test_files_after_a_name_are_listed(found: StoreServer, storage: Storage, root: str) -> None:
    """Files at any depth are listed in the order of their paths, after a given path, which need not exist; more than one page."""
    count = found.page + 100
    names = [f"d{number // 90:02}/{number:04}" for number in range(count)]
    with storage.workers(16) as workers:
        list(workers.map(lambda name: storage.put_if_absent(f"{root}/{name}", b"x"), [*names, "a", "e é"]))
    listed = list(storage.listed_after(root, "a"))
    assert [path for path, _ in listed] == [*names, "e é"]
    assert {entry.size for _, entry in listed} == {1}
    assert [path for path, _ in storage.listed_after(root, f"{names[-3]}x")] == [*names[-2:], "e é"]
    assert list(storage.listed_after(root, "f")) == []
    assert listed[0][1] == storage.stat(f"{root}/{names[0]}")


_CONTENDER = """
import json, sys
from concurrent.futures import ThreadPoolExecutor
from penstock.errors import AlreadyThere
from penstock.storage import locate
storage, path = locate(sys.argv[1])
names_at = storage.stat(path.rpartition("/")[0] + "/begin")
print("ready", flush=True)
sys.stdin.readline()
def race(thread):
    won = []
    for slot in range(5):
        try:
            storage.put_if_absent(f"{path}/{slot}", f"{sys.argv[2]} {thread}".encode())
            won.append((slot, thread))
        except AlreadyThere:
            pass
    return won
with ThreadPoolExecutor(4) as threads:
    print(json.dumps(sum(threads.map(race, range(4)), [])), flush=True)
"""


def test_of_several_processes_that_put_one_key_one_wins(storage: Storage, root: str) -> None:
    """Four threads in each of four processes put the same five keys at once: each key has one winner, which knows it, and its bytes."""
    storage.put_if_absent(f"{root}/begin", b"")
    contenders = [
        subprocess.Popen(
            [sys.executable, "-c", _CONTENDER, f"{root}/slots", f"{number}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(4)
    ]
    for contender in contenders:
        assert contender.stdout is not None
        assert contender.stdout.readline() == "ready\n"
    winners: dict[int, list[str]] = {}
    for contender in contenders:
        assert contender.stdin is not None
        contender.stdin.write("go\n")
        contender.stdin.flush()
    for number, contender in enumerate(contenders):
        for slot, thread in json.loads(contender.communicate(timeout=_PROCESS_SECONDS)[0]):
            winners.setdefault(slot, []).append(f"{number} {thread}")
    assert sorted(winners) == list(range(5))
    for slot, (winner,) in winners.items():
        assert storage.read(f"{root}/slots/{slot}") == winner.encode()


# -- errors and their messages --------------------------------------------------------------------------------------------


def test_no_bucket(found: StoreServer) -> None:
    """A missing bucket is reported as such, with the address of the store; not as a missing file."""
    storage, path = locate(f"{found.scheme}://no-such-bucket/in")
    with pytest.raises(OptionError, match="there is no such bucket at http"):
        storage.stat(path)


def test_wrong_keys(found: StoreServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that refuses the keys is a typed error, which says where keys are looked up and shows none of them."""
    if found.kind == "moto":
        pytest.skip("moto takes any keys")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-and-secret")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "d3JvbmctYW5kLXNlY3JldA==")
    storage, path = locate(f"{found.scheme}://contract/in")
    with pytest.raises(AccessRefused, match="check the keys") as raised:
        storage.stat(path)
    assert "wrong-and-secret" not in str(raised.value)
    assert "d3JvbmctYW5kLXNlY3JldA" not in str(raised.value)


def test_nobody_listens(found: StoreServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """If no store answers at an address, the error comes within seconds, with the address."""
    for name in ("AWS_ENDPOINT_URL", "AZURE_STORAGE_ENDPOINT"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    storage, path = locate(f"{found.scheme}://contract/in")
    with pytest.raises(StorageError, match=r"no store at http://127\.0\.0\.1:1"):
        storage.stat(path)


def test_a_forked_child_is_refused_and_does_not_hang(storage: Storage, root: str) -> None:
    """obstore's threads do not survive in a child: a call that would wait forever raises an error that says so."""
    storage.put_if_absent(f"{root}/a", b"x")
    program = (
        "import os, sys; from penstock.storage import locate; from penstock.errors import StorageError;"
        "storage, path = locate(sys.argv[1]); storage.read(path); child = os.fork()\n"
        "if child: sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "try:\n storage.read(path)\nexcept StorageError as error:\n os._exit(7 if 'forked' in str(error) else 1)\nos._exit(2)"
    )
    child = subprocess.run([sys.executable, "-c", program, f"{root}/a"], timeout=_PROCESS_SECONDS, check=False)
    assert child.returncode == 7


@pytest.mark.slow
@follows("PST-540")
def test_keys_that_the_store_refuses(relay: Relay, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys that the store does not know are reported in its words, without the keys; with the right keys the same call works."""
    storage, path = locate("s3://bucket/keys")
    right = os.environ["AWS_ACCESS_KEY_ID"]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody-elses")
    with pytest.raises(AccessRefused, match=r"The key id is not known.*check the keys") as raised:
        storage.put_if_absent(f"{path}/a", b"x")
    assert "somebody-elses" not in str(raised.value)
    assert SECRET not in str(raised.value)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", right)
    storage.put_if_absent(f"{path}/a", b"x")
    assert storage.read(f"{path}/a") == b"x"


def test_keys_that_are_taken_away_later(relay: Relay, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys that expire during a run are `AccessRefused` with the name of the object, and are not retried for minutes."""
    storage, path = locate("s3://bucket/expired")
    storage.put_if_absent(f"{path}/a", b"x")
    monkeypatch.setattr("tests.support.stores.KEY", "another-by-now")
    for call in (
        storage.read,
        storage.stat,
        lambda path: list(storage.list(path)),
        lambda path: storage.put_if_absent(path, b""),
    ):
        with pytest.raises(AccessRefused, match="expired"):
            call(f"{path}/a")


@pytest.mark.slow
def test_a_store_that_is_busy_is_waited_for(relay: Relay) -> None:
    """Requests that are refused as too many (503) are repeated: each object is there once."""
    storage, path = locate("s3://bucket/busy")
    for number in range(3):
        relay.busy = 3
        storage.put_if_absent(f"{path}/{number}", b"x")
    assert sorted(names_at(storage, path)) == ["0", "1", "2"]


@pytest.mark.slow
def test_lost_replies_neither_fence_nor_double(relay: Relay) -> None:
    """Every fourth reply is lost: a put, write or publish is never refused because of its own object, and each is there once."""
    storage, path = locate("s3://bucket/lossy")
    storage.put_if_absent(f"{path}/first", b"x")
    relay.loses = 4
    for number in range(10):
        storage.put_if_absent(f"{path}/slots/{number}", b"%d" % number)
        put(storage, f"{path}/staged/{number}", b"part %d" % number)
        storage.publish(f"{path}/staged/{number}", f"{path}/out/{number}")
    relay.loses = 0
    assert names_at(storage, f"{path}/staged") == []
    for number in range(10):
        assert storage.read(f"{path}/slots/{number}") == b"%d" % number
        assert storage.read(f"{path}/out/{number}") == b"part %d" % number
    with pytest.raises(AlreadyThere):
        storage.put_if_absent(f"{path}/slots/0", b"0")


# -- addresses ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("s3://b/a/b", "s3://b/a/b"),
        ("s3a://b/a//b/../c/", "s3://b/a/c"),
        ("S3://b", "s3://b"),
        ("s3://b/", "s3://b"),
        ("az://c/a b%20", "az://c/a b%20"),
        ("gs://b/x", "gs://b/x"),
    ],
)
def test_addresses_of_buckets(location: str, path: str) -> None:
    """A bucket and a key, taken literally; `s3a` is Hadoop's name for `s3`. No server is contacted."""
    storage, located = locate(location)
    assert located == path
    assert locate(located)[1] == path
    assert isinstance(storage, ObjectStorage)


@pytest.mark.parametrize("location", ["s3://", "s3:///a", "s3://key:secret@b/a", "s3://host:9000/b"])
def test_addresses_without_a_bucket_or_with_keys_are_refused(location: str) -> None:
    """Keys and servers are not part of an address; the error does not show them."""
    with pytest.raises(OptionError, match="expected a bucket and a path") as raised:
        locate(location)
    assert "secret" not in str(raised.value)


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without obstore the error names the extra to install."""
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.setattr(_objects_native, "_clients", {})
    with pytest.raises(DependencyError, match=r"penstock\[s3\]"):
        ObjectStorage("s3://b").stat("s3://b/a")


def test_a_copy_is_nobodys_put(storage: Storage, root: str) -> None:
    """A store may copy the token of a put with the object. The copy has the bytes, is listed alone, and no put counts as done by it."""
    put(storage, f"{root}/a", b"part")
    storage.publish(f"{root}/a", f"{root}/out/b")
    assert names_at(storage, root) == ["out"]
    assert names_at(storage, f"{root}/out") == ["b"]
    for data in (b"part", b"more"):
        with pytest.raises(AlreadyThere):
            storage.put_if_absent(f"{root}/out/b", data)
        with pytest.raises(AlreadyThere):
            put(storage, f"{root}/out/b", data)
    assert storage.read(f"{root}/out/b") == b"part"
