"""What this host offers a session: a user with a name, disk space, memory, limits, a network, a locale and a clock."""

from __future__ import annotations

import locale
import os
import re
import socket

from penstock import clock
from penstock.errors import DependencyError, StorageError
from penstock.session.finding import Finding
from penstock.session.processors import cores
from penstock.storage import LocalStorage, can_write, check_names, free_bytes, is_file, temporary_directory
from penstock.units import format_size

_JAVA_TEMPORARY = "/tmp"  # noqa: S108 - Java's own, whatever TMPDIR says
UTF8_LOCALE = "C.UTF-8"
_SOCKET_PATH_MAX = 107
_OURS_IN_TEMPORARY = len("/penstock-4294967295/fork-4194304")
_SPACE_LEAST, _SPACE_LITTLE = 4 << 20, 1 << 30
_MEMORY_LITTLE = 3 << 29  # the JVM's heap of 1 GiB, and Python
_FILES_LEAST = 512  # Spark's JVM has 280 jars open before it does anything, and 420 files in a query
_FILES_LITTLE, _PROCESSES_LITTLE = 1024, 1024
# The form that POSIX defines for TZ: a name, an offset, and perhaps those of summer time, with its begin and end.
_ZONE_NAME, _ZONE_OFFSET = "([A-Za-z]{3,}|<[A-Za-z0-9+-]{3,}>)", r"[+-]?\d{1,2}(:\d{2}){0,2}"
_ZONE_RULES = re.compile(f"{_ZONE_NAME}{_ZONE_OFFSET}({_ZONE_NAME}({_ZONE_OFFSET})?(,[^,]+,[^,]+)?)?")
_ZONE_FILE_BEGINS = b"TZif"
_EARLIEST_NS = 1_735_689_600 * clock.SECOND_NS  # 2025: no clock that was set is earlier than this code


def user() -> Finding:
    """Check whether the user has a name: Hadoop, and so Spark, does not start for a user that is only a number."""
    import pwd

    number = os.getuid()
    try:
        name = pwd.getpwuid(number).pw_name
    except KeyError:
        line = f"echo 'spark:x:{number}:{os.getgid()}::/tmp:/bin/sh' >> /etc/passwd"
        text = f"user {number} has no name, without which Hadoop's classes do not start"
        return Finding("user", "problem", text, f"give it one (in an image: {line}), or run as another user")
    return Finding("user", "ok", f"{name} ({number})")


def cache() -> Finding:
    """Check whether this user's cache can be written, for the archive of classes. Creates it, as any use of it does."""
    from penstock.storage import cache_directory, user_cache

    try:
        path = cache_directory()
    except StorageError as error:
        return Finding("cache", "note", error.message, "set XDG_CACHE_HOME to a directory of yours for faster starts")
    if path != user_cache():
        text = f"{path}, since neither XDG_CACHE_HOME nor HOME={os.environ.get('HOME')!r} can be written"
        return Finding("cache", "ok", text)
    return Finding("cache", "ok", path)


def temporary() -> Finding:
    """Check the directories for temporary files, of Python and of Java."""
    name = "temporary files"
    try:
        directory = temporary_directory()
        free = free_bytes(directory)
    except StorageError as error:
        return Finding(name, "problem", error.message, "set TMPDIR to a directory that can be written")
    text = f"{directory}, {format_size(free)} free"
    if free < _SPACE_LEAST:
        return Finding(name, "problem", text, "free some space there, or set TMPDIR to another directory")
    local = os.environ.get("SPARK_LOCAL_DIRS")
    if local and not any(map(can_write, local.split(","))):
        return Finding(
            name, "problem", f"SPARK_LOCAL_DIRS={local!r} cannot be written", "unset it, or name another directory"
        )
    instead = "" if can_write(_JAVA_TEMPORARY) else f"; {_JAVA_TEMPORARY} cannot be written, or is full"
    return _notes_on(directory, free) or Finding(name, "ok", f"{text}{instead}")


def _notes_on(directory: str, free: int) -> Finding | None:
    """Return a note about the directory for temporary files, if it is usable but not ideal."""
    name, text, asked = "temporary files", f"{directory}, {format_size(free)} free", os.environ.get("TMPDIR")
    if asked and not can_write(asked):
        return Finding(
            name, "note", f"{text}, since TMPDIR={asked!r} cannot be written", "unset TMPDIR, or name another"
        )
    if len(os.fsencode(directory)) + _OURS_IN_TEMPORARY > _SOCKET_PATH_MAX:
        long = f"{text}, a name too long for sockets in it: workers start without the fork server, and a start takes longer"
        return Finding(name, "note", long, "set TMPDIR to a shorter one")
    if free < _SPACE_LITTLE:
        return Finding(
            name, "note", f"{text}, which is little", "free some space there, or set TMPDIR to another directory"
        )
    return None


def java_options() -> list[str]:
    """Return the Java options that a JVM needs on this machine."""
    return [] if can_write(_JAVA_TEMPORARY) else [f"-Djava.io.tmpdir={temporary_directory()}"]


def has_sockets() -> bool:
    """Tell whether the name of the JVM's directory for temporary files leaves room for the name of a Unix socket."""
    directory = _JAVA_TEMPORARY if can_write(_JAVA_TEMPORARY) else temporary_directory()
    return len(os.fsencode(directory)) + len("/.00000000-0000-0000-0000-000000000000.sock") <= _SOCKET_PATH_MAX


def memory() -> Finding:
    """Check the free memory."""
    import psutil

    available = psutil.virtual_memory().available
    limit = _memory_limit()
    free = available if limit is None else min(limit, available)
    text = f"{format_size(free)} free, {cores()} {'processor' if cores() == 1 else 'processors'}"
    if free < _MEMORY_LITTLE:
        return Finding("memory", "note", f"{text}: Spark's JVM takes 1 GiB, a task some 400 MB", "end what else runs")
    return Finding("memory", "ok", text)


def _memory_limit() -> int | None:
    """Return the memory limit of this process's container."""
    try:
        text = LocalStorage().read("/sys/fs/cgroup/memory.max")
    except StorageError:
        return None
    return int(text) if text.strip().isdigit() else None


def limits() -> Finding:
    """Check how many files and processes this user may have."""
    import resource

    files, files_most = resource.getrlimit(resource.RLIMIT_NOFILE)
    processes, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    text = f"{_limit(files)} open files, {_limit(processes)} processes"
    if 0 <= files_most < _FILES_LEAST:  # Java raises its own limit as far as allowed
        advice = f"have the limit of this user, or of its container, raised to {_FILES_LITTLE * 4} (ulimit -n {_FILES_LITTLE * 4})"
        return Finding("limits", "problem", f"{text}: Spark's JVM needs {_FILES_LEAST}", advice)
    few = [f"ulimit -n {_FILES_LITTLE * 4}"] if 0 <= files < _FILES_LITTLE else []
    few += [f"ulimit -u {_PROCESSES_LITTLE * 4}"] if 0 <= processes < _PROCESSES_LITTLE and os.getuid() else []
    if few:
        return Finding("limits", "note", f"{text}: a query may fail under load", f"raise it: {'; '.join(few)}")
    return Finding("limits", "ok", text)


def _limit(number: int) -> str:
    return "any number of" if number < 0 else f"{number:,}"


def network() -> Finding:
    """Check whether processes of this host can reach one another, as Spark's processes must."""
    try:
        with socket.socket() as listener, socket.socket() as caller:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            caller.settimeout(5)
            caller.connect(listener.getsockname())
    except OSError as error:
        return Finding(
            "network",
            "problem",
            f"127.0.0.1 does not answer itself ({error})",
            "bring the loopback up: ip link set lo up",
        )
    name, address = socket.gethostname(), own_address()
    if address is None:
        own = f"nobody knows this host by its name {name!r}, so sessions of your own need SPARK_LOCAL_IP=127.0.0.1"
        return Finding("network", "ok", f"127.0.0.1; {own}")
    return Finding("network", "ok", f"127.0.0.1; this host is {name} ({address})")


def own_address() -> str | None:
    """Return the address of this host by its name, None if the name has no address; Java does not start then."""
    try:
        addresses = socket.getaddrinfo(socket.gethostname(), None)
    except (OSError, UnicodeError):
        return None
    return str(addresses[0][4][0])


def locales() -> Finding:
    """Check whether the locale, and Python for names of files, use UTF-8."""
    try:
        check_names()
    except DependencyError as error:
        return Finding("locale", "problem", *error.message.rsplit("; ", 1))
    codeset = locale.nl_langinfo(locale.CODESET)
    named = next(
        (f"{name}={os.environ[name]}" for name in ("LC_ALL", "LC_CTYPE", "LANG") if os.environ.get(name)), "no locale"
    )
    if is_utf8():
        return Finding("locale", "ok", f"{named}, {codeset}")
    text = f"{named} is {codeset}, not UTF-8: Java could not name files that are not named in ASCII; it is given {UTF8_LOCALE}"
    return Finding("locale", "note", text, f"export LC_ALL={UTF8_LOCALE}, which sessions of your own need")


def is_utf8() -> bool:
    """Tell whether the locale of this process uses UTF-8."""
    return locale.nl_langinfo(locale.CODESET).upper().replace("-", "") == "UTF8"


def time_zone() -> Finding:
    """Check the clock and the time zone of this process."""
    now, named = clock.now_ns(), os.environ.get("TZ")
    if now < _EARLIEST_NS:
        text = f"the clock says {now // clock.SECOND_NS} s since 1970, a time before this program"
        return Finding("time", "note", text, "set the clock: parts roll by it, and new files are told from old ones")
    if not named:
        text = "the machine's zone, which a session of Spark takes, too, unless another one is set"
        return Finding("time", "ok", text)
    if not _is_zone(named.removeprefix(":")):
        text = f"TZ={named!r} is not a zone that this machine knows, and counts as UTC"
        return Finding("time", "note", text, "name another, or install tzdata")
    return Finding("time", "ok", f"TZ={named!r}")


def _is_zone(name: str) -> bool:
    """Tell whether the system takes this for a zone: rules, the path of a file with rules, or a known name. All else counts as UTC."""
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    if _ZONE_RULES.fullmatch(name):
        return True
    try:
        if os.path.isabs(name):
            return is_file(name) and LocalStorage().read(name).startswith(_ZONE_FILE_BEGINS)
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError, StorageError):
        return False
    return True
