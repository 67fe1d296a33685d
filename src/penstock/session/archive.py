"""The class-data archive of fast starts: where it is, how it is made, and the JVM flags that use it."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from contextlib import suppress

from penstock import unique
from penstock.errors import AlreadyThere, DependencyError, NotThere
from penstock.session.finding import Finding
from penstock.storage import LocalStorage, cache_directory, cached, is_file

QUICK_COMPILER = "-XX:TieredStopAtLevel=1"
_BLANK = re.compile(r"""[\s"'\\]""")
_MAKE = """
from penstock.session import archive, host
from penstock.spark.local import local_session
import sys, tempfile, penstock
from pathlib import Path
temporary = tempfile.TemporaryDirectory()
folder = Path(temporary.name)
(folder / "in").mkdir()
(folder / "in" / "a.json").write_text('{"a": 1}\\n')
options = archive.as_options([*sys.argv[1:], *host.java_options()])
spark = local_session(config={"spark.driver.extraJavaOptions": options})
source = {"format": "json", "schema": "a bigint"}
penstock.ingest(spark, str(folder / "in"), str(folder / "out"), source=source, sink={"format": "parquet"})
spark.stop()
"""


def location() -> str:
    """Return where the archive of this Java and PySpark is, or would be."""
    return cached(_archive()) or f"{cache_directory()}/{_archive()}"


def flags() -> list[str]:
    """Return the JVM flags that use the archive; none if it is not there."""
    path = cached(_archive())
    return [] if path is None else [f"-XX:SharedArchiveFile={path}", "-Xshare:auto", "-Xlog:disable", "-Xlog:all=off"]


def finding() -> Finding:
    """Say whether starts have the archive."""
    path = cached(_archive())
    if path is not None and cached(command_name()) is not None:
        return Finding("archive", "ok", path)
    if path is not None:
        slower = f"{path}; the command by which Spark starts is not kept beside it: a start takes half a second more"
        return Finding("archive", "note", slower, "make both anew with: penstock warmup")
    slow = "there is no archive of Spark's classes: a start takes some seconds more"
    return Finding("archive", "note", slow, "make it once with: penstock warmup")


def as_options(flags: list[str]) -> str:
    """Return flags as the text of Spark's option for Java options, in which words end at a space unless they are quoted."""
    return " ".join(_quoted(flag) if _BLANK.search(flag) else flag for flag in flags)


def _quoted(flag: str) -> str:
    escaped = flag.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def make() -> str:
    """Make the archive by running a small ingest; return its path. Takes half a minute on an idle machine.

    The archive gets its name only when it is complete, because a JVM that finds an incomplete one does not start.
    """
    path = location()
    making = f"{path}.{unique.token()}"
    flags = [QUICK_COMPILER, f"-XX:ArchiveClassesAtExit={making}"]
    storage = LocalStorage()
    try:
        done = subprocess.run([sys.executable, "-c", _MAKE, *flags], capture_output=True, text=True, check=False)  # noqa: S603 - our own interpreter and code
        if done.returncode or not is_file(making):
            msg = f"the class-data archive could not be made (starts stay as they are): {done.stderr.strip()[-500:]}"
            raise DependencyError(msg)
        with suppress(NotThere):
            storage.delete(path)
        with suppress(AlreadyThere):  # put by another process that was as fast
            storage.publish(making, path, as_it_is=True)
    finally:
        with suppress(NotThere):
            storage.delete(making)
    return path


def _archive() -> str:
    return name("classes", "jsa")


def command_name() -> str:
    """Return the name of the cached file with the command by which Spark starts its JVM (`direct`)."""
    return name("command", "list")


def name(kind: str, ending: str) -> str:
    """Return the name of a cached file of this kind. The name depends on what the file depends on: the JVM and the jars.

    Finding these out must not take a start of Java.
    """
    import pyspark

    # An environment that is reached by a link is the same one.
    jars = os.path.dirname(os.path.realpath(pyspark.__file__))
    facts = f"{pyspark.__version__}:{jars}:{os.environ.get('JAVA_HOME') or _java()}"
    return f"{kind}-{hashlib.sha256(os.fsencode(facts)).hexdigest()[:16]}.{ending}"


def java() -> str:
    """Return the program that Spark starts."""
    home = os.environ.get("JAVA_HOME")
    return f"{home}/bin/java" if home else _java()


def _java() -> str:
    import shutil

    found = shutil.which("java")
    return os.path.realpath(found) if found else ""
