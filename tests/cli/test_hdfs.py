"""An ingest whose paths are on an HDFS that does not answer, or is not what it seems: reported before Spark is started."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import unique
from penstock.cli import ingest
from penstock.errors import PenstockError
from penstock.ingestion.places import check_apart
from penstock.storage import HdfsStorage, _hdfs_native
from tests.cli.conftest import Said
from tests.support.hdfs import MiniHdfs, configuration, free_port
from tests.support.storage_contract import put


@pytest.fixture
def places(tmp_path: Path) -> dict[str, str]:
    """Return paths that would work."""
    (tmp_path / "in").mkdir()
    return {"SRC": str(tmp_path / "in"), "DST": str(tmp_path / "out"), "--checkpoint": str(tmp_path / "checkpoint")}


@pytest.fixture
def spark_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "session", lambda _: pytest.fail("Spark was started"))
    monkeypatch.setattr(_hdfs_native, "_CONTACT_TRIES", {"dfs.client.failover.max.attempts": "1"})
    monkeypatch.setattr(_hdfs_native, "_clients", {})


# (the path, part of the message, the exit status); nothing listens on PORT
WRONG = {
    "scheme": ("hdsf://127.0.0.1:PORT/a", "hdsf: is not a file system this version knows", 2),
    "port": ("hdfs://127.0.0.1:PORT/a", "no NameNode at hdfs://127.0.0.1:PORT: Connection refused", 1),
    "no port": ("hdfs://127.0.0.1:port/a", "expected a host and port, or a name service of HADOOP_CONF_DIR", 2),
    "host": ("hdfs://nowhere.invalid:PORT/a", "no NameNode at hdfs://nowhere.invalid:PORT", 1),
    "name service": ("hdfs://nowhere.invalid/a", "no NameNode at hdfs://nowhere.invalid:8020", 1),
    "default": ("hdfs:///a", "fs.defaultFS", 2),
    "user": ("hdfs://me:hunter2@127.0.0.1:PORT/a", "***@127.0.0.1:PORT/a': HDFS takes no user in an address", 2),
}


@pytest.mark.slow
@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("place", ["SRC", "DST", "--checkpoint"])
def test_a_wrong_address(
    penstock: Callable[..., Said], places: dict[str, str], spark_is_not_started: None, place: str, wrong: str
) -> None:
    """A wrong scheme, host, port or name service in any of the three paths is one error that names it, and nothing is created."""
    location, said, status = WRONG[wrong]
    port = str(free_port())
    places[place] = location.replace("PORT", port)
    done = penstock("ingest", places["SRC"], places["DST"], "--checkpoint", places["--checkpoint"])
    assert said.replace("PORT", port) in " ".join(done.err.split())
    assert done.status == status
    assert not Path(places["DST"]).exists()


def test_tasks_are_tried_again(
    hdfs: MiniHdfs, penstock: Callable[..., Said], places: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If servers can fail and no `--master` was given, Spark retries a failed task; on a local disk it does not."""
    asked = []

    def session(master: str) -> None:
        asked.append(master)
        raise PenstockError(places["DST"])

    monkeypatch.setattr(ingest, "session", session)
    for dst in (places["DST"], f"{hdfs.url}/{unique.token()}"):
        assert penstock("ingest", places["SRC"], dst, "--watch").status == 1
    penstock("ingest", places["SRC"], places["DST"], "--master", "local[2]")
    assert asked == ["local[*]", "local[*,4]", "local[2]"]


def test_one_directory_by_two_addresses(
    hdfs: MiniHdfs,
    penstock: Callable[..., Said],
    tmp_path: Path,
    spark_is_not_started: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An output inside its input is refused, also if the HDFS has another address there; a sibling directory is not."""
    monkeypatch.setenv("HADOOP_CONF_DIR", str(configuration(tmp_path / "conf", {"fs.defaultFS": hdfs.url})))
    at = f"/{unique.token()}"
    HdfsStorage(hdfs.authority).make_directory(f"{at}/in")
    done = penstock("ingest", f"{hdfs.url}{at}/in", f"hdfs://{at}/in/out", "--recursive")
    assert done.status == 2
    assert "lies in SRC" in " ".join(done.err.split())
    check_apart(f"{hdfs.url}{at}/in", f"hdfs://{at}/inside")


# -- what only a running ingest can find -------------------------------------------------------------------------------


@pytest.mark.soak  # each starts a Spark of its own, because an environment variable of the process tells users apart
@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.parametrize("place", ["SRC", "DST", "--checkpoint"])
def test_permission_denied(hdfs: MiniHdfs, tmp_path: Path, place: str) -> None:
    """If the user may not read or write, the ingest ends with one error that names path and user, and nothing becomes visible."""
    storage, root = HdfsStorage(hdfs.authority), f"{hdfs.url}/{unique.token()}"
    storage.make_directory(root)
    storage.make_directory(f"{root}/in", private=True)
    put(storage, f"{root}/in/a.txt", b"line\n")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("line\n")
    places = {"SRC": str(tmp_path / "in"), "DST": str(tmp_path / "out"), "--checkpoint": str(tmp_path / "checkpoint")}
    places[place] = f"{root}/in" if place == "SRC" else f"{root}/a"
    command = [
        sys.executable,
        "-m",
        "penstock.cli",
        "ingest",
        places["SRC"],
        places["DST"],
        "--source-option",
        "settle=0",
    ]
    done = subprocess.run(
        [*command, "--checkpoint", places["--checkpoint"]],
        env=os.environ | {"HADOOP_USER_NAME": "joe"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "Permission denied: user=joe" in " ".join(done.stderr.split())
    assert root in done.stderr.replace("\n", "")
    assert not [path for path in (tmp_path / "out").glob("*") if path.name[0] not in "._"]
