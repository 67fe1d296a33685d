"""What this machine and this process have of what Spark needs: looked at before a JVM is started, and by `penstock doctor`.

Each check looks at one thing and says what it found: that it is well, that it costs something (a note), or that no session
can start with it (a problem), and then what to do. None starts a JVM; `java -version`, a fifth of a second, is asked by the
doctor alone.

What can be put right for the JVM is put right instead (`for_jvm`, `java_options`): a locale that has no UTF-8, a
`SPARK_HOME` of another Spark, a name of this host that nobody knows, a `/tmp` that cannot be written.
"""

from __future__ import annotations

import difflib
import locale
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from penstock import clock
from penstock.errors import DependencyError, OptionError, StorageError
from penstock.session import interpreter
from penstock.session.extras import PYTHON_AT_LEAST
from penstock.session.extras import extras as each_extra
from penstock.storage import LocalStorage, can_write, free_bytes, is_file, temporary_directory
from penstock.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PYSPARK_AT_LEAST = (4, 3)
JAVA_AT_LEAST = 17
_JAVA_TEMPORARY = "/tmp"  # noqa: S108 - Java's own, whatever TMPDIR says
_UTF8_LOCALE = "C.UTF-8"
_SOCKET_PATH_MAX = 107
_OURS_IN_TEMPORARY = len("/penstock-4294967295/fork-4194304")
_SPACE_LEAST, _SPACE_LITTLE = 4 << 20, 1 << 30
_MEMORY_LITTLE = 3 << 29  # the JVM's heap of 1 GiB, and Python
_FILES_LEAST = 512  # Spark's JVM has 280 jars open before it does anything, and 420 files in a query
_FILES_LITTLE, _PROCESSES_LITTLE = 1024, 1024
_EARLIEST_NS = 1_735_689_600 * clock.SECOND_NS  # 2025: no clock that was set is behind this code
_OF_SPARK = ("PYSPARK_DRIVER_PYTHON", "PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR")
_CONNECT = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED")
_LOOPBACK = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_HOSTNAME": "localhost"}
_HADOOP_FILES = ("core-site.xml", "hdfs-site.xml")
_MASTERS = ("local[*]", "local[4]", "spark://HOST:7077", "yarn", "k8s://https://HOST:443")
_INSTALL = "install it with: pip install 'penstock[spark]' (a cluster brings its own)"

_DRAIN = ["pandas", "google.protobuf"]  # what Spark asks for where `async_map` drains; no extra of ours

State = Literal["ok", "note", "problem"]


@dataclass(frozen=True)
class Finding:
    """What a check found of the thing that it is named after, and what to do about it unless it is well."""

    name: str
    state: State
    text: str
    advice: str = ""

    @property
    def facts(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.text}; {self.advice}" if self.advice else self.text


def is_here(master: str) -> bool:
    """Tell whether tasks run in the driver's JVM; else their processes may be on other machines."""
    return re.fullmatch(r"local(\[.*\])?", master) is not None


def check_master(master: str) -> None:
    """Raise `OptionError` for a master that Spark would refuse, which it does by ending its JVM."""
    if re.fullmatch(r"local(\[(\d+|\*)(\s*,\s*\d+)?\])?|local-cluster\[.*\]|yarn|(spark|k8s)://.+", master) is None:
        near = difflib.get_close_matches(master, _MASTERS, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ";"
        msg = f"master={master!r} is none of Spark's{hint} expected one such as {', '.join(_MASTERS)}"
        raise OptionError(msg)
    if master == "yarn" and not (os.environ.get("HADOOP_CONF_DIR") or os.environ.get("YARN_CONF_DIR")):
        msg = "master='yarn': which cluster that is, a configuration says; set HADOOP_CONF_DIR to the directory that has yarn-site.xml"
        raise OptionError(msg)


def require(*findings: Finding) -> None:
    """Raise a `DependencyError` of all problems; it says what to do about each."""
    problems = [str(finding) for finding in findings if finding.state == "problem"]
    if problems:
        raise DependencyError("\n".join(problems))


def before_start(master: str) -> list[Finding]:
    """Return what is worth a look before a JVM is started for a session: what could not start, and what will be slow."""
    checks = [java, user, temporary, spark_home, variables, paths, here, limits, hadoop_files]
    return [check() for check in (checks if not is_here(master) else [*checks, workers])]


def everything() -> list[Finding]:
    """Return all that there is to say about this machine, in the order in which a start would meet it."""
    checks: list[Callable[[], Finding]] = [
        python, pyspark, java_runs, spark_home, workers, variables, paths, here, user, cache, temporary, memory,
        limits, network, locales, time_zone, hadoop, extras,
    ]  # fmt: skip
    return [check() for check in checks]


def for_jvm(master: str) -> dict[str, str | None]:
    """Return the variables that the JVM of a session needs otherwise than they are, and could not start or work with else."""
    changed: dict[str, str | None] = {}
    # Else the JVM could neither make nor find a file whose name is not ASCII.
    if not _is_utf8():
        changed["LC_ALL"] = _UTF8_LOCALE
    if spark_home().state == "note":
        changed["SPARK_HOME"] = _pyspark_home()
    # Elsewhere the address stays as it is: a later session may be a cluster's.
    if is_here(master) and _address() is None:
        changed |= {name: os.environ.get(name) or loopback for name, loopback in _LOOPBACK.items()}
    return changed


def java_options() -> list[str]:
    """Return the Java options that a JVM needs on this machine."""
    return [] if can_write(_JAVA_TEMPORARY) else [f"-Djava.io.tmpdir={temporary_directory()}"]


def has_sockets() -> bool:
    """Tell whether the JVM's directory for temporary files has a name that leaves room for that of a Unix socket."""
    directory = _JAVA_TEMPORARY if can_write(_JAVA_TEMPORARY) else temporary_directory()
    return len(os.fsencode(directory)) + len("/.00000000-0000-0000-0000-000000000000.sock") <= _SOCKET_PATH_MAX


# --- Python ----------------------------------------------------------------------------------------------------------


def python() -> Finding:
    """Look at the version of Python."""
    text = f"{_dotted(sys.version_info[:3])} ({sys.executable})"
    if sys.version_info[:2] >= PYTHON_AT_LEAST:
        return Finding("python", "ok", text)
    return Finding("python", "problem", f"Python {text} is too old for PySpark 4.3", _newer_python())


def _newer_python() -> str:
    least = _dotted(PYTHON_AT_LEAST)
    return (
        f"make an environment with Python {least} or newer (python{least} -m venv DIR) and install 'penstock[spark]' there; "
        "status, files, verify, finish and clean work with this one"
    )


def pyspark() -> Finding:
    """Look for a PySpark that Penstock works with. It is imported: what is there may be damaged."""
    try:
        import pyspark as package
    except ImportError as error:
        return _no_pyspark(error)
    home = os.path.dirname(package.__file__)
    text = f"PySpark {package.__version__} in {home}"
    if _version(package.__version__)[:2] >= PYSPARK_AT_LEAST:
        return Finding("pyspark", "ok", text)
    too_old = f"{text} is too old: expected {_dotted(PYSPARK_AT_LEAST)} or newer"
    if shadowing := _shadowing(home):
        return Finding(
            "pyspark", "problem", too_old, f"take {shadowing!r} out of PYTHONPATH, which hides what is installed"
        )
    if sys.version_info[:2] < PYTHON_AT_LEAST:
        return Finding("pyspark", "problem", too_old, _newer_python())
    return Finding("pyspark", "problem", too_old, "upgrade with: pip install -U 'penstock[spark]'")


def _no_pyspark(error: ImportError) -> Finding:
    # The extra has none for this Python: to install it again would change nothing.
    if sys.version_info[:2] < PYTHON_AT_LEAST:
        return Finding(
            "pyspark", "problem", f"there is no PySpark 4.3 for Python {_dotted(sys.version_info[:2])}", _newer_python()
        )
    if (error.name or "pyspark").partition(".")[0] == "pyspark":
        return Finding("pyspark", "problem", "PySpark is not installed", _INSTALL)
    return Finding("pyspark", "problem", f"PySpark cannot be imported ({error})", _INSTALL)


def _shadowing(home: str) -> str | None:
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return next((entry for entry in entries if entry and home.startswith(f"{os.path.abspath(entry)}/")), None)


def workers() -> Finding:
    """Look at the Python that `PYSPARK_PYTHON` names: another one than this costs time, or cannot work."""
    named = os.environ.get("PYSPARK_PYTHON") or None
    if named is None:
        return Finding("workers", "ok", "Python workers are this Python")
    text = f"PYSPARK_PYTHON={named!r}"
    if interpreter.is_this(named):
        return Finding("workers", "ok", f"{text} is this Python")
    other = interpreter.ask(named)
    advice = f"unset it, or set it to {sys.executable!r}"
    if fault := _why_no_worker(other):
        return Finding("workers", "problem", f"{text} {fault}", advice)
    slow = f"{text} is another Python than this one: its workers start without the fork server, and a start takes twice as long"
    return Finding("workers", "note", slow, advice)


def _why_no_worker(other: interpreter.Interpreter | None) -> str | None:
    """Say why a Python cannot be that of the workers, None if it can."""
    if other is None:
        return "is no Python that runs here"
    if other.version[:2] != sys.version_info[:2]:
        versions = f"Python {_dotted(other.version[:2])}, this is {_dotted(sys.version_info[:2])}"
        return f"is {versions}: Spark takes no two of them"
    if other.missing:
        return f"has no {' and no '.join(other.missing)}: its workers could not start"
    this = interpreter.ask(sys.executable)
    if this is not None and this.code != other.code:
        return "has another state of Penstock than this Python: driver and workers could not understand one another"
    return None


# --- Java and Spark --------------------------------------------------------------------------------------------------


def java() -> Finding:
    """Look for the Java that Spark would start, by the file that tells its version; nothing is started."""
    path = _java()
    if isinstance(path, Finding):
        return path
    version = _release_of(path)
    return Finding("java", "ok", path) if version is None else _java_of(path, version)


def java_runs() -> Finding:
    """Look for the Java that Spark would start, and ask it for its version."""
    path = _java()
    if isinstance(path, Finding):
        return path
    try:
        done = subprocess.run([path, "-version"], capture_output=True, check=False, timeout=60)  # noqa: S603 - what Spark would start
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("java", "problem", f"{path!r} does not run: {error}", _newer_java())
    answer = done.stderr.decode(errors="replace")
    version = re.search(r'version "([^"]+)"', answer)
    if done.returncode or version is None:
        return Finding("java", "problem", f"{path!r} does not run: {answer.strip()[:200]!r}", _newer_java())
    return _java_of(path, version[1])


def _java_of(path: str, version: str) -> Finding:
    """Return what is to be said of a Java by its version."""
    if _major(version) < JAVA_AT_LEAST:
        return Finding("java", "problem", f"{path!r} is Java {version}, which is too old", _newer_java())
    return Finding("java", "ok", f"{version} ({path})")


def _java() -> str | Finding:
    """Return the path of the Java that Spark would start, or what to say where there is none."""
    home = os.environ.get("JAVA_HOME")
    if home:
        path = f"{home}/bin/java"
        if is_file(path, executable=True):
            return path
        return Finding("java", "problem", f"JAVA_HOME={home!r} has no bin/java", f"unset it, or {_newer_java()}")
    path = shutil.which("java") or ""
    return path or Finding(
        "java", "problem", "there is no Java: JAVA_HOME is not set, and none is on the path", _newer_java()
    )


def _newer_java() -> str:
    return f"install Java {JAVA_AT_LEAST} or newer (apt-get install openjdk-17-jre-headless) and name it by JAVA_HOME or the path"


def _release_of(path: str) -> str | None:
    """Return the version that a Java's installation notes of itself."""
    home = os.path.dirname(os.path.dirname(os.path.realpath(path)))
    # Older ones have a `jre` in between.
    for place in (home, os.path.dirname(home)):
        try:
            text = LocalStorage().read(f"{place}/release").decode(errors="replace")
        except StorageError:
            continue
        if version := re.search(r'^JAVA_VERSION="([^"]+)"', text, re.MULTILINE):
            return version[1]
    return None


def _major(version: str) -> int:
    number = re.match(r"(?:1\.)?(\d+)", version)
    return int(number[1]) if number else 0


def spark_home() -> Finding:
    """Look whether `SPARK_HOME` is the Spark of this PySpark. A note says that ours is taken instead."""
    named, ours = os.environ.get("SPARK_HOME"), _pyspark_home()
    if ours is None:
        return Finding("spark", "ok", "there is no PySpark, so no Spark is looked for")
    version = _pyspark_version()
    if named is None:
        return Finding("spark", "ok", f"that of PySpark ({ours})")
    other = _spark_in(named)
    text = f"SPARK_HOME={named!r} {f'is Spark {other}' if other else 'has no Spark'}, PySpark is {version}"
    if other is not None and _is_same_release(other, version):
        return Finding("spark", "ok", text)
    if _spark_in(ours) is None:
        return Finding("spark", "problem", text, f"set SPARK_HOME to a Spark {version}, or install PySpark with pip")
    return Finding("spark", "note", f"{text}: the Spark that PySpark has is taken", "unset SPARK_HOME")


def _is_same_release(version: str, other: str) -> bool:
    """Tell whether two versions agree in their first two numbers; a vendor's has a suffix."""
    return _version(version)[:2] == _version(other)[:2]


def _pyspark_home() -> str | None:
    if pyspark().state != "ok":
        return None
    import pyspark as package

    return os.path.dirname(package.__file__)


def _pyspark_version() -> str:
    import pyspark as package

    return str(package.__version__)


def _spark_in(home: str) -> str | None:
    """Return the version of the Spark in a directory, by the name of its jar."""
    try:
        names = LocalStorage().names(f"{home}/jars")
    except StorageError:
        return None
    matches = (re.fullmatch(r"spark-core_[\d.]+-(.+)\.jar", name) for name in names)
    return next((match[1] for match in matches if match), None)


def variables() -> Finding:
    """Look for variables of Spark's with which no local session starts."""
    if connect := _connect_variables():
        text = f"{', '.join(connect)} in the environment: Spark makes a session of Connect's, in which nothing of Penstock runs"
        return Finding("variables", "problem", text, f"unset {' '.join(connect)}")
    arguments = os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell")
    if "pyspark-shell" not in _words(arguments):
        text = f"PYSPARK_SUBMIT_ARGS={arguments!r} names nothing to start"
        return Finding("variables", "problem", text, "end it with pyspark-shell, or unset it")
    named = ", ".join(f"{name}={os.environ[name]!r}" for name in _OF_SPARK if name in os.environ)
    return Finding("variables", "ok", named or "none of Spark's is set that would matter")


def _connect_variables() -> list[str]:
    """Return the variables that are set and make every session one of Spark Connect."""
    names = [name for name in _CONNECT if name in os.environ]
    mode = os.environ.get("SPARK_API_MODE", "").lower()
    return [*names, "SPARK_API_MODE"] if mode == "connect" else names


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return []


def paths() -> Finding:
    """Look at the path of this environment: what it may not hold, and what plain sessions of Spark's do not like."""
    prefix = _pyspark_home() or sys.prefix
    if odd := _not_for_java(prefix):
        text = f"the path {prefix!r} has {odd}: Java cannot be started with it"
        return Finding("paths", "problem", text, "make the environment elsewhere")
    if shlex.quote(prefix) != prefix:
        own = "where a PYSPARK_PYTHON of your own holds it, call penstock.register(spark), or Spark finds no format of Python's"
        return Finding("paths", "ok", f"{prefix!r}; {own}")
    return Finding("paths", "ok", prefix)


def _not_for_java(path: str) -> str | None:
    """Say what a path has that Java's class path cannot hold, None if nothing."""
    if os.pathsep in path:
        return "a colon"
    return None if _is_text(path) else "bytes that are not UTF-8"


def here() -> Finding:
    """Look whether the directory in which this runs is still there."""
    try:
        return Finding("directory", "ok", os.getcwd())
    except FileNotFoundError:
        return Finding("directory", "problem", "the current directory has been removed", "cd to one that is there")


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


# --- The machine -----------------------------------------------------------------------------------------------------


def user() -> Finding:
    """Look whether the user has a name: Hadoop, and so Spark, does not start for a number."""
    import pwd

    number = os.getuid()
    try:
        name = pwd.getpwuid(number).pw_name
    except KeyError:
        line = f"echo 'spark:x:{number}:{os.getgid()}::/tmp:/bin/sh' >> /etc/passwd"
        text = f"user {number} has no name, without which Hadoop's classes do not start"
        return Finding("user", "problem", text, f"give it one (in an image: {line}), or run as another user")
    return Finding("user", "ok", f"{name} ({number})")


def cache() -> Finding:
    """Look whether this user's cache can be written, for the archive of classes. Makes it, as any use of it does."""
    from penstock.storage import cache_directory, user_cache

    try:
        path = cache_directory()
    except StorageError as error:
        return Finding("cache", "note", error.message, "set XDG_CACHE_HOME to a directory of yours for faster starts")
    if path != user_cache():
        text = f"{path}, since neither XDG_CACHE_HOME nor HOME={os.environ.get('HOME')!r} can be written"
        return Finding("cache", "ok", text)
    return Finding("cache", "ok", path)


def temporary() -> Finding:
    """Look at the directories for temporary files, Python's and Java's."""
    name = "temporary files"
    try:
        directory = temporary_directory()
        free = free_bytes(directory)
    except StorageError as error:
        return Finding(name, "problem", error.message, "set TMPDIR to a directory that can be written")
    text = f"{directory}, {format_size(free)} free"
    if free < _SPACE_LEAST:
        return Finding(name, "problem", text, "free some space there, or set TMPDIR to another directory")
    local = os.environ.get("SPARK_LOCAL_DIRS")
    if local and not any(map(can_write, local.split(","))):
        return Finding(
            name, "problem", f"SPARK_LOCAL_DIRS={local!r} cannot be written", "unset it, or name another directory"
        )
    instead = "" if can_write(_JAVA_TEMPORARY) else f"; {_JAVA_TEMPORARY} cannot be written, or is full"
    return _notes_on(directory, free) or Finding(name, "ok", f"{text}{instead}")


def _notes_on(directory: str, free: int) -> Finding | None:
    """Return what is not as good as it could be about the directory that is taken for temporary files."""
    name, text, asked = "temporary files", f"{directory}, {format_size(free)} free", os.environ.get("TMPDIR")
    if asked and not can_write(asked):
        return Finding(
            name, "note", f"{text}, since TMPDIR={asked!r} cannot be written", "unset TMPDIR, or name another"
        )
    if len(os.fsencode(directory)) + _OURS_IN_TEMPORARY > _SOCKET_PATH_MAX:
        long = f"{text}, a name too long for sockets in it: workers start without the fork server, and a start takes longer"
        return Finding(name, "note", long, "set TMPDIR to a shorter one")
    if free < _SPACE_LITTLE:
        return Finding(
            name, "note", f"{text}, which is little", "free some space there, or set TMPDIR to another directory"
        )
    return None


def memory() -> Finding:
    """Look at the memory that is free."""
    import psutil

    available = psutil.virtual_memory().available
    limit = _memory_limit()
    free = available if limit is None else min(limit, available)
    text = f"{format_size(free)} free, {os.cpu_count()} processors"
    if free < _MEMORY_LITTLE:
        return Finding("memory", "note", f"{text}: Spark's JVM takes 1 GiB, a task some 400 MB", "end what else runs")
    return Finding("memory", "ok", text)


def _memory_limit() -> int | None:
    """Return the limit of this process's container."""
    try:
        text = LocalStorage().read("/sys/fs/cgroup/memory.max")
    except StorageError:
        return None
    return int(text) if text.strip().isdigit() else None


def limits() -> Finding:
    """Look at how many files and processes this user may have."""
    import resource

    files, files_most = resource.getrlimit(resource.RLIMIT_NOFILE)
    processes, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    text = f"{_limit(files)} open files, {_limit(processes)} processes"
    if 0 <= files_most < _FILES_LEAST:  # Java raises its own limit as far as it may
        advice = f"have the limit of this user, or of its container, raised to {_FILES_LITTLE * 4} (ulimit -n {_FILES_LITTLE * 4})"
        return Finding("limits", "problem", f"{text}: Spark's JVM needs {_FILES_LEAST}", advice)
    few = [f"ulimit -n {_FILES_LITTLE * 4}"] if 0 <= files < _FILES_LITTLE else []
    few += [f"ulimit -u {_PROCESSES_LITTLE * 4}"] if 0 <= processes < _PROCESSES_LITTLE and os.getuid() else []
    if few:
        return Finding("limits", "note", f"{text}: a query may fail under load", f"raise it: {'; '.join(few)}")
    return Finding("limits", "ok", text)


def _limit(number: int) -> str:
    return "any number of" if number < 0 else f"{number:,}"


def network() -> Finding:
    """Look whether processes of this host reach one another, as those of Spark must."""
    try:
        with socket.socket() as listener, socket.socket() as caller:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            caller.settimeout(5)
            caller.connect(listener.getsockname())
    except OSError as error:
        return Finding(
            "network",
            "problem",
            f"127.0.0.1 does not answer itself ({error})",
            "bring the loopback up: ip link set lo up",
        )
    name, address = socket.gethostname(), _address()
    if address is None:
        own = f"nobody knows this host by its name {name!r}, so sessions of your own need SPARK_LOCAL_IP=127.0.0.1"
        return Finding("network", "ok", f"127.0.0.1; {own}")
    return Finding("network", "ok", f"127.0.0.1; this host is {name} ({address})")


def _address() -> str | None:
    """Return the address of this host by its name, None if it has none by that, with which Java does not start."""
    try:
        addresses = socket.getaddrinfo(socket.gethostname(), None)
    except (OSError, UnicodeError):
        return None
    return str(addresses[0][4][0])


def locales() -> Finding:
    """Look whether the locale has UTF-8."""
    codeset = locale.nl_langinfo(locale.CODESET)
    named = next(
        (f"{name}={os.environ[name]}" for name in ("LC_ALL", "LC_CTYPE", "LANG") if os.environ.get(name)), "no locale"
    )
    if _is_utf8():
        return Finding("locale", "ok", f"{named}, {codeset}")
    text = f"{named} is {codeset}, not UTF-8: Java could not name files that are not named in ASCII; it is given {_UTF8_LOCALE}"
    return Finding("locale", "note", text, f"export LC_ALL={_UTF8_LOCALE}, which sessions of your own need")


def _is_utf8() -> bool:
    return locale.nl_langinfo(locale.CODESET).upper().replace("-", "") == "UTF8"


def time_zone() -> Finding:
    """Look at the clock and the zone of this process."""
    now, named = clock.now_ns(), os.environ.get("TZ")
    if now < _EARLIEST_NS:
        text = f"the clock says {now // clock.SECOND_NS} s since 1970, a time before this program"
        return Finding("time", "note", text, "set the clock: parts roll by it, and new files are told from old ones")
    if not named:
        text = "the machine's zone, which a session of Spark takes, too, unless it is told another"
        return Finding("time", "ok", text)
    if re.fullmatch(r":?[A-Z][A-Za-z_]+/[A-Za-z_/+-]+", named) and not _is_zone(named.removeprefix(":")):
        text = f"TZ={named!r} is no zone that this machine knows, and stands for UTC"
        return Finding("time", "note", text, "name another, or install tzdata")
    return Finding("time", "ok", f"TZ={named!r}")


def _is_zone(name: str) -> bool:
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return True


def hadoop() -> Finding:
    """Look at the configuration of Hadoop, which decides what `hdfs:` addresses mean."""
    directory, hdfs_user = os.environ.get("HADOOP_CONF_DIR"), os.environ.get("HADOOP_USER_NAME")
    text = f"HADOOP_CONF_DIR={directory!r}" if directory else "HADOOP_CONF_DIR is not set: name services are not known"
    text += f", HDFS is asked as {hdfs_user!r}" if hdfs_user else ""
    files = hadoop_files()
    if files.state == "problem":
        return files
    if directory and not _has_hadoop_files(directory):
        without = f"{text}, which has neither core-site.xml nor hdfs-site.xml"
        return Finding("hadoop", "note", without, "name the directory that has them")
    return Finding("hadoop", "ok", text)


def _has_hadoop_files(directory: str) -> bool:
    return any(is_file(f"{directory}/{name}") for name in _HADOOP_FILES)


def hadoop_files() -> Finding:
    """Look whether the files of Hadoop's configuration are XML: over others Spark's start ends."""
    from xml.etree.ElementTree import ParseError, XMLParser

    directory = os.environ.get("HADOOP_CONF_DIR")
    for name in _HADOOP_FILES if directory else ():
        path = f"{directory}/{name}"
        try:
            parser = XMLParser()  # noqa: S314 - the user's own configuration, which Spark would read
            parser.feed(LocalStorage().read(path))
            parser.close()
        except StorageError:
            continue
        except ParseError as error:
            advice = "mend it, or unset HADOOP_CONF_DIR: Spark does not start with it"
            return Finding("hadoop", "problem", f"{path!r} is no XML ({error})", advice)
    return Finding("hadoop", "ok", "what there is of Hadoop's configuration can be read")


def extras() -> Finding:
    """Say which optional packages are there, and their versions."""
    installed = [f"{extra.name} {extra}" for extra in each_extra() if extra.installed]
    missing = [extra.name for extra in each_extra() if not extra.installed]
    text = f"installed: {_listed(installed)}; not installed: {_listed(missing)}"
    if missing:
        text += "; penstock --version says how to have one"
    if not all(map(_is_there, _DRAIN)):
        text += "; drain of async_map needs pandas and protobuf"
    return Finding("extras", "ok", text)


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "none"


def _is_there(name: str) -> bool:
    from importlib.util import find_spec

    try:
        return find_spec(name) is not None
    except ImportError:  # the package that should hold it is missing itself
        return False


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def notes(findings: list[Finding]) -> Iterator[str]:
    """Yield what a start should tell: what costs time, or is not taken as it was set."""
    yield from (str(finding) for finding in findings if finding.state == "note")
