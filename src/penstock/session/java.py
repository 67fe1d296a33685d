"""The Java that Spark would start: where it is, and whether it is new enough."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

from penstock.errors import StorageError
from penstock.session.finding import Finding
from penstock.storage import LocalStorage, is_file

JAVA_AT_LEAST = 17
_HEAP = "-Xmx1g"  # as Spark sets it; without a size Java takes a quarter of the memory, which a limit may forbid


def java() -> Finding:
    """Check the Java that Spark would start, by the file that says its version; nothing is started."""
    path = _java()
    if isinstance(path, Finding):
        return path
    version = _release_of(path)
    return Finding("java", "ok", path) if version is None else _java_of(path, version)


def java_runs() -> Finding:
    """Check the Java that Spark would start, by asking it for its version."""
    path = _java()
    if isinstance(path, Finding):
        return path
    root = "/" if os.path.isabs(path) else None  # `surroundings.here` reports a current directory that was removed
    try:
        done = subprocess.run([path, _HEAP, "-version"], capture_output=True, check=False, timeout=60, cwd=root)  # noqa: S603 - the command that Spark would start
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("java", "problem", f"{path!r} does not run: {error}", _newer_java())
    answer = (done.stderr or done.stdout).decode(errors="replace")  # a JVM that cannot start says why on stdout
    version = re.search(r'version "([^"]+)"', answer)
    if done.returncode or version is None:
        return Finding("java", "problem", f"{path!r} does not run: {answer.strip()[:200]!r}", _runnable_java())
    return _java_of(path, version[1])


def _java_of(path: str, version: str) -> Finding:
    """Return the finding for a Java of this version."""
    if _major(version) < JAVA_AT_LEAST:
        return Finding("java", "problem", f"{path!r} is Java {version}, which is too old", _newer_java())
    return Finding("java", "ok", f"{version} ({path})")


def _java() -> str | Finding:
    """Return the path of the Java that Spark would start, or the finding if there is none."""
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


def _runnable_java() -> str:
    """Return what to do about a Java that does not run: it may be right, and a limit of this process too low for it."""
    import resource

    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    if most == resource.RLIM_INFINITY:
        return _newer_java()
    return f"raise the limit of {most >> 10:,} KiB for the addresses of a process (ulimit -v unlimited), or {_newer_java()}"


def _release_of(path: str) -> str | None:
    """Return the version in the `release` file of a Java's installation."""
    home = os.path.dirname(os.path.dirname(os.path.realpath(path)))
    # Older versions have a `jre` directory in between.
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
