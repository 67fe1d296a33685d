"""How much memory Python workers use: the peak of the largest one below a contender's JVM."""

from __future__ import annotations

import re
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from types import TracebackType

_SAMPLE_SECONDS = 0.1
_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)


class Watch:
    """Watches the Python processes below a JVM that is a child of `pid`, for the length of a `with` block.

    It samples ten times a second; on Linux each sample is the kernel's own record of the process's peak, so it includes a peak
    between two samples. Pages that a worker shares with the daemon that forked it count as the worker's.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._peaks: dict[int, int] = {}

    @property
    def peak(self) -> int:
        """Return the bytes of the largest Python process so far."""
        return max(self._peaks.values(), default=0)

    @property
    def processes(self) -> int:
        """Return how many Python processes were seen."""
        return len(self._peaks)

    def __enter__(self) -> Watch:
        """Begin to watch."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Look a last time, and end."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(_SAMPLE_SECONDS):
            self._sample()
        self._sample()

    def _sample(self) -> None:
        for process in self._below():
            with suppress(psutil.NoSuchProcess):
                if process.name().startswith("python"):
                    self._peaks[process.pid] = max(self._peaks.get(process.pid, 0), _peak_of(process))

    def _below(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self._pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []


def _peak_of(process: psutil.Process) -> int:
    """Return the process's peak of resident bytes; if the kernel does not report it, the current ones."""
    try:
        found = _PEAK.search(Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8"))
    except OSError:
        found = None
    return int(found[1]) * 1024 if found else int(process.memory_info().rss)
