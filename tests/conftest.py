"""Fixtures for all tests: a Spark session, an HDFS, real log files and others; and how tests are distributed over processes."""

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

# No JVM here runs long enough to be worth Java's second compiler, which takes 40 % of the processor time of a session that
# starts, runs three batches and ends, or a garbage collector with its own threads, or the verification of what Scala's compiler
# has made, which takes another 9 %. Spark's launcher reads this, in this process and in all processes that tests start. The JVMs'
# temporary files go to a directory of this run, because a killed JVM leaves its files; its name is short, because it holds
# sockets.
JAVA_FILES = "" if "SPARK_SUBMIT_OPTS" in os.environ else tempfile.mkdtemp(prefix="j-")
if JAVA_FILES:
    os.environ["SPARK_SUBMIT_OPTS"] = " ".join([*SHORT_LIVED, f"-Djava.io.tmpdir={JAVA_FILES}"])

# The launcher of a JVM, which is a JVM itself and writes one line.
os.environ.setdefault("SPARK_LAUNCHER_OPTS", " ".join(SHORT_LIVED))

# The tests' directories are in memory if it has room for them: syncing takes an eighth of the processor time of the suite. A test
# that needs a disk asks for `on_disk`. Pytest reads this when it makes the first directory, in the process that starts the
# others.
MEMORY = Path("/dev/shm")  # noqa: S108 - what is made in it is a directory of this user's own
MEMORY_BYTES, LEFT_TO_OTHERS = 4 << 30, 8 << 30  # the tests need a quarter of the first, their JVMs half of the second


def memory_has_room() -> bool:
    """Tell whether there is a file system in memory with enough room, from which programs can be run."""
    if not (MEMORY.is_dir() and os.access(MEMORY, os.W_OK | os.X_OK)):
        return False
    volume = os.statvfs(MEMORY)
    runs = not volume.f_flag & os.ST_NOEXEC  # containers mount it without this right
    return runs and volume.f_bavail * volume.f_frsize > MEMORY_BYTES and virtual_memory().available > LEFT_TO_OTHERS


if "PYTEST_DEBUG_TEMPROOT" not in os.environ and memory_has_room():
    os.environ["PYTEST_DEBUG_TEMPROOT"] = str(MEMORY)

# For queries over a few rows: no compiled plans, whose compilation takes a seventh of the processor time of a query that runs
# once, and no shuffle into 200 tasks. Sessions of the documents, the examples and the command keep the settings that users get.
SMALL = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "2",
}

# A loaded machine is no reason to fail, and the report must show how to repeat a failure. Each run draws different examples.
hypothesis.settings.register_profile("penstock", deadline=None, print_blob=True, max_examples=effort(25, 2000))
hypothesis.settings.load_profile("penstock")


# Typer builds a command and its flags from the signatures of all commands, which takes ten times as long as most tested commands.
typer.testing._get_command = cache(typer.testing._get_command)  # type: ignore[attr-defined]

_NUMBERS = count()  # of the tests' directories
_NAME_MAX = 30  # letters of a test's name in the name of its directory: paths of sockets must be short

# Groups of tests that share a process, in the order in which they begin: the first ones mostly wait for JVMs.
LONGEST = ("programs", "spark", "servers", "stores", "db")

STORES = {"server", "moto"}  # names of the fixtures with the object store that a module's tests share
_SETTINGS = pytest.StashKey[tuple[int, dict[str, str]]]()  # hash and settings of the shared session as it was created


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Switch garbage collection off during collection, and freeze what it leaves: a million objects that stay."""
    gc.disable()
    try:
        if (process := getattr(session.config, "workerinput", None)) is not None:
            from tests.support.scheduling import import_in_turn  # noqa: PLC0415 - it needs xdist, without which it is not asked for

            import_in_turn(session.config, process)
        return (yield)
    finally:
        gc.freeze()
        atexit.register(gc.unfreeze)  # libraries warn about objects that remain when Python exits
        gc.enable()


def pytest_unconfigure() -> None:
    """Remove what killed JVMs have left; xdist's workers use our directory, and have ended."""
    if JAVA_FILES:
        shutil.rmtree(JAVA_FILES, ignore_errors=True)  # a JVM that is just ending removes its own files


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return for `-n auto` and `-n logical` the number of cores and one more, or with Spark two more.

    Without Spark a test waits for a disk, a lock or a process now and then: on two cores two workers took 98 s for `make test-fast`,
    three 76 and four 78. With Spark, groups that mostly wait for JVMs and servers (`LONGEST`) begin first, each in its own process,
    and leave some cores idle: three of them keep one and a half cores busy. Tests that never wait run beside them.
    """
    return (os.cpu_count() or 1) + (1 if "not spark" in config.option.markexpr else 2)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ForgetfulScheduling | None:
    """Return the scheduler that distributes tests over processes, if they are kept in groups."""
    from tests.support.scheduling import ForgetfulScheduling  # noqa: PLC0415 - it needs xdist, without which it is not asked for

    return ForgetfulScheduling(config, log) if config.option.dist == "loadgroup" else None


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the tests that use `spark` or `hdfs`, and keep all of a kind in one process: each server takes seconds and a gigabyte.

    HDFS and Kafka are one kind: tests with one of them and a session share that session, too.

    This happens here because xdist has already looked at the groups when `pytest_collection_modifyitems` is called. A test name
    with an address in it is refused: it differs between processes, and xdist runs no tests if the processes' lists differ.
    """
    if re.search(" at 0x[0-9a-f]{6}", item.nodeid):
        msg = f"{item.nodeid}: the name has an address; give ids= names of their own"
        raise pytest.UsageError(msg)
    asked = set(getattr(item, "fixturenames", ()))
    for name in asked & {"spark", "hdfs"}:
        item.add_marker(getattr(pytest.mark, name))
    if asked & {"postgres", "kafka", *STORES}:
        item.add_marker(pytest.mark.slow)  # starts a server
    serves = item.get_closest_marker("hdfs") or "kafka" in asked
    group = "servers" if serves else "spark" if item.get_closest_marker("spark") else None
    if asked & STORES and not group:
        group = "stores"  # each module has one server, in each process that runs one of its tests
    if "commands" in asked and not group:
        group = "commands"  # forked from one process
    groups = [group] if group else []
    if "python" in asked:  # also for a program without Spark: there is only one such interpreter, with its JVM
        groups = ["programs", "spark"]
    if item.config.pluginmanager.hasplugin("xdist"):
        for name in groups:
            item.add_marker(pytest.mark.xdist_group(name))


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, dict[str, Any], dict[str, Any]]:
    """Send a report in one piece: xdist sends its forty texts one by one, three times per test, which takes longer than many tests."""
    return {"packed": marshal.dumps((yield))}


@pytest.hookimpl(wrapper=True)
def pytest_report_from_serializable(data: dict[str, Any]) -> Generator[None, object, object]:
    """Unpack the report again."""
    data.update(marshal.loads(data.pop("packed")))  # noqa: S302 - of a process of ours, of this very Python
    return (yield)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Have xdist's processes begin with the longest tests, so that none is left with one at the end; the rest stays shuffled."""
    if hasattr(config, "workerinput"):
        items.sort(key=_begins)


def _begins(item: pytest.Item) -> int:
    """Return the rank of a test, 0 for the earliest: first the groups, then single slow tests, then all others."""
    groups = [mark.args[0] for mark in item.iter_markers("xdist_group")]
    if groups:
        return min(LONGEST.index(group) if group in LONGEST else len(LONGEST) for group in groups)
    return len(LONGEST) + (1 if item.get_closest_marker("slow") else 2)


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return an empty directory, which is removed unless the test has failed.

    Like pytest's, but numbered by a counter: pytest searches for the greatest number among the links to all other directories.
    """
    failed = request.session.testsfailed
    name = re.sub(r"\W", "_", request.node.name)[:_NAME_MAX]
    directory = tmp_path_factory.mktemp(f"{name}{next(_NUMBERS)}", numbered=False)
    yield directory
    if request.session.testsfailed == failed:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def on_disk() -> Iterator[Path]:
    """Return a directory where temporary files usually are: a sync takes its real time there, and names come in a disk's order."""
    with tempfile.TemporaryDirectory(prefix="penstock-test-") as directory:
        yield Path(directory)


@pytest.fixture
def nobody_is_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat an application that is alive as one that continues, without giving it seconds to end."""
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

    Skips without PySpark or Java, unless PENSTOCK_REQUIRE_SPARK=1 (`make test`) makes that a failure.
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
    """Undo what another test has changed in the shared session: its place, its settings, its queries.

    It becomes the active session again: Spark looks for data sources there, and a `newSession` may have taken its place.
    `unset` of a setting leaves Spark's default, not the value in `SMALL`. A query that goes on takes a core from all later
    tests.
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
    """Give the session exactly the settings that it had when this was first called."""
    state = session._jsparkSession.sessionState().conf()
    now = state.getAllConfs().hashCode()  # asking for each setting takes a tenth of a second
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
    """Return the HDFS that all tests of this process share. A test that stops a part of it must start it again.

    Skips if HDFS is not available, unless PENSTOCK_REQUIRE_HDFS=1 (`make test`) makes that a failure.
    """
    try:
        with running(tmp_path_factory.mktemp("hdfs")) as cluster:
            yield cluster
    except NoJars as error:
        missing("HDFS", error)


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """Return the broker that all tests of this process share, each with its own topics. A test that kills it must start it again.

    Skips if Kafka is not available, unless PENSTOCK_REQUIRE_KAFKA=1 (`make test`) makes that a failure.
    """
    from tests.support import kafka as server  # noqa: PLC0415 - it is asked for by few

    try:
        with server.running(tmp_path_factory.mktemp("kafka")) as broker:
            yield broker
    except NoJars as error:
        missing("KAFKA", error)


@pytest.fixture(scope="session")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    """Return the object store that all tests of this process share; it has a bucket, `bucket`, and each test uses its own prefix."""
    from tests.support import stores  # noqa: PLC0415 - it is asked for by few

    with stores.running("moto", tmp_path_factory.mktemp("moto")) as server:
        server.make("bucket")
        yield server


@pytest.fixture
def relay(moto: StoreServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Relay]:
    """Return a relay in front of that store; this process takes it for the store."""
    from tests.support import stores  # noqa: PLC0415 - it is asked for by few

    stores.use(moto, monkeypatch)
    with stores.Relay(moto) as relay:
        monkeypatch.setenv("AWS_ENDPOINT_URL", relay.endpoint)
        yield relay


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Interpreter]:
    """Return the interpreter for this process's programs that need no JVM of their own."""
    from tests.support.interpreter import interpreter  # noqa: PLC0415 - it needs PySpark, which may be missing

    with interpreter(tmp_path_factory.mktemp("programs")) as running_interpreter:
        yield running_interpreter


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """Return the PostgreSQL that all tests of this process share. A test that kills it must start it again."""
    from tests.support import postgres as server  # noqa: PLC0415 - it is asked for by few

    with server.running() as running_server:
        yield running_server


def _missing_for_spark() -> str | None:
    """Return what is missing for Spark, as a reason to skip, or None."""
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
