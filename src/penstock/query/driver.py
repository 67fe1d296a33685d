"""The name of a query's driver: all processes below one JVM agree on it, and no other JVM has it.

The name is `host:process:start of the process in milliseconds:query`. Sinks keep it beside their last batch, to say which driver may
commit the next one.
"""

from __future__ import annotations

import socket

import psutil

from penstock.processes import jvm, process


def owner(query: str, process: psutil.Process | None) -> str:
    """Return the name of a query's driver; `process` is its JVM, `None` stands for this process."""
    process = process or psutil.Process()
    return f"{socket.gethostname()}:{process.pid}:{int(process.create_time() * 1000)}:{query}"


def this(query: str) -> str:
    """Return the name of the driver that this process belongs to: that of the JVM above it, if there is one."""
    return owner(query, jvm())


def place(driver: str) -> tuple[str | None, str]:
    """Return the host and the process of the driver that `owner` named; no host if the name is not that of a driver, such as `finish`."""
    host, *rest = driver.split(":", 3)
    return (host, rest[0]) if len(rest) == len(("process", "time", "query")) else (None, "")


def query_of(driver: str) -> str:
    """Return the query of the driver that `owner` named."""
    return driver.split(":", 3)[-1]


def lives(driver: str) -> bool:
    """Tell whether the driver that `owner` named is a process of this host that still runs."""
    return running(driver) is not None


def has_ended(driver: str) -> bool:
    """Tell whether the driver that `owner` named was a process of this host that has ended; of another host nobody knows."""
    host, _, rest = driver.partition(":")
    return host == socket.gethostname() and rest.partition(":")[0].isdigit() and not lives(driver)


def running(driver: str) -> psutil.Process | None:
    """Return the driver process that `owner` named, if it runs on this host."""
    host, _, rest = driver.partition(":")
    pid, _, rest = rest.partition(":")
    named = process(int(pid)) if host == socket.gethostname() and pid.isdigit() else None
    if named is None or not is_alive(named.pid):
        return None
    return named if str(int(named.create_time() * 1000)) == rest.partition(":")[0] else None


def is_alive(pid: int | None) -> bool:
    """Tell whether a process with this number runs; a process that has ended and was not waited for does not count."""
    try:
        return pid is not None and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
