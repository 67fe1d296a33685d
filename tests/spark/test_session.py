"""`local_session` in separate processes: what a session leaves behind, and odd machines on which it starts all the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.stage import run_python
from tests.support.wait import PATIENCE_SECONDS

if TYPE_CHECKING:
    from tests.support.stage import Stage

pytest.importorskip("pyspark")
REPOSITORY = Path(__file__).resolve().parent.parent.parent

# What PySpark itself leaves of any session.
PYSPARKS = {"SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE"}

TWO_SESSIONS = """
import json, os, sys
import penstock, psutil
import pyarrow as pa
from pyspark.sql import SparkSession

def above(batches):
    import os, psutil
    for _ in batches:
        words = [" ".join(process.cmdline()) for process in psutil.Process().parents()]
        facts = [" <- ".join(words), os.environ["PATH"], str("PYSPARK_PYTHON" in os.environ)]
        yield pa.RecordBatch.from_arrays([pa.array([fact]) for fact in facts], names=["above", "path", "named"])

def facts_of(session):
    row = session.range(1).mapInArrow(above, "above string, path string, named string").first()
    settings = dict(session.sparkContext.getConf().getAll())
    return {**row.asDict(), "python": session.sparkContext.pythonExec, "settings": settings}

before = dict(os.environ)
ours = penstock.local_session("local[1]", rows_in_jvm=False, config={"spark.hadoop.a": "b"})
told = {"ours": facts_of(ours)}
ours.stop()
told["changed"] = [name for name in {*before, *os.environ} if before.get(name) != os.environ.get(name)]
plain = SparkSession.builder.master("local[1]").getOrCreate()
told["plain"] = facts_of(plain)
plain.stop()
print(json.dumps(told))
"""


@pytest.mark.soak  # two sessions
@pytest.mark.spark
def test_session_leaves_nothing_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """After `local_session` the environment is as before, and a plain session of the same process has its own Python and settings.

    PYSPARK_PYTHON is set to this Python, as in every image: workers are forked all the same.
    """
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    done = run_python(TWO_SESSIONS)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert set(told["changed"]) <= PYSPARKS
    ours, plain = told["ours"], told["plain"]
    assert "penstock.session.forkserver" in ours["above"]
    assert ours["python"] == "python3"
    assert ours["path"] == os.environ["PATH"]
    assert ours["settings"]["spark.sql.codegen.wholeStage"] == "false"
    assert "penstock.session.forkserver" not in plain["above"]
    assert plain["python"] == sys.executable
    assert plain["path"].endswith(os.environ["PATH"])
    left = {name: value for name, value in plain["settings"].items() if name.startswith(("spark.sql.", "spark.ui"))}
    assert set(left) <= {"spark.sql.artifact.isolation.enabled", "spark.sql.warehouse.dir"}, "what PySpark sets"


@pytest.fixture
def odd_python(tmp_path: Path) -> Path:
    """Return the Python of a virtual environment with all packages of this one; a shell splits or expands parts of its path."""
    root = tmp_path / "a b [1]'s $HOME é"
    subprocess.run([os.path.realpath(sys.executable), "-m", "venv", "--without-pip", "--symlinks", root], check=True)
    (packages,) = root.glob("lib/python*/site-packages")
    ours = {path.name: path for path in (REPOSITORY / "src").iterdir()}
    theirs = {path.name: path for path in Path(sysconfig.get_path("purelib")).iterdir() if "penstock" not in path.name}
    for name, path in (theirs | ours).items():
        (packages / name).symlink_to(path)
    return root / "bin" / "python"


@pytest.mark.soak  # a start without an archive of classes, and a new virtual environment
@pytest.mark.spark
def test_odd_machine(odd_python: Path, stage: Stage) -> None:
    """A path with blanks, no writable home, no UTF-8, Jupyter as the driver's Python, another SPARK_HOME: an ingest runs.

    Each of these stopped every start: formats that were not found, a cache that could not be made, names that Java could not
    make, a JVM of another Spark.
    """
    stage.put("a", "1", "2")
    out = stage.root / "aus é"
    (stage.root / "spark" / "jars").mkdir(parents=True)
    (stage.root / "spark" / "jars" / "spark-core_2.12-3.5.1.jar").touch()
    variables = {name: value for name, value in os.environ.items() if name not in {"XDG_CACHE_HOME", "PYTHONPATH"}} | {
        "HOME": "/proc",
        "LC_ALL": "C",
        "PYSPARK_PYTHON": f"{odd_python}3",
        "PYSPARK_DRIVER_PYTHON": "jupyter",
        "SPARK_HOME": str(stage.root / "spark"),
    }
    command: list[str | Path] = [odd_python, "-m", "penstock.cli", "ingest", stage.src, out, "--json"]
    done = subprocess.run(
        command, env=variables, cwd=stage.root, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-3000:]}"
    assert json.loads(done.stdout.splitlines()[-1])["rows"] == 2
    assert [path.read_text() for path in out.glob("part-*")] == ["1\n2\n"]
    assert "is Spark 3.5.1, PySpark is" in done.stderr
    assert sorted(path.name for path in stage.root.iterdir()) == sorted(["a b [1]'s $HOME é", "aus é", "in", "spark"])


LOST_JVM = """
import os, socket, sys, threading
from py4j.clientserver import ClientServer, JavaParameters, PythonParameters
from py4j.protocol import Py4JError
from penstock.session import noise

server = socket.create_server(("127.0.0.1", 0))

def hang_up():
    while True:
        client, _ = server.accept()
        client.recv(1)
        client.close()

threading.Thread(target=hang_up, daemon=True).start()
noise.hush()
gateway = ClientServer(JavaParameters(port=server.getsockname()[1]), PythonParameters(port=0))
try:
    gateway.jvm.java
except Py4JError:
    print("raised", flush=True)
sys.stderr.flush()
os._exit(0)
"""


@pytest.mark.parametrize("debug", ["0", "1"])
def test_a_jvm_that_is_lost_is_told_once(tmp_path: Path, debug: str) -> None:
    """When the JVM has ended, py4j's error is raised but not also logged with a stack trace; PENSTOCK_DEBUG=1 logs it."""
    environment = os.environ | {"PENSTOCK_DEBUG": debug}
    ended = subprocess.run(
        [sys.executable, "-c", LOST_JVM],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=True,
    )
    assert ended.stdout == "raised\n"
    assert ("Traceback" in ended.stderr) == (debug == "1"), ended.stderr
