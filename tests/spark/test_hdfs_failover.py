"""Two live NameNodes: an ingest goes on when one hands over to the other, and when the active one is killed."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import NotThere
from penstock.storage import HdfsStorage, _hdfs_native
from penstock.verify import verify
from tests.support.cluster import started as process
from tests.support.hdfs import TwoNameNodes, started
from tests.support.storage_contract import put
from tests.support.wait import wait_for

pytestmark = [pytest.mark.soak, pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.xdist_group("programs")]

FILES, LINES = 40, 500


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TwoNameNodes]:
    """Yield the cluster; this process knows it by its name service."""
    made = TwoNameNodes(tmp_path)
    monkeypatch.setenv("HADOOP_CONF_DIR", str(made.configuration))
    monkeypatch.setattr(_hdfs_native, "_clients", {})
    with started(made):
        yield made


def test_name_nodes_fail_over_under_an_ingest(cluster: TwoNameNodes, tmp_path: Path) -> None:
    """The active NameNode becomes standby, and later the other one is killed: the ingest waits, and ends with every line there once."""
    storage, root = HdfsStorage("cluster"), cluster.url
    storage.make_directory(f"{root}/in")
    for number in range(FILES):
        put(storage, f"{root}/in/{number}.txt", "".join(f"{number}-{line}\n" for line in range(LINES)).encode())
    arguments = [
        "ingest",
        f"{root}/in",
        f"{root}/out",
        "--max-files",
        "2",
        "--master",
        "local[2]",
        "--roll-rows",
        "1500",
    ]
    log = tmp_path / "ingest.log"
    with process(sys.executable, "-m", "penstock.cli", *arguments, log=log) as ingest:

        def reaches(batches: int) -> None:
            wait_for(
                lambda: committed(storage, root) >= batches or ingest.poll() is not None, f"{batches} batches", 300
            )
            assert ingest.poll() is None, log.read_text()[-3000:]

        reaches(3)
        cluster.switch(1)
        reaches(committed(storage, root) + 3)
        cluster.name_nodes[1].kill()
        cluster.switch(0)
        before = committed(storage, root)
        assert ingest.wait(600) == 0, log.read_text()[-3000:]
    assert committed(storage, root) > before
    assert cluster.lines(f"{root}/out") == Counter(
        f"{number}-{line}" for number in range(FILES) for line in range(LINES)
    )
    assert verify(f"{root}/out", f"{root}/in").ok
    said = cluster.fsck(f"{root}/out")
    assert "is HEALTHY" in said
    assert "OPENFORWRITE" not in said, said


def test_a_standby_that_answers_first_is_passed_over(cluster: TwoNameNodes) -> None:
    """The name service's first address is a live standby: each call, the first of a process included, goes to the other NameNode."""
    cluster.switch(1)
    storage = HdfsStorage("cluster")
    put(storage, f"{cluster.url}/a", b"x")
    storage.publish(f"{cluster.url}/a", f"{cluster.url}/b")
    assert cluster.cat(f"{cluster.url}/b") == b"x"
    assert list(storage.names(cluster.url)) == ["b"]


def committed(storage: HdfsStorage, root: str) -> int:
    """Return how many batches Spark has committed."""
    commits = f"{root}/out/_penstock/checkpoint/commits"
    try:
        return sum(name.isdigit() for name in storage.names(commits))
    except NotThere:
        return 0
