"""The storages without a machine behind them, by kind: those that a log and what stands on it are put through."""

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
