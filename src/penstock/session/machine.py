"""What this machine and this process have of what Spark needs: checked before a JVM is started, and by `penstock doctor`.

Each check looks at one thing and returns what it found: that all is well, that it costs something (a note), or that no session can
start with it (a problem), and then what to do. No check starts a JVM, except that the doctor runs `java -version`, a fifth of a second.

What can be corrected for the JVM is corrected instead (`for_jvm`, `host.java_options`): a locale without UTF-8, a `SPARK_HOME` of
another Spark, a name of this host that nobody knows, a `/tmp` that cannot be written.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from penstock.session import host, java, pythons, surroundings
from penstock.session.master import is_here

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.session.finding import Finding

_LOOPBACK = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_HOSTNAME": "localhost"}


def before_start(master: str) -> list[Finding]:
    """Return the checks that matter before a JVM is started for a session: what would prevent a start, and what will be slow."""
    checks = [
        java.java, host.user, host.temporary, surroundings.spark_home, surroundings.variables, surroundings.paths, surroundings.here,
        host.limits, surroundings.hadoop_files, surroundings.modules,
    ]  # fmt: skip
    return [check() for check in (checks if not is_here(master) else [*checks, pythons.workers])]


def everything() -> list[Finding]:
    """Return all findings about this machine, in the order in which a start would meet them."""
    checks: list[Callable[[], Finding]] = [
        pythons.python, pythons.pyspark, java.java_runs, surroundings.spark_home, pythons.workers, surroundings.variables,
        surroundings.paths, surroundings.here, surroundings.modules, host.user, host.cache, host.temporary, host.memory, host.limits,
        host.network, host.locales, host.time_zone, surroundings.hadoop, pythons.extras,
    ]  # fmt: skip
    return [check() for check in checks]


def for_jvm(master: str) -> dict[str, str | None]:
    """Return the environment variables that are corrected for the JVM of a session, which otherwise could not start or work."""
    changed: dict[str, str | None] = {}
    # Without this the JVM could neither create nor find a file whose name is not ASCII.
    if not host.is_utf8():
        changed["LC_ALL"] = host.UTF8_LOCALE
    if surroundings.spark_home().state == "note":
        changed["SPARK_HOME"] = pythons.pyspark_home()
    # On other masters the address stays as it is: a later session may be one on a cluster.
    if is_here(master) and host.own_address() is None:
        changed |= {name: os.environ.get(name) or loopback for name, loopback in _LOOPBACK.items()}
    return changed
