"""Checks what Spark and Java would take from the environment of this process: variables, paths, and files of configuration."""

from __future__ import annotations

import os
import re
import shlex
import sys

from penstock.errors import StorageError
from penstock.session import pythons
from penstock.session.finding import Finding
from penstock.storage import LocalStorage, is_file

_OF_SPARK = ("PYSPARK_DRIVER_PYTHON", "PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR")
_CONNECT = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED")
_HADOOP_FILES = ("core-site.xml", "hdfs-site.xml")


def spark_home() -> Finding:
    """Check whether `SPARK_HOME` is the Spark of this PySpark. A note says that PySpark's own Spark is used instead."""
    named, ours = os.environ.get("SPARK_HOME"), pythons.pyspark_home()
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
    """Tell whether two versions agree in their first two numbers; versions of vendors have a suffix."""
    return pythons.numbers(version)[:2] == pythons.numbers(other)[:2]


def _pyspark_version() -> str:
    import pyspark as package

    return str(package.__version__)


def _spark_in(home: str) -> str | None:
    """Return the version of the Spark in a directory, from the name of its jar."""
    try:
        names = LocalStorage().names(f"{home}/jars")
    except StorageError:
        return None
    matches = (re.fullmatch(r"spark-core_[\d.]+-(.+)\.jar", name) for name in names)
    return next((match[1] for match in matches if match), None)


def variables() -> Finding:
    """Check for variables of Spark with which no local session starts."""
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
    """Return the variables in the environment that make every session one of Spark Connect."""
    names = [name for name in _CONNECT if name in os.environ]
    mode = os.environ.get("SPARK_API_MODE", "").lower()
    return [*names, "SPARK_API_MODE"] if mode == "connect" else names


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return []


def paths() -> Finding:
    """Check the path of this environment: for characters that Java cannot handle, and others that plain Spark sessions cannot."""
    prefix = pythons.pyspark_home() or sys.prefix
    if odd := _not_for_java(prefix):
        text = f"the path {prefix!r} has {odd}: Java cannot be started with it"
        return Finding("paths", "problem", text, "make the environment elsewhere")
    if shlex.quote(prefix) != prefix:
        own = "where a PYSPARK_PYTHON of your own holds it, call penstock.register(spark), or Spark finds no format of Python's"
        return Finding("paths", "ok", f"{prefix!r}; {own}")
    return Finding("paths", "ok", prefix)


def _not_for_java(path: str) -> str | None:
    """Say what in a path Java's class path cannot hold, None if there is nothing."""
    if os.pathsep in path:
        return "a colon"
    return None if _is_text(path) else "bytes that are not UTF-8"


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def here() -> Finding:
    """Check whether the current directory still exists."""
    try:
        return Finding("directory", "ok", os.getcwd())
    except FileNotFoundError:
        return Finding("directory", "problem", "the current directory has been removed", "cd to one that is there")


def modules() -> Finding:
    """Check whether files in the current directory, where Spark's Python workers look first, hide some of Python's own modules."""
    own = sorted(sys.stdlib_module_names & sys.modules.keys())  # workers load roughly the modules that are loaded here
    hiding = [own_file for name in own for own_file in (f"{name}.py", f"{name}/__init__.py") if is_file(own_file)]
    if not hiding or os.environ.get("PYTHONSAFEPATH"):
        return Finding("modules", "ok", "the current directory hides none of Python's own modules")
    text = f"{', '.join(hiding)} in the current directory: Spark's Python workers take that for Python's own, and may not start"
    return Finding("modules", "note", text, "rename it, or start from another directory")


def hadoop() -> Finding:
    """Check the configuration of Hadoop, which decides what `hdfs:` addresses mean."""
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
    """Check whether the files of Hadoop's configuration are XML: otherwise Spark does not start."""
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
            return Finding("hadoop", "problem", f"{path!r} is not XML ({error})", advice)
    return Finding("hadoop", "ok", "what there is of Hadoop's configuration can be read")
