"""`penstock --version`: the installed versions of everything the command uses, found without loading any of it."""

from __future__ import annotations

import platform

import penstock


def lines() -> list[str]:
    """Return what `penstock --version` prints: a name and a version a line."""
    from penstock.session.extras import extras
    from penstock.session.java import java_runs

    java = java_runs()
    return [
        f"penstock {penstock.__version__}",
        f"Python {platform.python_version()}",
        f"Java {java.text}" if java.state == "ok" else f"Java {java.text}; {java.advice}",
        *(f"{'PySpark' if extra.name == 'spark' else extra.name} {extra}" for extra in extras()),
    ]
