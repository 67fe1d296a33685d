"""Finds out which Python a command starts: this one, in this environment, or another.

The file alone does not tell: the `python` of each virtual environment is a link to the same file, and what is imported depends on the
name by which it was started. Nor does the name: `python3`, found on the path, may be this Python.
"""

from __future__ import annotations

import json
import os
import shutil
import site
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import StorageError
from penstock.storage import LocalStorage, names_at

if TYPE_CHECKING:
    from collections.abc import Iterator

_ASKING_SECONDS = 20.0
_NEEDED = ("penstock", "pyarrow")  # a worker needs these; PySpark comes from the place of Spark
_PREFIX = "import sys; print(sys.prefix)"
# This program stands alone, because the Python that runs it may have none of our packages.
_SELF = """
import hashlib, json, os, sys
from importlib.util import find_spec

code, spec = hashlib.sha256(), find_spec("penstock")
for home in spec.submodule_search_locations if spec else ():
    for folder, _, names in sorted(os.walk(home)):
        for path in sorted(os.path.join(folder, name) for name in names if name.endswith(".py")):
            with open(path, "rb") as file:
                code.update(hashlib.sha256(os.path.relpath(path, home).encode() + file.read()).digest())
missing = [name for name in sys.argv[1:] if not find_spec(name)]
print(json.dumps([list(sys.version_info[:3]), missing, code.hexdigest()]))
"""


@dataclass(frozen=True)
class Interpreter:
    """A Python: its path, its version, the missing packages that workers need, and a digest of its Penstock."""

    path: str
    version: tuple[int, ...]
    missing: tuple[str, ...]
    code: str


def is_this(command: str) -> bool:
    """Tell whether a command starts the Python that runs this code, in the same environment."""
    path = shutil.which(command)
    if path is None or not sys.executable or not _is_same(path, sys.executable):
        return False
    if _is_same(os.path.dirname(path), os.path.dirname(sys.executable)):
        return True
    prefix = _output(path, "-IS", "-c", _PREFIX)
    return prefix is not None and _is_same(prefix.rstrip("\n"), sys.prefix)


def _is_same(path: str, other: str) -> bool:
    return os.path.realpath(path) == os.path.realpath(other)


def for_workers() -> dict[str, str]:
    """Return the variables that a Python of this environment needs to find this Penstock; none if it finds it by itself.

    A program may have loaded it from a zip (`zipapp`), or from a directory on its own path: Spark's workers know neither.
    """
    python_path = os.environ.get("PYTHONPATH", "")
    place = not_found_with(python_path)
    return (
        {} if place is None else {"PYTHONPATH": os.pathsep.join(filter(None, [place, *python_path.split(os.pathsep)]))}
    )


def not_found_with(python_path: str) -> str | None:
    """Return the place of this Penstock, a directory or a zip; `None` if a Python of this environment with that `PYTHONPATH` finds it."""
    named = [entry for entry in python_path.split(os.pathsep) if entry]
    home = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return None if any(_is_same(place, home) for place in [*named, *_searched()]) else home


def _searched() -> Iterator[str]:
    """Yield the directories where a Python of this environment looks for packages, with those in `.pth` files of editable packages."""
    storage = LocalStorage()
    for folder in {*site.getsitepackages(), site.getusersitepackages()}:
        yield folder
        with suppress(StorageError):  # no Python of this user can read it either
            for name in names_at(storage, folder):
                if name.endswith(".pth"):
                    lines = storage.read(f"{folder}/{name}").decode(errors="replace").splitlines()
                    yield from filter(os.path.isabs, lines)


def ask(command: str) -> Interpreter | None:
    """Return the Python that a command starts, by running it; None if it is not a Python that runs here."""
    path = shutil.which(command)
    output = None if path is None else _output(path, "-c", _SELF, *_NEEDED)
    if path is None or output is None:
        return None
    try:
        version, missing, code = json.loads(output.splitlines()[-1])  # a wrapper may print something before
    except (ValueError, IndexError):
        return None
    return Interpreter(path, tuple(version), tuple(missing), code)


def _output(*command: str) -> str | None:
    """Return what a command writes to its standard output, None if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_ASKING_SECONDS)  # noqa: S603 - the command that Spark would start
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return None
    return None if done.returncode else done.stdout
