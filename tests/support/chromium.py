"""A headless Chromium, driven by its own protocol over a pipe (file descriptors 3 and 4 in the browser): no library, no port."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-extensions",
    "--disable-background-networking", "--disable-component-update", "--hide-scrollbars", "--force-color-profile=srgb",
    "--remote-debugging-pipe",
)  # fmt: skip
_WIRED = "[(os.dup2(end, at), os.set_inheritable(at, True)) for at, end in enumerate(ends, 3)]"


class NoChromium(Exception):
    """This machine has no Chromium."""


def binary() -> str:
    """Return the path of a Chromium; `NoChromium` if there is none."""
    path = os.environ.get("PENSTOCK_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        msg = "there is no Chromium: apt-get install chromium, or say where it is by PENSTOCK_CHROMIUM"
        raise NoChromium(msg)
    return path


class Chromium:
    """One page of one browser. Every call waits for its answer; `events` keeps what the page reports in the meantime."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._rest = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []

    def attach(self) -> None:
        """Open a page."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol, and return its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, (method, answer["error"])
        result: dict[str, Any] = answer["result"]
        return result

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            data = os.read(self._from, 1 << 20)
            assert data, "the browser has ended"
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer

    def show(self, url: str, *, width: int = 1200, height: int = 900, dark: bool = False) -> None:
        """Open an address in a window of this size."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def run(self, expression: str) -> Any:
        """Return the value of a JavaScript expression; a promise is awaited."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, condition: str, seconds: float = 20.0) -> None:
        """Wait until a JavaScript condition is true."""
        until = time.monotonic() + seconds
        while not self.run(f"!!({condition})"):
            assert time.monotonic() < until, f"not so within {seconds} s: {condition}"
            time.sleep(0.05)

    def picture(self, path: Path) -> None:
        """Write a picture of the whole page."""
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))

    def complaints(self) -> list[str]:
        """Return what the browser has complained of: script errors, and what the page's security policy has blocked."""
        kinds = {"Runtime.exceptionThrown", "Log.entryAdded"}
        return [json.dumps(event["params"]) for event in self.events if event.get("method") in kinds]


@contextmanager
def browsing(directory: Path) -> Iterator[Chromium]:
    """Run a browser with a new profile for the duration of the block."""
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()

    wired = (
        f"import os, sys; ends = os.dup({to_read}), os.dup({from_write}); {_WIRED}; os.execv(sys.argv[1], sys.argv[1:])"
    )
    process = subprocess.Popen(
        [sys.executable, "-IS", "-c", wired, binary(), *_FLAGS, f"--user-data-dir={directory}", "about:blank"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=(to_read, from_write),
    )  # fmt: skip
    os.close(to_read)
    os.close(from_write)
    try:
        chromium = Chromium(to_write, from_read)
        chromium.attach()
        yield chromium
    finally:
        os.close(to_write)
        os.close(from_read)
        process.kill()
        process.wait()
