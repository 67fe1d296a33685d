"""The storages that need no server, by kind: the tests of a log and of what is built on it run on each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.testing import CrashDisk, CrashHdfs, ObjectStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.storage import Storage

STORAGES: dict[str, Callable[[], Storage]] = {
    "disk": lambda: CrashDisk().storage(),
    "hdfs": lambda: CrashHdfs().storage(),
    "objects": lambda: ObjectStore().storage(),
}
