"""The real command in its own process, started as a user would start it, and ended as the machine might end it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock import clock, failpoints
from penstock.errors import PenstockError
from penstock.session import launch
from penstock.sink import keeper
from penstock.storage import entry_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.sink.sink import Sink
    from penstock.storage import Storage

_POLL_SECONDS = 0.02
_KEPT_LINES = 20
_SILENT_SECONDS_MAX = 300


@dataclass(frozen=True)
class Ended:
    """How a run ended: its exit status (negative: the signal), and the last JSON object that it printed."""

    status: int
    facts: dict[str, Any]
    said: tuple[str, ...]


class Run:
    """`penstock ARGUMENTS --json` in its own process group. Use it in a `with`, which leaves no process running."""

    def __init__(self, arguments: list[str], *, failpoint: str = "") -> None:
        environment = {**os.environ, failpoints.VARIABLE: failpoint, launch.TOGETHER: "1"}
        command = [sys.executable, "-m", "penstock.cli", *arguments, "--json"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(  # noqa: S603 - this very interpreter
            command, env=environment, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, start_new_session=True
        )
        self.facts: dict[str, Any] = {}
        self._said: deque[str] = deque(maxlen=_KEPT_LINES)
        self._threads = [
            threading.Thread(target=self._take, args=(self._process.stdout, self._object), daemon=True),
            threading.Thread(target=self._take, args=(self._process.stderr, self._said.append), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()

    def wait(self, shown: Callable[[dict[str, Any]], None], *, until: Callable[[], bool] = bool) -> Ended:
        """Wait for the end, or kill it as soon as `until` is true; `shown` is called again and again with the newest facts."""
        heard, heard_at = self.facts, clock.monotonic()
        while self._process.poll() is None and not until():
            if self.facts != heard:
                heard, heard_at = self.facts, clock.monotonic()
            if clock.monotonic() > heard_at + _SILENT_SECONDS_MAX:
                self.kill()
                words = " ".join(self._said) or str(heard or "nothing")
                msg = f"a run of the demo has made no progress for {_SILENT_SECONDS_MAX} s; it said last: {words}"
                raise PenstockError(msg)
            shown(self.facts)
            clock.sleep(_POLL_SECONDS)
        if until():
            self.kill()
        status = self._process.wait()
        for thread in self._threads:
            thread.join()
        return Ended(status, self.facts, tuple(self._said))

    def kill(self) -> None:
        """End every process of the group at once, as the kernel does when it is out of memory: SIGKILL."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    @staticmethod
    def _take(stream: Any, taken: Callable[[str], None]) -> None:  # noqa: ANN401 - a pipe
        for line in stream:
            taken(line.decode("utf-8", "replace").rstrip())
        stream.close()

    def _object(self, line: str) -> None:
        with contextlib.suppress(ValueError):
            self.facts = json.loads(line)


def kill_keeper(sink: Sink) -> None:
    """Kill the keeper of the last driver: it would tidy up after the dead driver, and here only the next start may do that."""
    with keeper.fact_of(sink, sink.ledger.head().owner).locked() as state:
        if state.get("keeper"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(state["keeper"], signal.SIGKILL)
        state.clear()


def is_there(storage: Storage, path: str) -> bool:
    """Tell whether something is at the path."""
    return entry_at(storage, path) is not None
