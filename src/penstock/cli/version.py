"""`penstock --version`: what is installed of what the command needs, found without loading any of it."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version

import penstock

_JAVA_SECONDS = 20.0
_NEEDED = {
    "PySpark": ("pyspark",),
    "hdfs": ("hdfs-native",),
    "s3": ("obstore", "boto3"),
    "db": ("adbc-driver-manager", "adbc-driver-postgresql", "adbc-driver-sqlite"),
}
_EXTRAS = {"PySpark": "spark"}


def lines() -> list[str]:
    """Return what `penstock --version` prints: a name and a version a line."""
    versions = [f"penstock {penstock.__version__}", f"Python {platform.python_version()}", f"Java {_java()}"]
    for name, packages in _NEEDED.items():
        installed = {_version(package) for package in packages}
        missing = f"none; pip install 'penstock[{_EXTRAS.get(name, name)}]'"
        versions.append(f"{name} {missing if None in installed else ', '.join(sorted(filter(None, installed)))}")
    return versions


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(f"{home}/bin/java" if home else "java")
    if java is None:
        return f"none{f' in JAVA_HOME={home}' if home else ''}; Spark needs Java 17 or newer"
    try:
        ended = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=_JAVA_SECONDS)  # noqa: S603 - the Java that Spark would start
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"cannot be run: {error}"
    version_of = re.search(r'version "([^"]+)"', ended.stderr)
    return f"{version_of[1]} ({java})" if version_of else f"cannot be run: {java} said {ended.stderr.strip()[:80]!r}"
