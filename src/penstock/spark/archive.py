"""The class-data archive of fast starts: where it is, how it is made, and the JVM flags that use it."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

from penstock.errors import DependencyError
from penstock.storage import cache_directory, is_file

QUICK_COMPILER = "-XX:TieredStopAtLevel=1"
_MAKE = """
from penstock.spark.session import local_session
import sys, tempfile, penstock
from pathlib import Path
temporary = tempfile.TemporaryDirectory()
folder = Path(temporary.name)
(folder / "in").mkdir()
(folder / "in" / "a.json").write_text('{"a": 1}\\n')
spark = local_session(config={"spark.driver.extraJavaOptions": " ".join(sys.argv[1:])})
source = {"format": "json", "schema": "a bigint"}
penstock.ingest(spark, str(folder / "in"), str(folder / "out"), source=source, sink={"format": "parquet"})
spark.stop()
"""


def location() -> str:
    """Return where the archive of this Java and PySpark is, or would be."""
    return f"{cache_directory()}/classes-{_key()}.jsa"


def flags() -> list[str]:
    """Return the JVM flags that use the archive; none if it is not there."""
    path = location()
    if not is_file(path):
        return []
    return [f"-XX:SharedArchiveFile={path}", "-Xshare:auto", "-Xlog:disable", "-Xlog:all=off"]


def make() -> str:
    """Make the archive by running a small ingest; return its path. Takes about twenty seconds."""
    path = location()
    flags = [QUICK_COMPILER, f"-XX:ArchiveClassesAtExit={path}"]
    done = subprocess.run([sys.executable, "-c", _MAKE, *flags], capture_output=True, text=True, check=False)  # noqa: S603 - our own interpreter and code
    if done.returncode or not is_file(path):
        msg = f"the class-data archive could not be made (starts stay as they are): {done.stderr.strip()[-500:]}"
        raise DependencyError(msg)
    return path


def _key() -> str:
    """Return what an archive depends on: the JVM and the jars. Reading them must not cost a start of Java."""
    import pyspark

    java = os.environ.get("JAVA_HOME") or _java()
    jars = os.path.dirname(os.path.realpath(pyspark.__file__))  # an environment reached by a link is the same one
    facts = f"{pyspark.__version__}:{jars}:{java}"
    return hashlib.sha256(facts.encode()).hexdigest()[:16]


def _java() -> str:
    import shutil

    found = shutil.which("java")
    return os.path.realpath(found) if found else ""
