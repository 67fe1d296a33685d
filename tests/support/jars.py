"""Jars of servers that tests start, from Maven Central, fetched by the Ivy that PySpark brings, once per machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.storage import cache_directory

if TYPE_CHECKING:
    from collections.abc import Iterator

# Options for a JVM that lives for seconds or minutes, and is one of many. It does not verify classes: those in an archive were
# verified when it was made; what remains are the thousands of lambdas that Scala's compiler creates at every start.
SHORT_LIVED = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",
)

_FETCH_SECONDS = 300


def having(command: list[str], archive: Path) -> list[str]:
    """Add the class-data archive to a Java command if it exists; Java ignores an archive that does not fit."""
    return [command[0], f"-XX:SharedArchiveFile={archive}", *command[1:]] if archive.exists() else command


def making(command: list[str], archive: Path) -> list[str]:
    """Return a Java command that writes such an archive when it ends. It verifies: classes that were not verified would be left out."""
    verifying = [word for word in command[1:] if "Verification" not in word]
    return [command[0], f"-XX:ArchiveClassesAtExit={archive}", *verifying]


class NoJars(Exception):
    """The jars are not available here, or there is no Java that runs them; the message says why."""


def java() -> str:
    """Return the Java that Spark would use, too."""
    home = os.environ.get("JAVA_HOME")
    program = shutil.which(f"{home}/bin/java" if home else "java")
    if program is None:
        msg = "there is no Java"
        raise NoJars(msg)
    return program


def of_pyspark() -> Path:
    """Return the directory with PySpark's own jars."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        msg = "PySpark, which brings Ivy and Hadoop's classes, is not installed"
        raise NoJars(msg)
    return Path(spec.origin).parent / "jars"


def fetched(group: str, artifact: str, version: str, *, needs: bool = True) -> Path:
    """Return the cache directory of a jar, and with `needs` of all its dependencies; fetch what is missing."""
    directory = Path(cache_directory()) / "jars" / f"{artifact}-{version}"
    if not directory.is_dir():
        with retrieved(directory.parent, group, artifact, version, needs=needs) as jars:
            if not directory.is_dir():
                jars.replace(directory)
    return directory


@contextmanager
def retrieved(parent: Path, group: str, artifact: str, version: str, *, needs: bool) -> Iterator[Path]:
    """Fetch a jar, and with `needs` all its dependencies, into a directory below `parent`, which is removed after the block."""
    parent.mkdir(exist_ok=True)
    own = parent / f"ivy-{os.getpid()}"
    try:
        _fetch(own, [group, artifact, version, *([] if needs else ["-notransitive"])])
        yield own / "jars"
    finally:
        shutil.rmtree(own, ignore_errors=True)


def connector() -> list[Path]:
    """Return the jars of Spark's own Kafka connector, version 4.2.0, which works with the installed Spark. May raise `NoJars`."""
    spark, clients = "org.apache.spark", fetched("org.apache.kafka", "kafka_2.13", "4.1.0")
    directories = [
        fetched(spark, "spark-sql-kafka-0-10_2.13", "4.2.0", needs=False),
        fetched(spark, "spark-token-provider-kafka-0-10_2.13", "4.0.0", needs=False),
        fetched("org.apache.commons", "commons-pool2", "2.12.1", needs=False),
    ]
    return [path for each in directories for path in each.glob("*.jar")] + list(clients.glob("kafka-clients-*.jar"))


def _fetch(own: Path, dependency: list[str]) -> None:
    ivy = next(iter(of_pyspark().glob("ivy-*.jar")))
    settings = ["-cache", str(own / "cache"), "-warn", "-confs", "default"]
    command = [java(), "-cp", str(ivy), "org.apache.ivy.Main", *settings, "-dependency", *dependency]
    name = " ".join(dependency[:3])
    try:
        answer = subprocess.run(
            [*command, "-retrieve", f"{own}/jars/[artifact]-[revision].[ext]"],
            capture_output=True,
            text=True,
            timeout=_FETCH_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        msg = f"{name} could not be fetched within {_FETCH_SECONDS} s"
        raise NoJars(msg) from error
    if answer.returncode or not (own / "jars").is_dir():
        msg = f"{name} cannot be fetched: {answer.stdout[-500:]}{answer.stderr[-500:]}"
        raise NoJars(msg)
