"""A real HDFS keeps the contract, and has some behaviour of its own."""

from __future__ import annotations

import errno
import gc
import json
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import unique
from penstock.errors import AlreadyThere, DependencyError, FileChanged, NoSpace, NotThere, OptionError, StorageError
from penstock.formats import ReadFormat
from penstock.options import SOURCE, parse
from penstock.source import scan
from penstock.source.cursor import FileVersion, Split
from penstock.source.plan import Planner
from penstock.source.read import Reading
from penstock.storage import HdfsStorage, Storage, _hdfs, _hdfs_native, locate
from tests.support.hdfs import BLOCK_BYTES, DATA_NODES, MiniHdfs, configuration, free_port
from tests.support.storage_contract import StorageContract, put

MEBIBYTE = 1 << 20


@pytest.fixture
def storage(hdfs: MiniHdfs) -> HdfsStorage:
    return HdfsStorage(hdfs.authority)


@pytest.fixture
def root(hdfs: MiniHdfs, storage: HdfsStorage) -> str:
    path = f"{hdfs.url}/{unique.token()}"
    storage.make_directory(path)
    return path


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> dict[Any, Any]:
    """Forget this process's clients for one test, which may change the settings of new clients."""
    none: dict[Any, Any] = {}
    monkeypatch.setattr(_hdfs_native, "_clients", none)
    return none


class TestHdfsStorage(StorageContract):
    def test_an_open_file_stays_the_same_file(self, storage: Storage, root: str) -> None:
        """A reader reads the file it opened, or fails: never another file that has its name now."""
        put(storage, f"{root}/a", b"old")
        with storage.open(f"{root}/a") as file:
            before = file.info()
            storage.delete(f"{root}/a")
            put(storage, f"{root}/a", b"new one")
            try:
                found = file.read(0, 10)
            except StorageError:
                found = b"old"  # its blocks are gone
            assert found == b"old"
            assert (before.size, before.identity) == (file.info().size, file.info().identity)

    @pytest.mark.parametrize("name", ["a b", "50%", "#1", "what?", "it's", '"q"', "ü", "-rf", "a\nb", "a+b%20c"])
    def test_odd_names_are_names(self, storage: Storage, root: str, name: str) -> None:
        """A name may contain any character but a slash and a colon."""
        super().test_odd_names_are_names(storage, root, name)


# -- names and paths ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("location", "authority", "path"),
    [
        ("hdfs://n:9000/a/b/../c", "n:9000", "hdfs://n:9000/a/c"),
        ("hdfs://cluster//a%20b/", "cluster", "hdfs://cluster/a%20b"),
        ("hdfs://cluster/a?b#c", "cluster", "hdfs://cluster/a?b#c"),
        ("hdfs://cluster", "cluster", "hdfs://cluster"),
        ("hdfs:///a", "", "hdfs:///a"),
        ("hdfs:/a", "", "hdfs:///a"),
        ("HDFS://cluster/a", "cluster", "hdfs://cluster/a"),
    ],
)
def test_locations_are_whole_urls(location: str, authority: str, path: str) -> None:
    """A path on HDFS is its URL, taken literally; it can be located again."""
    for place in (location, path):
        storage, found = locate(place)
        assert isinstance(storage, HdfsStorage)
        assert (storage.authority, found) == (authority, path)


@pytest.mark.parametrize("name", ["a:b", "\udcff"])
def test_names_hdfs_does_not_have_are_refused(storage: Storage, root: str, name: str) -> None:
    """A colon, and bytes that are not UTF-8, cannot be in a name: a typed error shows the name."""
    with pytest.raises(StorageError, match=f"cannot create .*{name.encode('unicode_escape').decode()[-2:]}"):
        storage.create(f"{root}/{name}")


def test_another_file_system_is_not_mixed_up(storage: Storage) -> None:
    """A path with another authority is refused, not taken for a path of this one."""
    with pytest.raises(StorageError, match="is not on hdfs://127"):
        storage.stat("hdfs://elsewhere:1/a")


# -- the way there -----------------------------------------------------------------------------------------------------


def test_without_the_library_the_command_is_named(clients: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without hdfs-native the error says what to install."""
    monkeypatch.setitem(sys.modules, "hdfs_native", None)
    with pytest.raises(DependencyError, match=r"pip install 'penstock\[hdfs\]'"):
        HdfsStorage("n:1").stat("/")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try the first contact with a NameNode only once: the error is the same, and comes seconds earlier."""
    monkeypatch.setattr(_hdfs_native, "_CONTACT_TRIES", {"dfs.client.failover.max.attempts": "1"})


def test_nobody_listens(hdfs: MiniHdfs, impatient: None) -> None:
    """A wrong port is a typed error with the address and the cause."""
    with pytest.raises(StorageError, match=r"no NameNode at hdfs://127\.0\.0\.1:\d+: Connection refused"):
        HdfsStorage(f"127.0.0.1:{free_port()}").stat("/")


def test_somebody_else_listens(hdfs: MiniHdfs, impatient: None) -> None:
    """A server with another protocol on the port is no NameNode: a typed error says so."""
    with pytest.raises(StorageError, match=f"no NameNode at hdfs://127.0.0.1:{hdfs.web_port}"):
        HdfsStorage(f"127.0.0.1:{hdfs.web_port}").stat("/")


def test_nobody_answers(hdfs: MiniHdfs, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that accepts the connection and never answers is given up."""
    monkeypatch.setattr(_hdfs_native, "_CONTACT_SECONDS", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(StorageError, match="no answer within 1 s"):
        HdfsStorage(f"127.0.0.1:{silent.getsockname()[1]}").stat("/")


def test_unknown_name_service(hdfs: MiniHdfs, impatient: None) -> None:
    """An unknown host or name service is named in the error, with the setting that defines name services."""
    with pytest.raises(StorageError, match=r"no NameNode at hdfs://nowhere\.invalid:8020.*HADOOP_CONF_DIR is not set"):
        HdfsStorage("nowhere.invalid").stat("/")


def test_no_default_file_system(
    clients: object, hdfs: MiniHdfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`hdfs:///` without a configured default is refused."""
    monkeypatch.setenv("HADOOP_CONF_DIR", str(configuration(tmp_path / "conf", {})))
    with pytest.raises(OptionError, match="defaultFS"):
        HdfsStorage("").stat("/")


def test_name_service(
    clients: object, hdfs: MiniHdfs, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name service in HADOOP_CONF_DIR is tried at all its addresses; so is the default file system."""
    settings = {
        "fs.defaultFS": "hdfs://cluster",
        "dfs.nameservices": "cluster",
        "dfs.ha.namenodes.cluster": "dead,alive",
        "dfs.namenode.rpc-address.cluster.dead": f"127.0.0.1:{free_port()}",
        "dfs.namenode.rpc-address.cluster.alive": hdfs.authority,
        "dfs.client.failover.proxy.provider.cluster": "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider",
    }
    monkeypatch.setenv("HADOOP_CONF_DIR", str(configuration(tmp_path / "conf", settings)))
    for place in ("hdfs://cluster", "hdfs://"):
        storage, path = locate(f"{place}{root.removeprefix(hdfs.url)}/{unique.token()}")
        put(storage, path, b"x")
        assert storage.read(path) == b"x"
        storage.publish(path, f"{path}-published")
        assert hdfs.cat(hdfs.url + f"{path}-published".removeprefix(place)) == b"x"


FORKS = """
import os, signal, sys
from penstock.storage import locate
storage, root = locate(sys.argv[1])
storage.put_if_absent(f"{root}/parent", b"x")
for number in range(3):
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        storage.put_if_absent(f"{root}/child-{number}", storage.read(f"{root}/parent"))
        os._exit(0)
    os.waitpid(child, 0)
"""


def test_a_forked_process_makes_a_client_of_its_own(storage: HdfsStorage, root: str) -> None:
    """Children of a process that has used HDFS can use it, too, although their parent's connections do not work in them."""
    subprocess.run([sys.executable, "-c", FORKS, root], check=True, timeout=120)
    assert sorted(storage.names(root)) == ["child-0", "child-1", "child-2", "parent"]


def test_nothing_is_connected_before_it_is_needed() -> None:
    """Locating, making and pickling a storage contacts no server."""
    storage, _ = locate("hdfs://nowhere.invalid:1/a")
    assert pickle.loads(pickle.dumps(storage)).authority == "nowhere.invalid:1"  # noqa: S301 - our own bytes


# -- permissions, quotas, safe mode ------------------------------------------------------------------------------------


def status(hdfs: MiniHdfs, path: str) -> dict[str, Any]:
    """Return what the servers' web interface says about a path."""
    found: dict[str, Any] = json.loads(hdfs.web(path, "GETFILESTATUS&user.name=root"))["FileStatus"]
    return found


def mode(hdfs: MiniHdfs, path: str) -> str:
    """Return the permissions of a path."""
    return str(status(hdfs, path)["permission"])


def test_staged_files_are_private_and_published_ones_are_not(hdfs: MiniHdfs, storage: Storage, root: str) -> None:
    """A created file is 0600 in a 0700 directory; after publishing it has the permissions that the umask leaves."""
    umask = os.umask(0o027)
    try:
        storage.make_directory(f"{root}/private", private=True)
        put(storage, f"{root}/private/a", b"x")
        assert (mode(hdfs, f"{root}/private"), mode(hdfs, f"{root}/private/a")) == ("700", "600")
        storage.publish(f"{root}/private/a", f"{root}/b")
        storage.make_directory(f"{root}/plain")
        assert (mode(hdfs, f"{root}/b"), mode(hdfs, f"{root}/plain")) == ("640", "750")
    finally:
        os.umask(umask)


def test_permission_denied(
    clients: dict[Any, Any], storage: Storage, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user is refused with a typed error with path and reason, and may read what he has the right to read."""
    put(storage, f"{root}/empty", b"")
    put(storage, f"{root}/a", b"secret")
    monkeypatch.setenv("HADOOP_USER_NAME", "joe")
    clients.clear()
    calls: dict[str, Callable[[], object]] = {
        "create": lambda: storage.create(f"{root}/b"),
        "open": lambda: storage.open(f"{root}/a"),
        "delete": lambda: storage.delete(f"{root}/a"),
        "publish": lambda: storage.publish(f"{root}/a", f"{root}/b"),
        "make directory": lambda: storage.make_directory(f"{root}/d"),
    }
    for verb, call in calls.items():
        with pytest.raises(StorageError, match=rf"cannot {verb} '{root}.*Permission denied.*user=joe") as raised:
            call()
        assert type(raised.value) is StorageError
        assert isinstance(raised.value.__cause__, OSError)
        assert raised.value.__cause__.errno == errno.EACCES
    assert storage.stat(f"{root}/empty").size == 0


def test_full_quota_is_no_space(hdfs: MiniHdfs, storage: Storage, root: str) -> None:
    """An exceeded quota, of names or of bytes, is `NoSpace`, and leaves no name behind."""
    storage.make_directory(f"{root}/names")
    storage.make_directory(f"{root}/bytes")
    hdfs.quota(f"{root}/names", names=1)
    hdfs.quota(f"{root}/bytes", size=MEBIBYTE)
    with pytest.raises(NoSpace, match="free some space"):
        put(storage, f"{root}/names/a", b"x")
    with pytest.raises(NoSpace, match="free some space"):
        put(storage, f"{root}/bytes/a", bytes(2 * MEBIBYTE))
    with pytest.raises(NoSpace):
        storage.put_if_absent(f"{root}/bytes/b", b"x")
    assert list(storage.names(f"{root}/names")) == list(storage.names(f"{root}/bytes")) == []


def test_safe_mode_is_named(hdfs: MiniHdfs, storage: Storage, root: str) -> None:
    """In safe mode every write fails with a typed error that says so, and reads work."""
    put(storage, f"{root}/a", b"x")
    hdfs.admin("-safemode", "enter")
    try:
        for call in (
            lambda: storage.create(f"{root}/b"),
            lambda: storage.put_if_absent(f"{root}/b", b"x"),
            lambda: storage.publish(f"{root}/a", f"{root}/b"),
            lambda: storage.delete(f"{root}/a"),
            lambda: storage.make_directory(f"{root}/d"),
        ):
            with pytest.raises(StorageError, match="safe mode"):
                call()
        assert storage.read(f"{root}/a") == b"x"
    finally:
        hdfs.admin("-safemode", "leave")


# -- exactly one wins --------------------------------------------------------------------------------------------------


def test_of_two_that_publish_one_name_exactly_one_wins(storage: Storage, root: str) -> None:
    """Two threads move two files to one name at the same time: one succeeds, the other gets an error and keeps its file."""
    for turn in range(20):
        start = threading.Barrier(2)
        results: dict[str, bool] = {}

        def move(
            source: str, turn: int = turn, start: threading.Barrier = start, results: dict[str, bool] = results
        ) -> None:
            start.wait()
            try:
                storage.publish(f"{root}/{source}", f"{root}/target-{turn}")
            except AlreadyThere:
                results[source] = False
            else:
                results[source] = True

        sources = [f"{turn}-a", f"{turn}-b"]
        for source in sources:
            put(storage, f"{root}/{source}", source.encode())
        threads = [threading.Thread(target=move, args=(source,)) for source in sources]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(results.values()) == [False, True]
        (loser,) = (source for source in sources if not results[source])
        (winner,) = (source for source in sources if results[source])
        assert storage.read(f"{root}/target-{turn}") == winner.encode()
        assert storage.read(f"{root}/{loser}") == loser.encode()


def test_published_twice_is_not_there(storage: Storage, root: str) -> None:
    """Publishing a published file again raises `NotThere` for its source, as on a local disk."""
    put(storage, f"{root}/a", b"x")
    storage.publish(f"{root}/a", f"{root}/b")
    with pytest.raises(NotThere):
        storage.publish(f"{root}/a", f"{root}/b")


class Deaf:
    """A real HDFS whose next rename happens, or not, and is answered by an error; `meanwhile` runs before the answer."""

    def __init__(self, storage: HdfsStorage, *, done: bool, meanwhile: Any = None) -> None:
        self._real = storage._hdfs
        self._done = done
        self._meanwhile = meanwhile or (lambda: None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def rename(self, source: str, target: str) -> None:
        """Rename, but lose the answer."""
        if self._done:
            self._real.rename(source, target)
        self._meanwhile()
        raise OSError(errno.EIO, "RPC listener disconnected")

    def over(self, storage: HdfsStorage) -> HdfsStorage:
        """Return the storage that uses this client."""
        return HdfsStorage(storage.authority, self)


def test_lost_reply_of_a_rename_that_was_done(storage: HdfsStorage, root: str) -> None:
    """A publish and a put whose reply was lost have succeeded, and return normally."""
    put(storage, f"{root}/a", b"x")
    deaf = Deaf(storage, done=True).over(storage)
    deaf.publish(f"{root}/a", f"{root}/b")
    deaf.put_if_absent(f"{root}/c", b"y")
    assert {name: storage.read(f"{root}/{name}") for name in storage.names(root)} == {"b": b"x", "c": b"y"}


def test_lost_connection_before_a_rename(storage: HdfsStorage, root: str) -> None:
    """A publish and a put that did not happen fail; the file stays where it was, and the temporary file is removed."""
    put(storage, f"{root}/a", b"x")
    deaf = Deaf(storage, done=False).over(storage)
    with pytest.raises(StorageError, match="disconnected"):
        deaf.publish(f"{root}/a", f"{root}/b")
    with pytest.raises(StorageError, match="disconnected"):
        deaf.put_if_absent(f"{root}/c", b"y")
    assert {name: storage.read(f"{root}/{name}") for name in storage.names(root)} == {"a": b"x"}


def test_lost_reply_and_somebody_elses_file(storage: HdfsStorage, root: str) -> None:
    """If the reply is lost and the name belongs to another file, neither publish nor put claims it."""
    put(storage, f"{root}/a", b"mine")
    put(storage, f"{root}/theirs", b"theirs!")

    def swap() -> None:
        for name in list(storage.names(root)):
            if name != "theirs":
                storage.delete(f"{root}/{name}")
        storage.publish(f"{root}/theirs", f"{root}/b")

    deaf = Deaf(storage, done=False, meanwhile=swap).over(storage)
    with pytest.raises(StorageError, match="disconnected"):
        deaf.publish(f"{root}/a", f"{root}/b")
    storage.publish(f"{root}/b", f"{root}/theirs")
    with pytest.raises(StorageError, match="disconnected"):
        deaf.put_if_absent(f"{root}/b", b"mine")
    assert storage.read(f"{root}/b") == b"theirs!"


# -- files that are being written --------------------------------------------------------------------------------------


def test_a_file_being_written_is_young(storage: Storage, root: str) -> None:
    """While it is being written a file's age is zero; then its age counts from its completion."""
    file = storage.create(f"{root}/a")
    file.write(b"x")
    time.sleep(0.05)
    (listed,) = storage.list(root)
    assert storage.stat(f"{root}/a").modified_ns > listed.modified_ns
    file.close()
    (listed,) = storage.list(root)
    assert storage.stat(f"{root}/a") == listed
    assert listed.size == 1


def test_a_file_being_written_is_not_planned(storage: Storage, root: str) -> None:
    """A file whose writer takes longer than `settle` is planned when it is complete, once and as a whole."""
    options = parse(SOURCE, {"path": root, "settle": "100ms"}, what="source")
    planner = Planner(storage, root, options, divisible=lambda _: True)
    file = storage.create(f"{root}/a")
    file.write(b"first\n")
    offset = planner.initial()
    time.sleep(0.3)
    assert planner.latest(offset) == offset
    file.write(b"second\n")
    file.close()
    time.sleep(0.3)
    offset = planner.latest(offset)
    assert [(split.file.path, split.start, split.end) for split in planner.splits(offset)] == [("a", 0, 13)]


def test_a_length_published_by_a_writer_is_no_version(storage: Storage, root: str) -> None:
    """An open file that shows a length cannot be read with that length: the task fails, and does not end early silently."""
    file = storage.create(f"{root}/a")
    file.write(b"first\n")
    file.sync()
    entry = storage.stat(f"{root}/a")
    assert entry.size == 6
    split = Split(FileVersion("a", entry.size, entry.modified_ns, entry.identity), 0, 6)
    reading = Reading(storage, root, ReadFormat("text", pa.schema([("value", pa.string())])))
    with pytest.raises(FileChanged, match="size 0, planned 6"):
        list(reading.text([split]))
    file.close()


class Listing:
    """A real HDFS whose listings fail after `ends` entries, and that records the files that are checked."""

    def __init__(self, storage: HdfsStorage) -> None:
        self._real = storage._hdfs
        self.ends: int | None = None
        self.looked_at: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def stat(self, path: str) -> Any:
        """Check a file, and record it."""
        self.looked_at.append(path.rpartition("/")[2])
        return self._real.stat(path)

    def list(self, path: str) -> Iterator[Any]:
        """List until the failure."""
        for number, found in enumerate(self._real.list(path)):
            if number == self.ends:
                raise OSError(errno.EIO, "RPC listener disconnected")
            yield found


@pytest.fixture
def listing(storage: HdfsStorage, root: str) -> Listing:
    """Return an HDFS with eight files, one of them empty and one exactly a block long, and a directory."""
    for number in range(6):
        put(storage, f"{root}/{number}", b"line\n")
    put(storage, f"{root}/empty", b"")
    put(storage, f"{root}/whole", b"x" * (BLOCK_BYTES - 1) + b"\n")
    storage.make_directory(f"{root}/below")
    return Listing(storage)


def planned(planner: Planner, offset: dict[str, Any]) -> list[str]:
    """Return the names of the files in the batch that ends at the offset."""
    return sorted(split.file.path for split in planner.splits(offset))


def test_a_listing_is_enough(
    storage: HdfsStorage, root: str, listing: Listing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New files cost one listing and no check each, except for files whose length does not show that they are closed."""
    monkeypatch.setattr(scan, "_LOOK_AGAIN", 0)
    options = parse(SOURCE, {"path": root, "settle": "0"}, what="source")
    planner = Planner(HdfsStorage(storage.authority, listing), root, options, divisible=lambda _: True)
    offset = planner.latest(planner.initial())
    assert planned(planner, offset) == ["0", "1", "2", "3", "4", "5", "empty", "whole"]
    assert {name for name in listing.looked_at if name in storage.names(root)} == {"empty", "whole"}
    for split in planner.splits(offset):
        entry = storage.stat(f"{root}/{split.file.path}")
        assert (split.file.size, split.file.modified_ns) == (entry.size, entry.modified_ns)


@pytest.mark.parametrize("ends", [0, 4])
def test_a_listing_that_fails_part_of_the_way_moves_nothing(
    storage: HdfsStorage, root: str, listing: Listing, ends: int
) -> None:
    """A listing that breaks off is an error, and its entries are not planned: the next listing finds every file, once."""
    options = parse(SOURCE, {"path": root, "settle": "0"}, what="source")
    planner = Planner(HdfsStorage(storage.authority, listing), root, options, divisible=lambda _: True)
    listing.ends = ends
    start = planner.initial()
    with pytest.raises(StorageError, match="disconnected"):
        planner.latest(start)
    listing.ends = None
    first = planner.latest(start)
    assert len(planned(planner, first)) == 8
    put(storage, f"{root}/later", b"line\n")
    listing.ends = ends
    with pytest.raises(StorageError, match="disconnected"):
        planner.latest(first)
    listing.ends = None
    second = planner.latest(first)
    assert planned(planner, second) == ["later"]
    assert planner.latest(second) == second


def test_a_copy_is_planned_when_it_has_its_name(storage: Storage, root: str) -> None:
    """A file that `hdfs dfs -put` still copies is not read, complete or not, until it has its final name, with an older time."""
    options = parse(SOURCE, {"path": root, "settle": "0"}, what="source")
    planner = Planner(storage, root, options, divisible=lambda _: True)
    put(storage, f"{root}/a._COPYING_", b"line\n")
    put(storage, f"{root}/b", b"line\n")
    time.sleep(0.2)  # our estimate of the NameNode's clock may be behind it by the duration of a call
    first = planner.latest(planner.initial())
    assert planned(planner, first) == ["b"]
    storage.publish(f"{root}/a._COPYING_", f"{root}/a")
    second = planner.latest(first)
    assert planned(planner, second) == ["a"]
    assert planner.latest(second) == second


FILES = 100_000
A_BATCH = 1000


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_directory_of_many_files(hdfs: MiniHdfs, storage: HdfsStorage, root: str) -> None:
    """100,000 files that all need a check: a trigger costs as much as there is new, and a batch as much as it holds."""

    def calls() -> dict[str, int]:
        operations = hdfs.bean("NameNodeActivity")
        return {name: operations[f"{name}Ops"] for name in ("GetListing", "FileInfo")}

    def cost(before: dict[str, int]) -> tuple[int, int]:
        after = calls()
        return after["GetListing"] - before["GetListing"], after["FileInfo"] - before["FileInfo"]

    with ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda number: storage.create(f"{root}/{number:06}").close(), range(FILES)))
    options = parse(SOURCE, {"path": root, "settle": "0", "maxFilesPerTrigger": str(A_BATCH)}, what="source")
    planner = Planner(storage, root, options, divisible=lambda _: True)
    offset, before = planner.latest(planner.initial()), calls()
    seen = planned(planner, offset)
    assert len(seen) == A_BATCH
    while len(seen) < FILES:
        offset = planner.latest(offset)
        seen += planned(planner, offset)
    assert sorted(seen) == [f"{number:06}" for number in range(FILES)]
    listings, looks = cost(before)
    assert listings <= 2 * FILES // 1000, "what a listing has shown is planned without another"
    assert looks < FILES
    assert planner.latest(offset) == offset
    before = calls()
    put(storage, f"{root}/new", b"line\n")
    last = planner.latest(offset)
    assert planned(planner, last) == ["new"]
    listings, looks = cost(before)
    assert listings <= FILES // 1000 + 1
    assert looks < A_BATCH
    again = Planner(storage, root, options, divisible=lambda _: True)
    assert again.latest(last) == last


WRITER = """
import sys, time
from penstock.storage import locate
storage, path = locate(sys.argv[1])
file = storage.create(path) if sys.argv[2] == "create" else storage.extend(path, int(sys.argv[2]))
file.write(sys.argv[3].encode())
if sys.argv[4] == "sync":
    file.sync()
print("written", flush=True)
time.sleep(600)
"""


@pytest.fixture
def dead_writer() -> Iterator[Any]:
    """Yield a function that writes to a file in another process, and kills the process before it closes the file."""
    writers: list[subprocess.Popen[str]] = []

    def write(path: str, how: str, data: str, sync: str = "sync") -> None:
        command = [sys.executable, "-c", WRITER, path, how, data, sync]
        writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        writers.append(writer)
        assert writer.stdout is not None
        assert writer.stdout.readline() == "written\n"
        writer.kill()
        writer.wait()
        writer.stdout.close()

    yield write
    for writer in writers:
        writer.kill()


def test_a_dead_writer_blocks_nothing(storage: Storage, root: str, dead_writer: Any) -> None:
    """A killed writer's open file is not complete, and blocks nothing: only its name is taken, until the file is deleted."""
    dead_writer(f"{root}/a", "create", "half")
    with pytest.raises(AlreadyThere):
        storage.create(f"{root}/a")
    put(storage, f"{root}/b", b"x")
    storage.publish(f"{root}/b", f"{root}/c")
    storage.put_if_absent(f"{root}/d", b"y")
    storage.delete(f"{root}/a")
    put(storage, f"{root}/a", b"anew")
    assert storage.read(f"{root}/a") == b"anew"


def test_a_file_that_is_given_up_is_not_completed(hdfs: MiniHdfs, storage: Storage, root: str) -> None:
    """A file that nobody refers to any more stays open: garbage collection contacts no server, which might have failed."""
    storage.create(f"{root}/a").write(b"half")
    gc.collect()
    assert "OPENFORWRITE" in hdfs.fsck(root)


@pytest.mark.parametrize("sync", ["sync", "no sync"])
def test_a_dead_writers_growing_file_is_taken_over(storage: Storage, root: str, dead_writer: Any, sync: str) -> None:
    """A growing file whose writer was killed during an append continues: bytes that it already has are skipped."""
    with storage.extend(f"{root}/g", 0) as file:
        file.write(b"one\n")
        file.sync()
    dead_writer(f"{root}/g", "4", "two, and more\n", sync)
    assert storage.stat(f"{root}/g").size >= 4
    with storage.extend(f"{root}/g", 4) as file:
        file.write(b"two, and more\nthree\n")
        file.sync()
    assert storage.read(f"{root}/g") == b"one\ntwo, and more\nthree\n"
    with pytest.raises(StorageError, match="other bytes from 4 on"), storage.extend(f"{root}/g", 4) as file:
        file.write(b"2\n")
    assert storage.read(f"{root}/g") == b"one\ntwo, and more\nthree\n"


def test_a_writer_whose_file_was_taken_fails(storage: Storage, root: str) -> None:
    """Extending a file takes it away from a writer that is still alive; that writer's sync and close fail."""
    old = storage.extend(f"{root}/g", 0)
    old.write(b"one\n")
    old.sync()
    with storage.extend(f"{root}/g", 4) as new:
        new.write(b"2\n")
        new.sync()
    old.write(b"late\n")
    with pytest.raises(StorageError):
        old.sync()
    with pytest.raises(StorageError):
        old.close()
    assert storage.read(f"{root}/g") == b"one\n2\n"


def test_a_file_that_was_moved_away_does_not_close_well(storage: Storage, root: str) -> None:
    """HDFS completes an open file under any name; a writer whose name is gone, or belongs to another file, gets an error."""
    moved, replaced = storage.create(f"{root}/a"), storage.create(f"{root}/b")
    moved.write(b"x")
    replaced.write(b"x")
    storage.publish(f"{root}/a", f"{root}/elsewhere")
    with pytest.raises(NotThere):
        moved.close()
    storage.publish(f"{root}/b", f"{root}/elsewhere too")
    put(storage, f"{root}/b", b"another")
    with pytest.raises(StorageError, match="another file"):
        replaced.close()


# -- blocks and servers ------------------------------------------------------------------------------------------------


def pattern(size: int) -> bytes:
    """Return bytes in which no two kilobytes are equal."""
    return b"".join(b"%08d" % at for at in range(0, size, 8))[:size]


def test_files_of_many_blocks(hdfs: MiniHdfs, storage: Storage, root: str) -> None:
    """A file longer than a block is written, read by ranges across block borders, and read by a Java client."""
    data = pattern(2 * BLOCK_BYTES + 12345)
    with storage.create(f"{root}/a") as file:
        for start in range(0, len(data), 1_000_003):
            file.write(data[start : start + 1_000_003])
        file.sync()
    assert storage.read(f"{root}/a") == data
    with storage.open(f"{root}/a") as file:
        assert file.read(BLOCK_BYTES - 5, 10) == data[BLOCK_BYTES - 5 : BLOCK_BYTES + 5]
    storage.publish(f"{root}/a", f"{root}/b")
    assert hdfs.cat(f"{root}/b") == data


@pytest.fixture(scope="module")
def long_file(hdfs: MiniHdfs) -> tuple[str, bytes]:
    """A file of several blocks: its path and its content."""
    path, data = f"{hdfs.url}/{unique.token()}", pattern(5 * BLOCK_BYTES + 12345)
    put(HdfsStorage(hdfs.authority), path, data)
    return path, data


@pytest.mark.parametrize("size", [MEBIBYTE, MEBIBYTE + 3, 3 * MEBIBYTE, 5 * MEBIBYTE])
def test_reading_on_and_jumping(storage: Storage, long_file: tuple[str, bytes], size: int) -> None:
    """Consecutive reads use a stream: they return the same bytes as reads by range, across blocks, to the end, and after jumps."""
    path, data = long_file
    with storage.open(path) as file:
        for start in (0, BLOCK_BYTES - 7, 2 * MEBIBYTE + 1, 0):
            for at in range(start, len(data), size):
                assert file.read(at, size) == data[at : at + size], (start, at)
                assert file.read(3, 10) == data[3:13]
        assert file.read(len(data), size) == b""


def test_reading_on_by_several_threads(storage: Storage, long_file: tuple[str, bytes]) -> None:
    """A handle shared by several threads returns the right bytes to each."""
    path, data = long_file
    with storage.open(path) as file, ThreadPoolExecutor(4) as threads:

        def whole(size: int) -> bytes:
            return b"".join(file.read(at, size) for at in range(0, len(data), size))

        assert all(found == data for found in threads.map(whole, [MEBIBYTE, MEBIBYTE, 2 * MEBIBYTE, 3 * MEBIBYTE]))


@pytest.mark.soak  # waits for two DataNodes
def test_data_nodes_die_under_a_reader(hdfs: MiniHdfs, storage: Storage, long_file: tuple[str, bytes]) -> None:
    """Two of three DataNodes die during a read: it continues from the third."""
    path, data = long_file
    with storage.open(path) as file:
        found = [file.read(at, MEBIBYTE) for at in (0, MEBIBYTE)]
        try:
            for node in hdfs.data_nodes[:2]:
                node.kill()
            found += [file.read(at, MEBIBYTE) for at in range(2 * MEBIBYTE, len(data), MEBIBYTE)]
        finally:
            for node in hdfs.data_nodes[:2]:
                hdfs.restart(node)
    assert b"".join(found) == data


class _Broken:
    """An hdfs-native file whose stream breaks, or ends after its first piece, like an idle one that the DataNodes gave up."""

    def __init__(self, data: bytes, error: type[Exception] | None) -> None:
        self._data, self._error = data, error
        self.size = len(data)
        self.streams = 0

    def read_range(self, offset: int, length: int) -> bytes:
        return self._data[offset : offset + length]

    def read_range_stream(self, offset: int, length: int) -> Iterator[bytes]:
        assert length
        self.streams += 1
        yield self._data[offset : offset + 100]
        if self._error:
            raise self._error


@pytest.mark.parametrize("error", [RuntimeError, ConnectionResetError, None])
def test_a_stream_that_fails_is_left(error: type[Exception] | None) -> None:
    """A stream that breaks, or ends early, costs a read by range, but never bytes."""
    data = pattern(5 * MEBIBYTE)
    broken = _Broken(data, error)
    reader = _hdfs_native._NativeReader(broken)
    assert b"".join(reader.read(at, MEBIBYTE) for at in range(0, len(data), MEBIBYTE)) == data
    assert broken.streams == 5


class _Counting:
    """An hdfs-native file that records the calls to it: (ranges, streams), each with offset and length."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)
        self.ranges: list[tuple[int, int]] = []
        self.streams: list[tuple[int, int]] = []

    def read_range(self, offset: int, length: int) -> bytes:
        self.ranges.append((offset, length))
        return self._data[offset : offset + length]

    def read_range_stream(self, offset: int, length: int) -> Iterator[bytes]:
        self.streams.append((offset, length))
        end = offset + length
        return (self._data[at : min(at + 60_000, end)] for at in range(offset, end, 60_000))


def test_no_more_is_asked_for_ahead_than_was_read() -> None:
    """Reading a part in blocks that end at records leaves no request open; leaving early wastes less than was read."""
    data = pattern(20 * MEBIBYTE)
    file = _Counting(data)
    reader = _hdfs_native._NativeReader(file)
    start, end = 17, 17 + 8 * MEBIBYTE
    at = start
    while at < end:
        length = min(2 * MEBIBYTE - 30, end - at)
        assert reader.read(at, length) == data[at : at + length]
        at += length
        assert reader.read(at - 10, 20) == data[at - 10 : at + 10]  # a check where the next block ends
    of_two = [(offset - start, length // (2 * MEBIBYTE)) for offset, length in file.streams]
    assert of_two == [(0, 1), (2 * MEBIBYTE, 1), (4 * MEBIBYTE, 2)]
    assert [length for _, length in file.ranges if length != 20] == [4 * 30]
    for at in range(end, len(data), 2 * MEBIBYTE):
        length = min(2 * MEBIBYTE, len(data) - at)
        assert reader.read(at, length) == data[at : at + length]
    assert sum(file.streams[-1]) == len(data)


def test_a_full_block_is_synced(storage: Storage, root: str) -> None:
    """A block that fills is synced without a call: the sync at the end no longer covers it."""
    with storage.create(f"{root}/a") as file:
        file.write(bytes(BLOCK_BYTES - 1))
        assert storage.stat(f"{root}/a").size == 0
        file.write(b"x")
        assert storage.stat(f"{root}/a").size == BLOCK_BYTES


def test_a_data_node_dies_under_a_block(hdfs: MiniHdfs, storage: Storage, root: str) -> None:
    """A DataNode that is killed while it receives a block is left out; nothing is lost."""
    data = pattern(3 * MEBIBYTE)
    try:
        with storage.create(f"{root}/a") as file:
            file.write(data[:MEBIBYTE])
            hdfs.data_nodes[0].kill()
            file.write(data[MEBIBYTE:])
        assert storage.read(f"{root}/a") == data
    finally:
        hdfs.restart(hdfs.data_nodes[0])


@pytest.mark.soak  # waits for a DataNode, as the tests around it do
def test_a_data_node_dies_between_two_syncs(
    hdfs: MiniHdfs, storage: Storage, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sync that a dead DataNode never answers ends, with success or an error; what was synced before can be read."""
    monkeypatch.setattr(_hdfs, "_PATIENCE_SECONDS", (0.5, 1.0))
    file = storage.extend(f"{root}/g", 0)
    file.write(b"one\n")
    file.sync()
    try:
        hdfs.data_nodes[0].kill()
        file.write(b"two\n")
        with suppress(StorageError):
            file.sync()
    finally:
        hdfs.restart(hdfs.data_nodes[0])
    with storage.extend(f"{root}/g", 4) as again:
        again.write(b"two\n")
        again.sync()
    assert storage.read(f"{root}/g") == b"one\ntwo\n"


@pytest.mark.soak  # waits for a DataNode, as the tests around it do
def test_a_data_node_is_dead_when_a_block_is_begun(
    hdfs: MiniHdfs, storage: Storage, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of three DataNodes has died unnoticed: files are written to the others, but still have a replication of three."""
    monkeypatch.setattr(_hdfs, "_PATIENCE_SECONDS", (0.5,) * 50)
    hdfs.data_nodes[0].kill()
    try:
        put(storage, f"{root}/a", b"x")
        storage.put_if_absent(f"{root}/b", b"y")
    finally:
        hdfs.restart(hdfs.data_nodes[0])
    assert sorted(storage.names(root)) == ["a", "b"]
    for name, data in (("a", b"x"), ("b", b"y")):
        assert storage.read(f"{root}/{name}") == data
        assert status(hdfs, f"{root}/{name}")["replication"] == DATA_NODES


@pytest.mark.soak  # waits for two DataNodes
def test_too_few_data_nodes(hdfs: MiniHdfs, storage: Storage, root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of three DataNodes have died unnoticed: writing fails with a typed error and leaves no name; later it works."""
    monkeypatch.setattr(_hdfs, "_PATIENCE_SECONDS", (0.5, 0.5, 1.0))
    for node in hdfs.data_nodes[:2]:
        node.kill()
    try:
        with pytest.raises(StorageError):
            put(storage, f"{root}/a", b"x")
        with pytest.raises(StorageError):
            storage.put_if_absent(f"{root}/b", b"x")
    finally:
        for node in hdfs.data_nodes[:2]:
            hdfs.restart(node)
    assert not storage.names(root)
    put(storage, f"{root}/a", b"x")
    storage.put_if_absent(f"{root}/b", b"y")
    assert (storage.read(f"{root}/a"), storage.read(f"{root}/b")) == (b"x", b"y")


class Reviving:
    """A real HDFS with a dead DataNode when a file is begun; deleting the file that cannot be written restarts the DataNode."""

    def __init__(self, storage: HdfsStorage, hdfs: MiniHdfs) -> None:
        self._real = storage._hdfs
        self._hdfs = hdfs
        self.deleted: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def delete(self, path: str) -> None:
        """Delete the file, after the DataNode was restarted."""
        if not self.deleted:
            self._hdfs.restart(self._hdfs.data_nodes[0])
        self.deleted.append(path)
        self._real.delete(path)


@pytest.mark.parametrize("size", [pytest.param(size, marks=pytest.mark.soak) for size in (10, 300_000, 3 * MEBIBYTE)])
def test_a_file_that_meets_a_dead_data_node_is_made_again(
    hdfs: MiniHdfs, storage: HdfsStorage, root: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A DataNode has died unnoticed: a short file, or one that fails at its first write, is written again, as a whole and once."""
    monkeypatch.setattr(_hdfs, "_PATIENCE_SECONDS", (2.0, 15.0, 15.0))
    data, reviving = pattern(size), Reviving(storage, hdfs)
    hdfs.data_nodes[0].kill()
    try:
        with HdfsStorage(storage.authority, reviving).create(f"{root}/a") as file:
            file.write(data[: size // 3])
            file.write(data[size // 3 :])
            file.sync()
    finally:
        if not reviving.deleted:
            hdfs.restart(hdfs.data_nodes[0])
    assert reviving.deleted == [f"{root}/a".removeprefix(hdfs.url)]
    assert list(storage.names(root)) == ["a"]
    storage.publish(f"{root}/a", f"{root}/b")
    assert hdfs.cat(f"{root}/b") == data
    assert status(hdfs, f"{root}/b")["replication"] == DATA_NODES


def test_new_files_are_as_the_configuration_says(
    clients: object, hdfs: MiniHdfs, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B14: replication and block size are those of HADOOP_CONF_DIR, as for every client; without it, those of the NameNode."""
    places = {"": (3, BLOCK_BYTES), "conf": (2, MEBIBYTE)}
    settings = {"dfs.replication": "2", "dfs.blocksize": "1m"}
    for conf, expected in places.items():
        if conf:
            monkeypatch.setenv("HADOOP_CONF_DIR", str(configuration(tmp_path / conf, settings)))
            _hdfs_native._clients.clear()
        path = f"{root}/{conf}-file"
        put(HdfsStorage(hdfs.authority), path, bytes(MEBIBYTE + 1))
        found = status(hdfs, path)
        assert (found["replication"], found["blockSize"]) == expected


@pytest.mark.parametrize("value", ["two", "128 elephants"])
def test_a_configuration_that_cannot_be(
    clients: object, hdfs: MiniHdfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    """A replication that is no number is refused by name, not ignored."""
    monkeypatch.setenv("HADOOP_CONF_DIR", str(configuration(tmp_path / "conf", {"dfs.replication": value})))
    with pytest.raises(OptionError, match=f"dfs.replication of HADOOP_CONF_DIR='{value}'"):
        HdfsStorage(hdfs.authority).stat("/")


def test_a_configuration_that_cannot_be_read(
    clients: object, hdfs: MiniHdfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A truncated file in HADOOP_CONF_DIR is an error with its name; a missing directory means no configuration."""
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path / "nowhere"))
    assert HdfsStorage(hdfs.authority).stat("/").is_directory
    _hdfs_native._clients.clear()
    monkeypatch.setenv("HADOOP_CONF_DIR", str(configuration(tmp_path, {})))
    (tmp_path / "hdfs-site.xml").write_text("<configuration><property>")
    with pytest.raises(OptionError, match=r"hdfs-site\.xml' of HADOOP_CONF_DIR cannot be read"):
        HdfsStorage(hdfs.authority).stat("/")


def test_executors_are_the_user_of_their_query(
    clients: dict[Any, Any], hdfs: MiniHdfs, storage: HdfsStorage, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process to which Spark gave its query's user (SPARK_USER) makes files as that user, unless HADOOP_USER_NAME is set."""
    storage._hdfs.chmod(root.removeprefix(hdfs.url), 0o777)
    monkeypatch.setenv("SPARK_USER", "ann")
    for name, owner in (("", "ann"), ("joe", "joe")):
        monkeypatch.setenv("HADOOP_USER_NAME", name)
        if not name:
            monkeypatch.delenv("HADOOP_USER_NAME")
        clients.clear()
        put(HdfsStorage(hdfs.authority), f"{root}/{owner}", b"x")
        assert status(hdfs, f"{root}/{owner}")["owner"] == owner


def test_everything_is_killed(hdfs: MiniHdfs, storage: Storage, root: str) -> None:
    """What was put and published is still there after the NameNode and all DataNodes were killed and restarted."""
    storage.put_if_absent(f"{root}/record", b"decided")
    put(storage, f"{root}/a", pattern(MEBIBYTE))
    storage.publish(f"{root}/a", f"{root}/b")
    for daemon in (hdfs.name_node, *hdfs.data_nodes):
        daemon.kill()
    for daemon in (hdfs.name_node, *hdfs.data_nodes):
        daemon.start()
    hdfs.wait()
    assert storage.read(f"{root}/record") == b"decided"
    assert storage.read(f"{root}/b") == pattern(MEBIBYTE)
    assert sorted(storage.names(root)) == ["b", "record"]
