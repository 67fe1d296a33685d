"""What every test may ask for: a Spark session, an HDFS, real log files; and how tests are spread over processes."""

from __future__ import annotations

import atexit
import gc
import marshal
import os
import re
import shutil
import subprocess
import tempfile
from functools import cache
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
import typer.testing
from psutil import virtual_memory

from penstock import failpoints
from tests.support.effort import effort
from tests.support.hdfs import MiniHdfs, running
from tests.support.jars import SHORT_LIVED, NoJars
from tests.support.required import missing

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from pyspark.sql import SparkSession
    from xdist.remote import Producer

    from tests.support.interpreter import Interpreter
    from tests.support.kafka import Kafka
    from tests.support.postgres import Postgres
    from tests.support.scheduling import ForgetfulScheduling
    from tests.support.stores import Relay, StoreServer

REPOSITORY = Path(__file__).resolve().parent.parent
LOGHUB = REPOSITORY.parent / "shared" / "data" / "loghub"
JAVA_AT_LEAST = 17

# Nothing here runs for long enough to be worth Java's second compiler, which takes 40 % of the processor time of a session
# that starts, runs three batches and ends, nor a collector with threads of its own, nor a look at what Scala's compiler has made,
# which takes another 9 %. Read by Spark's launcher in this process and in all that tests start.
# Their temporary files are in a directory of this run, since one that is killed leaves its own; its name is short, for sockets are in it.
JAVA_FILES = "" if "SPARK_SUBMIT_OPTS" in os.environ else tempfile.mkdtemp(prefix="j-")
if JAVA_FILES:
    os.environ["SPARK_SUBMIT_OPTS"] = " ".join([*SHORT_LIVED, f"-Djava.io.tmpdir={JAVA_FILES}"])

# What the launcher of a JVM is, which is a JVM itself and writes one line.
os.environ.setdefault("SPARK_LAUNCHER_OPTS", " ".join(SHORT_LIVED))

# Directories of tests are in memory where it has room for them: to sync takes an eighth of the processor time of the suite. What
# should meet a disk asks for `on_disk`. Read by pytest when it makes the first one, in the process that starts the others.
MEMORY = Path("/dev/shm")  # noqa: S108 - what is made in it is a directory of this user's own
MEMORY_BYTES, LEFT_TO_OTHERS = 4 << 30, 8 << 30  # the tests need a quarter of the first, their JVMs half of the second


def memory_has_room() -> bool:
    """Tell whether there is a file system in memory, with enough room, whose programs can be run."""
    if not (MEMORY.is_dir() and os.access(MEMORY, os.W_OK | os.X_OK)):
        return False
    volume = os.statvfs(MEMORY)
    runs = not volume.f_flag & os.ST_NOEXEC  # a container's does not
    return runs and volume.f_bavail * volume.f_frsize > MEMORY_BYTES and virtual_memory().available > LEFT_TO_OTHERS


if "PYTEST_DEBUG_TEMPROOT" not in os.environ and memory_has_room():
    os.environ["PYTEST_DEBUG_TEMPROOT"] = str(MEMORY)

# For queries of some rows: plans that are not compiled, which takes a seventh of the processor time of a query that is run once, and
# no shuffle into 200 tasks. Sessions of the documents, the examples and the command are those that users get.
SMALL = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "2",
}

# A loaded machine is no reason to fail, and a failure must be repeatable from what the report prints. Each run draws other examples.
hypothesis.settings.register_profile("penstock", deadline=None, print_blob=True, max_examples=effort(25, 2000))
hypothesis.settings.load_profile("penstock")


# A command and its flags are made of the signatures of all commands, which takes ten times as long as most commands that a test runs.
typer.testing._get_command = cache(typer.testing._get_command)  # type: ignore[attr-defined]

_NUMBERS = count()  # of the directories of tests
_NAME_MAX = 30  # letters of a test's name in that of its directory: paths of sockets are short

# Groups of tests that share a process, in the order in which they are begun: the first ones wait for JVMs for much of their time.
LONGEST = ("programs", "spark", "servers", "stores", "db")

STORES = {"server", "moto"}  # what modules call the store of objects that their tests share
_SETTINGS = pytest.StashKey[tuple[int, dict[str, str]]]()  # of the shared session, as it was made, and their hash


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Look for no garbage while tests are collected, nor among what was: a million objects that stay."""
    gc.disable()
    try:
        if (process := getattr(session.config, "workerinput", None)) is not None:
            from tests.support.scheduling import import_in_turn  # noqa: PLC0415 - it needs xdist, without which it is not asked for

            import_in_turn(session.config, process)
        return (yield)
    finally:
        gc.freeze()
        atexit.register(gc.unfreeze)  # libraries complain of what is there when Python has ended
        gc.enable()


def pytest_unconfigure() -> None:
    """Remove what JVMs that were killed have left; xdist's workers have our directory, and are over."""
    if JAVA_FILES:
        shutil.rmtree(JAVA_FILES, ignore_errors=True)  # one that ends just now removes its own


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return for `-n auto` and `-n logical` how many cores there are, and two more with Spark.

    Groups that wait for JVMs and servers for much of their time (`LONGEST`) are begun first, each in a process of its own, and leave
    a part of the cores idle: three of them keep one and a half busy. What never waits runs beside them.
    """
    return (os.cpu_count() or 1) + 2 * ("not spark" not in config.option.markexpr)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ForgetfulScheduling | None:
    """Return what spreads tests over processes where they are kept in groups."""
    from tests.support.scheduling import ForgetfulScheduling  # noqa: PLC0415 - it needs xdist, without which it is not asked for

    return ForgetfulScheduling(config, log) if config.option.dist == "loadgroup" else None


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what asks for `spark` or `hdfs`, and keep all of a kind in one process: each takes seconds and a gigabyte.

    HDFS and Kafka are one kind: what asks for one of them and for a session shares that, too.

    Here and not in `pytest_collection_modifyitems`, where xdist has looked at the groups before. A name that has an address in it is
    refused: it is another one in each process, and processes that do not know one another's tests run none.
    """
    if re.search(" at 0x[0-9a-f]{6}", item.nodeid):
        msg = f"{item.nodeid}: the name has an address; give ids= names of their own"
        raise pytest.UsageError(msg)
    asked = set(getattr(item, "fixturenames", ()))
    for name in asked & {"spark", "hdfs"}:
        item.add_marker(getattr(pytest.mark, name))
    if asked & {"postgres", "kafka", *STORES}:
        item.add_marker(pytest.mark.slow)  # it has a server to start
    serves = item.get_closest_marker("hdfs") or "kafka" in asked
    group = "servers" if serves else "spark" if item.get_closest_marker("spark") else None
    if asked & STORES and not group:
        group = "stores"  # each module has one, in each process that runs a test of it
    if "commands" in asked and not group:
        group = "commands"  # forked from one process
    groups = [group] if group else []
    if "python" in asked:  # also for a program that needs no Spark: there is one such interpreter, with its JVM
        groups = ["programs", "spark"]
    if item.config.pluginmanager.hasplugin("xdist"):
        for name in groups:
            item.add_marker(pytest.mark.xdist_group(name))


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, dict[str, Any], dict[str, Any]]:
    """Send a report as one piece: xdist sends its forty texts one by one, thrice a test, which takes longer than many a test."""
    return {"packed": marshal.dumps((yield))}


@pytest.hookimpl(wrapper=True)
def pytest_report_from_serializable(data: dict[str, Any]) -> Generator[None, object, object]:
    """Take it apart again."""
    data.update(marshal.loads(data.pop("packed")))  # noqa: S302 - of a process of ours, of this very Python
    return (yield)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Have xdist's processes begin with what takes longest, so that none of them is alone with it in the end; the rest stays shuffled."""
    if hasattr(config, "workerinput"):
        items.sort(key=_begins)


def _begins(item: pytest.Item) -> int:
    """Return how early a test begins, the earliest with 0: by its groups, then what is slow by itself, then all others."""
    groups = [mark.args[0] for mark in item.iter_markers("xdist_group")]
    if groups:
        return min(LONGEST.index(group) if group in LONGEST else len(LONGEST) for group in groups)
    return len(LONGEST) + (1 if item.get_closest_marker("slow") else 2)


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return an empty directory, which is removed unless the test has failed.

    As pytest's, but numbers are counted: pytest looks for the greatest one among the links that it leaves to all others.
    """
    failed = request.session.testsfailed
    name = re.sub(r"\W", "_", request.node.name)[:_NAME_MAX]
    directory = tmp_path_factory.mktemp(f"{name}{next(_NUMBERS)}", numbered=False)
    yield directory
    if request.session.testsfailed == failed:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def on_disk() -> Iterator[Path]:
    """Return a directory where temporary files usually are: where a sync takes what it takes, and names have the order of a disk's."""
    with tempfile.TemporaryDirectory(prefix="penstock-test-") as directory:
        yield Path(directory)


@pytest.fixture
def nobody_is_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have an application that lives taken for one that goes on at once, and not when it has had seconds to end."""
    monkeypatch.setattr("penstock.ingestion.replan._ENDING_SECONDS", 0.0)


@pytest.fixture(scope="session")
def loghub() -> Path:
    """Return the directory of real log files (loghub), which is kept beside the repository."""
    if not LOGHUB.is_dir():
        pytest.skip("no real log files: expected the loghub samples in ../shared/data/loghub beside the repository")
    return LOGHUB


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Return the local session that all tests of this process share. Do not stop it, do not change its configuration.

    Skips where there is no PySpark or no Java, but for PENSTOCK_REQUIRE_SPARK=1 (`make test`), where that is a failure.
    """
    reason = _missing_for_spark()
    if reason:
        missing("SPARK", reason)
    from penstock import local_session  # noqa: PLC0415 - needs PySpark, which may be missing

    session = local_session(config=SMALL)
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def _no_failpoint_stays_armed() -> Iterator[None]:
    yield
    failpoints.arm("")


@pytest.fixture(autouse=True)
def _shared_session_is_as_it_was(request: pytest.FixtureRequest) -> None:
    """Take back what another test has left of the shared session: its place, its settings, its queries.

    It is the active one again: Spark looks for data sources there, and a `newSession` may have its place. `unset` of a setting leaves
    Spark's default, and not that of `SMALL`. A query that goes on takes a core from all that come behind it.
    """
    if "spark" in request.fixturenames:
        session = request.getfixturevalue("spark")
        classes = session._get_j_spark_session_class(session._jvm)
        classes.setDefaultSession(session._jsparkSession)
        classes.setActiveSession(session._jsparkSession)
        for query in session.streams.active:
            query.stop()
        _restore_settings(session, request.config.stash)


def _restore_settings(session: SparkSession, stash: pytest.Stash) -> None:
    """Give the session the settings that it had when this was called first, and no other."""
    state = session._jsparkSession.sessionState().conf()
    now = state.getAllConfs().hashCode()  # to ask for each of them takes a tenth of a second
    before, settings = stash.get(_SETTINGS, (None, {}))
    if before is None:
        stash[_SETTINGS] = now, dict(session.conf.getAll)
    elif before != now:
        left = dict(session.conf.getAll)
        for name in left.keys() - settings.keys():
            session.conf.unset(name)
        for name, value in settings.items() - left.items():
            session.conf.set(name, value)


@pytest.fixture(scope="session")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MiniHdfs]:
    """Return the HDFS that all tests of this process share. Whoever stops a part of it starts it again.

    Skips where there is none to be had, but for PENSTOCK_REQUIRE_HDFS=1 (`make test`), where that is a failure.
    """
    try:
        with running(tmp_path_factory.mktemp("hdfs")) as cluster:
            yield cluster
    except NoJars as error:
        missing("HDFS", error)


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """Return the broker that all tests of this process share, each with topics of its own. Whoever kills it starts it again.

    Skips where there is none to be had, but for PENSTOCK_REQUIRE_KAFKA=1 (`make test`), where that is a failure.
    """
    from tests.support import kafka as server  # noqa: PLC0415 - it is asked for by few

    try:
        with server.running(tmp_path_factory.mktemp("kafka")) as broker:
            yield broker
    except NoJars as error:
        missing("KAFKA", error)


@pytest.fixture(scope="session")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    """Return the store of objects that all tests of this process share; it has a bucket, `bucket`, and each test a prefix of its own."""
    from tests.support import stores  # noqa: PLC0415 - it is asked for by few

    with stores.running("moto", tmp_path_factory.mktemp("moto")) as server:
        server.make("bucket")
        yield server


@pytest.fixture
def relay(moto: StoreServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Relay]:
    """Return a relay in front of that store, which this process takes for the store."""
    from tests.support import stores  # noqa: PLC0415 - it is asked for by few

    stores.use(moto, monkeypatch)
    with stores.Relay(moto) as relay:
        monkeypatch.setenv("AWS_ENDPOINT_URL", relay.endpoint)
        yield relay


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Interpreter]:
    """Return the interpreter in which programs of this process's tests run that need not be the first ones of a JVM."""
    from tests.support.interpreter import interpreter  # noqa: PLC0415 - it needs PySpark, which may be missing

    with interpreter(tmp_path_factory.mktemp("programs")) as running_interpreter:
        yield running_interpreter


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """Return the PostgreSQL that all tests of this process share. Whoever kills it starts it again."""
    from tests.support import postgres as server  # noqa: PLC0415 - it is asked for by few

    with server.running() as running_server:
        yield running_server


def _missing_for_spark() -> str | None:
    """Return what there is too little of to start Spark, as a reason to skip, or None."""
    if find_spec("pyspark") is None:
        return "PySpark is not installed: pip install 'pyspark>=4.3,<5'"
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(f"{home}/bin/java" if home else "java")
    if java is None:
        return f"there is no Java: Spark needs Java {JAVA_AT_LEAST} or newer, by JAVA_HOME or on the path"
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(?:1\.)?(\d+)', said)
    if version is None or int(version[1]) < JAVA_AT_LEAST:
        return f"Java is too old or broken: Spark needs {JAVA_AT_LEAST} or newer, {java} says {said.strip()!r}"
    return None
