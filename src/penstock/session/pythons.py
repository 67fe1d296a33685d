"""Checks whether this Python, its PySpark and the Python of the workers are suitable for a session."""

from __future__ import annotations

import os
import re
import sys

from penstock.session import interpreter
from penstock.session.extras import PYTHON_AT_LEAST
from penstock.session.extras import extras as each_extra
from penstock.session.finding import Finding

PYSPARK_AT_LEAST = (4, 3)
_INSTALL = "install it with: pip install 'penstock[spark]' (a cluster brings its own)"
_DRAIN = ["pandas", "google.protobuf"]  # Spark needs these if `async_map` drains; they belong to no extra of ours


def python() -> Finding:
    """Check the version of Python."""
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
    """Check for a PySpark with which Penstock works. It is imported, because an installed PySpark may be damaged."""
    try:
        import pyspark as package
    except ImportError as error:
        return _no_pyspark(error)
    home = os.path.dirname(package.__file__)
    text = f"PySpark {package.__version__} in {home}"
    if numbers(package.__version__)[:2] >= PYSPARK_AT_LEAST:
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
    # The extra has no PySpark for this Python: installing it again would change nothing.
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


def pyspark_home() -> str | None:
    """Return the directory of PySpark, None if there is no PySpark with which Penstock works."""
    if pyspark().state != "ok":
        return None
    import pyspark as package

    return os.path.dirname(package.__file__)


def numbers(text: str) -> tuple[int, ...]:
    """Return the first numbers of a version, three at most."""
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def workers() -> Finding:
    """Check the Python that `PYSPARK_PYTHON` names: a Python other than this one costs time, or cannot work."""
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
    """Say why a Python cannot run workers, None if it can."""
    if other is None:
        return "is not a Python that runs here"
    if other.version[:2] != sys.version_info[:2]:
        versions = f"Python {_dotted(other.version[:2])}, this is {_dotted(sys.version_info[:2])}"
        return f"is {versions}: Spark takes no two of them"
    if other.missing:
        return f"has no {' and no '.join(other.missing)}: its workers could not start"
    this = interpreter.ask(sys.executable)
    if this is not None and this.code != other.code:
        return "has another state of Penstock than this Python: driver and workers could not understand one another"
    return None


def extras() -> Finding:
    """Report which optional packages are installed, and their versions."""
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
    except ImportError:  # its parent package is missing
        return False
