"""What cannot start is found before a JVM is started, with advice that works; what can be corrected is corrected."""

from __future__ import annotations

import locale
import os
import pwd
import re
import resource
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

import pytest

from penstock.errors import DependencyError, OptionError
from penstock.session import archive, forkserver, host, interpreter, java, launch, machine, pythons, surroundings
from penstock.session import local as session
from penstock.session.finding import Finding, require
from penstock.session.master import check_master
from tests.support.follows import follows

SPARK = [
    "PYSPARK_PYTHON",
    "PYSPARK_DRIVER_PYTHON",
    "PYSPARK_SUBMIT_ARGS",
    "SPARK_HOME",
    "SPARK_REMOTE",
    "SPARK_API_MODE",
]
SPARK += ["SPARK_LOCAL_DIRS", "SPARK_CONNECT_MODE_ENABLED", "JAVA_HOME"]


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clear Spark's variables from the environment, and let no fork server listen that no session of these tests will start."""
    for name in SPARK:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(forkserver, "prepare", lambda: ("/nowhere/fork", lambda: None))


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """Return an empty virtual environment of this Python's base."""
    base = os.path.realpath(sys.executable)
    subprocess.run([base, "-m", "venv", "--without-pip", "--symlinks", str(tmp_path / "venv")], check=True)
    return tmp_path / "venv" / "bin" / "python"


def program(path: Path, text: str) -> Path:
    """Write a program that can be run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def java_home(root: Path, version: str | None, *, says: str = "") -> Path:
    """Create a directory that looks like an installation of Java."""
    program(root / "bin" / "java", f"#!/bin/sh\necho '{says}' >&2\n")
    if version is not None:
        (root / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return root


# --- Python and PySpark


def test_advice_on_python_310_is_no_circle(monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark of the extra does not support Python 3.10, so the advice is a newer Python and not to install the extra again."""
    monkeypatch.setattr(sys, "version_info", (3, 10, 13, "final", 0))
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(DependencyError, match=r"no PySpark 4.3 for Python 3.10; .*python3.11 -m venv") as raised:
        session.require_pyspark()
    assert "install it with" not in raised.value.message
    assert pythons.python().state == "problem"
    assert "3.11" in pythons.python().advice


def test_pyspark_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """If PySpark can be installed, the advice is to install it."""
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(DependencyError, match="PySpark is not installed; install it with: pip install 'penstock"):
        session.require_pyspark()
    assert surroundings.spark_home().state == "ok"


def test_pyspark_hidden_by_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """An upgrade does not help if PYTHONPATH puts another PySpark first, so the advice names that entry."""
    pyspark = pytest.importorskip("pyspark")
    monkeypatch.setattr(pyspark, "__version__", "3.5.1")
    with pytest.raises(DependencyError, match=r"3.5.1 in .* is too old: expected 4.3 or newer; upgrade with: pip"):
        session.require_pyspark()
    monkeypatch.setattr(pyspark, "__file__", "/opt/spark/python/pyspark/__init__.py")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere:/opt/spark/python")
    with pytest.raises(DependencyError, match=r"take '/opt/spark/python' out of PYTHONPATH"):
        session.require_pyspark()


# --- which Python the workers are


def test_this_python_by_any_of_its_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path, a bare name on the path, a link to the environment: each is recognised as this Python, and keeps the fast start."""
    folder = os.path.dirname(sys.executable)
    monkeypatch.setenv("PATH", folder, prepend=os.pathsep)
    (tmp_path / "environment").symlink_to(os.path.dirname(folder))
    for name in (sys.executable, f"{folder}/python3", "python3", "python", str(tmp_path / "environment/bin/python")):
        monkeypatch.setenv("PYSPARK_PYTHON", name)
        assert interpreter.is_this(name)
        assert pythons.workers().state == "ok"


def test_other_environment_of_the_same_file_is_another_python(venv: Path, tmp_path: Path) -> None:
    """The Pythons of two virtual environments link to one file, but import different things."""
    assert os.path.realpath(venv) == os.path.realpath(sys.executable)
    assert not interpreter.is_this(str(venv))
    (tmp_path / "python3").symlink_to(venv)
    assert not interpreter.is_this(str(tmp_path / "python3"))


def test_wrapper_is_another_python(tmp_path: Path) -> None:
    """A script that runs this Python may set things that only its author knows: it is not bypassed."""
    assert not interpreter.is_this(
        str(program(tmp_path / "python", f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n'))
    )


def test_workers_that_could_not_work(venv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python that is missing, has another version, or lacks the workers' imports is found before anything starts."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setattr(launch, "_has_jvm", lambda: False)  # this process may have one by now
    old = program(tmp_path / "old", "#!/bin/sh\necho '[[3, 9, 1], [], null]'\n")
    penstock = tmp_path / "elsewhere/penstock"
    shutil.copytree(os.path.dirname(machine.__file__), penstock / "session")
    (penstock / "__init__.py").touch()
    other = program(
        tmp_path / "other", f'#!/bin/sh\nPYTHONPATH={penstock.parent} exec {shlex.quote(sys.executable)} "$@"\n'
    )
    for named, found in {
        "/nowhere/python": "is not a Python that runs here",
        str(program(tmp_path / "false", "#!/bin/sh\nexit 1\n")): "is not a Python that runs here",
        str(old): "is Python 3.9, this is 3",
        str(venv): "has no penstock and no pyarrow",
        str(other): "has another state of Penstock than this Python",
    }.items():
        monkeypatch.setenv("PYSPARK_PYTHON", named)
        with pytest.raises(DependencyError, match=f"PYSPARK_PYTHON='{named}' {found}.*; unset it, or set it to"):
            launch.plan("local[2]")


def test_slow_workers_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another Python that works is used; one line says what it costs and how to avoid the cost."""
    pytest.importorskip("pyspark")
    other = program(tmp_path / "other", f'#!/bin/sh\necho welcome\nexec {shlex.quote(sys.executable)} "$@"\n')
    monkeypatch.setenv("PYSPARK_PYTHON", str(other))
    monkeypatch.setattr(launch, "_has_jvm", lambda: False)
    how = launch.plan("local[2]")
    assert (how.variables["PYSPARK_PYTHON"], how.has_launcher, how.registers) == (str(other), False, True)
    (line,) = caplog.messages
    assert "a start takes twice as long; unset it, or set it to" in line


# --- what the JVM is started with


@pytest.fixture
def no_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process appear to have no JVM, though other tests may have started one."""
    pytest.importorskip("pyspark")
    monkeypatch.setattr(launch, "_has_jvm", lambda: False)


@pytest.mark.usefixtures("no_jvm")
def test_fast_start_with_the_name_of_this_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """PYSPARK_PYTHON, as every image sets it, does not disable the launcher; PYSPARK_DRIVER_PYTHON=jupyter is not taken for a worker."""
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "jupyter")
    before = dict(os.environ)
    how = launch.plan("local[2]")
    assert how.has_launcher
    with how.environment():
        assert not {"PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"} & set(os.environ)
        assert shutil.which("python3") == launch.LAUNCHER
        assert os.environ["PENSTOCK_PYTHON"] == sys.executable
    assert dict(os.environ) == before


@pytest.mark.usefixtures("no_jvm")
def test_environment_is_restored_after_a_start_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """This includes variables that the start removed, and variables that were empty."""
    monkeypatch.setenv("PYSPARK_PYTHON", "")
    before = dict(os.environ)
    with pytest.raises(ZeroDivisionError), launch.plan("local[2]").environment():
        raise ZeroDivisionError
    assert dict(os.environ) == before


@pytest.mark.usefixtures("no_jvm")
def test_no_launcher_for_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Executors get a Python that their hosts may have: the user's, otherwise the path of the driver's."""
    for named in ("python3", ""):
        monkeypatch.setenv("PYSPARK_PYTHON", named)
        how = launch.plan("spark://host:7077")
        assert how.variables["PYSPARK_PYTHON"] == (named or sys.executable)
        assert how.registers
        assert "PATH" not in how.variables


def test_no_launcher_in_a_jvm_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A JVM that spark-submit or a plain session started does not know the launcher: workers start with this Python's path."""
    pytest.importorskip("pyspark")
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    monkeypatch.setattr(launch, "_ours", None)
    how = launch.plan("local[2]")
    assert how.variables == {"PYSPARK_PYTHON": sys.executable}
    assert how.registers


def test_launcher_keeps_no_trace_of_itself(tmp_path: Path) -> None:
    """A worker that runs `python3` gets what it always got, and odd names in PYTHONPATH stay as they are."""
    (tmp_path / "a b").mkdir()
    (tmp_path / "x*").mkdir()
    (tmp_path / "xy").mkdir()
    entries = [str(tmp_path / "a b"), "/spark/pyspark.zip", str(tmp_path / "x*")]
    folder = os.path.dirname(launch.LAUNCHER)
    variables = {"PATH": f"{folder}:/usr/bin:/bin", "PENSTOCK_PYTHON": sys.executable, "PYTHONPATH": ":".join(entries)}
    code = "import os; print(os.environ['PATH']); print(os.environ['PYTHONPATH'])"
    done = subprocess.run([launch.LAUNCHER, "-c", code], env=variables, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["/usr/bin:/bin", f"{entries[0]}:{entries[2]}"]


def test_java_options_with_blanks() -> None:
    """Spark splits the options of a JVM at blanks unless they are quoted, and HOME may contain one."""
    flags = ["-XX:A=/home/a b/x", "-Dc=1", '-De="\\']
    assert archive.as_options(flags) == '"-XX:A=/home/a b/x" -Dc=1 "-De=\\"\\\\"'


@pytest.mark.parametrize(("codeset", "given"), [("ANSI_X3.4-1968", "C.UTF-8"), ("UTF-8", None)])
def test_jvm_is_given_a_locale_with_utf8(monkeypatch: pytest.MonkeyPatch, codeset: str, given: str | None) -> None:
    """With LC_ALL=C Java can only open files with ASCII names."""
    monkeypatch.setattr(locale, "nl_langinfo", lambda _: codeset)
    assert machine.for_jvm("local").get("LC_ALL") == given
    assert (host.locales().state == "ok") == (given is None)


def unknown(*_: object) -> NoReturn:
    """Stand in for a resolver that knows no name."""
    raise socket.gaierror


def test_jvm_is_given_the_name_of_this_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container without a network the host's name does not resolve, and Java would not start; elsewhere the JVM finds it itself."""
    assert "SPARK_LOCAL_IP" not in machine.for_jvm("local[2]")
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert machine.for_jvm("local[2]")["SPARK_LOCAL_IP"] == "127.0.0.1"
    assert "SPARK_LOCAL_IP" not in machine.for_jvm("spark://host:7077")
    monkeypatch.setenv("SPARK_LOCAL_IP", "10.0.0.1")
    assert machine.for_jvm("local[2]")["SPARK_LOCAL_IP"] == "10.0.0.1"


FROM_ELSEWHERE = """
import os, sys
sys.path.insert(0, sys.argv[1])
from penstock.session import launch
print(os.environ["PYTHONPATH"], launch.plan("local[2]").variables["PYTHONPATH"])
"""


@pytest.mark.parametrize("zipped", [True, False])
def test_workers_find_the_penstock_of_a_program(tmp_path: Path, zipped: bool) -> None:
    """If a program loads Penstock from a zip or a directory, its workers found none, or another one."""
    pytest.importorskip("pyspark")
    source = Path(os.path.dirname(machine.__file__)).parent
    place = tmp_path / ("app.pyz" if zipped else "lib")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(source, tmp_path / "lib/penstock", ignore=ignored)
    if zipped:
        shutil.make_archive(str(tmp_path / "app"), "zip", tmp_path / "lib")
        (tmp_path / "app.zip").rename(place)
    variables = os.environ | {"PYTHONPATH": "/elsewhere"}
    command = [sys.executable, "-c", FROM_ELSEWHERE, str(place)]
    told = subprocess.run(command, env=variables, capture_output=True, text=True, check=True, cwd=tmp_path).stdout
    assert told.split() == ["/elsewhere", f"{place}:/elsewhere"]
    command = [sys.executable, "-c", "import penstock; print(penstock.__file__)"]
    variables["PYTHONPATH"] = told.split()[1]
    found = subprocess.run(command, env=variables, capture_output=True, text=True, check=True, cwd=tmp_path).stdout
    assert found.strip() == f"{place}/penstock/__init__.py"


def test_workers_find_a_penstock_that_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Penstock that every Python of this environment finds is not put before the entries of PYTHONPATH."""
    home = os.path.dirname(os.path.dirname(os.path.dirname(machine.__file__)))
    monkeypatch.setenv("PYTHONPATH", home)
    assert interpreter.for_workers() == {}
    monkeypatch.delenv("PYTHONPATH")
    monkeypatch.setattr(interpreter, "_searched", lambda: iter([home]))
    assert interpreter.for_workers() == {}
    monkeypatch.setattr(interpreter, "_searched", lambda: iter(["/elsewhere"]))
    assert interpreter.for_workers() == {"PYTHONPATH": home}


# --- Java, Spark, the machine


@pytest.mark.parametrize(
    ("version", "state"),
    [("17.0.15", "ok"), ("25", "ok"), ("1.8.0_392", "problem"), ("11.0.2", "problem"), (None, "ok")],
)
def test_java_is_told_by_what_its_installation_notes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str | None, state: str
) -> None:
    """An old Java is recognised by its installation's notes without a start; one without notes is started."""
    monkeypatch.setenv("JAVA_HOME", str(java_home(tmp_path / "java", version)))
    assert java.java().state == state


def test_java_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A JAVA_HOME that leads nowhere, and a missing Java, get different messages."""
    pytest.importorskip("pyspark")
    monkeypatch.setattr(launch, "_has_jvm", lambda: False)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(DependencyError, match=r"JAVA_HOME='.*' has no bin/java; unset it, or install Java 17"):
        launch.plan("local")
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DependencyError, match=r"there is no Java: .*; install Java 17 or newer"):
        launch.plan("local")


@pytest.mark.parametrize(
    ("says", "state"), [('openjdk version "21.0.1"', "ok"), ('java version "1.8.0"', "problem"), ("Error", "problem")]
)
def test_doctor_asks_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, state: str) -> None:
    """The doctor runs Java and believes its answer, and reports a Java that does not run."""
    monkeypatch.setenv("JAVA_HOME", str(java_home(tmp_path / "java", "17.0.1", says=says)))
    assert java.java_runs().state == state


@pytest.mark.skipif(shutil.which("java") is None, reason="there is no Java here to be asked")
def test_java_within_a_limit_of_addresses(tmp_path: Path) -> None:
    """Java alone takes a quarter of the memory, and was called broken although Spark's 1 GiB fits; if that does not, the limit is named."""
    told = "from penstock.session import java; found = java.java_runs(); print(found.state, found.text, found.advice)"
    states = {}
    for kib in (500_000, 4_000_000):
        limited = f'ulimit -v {kib}; exec "$@"'
        command = ["/bin/sh", "-c", limited, "sh", sys.executable, "-c", told]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
        states[kib] = done.stdout
    assert re.match(r"problem .* does not run: '.*(allocate|reserve).*raise the limit of 500,000 KiB", states[500_000])
    assert states[4_000_000].startswith("ok ")


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system lets no process choose its processors")
def test_processors_are_those_that_may_be_used() -> None:
    """Under `taskset` or in a container a session has as many tasks as it may use processors, not as many as the machine has."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert host.memory().text.split(", ")[1].split(":")[0] == "1 processor"
    finally:
        os.sched_setaffinity(0, before)


def test_spark_home_of_another_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark and a JVM of another version fail in odd ways: the session takes the one that PySpark brings, and says so."""
    pyspark = pytest.importorskip("pyspark")
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-core_2.12-3.5.1.jar").touch()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert surroundings.spark_home().state == "note"
    assert "is Spark 3.5.1, PySpark is 4" in surroundings.spark_home().text
    assert machine.for_jvm("local")["SPARK_HOME"] == os.path.dirname(pyspark.__file__)
    ours = tmp_path / "jars" / f"spark-core_2.13-{pyspark.__version__}-vendor-1.jar"
    (tmp_path / "jars" / "spark-core_2.12-3.5.1.jar").rename(ours)
    assert surroundings.spark_home().state == "ok"
    assert "SPARK_HOME" not in machine.for_jvm("local")


@pytest.mark.parametrize(
    ("name", "value", "advice"),
    [
        ("SPARK_REMOTE", "sc://host", "unset SPARK_REMOTE"),
        ("SPARK_API_MODE", "connect", "unset SPARK_API_MODE"),
        ("PYSPARK_SUBMIT_ARGS", "--packages a:b:1", "end it with pyspark-shell"),
        ("PYSPARK_SUBMIT_ARGS", "'", "end it with pyspark-shell"),
    ],
)
def test_variables_with_which_nothing_starts(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, advice: str
) -> None:
    """Variables that prevent every start are named, with advice."""
    monkeypatch.setenv(name, value)
    assert surroundings.variables().state == "problem"
    assert advice in surroundings.variables().advice


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SPARK_REMOTE", "sc://host"),
        ("PYSPARK_SUBMIT_ARGS", "--packages a:b:1"),
        ("PYSPARK_PYTHON", "/no/python"),
        ("JAVA_HOME", "/no/java"),
        ("SPARK_LOCAL_DIRS", "/proc/no"),
    ],
)
@follows("PST-103")
def test_advice_on_variables_is_followed(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    """A start refuses such a variable with `DependencyError`; once it is unset, or set as the message says, the start works."""

    def problems() -> list[str]:
        findings = machine.before_start("local[2]")
        return [str(finding) for finding in findings if finding.state == "problem" and name in finding.text]

    monkeypatch.setenv(name, value)
    with pytest.raises(DependencyError, match=name) as caught:
        require(*machine.before_start("local[2]"))
    assert "unset" in caught.value.message
    assert problems()
    if python := re.search(r"set it to '([^']+)'", caught.value.message):
        monkeypatch.setenv(name, python[1])
        assert not problems()
    if "end it with pyspark-shell" in caught.value.message:
        monkeypatch.setenv(name, f"{value} pyspark-shell")
        assert not problems()
    monkeypatch.delenv(name)
    assert not problems()


def test_user_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images run as a numeric user: Hadoop's classes then fail with a NullPointerException, so the error comes before that."""

    def nobody(number: int) -> NoReturn:
        raise KeyError(number)

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    found = host.user()
    assert found.state == "problem"
    assert f"spark:x:{os.getuid()}:" in found.advice


@pytest.mark.parametrize("odd", ["/opt/a:b/lib", "/opt/\udce9"])
def test_paths_that_java_cannot_have(monkeypatch: pytest.MonkeyPatch, odd: str) -> None:
    """A colon ends an entry of a class path, and Java cannot open a file whose name is not text."""
    monkeypatch.setattr(pythons, "pyspark_home", lambda: odd)
    assert surroundings.paths().state == "problem"
    monkeypatch.setattr(pythons, "pyspark_home", lambda: "/opt/a b/lib")
    assert surroundings.paths().state == "ok"


def test_directory_that_was_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell may be in a directory that was removed, in which no process can be started."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert surroundings.here().state == "problem"
    asks = '#!/bin/sh\ntest -d "$(pwd -P)" && echo \'openjdk version "21.0.1"\' >&2\n'
    monkeypatch.setenv("JAVA_HOME", str(program(tmp_path / "java/bin/java", asks).parent.parent))
    assert java.java_runs().state == "ok"  # Java itself is well


def test_files_here_that_hide_modules_of_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a `csv.py` next to the data no worker started, and the only message was that there is no data source `penstock`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    (tmp_path / "turtle.py").touch()  # no worker loads it
    (tmp_path / "logging").mkdir()  # it hides nothing without an __init__.py
    assert surroundings.modules().state == "ok"
    (tmp_path / "csv.py").touch()
    (tmp_path / "logging/__init__.py").touch()
    [found] = [finding for finding in machine.before_start("local[2]") if finding.name == "modules"]
    assert found.state == "note"
    assert found.text.startswith("csv.py, logging/__init__.py in the current directory: ")
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    assert surroundings.modules().state == "ok"


def test_temporary_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a temporary directory a start is refused; one with too long a name makes it slower; one that is full is reported."""
    assert host.temporary().state == "ok"
    long = tmp_path / ("x" * 90)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    assert "too long for sockets" in host.temporary().text
    monkeypatch.setattr(host, "free_bytes", lambda _: 1 << 20)
    assert host.temporary().state == "problem"
    monkeypatch.undo()
    monkeypatch.setenv("TMPDIR", "/proc")
    assert "since TMPDIR='/proc' cannot be written" in host.temporary().text
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/proc")
    assert host.temporary().state == "problem"

    def none() -> NoReturn:
        raise FileNotFoundError

    monkeypatch.setattr(tempfile, "gettempdir", none)
    assert host.temporary().state == "problem"


def test_java_is_given_a_directory_that_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Java uses /tmp whatever TMPDIR says; if /tmp cannot be written it gets another directory, without sockets if the name is long."""
    assert host.java_options() == []
    assert host.has_sockets()
    long = tmp_path / ("x" * 90)
    long.mkdir()
    monkeypatch.setattr(host, "_JAVA_TEMPORARY", "/proc")
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    assert host.java_options() == [f"-Djava.io.tmpdir={long}"]
    assert not host.has_sockets()


def test_cache_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """A HOME that cannot be written prevents neither a start nor a cache."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/proc")
    assert archive.flags() == []
    assert host.cache().state == "ok"
    assert "HOME='/proc' can be written" in host.cache().text


def test_cache_of_a_home_among_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writable HOME inside the directory for temporary files is not reported as unwritable."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    assert host.cache().text == f"{tmp_path}/home/.cache/penstock"


def test_few_files_and_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits that a query would reach under load are named with the command that raises them."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 4096))
    assert host.limits().state == "note"
    assert "ulimit -n" in host.limits().advice
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert host.limits().state == "ok"


def test_fewer_files_than_spark_has_jars(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `ulimit -n 256` Spark's JVM does not start: our error comes first, instead of Java's about a file of time zones."""
    monkeypatch.setattr(launch, "_has_jvm", lambda: False)
    limited = resource.getrlimit(resource.RLIMIT_NOFILE)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 256))
    with pytest.raises(
        DependencyError, match="256 open files, .*: Spark's JVM needs 512; have the limit .* raised to 4096"
    ):
        launch.plan("local[2]")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (4096, max(limited)))
    assert host.limits().state == "ok"


def test_network_of_this_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host name that does not resolve is not our problem; a loopback interface that is down is."""
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert host.network().state == "ok"
    assert "SPARK_LOCAL_IP" in host.network().text

    def down(*_: object) -> NoReturn:
        raise OSError

    monkeypatch.setattr(socket.socket, "bind", down)
    assert host.network().state == "problem"


@pytest.mark.parametrize(
    ("named", "state"),
    [
        *(
            (zone, "ok")
            for zone in ("Europe/Berlin", "UTC", "GMT0", "EST5EDT", "<+03>-3", "CET-1CEST,M3.5.0,M10.5.0/3")
        ),
        *((zone, "note") for zone in ("Mars/Olympus", "utc", "PST", "Berlin", "+03:00", "Europe/Berlin ", " ")),
        *((zone, "note") for zone in ("../../../etc/passwd", "/etc/passwd", "/etc", "/nowhere", "\udce9")),
    ],
)
def test_time_zone_that_is_none(monkeypatch: pytest.MonkeyPatch, named: str, state: str) -> None:
    """The system silently takes a misspelt TZ, and anything else that is not a zone, for UTC; POSIX rules are zones."""
    for text in (named, f":{named}"):
        monkeypatch.setenv("TZ", text)
        assert host.time_zone().state == state


def test_time_zone_by_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path of a zone file is a zone, as it is to the C library."""
    (tmp_path / "zone").write_bytes(b"TZif2" + b"\0" * 40)
    monkeypatch.setenv("TZ", f":{tmp_path}/zone")
    assert host.time_zone().state == "ok"


def test_hadoop_without_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A HADOOP_CONF_DIR without a configuration is named; with a configuration, and with a user name, all is well."""
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    monkeypatch.setenv("HADOOP_USER_NAME", "etl")
    assert surroundings.hadoop().state == "note"
    (tmp_path / "core-site.xml").write_text("<configuration/>")
    assert surroundings.hadoop().state == "ok"
    assert "asked as 'etl'" in surroundings.hadoop().text


def test_what_is_not_well_has_advice() -> None:
    """Every check runs on this machine and says something, and a check that fails gives advice."""
    found = machine.everything()
    assert len({finding.name for finding in found}) == len(found)
    assert all(finding.text and (finding.advice or finding.state == "ok") for finding in found)
    assert [finding.name for finding in found if finding.state == "problem"] == []


def test_all_problems_are_told_at_once() -> None:
    """A user with two problems is told both."""
    a, b = (Finding(name, "problem", f"{name} is wrong", f"mend {name}") for name in "ab")
    with pytest.raises(DependencyError, match="a is wrong; mend a\nb is wrong; mend b"):
        require(a, Finding("c", "note", "x", "y"), b)


def test_checks_take_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks before a start run no process, so they do not slow down a start that is well."""
    pytest.importorskip("pyspark")

    def started(*arguments: object, **_: object) -> NoReturn:
        pytest.fail(f"a process was started: {arguments}")

    monkeypatch.setattr(subprocess, "Popen", started)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    assert machine.before_start("local[*]")


@pytest.mark.parametrize(
    ("master", "told"),
    [
        ("yarn-cluster", "did you mean 'yarn'?"),
        ("loacl[2]", "did you mean 'local[4]'?"),
        ("local[x]", "did you mean 'local"),
        ("mesos://host:5050", "expected one such as local"),
        ("", "expected one such as local"),
        ("yarn", "set HADOOP_CONF_DIR"),
    ],
)
@pytest.mark.usefixtures("no_jvm")
def test_master_that_spark_would_refuse(monkeypatch: pytest.MonkeyPatch, master: str, told: str) -> None:
    """Spark's launcher ends its JVM over such a master, and PySpark says only that it ended: our error comes first, with the nearest."""
    for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(OptionError, match=re.escape(told)):
        launch.plan(master)
    monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop/conf")
    for known in (
        "local",
        "local[*]",
        "local[2]",
        "local[*, 4]",
        "local-cluster[1,2,1024]",
        "spark://a:1,b:1",
        "yarn",
        "k8s://x",
    ):
        check_master(known)


@pytest.mark.usefixtures("no_jvm")
def test_configuration_of_hadoop_that_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hadoop's classes end Spark's start over a file that is not XML: our error names the file; without the file all is well."""
    (tmp_path / "core-site.xml").write_text("<configuration/>")
    (tmp_path / "hdfs-site.xml").write_text("<configuration><prop")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    with pytest.raises(DependencyError, match=r"hdfs-site.xml' is not XML .*; mend it, or unset HADOOP_CONF_DIR"):
        launch.plan("local[2]")
    monkeypatch.delenv("HADOOP_CONF_DIR")
    launch.plan("local[2]")
