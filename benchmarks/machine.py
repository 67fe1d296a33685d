"""The conditions of a figure: the machine, the versions, and whether other work was running."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from benchmarks.room import REPOSITORY

_PACKAGES = ("pyspark", "pyarrow", "polars", "numpy", "psutil", "xxhash")


_PLACES = ("--data", "--out")


def facts(data: Path) -> dict[str, str]:
    """Return the machine and versions of the figures; `data` says which disk."""
    return {
        "machine": f"{_processor()}, {os.cpu_count()} cores, {psutil.virtual_memory().total / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}, {_file_system(data)}",
        "Java": _java(),
        "Python": f"{platform.python_version()}, {', '.join(f'{name} {_version(name)}' for name in _PACKAGES)}",
    }


def commit() -> str:
    """Return the commit that is measured, with `-dirty` if files differ from it; `unknown` outside of a repository."""
    return _said(["git", "-C", str(REPOSITORY), "describe", "--always", "--dirty", "--abbrev=7"]) or "unknown"


def load() -> float:
    """Return how many cores are busy now, before a case begins (the load average still includes the case before)."""
    return round(psutil.cpu_percent(interval=1) / 100 * (os.cpu_count() or 1), 2)


def _processor() -> str:
    try:
        found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()


def _file_system(path: Path) -> str:
    mounts = [part for part in psutil.disk_partitions(all=True) if path.resolve().is_relative_to(part.mountpoint)]
    return max(mounts, key=lambda part: len(part.mountpoint)).fstype if mounts else "unknown file system"


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    said = _said([f"{home}/bin/java" if home else "java", "-version"])
    return said.splitlines()[0] if said else "unknown"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "-"


def _said(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return (done.stdout or done.stderr).strip()


def command() -> str:
    """Return this process's command line, as a user would type it again, without the options for places of files."""
    arguments, kept = iter(sys.argv[1:]), []
    for argument in arguments:
        if argument in _PLACES:
            next(arguments, None)
        elif not argument.startswith(tuple(f"{place}=" for place in _PLACES)):
            kept.append(argument)
    return " ".join(["python", "-m", "benchmarks", *kept])
