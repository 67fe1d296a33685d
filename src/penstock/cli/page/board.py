"""The sections that all viewers of the page see: made once, when something has changed, and only while somebody looks.

It has two threads. One takes a sample of the numbers every two seconds, at almost no cost, and makes the sections while
there are viewers. The other looks at outputs while there are viewers, so a storage that hangs delays neither the page
nor a pipeline. After each look it rests for twenty times as long as the look took, so it needs a twentieth of a core at
most.
"""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock import clock
from penstock.cli.page.sections import sections
from penstock.cli.page.trends import EVERY_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.cli.page.watched import Views

_log = logging.getLogger("penstock.page")
_REST = 20
_PATIENCE_SECONDS = 1.0  # that somebody who opens the page waits
VIEWERS = 32  # each has a thread


class Board:
    """The newest sections, and the viewers who wait for them."""

    def __init__(self, views: Views) -> None:
        self._views = views
        self._changed = threading.Condition()
        self._sections: dict[str, str] = {}
        self._version = 0
        self._viewers = 0
        self._ended = False
        self._looks = threading.Lock()
        self._wanted = threading.Event()

    def start(self) -> None:
        """Begin."""
        for name, work in (("numbers", self._number), ("looks", self._look)):
            threading.Thread(target=work, name=f"penstock-page-{name}", daemon=True).start()

    def close(self) -> None:
        """End, and release everybody who waits."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._wanted.set()

    @contextmanager
    def viewer(self) -> Iterator[bool]:
        """Have the sections made while the block runs; yield false if there are too many viewers."""
        with self._changed:
            admitted = self._viewers < VIEWERS
            self._viewers += admitted
        if admitted:
            self._wanted.set()
        try:
            yield admitted
        finally:
            with self._changed:
                self._viewers -= admitted
                if not self._viewers:
                    self._wanted.clear()

    def now(self) -> dict[str, str]:
        """Return the current sections. Looks at outputs first, unless another thread is doing so; does not wait long for their storage."""
        look = threading.Thread(target=self._look_once, name="penstock-page-look", daemon=True)
        look.start()
        look.join(_PATIENCE_SECONDS)
        self._make()
        return self._sections

    def after(self, version: int, seconds: float) -> tuple[int, dict[str, str]] | None:
        """Wait at most `seconds` for sections that are newer than `version`; `None` at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._version > version, seconds)
            return None if self._ended else (self._version, self._sections)

    def _look_once(self) -> None:
        if self._looks.acquire(blocking=False):
            try:
                self._looked()
            finally:
                self._looks.release()

    def _looked(self) -> None:
        try:
            self._views.look()
        except Exception:  # noqa: BLE001 - the page never ends what it shows, nor itself
            _log.warning("the outputs could not be looked at", exc_info=True)

    def _make(self) -> None:
        made = sections(self._views.all())
        with self._changed:
            if made != self._sections:
                self._sections, self._version = made, self._version + 1
                self._changed.notify_all()

    def _number(self) -> None:
        while not self._ended:
            try:
                self._views.sample()
                if self._viewers:
                    self._make()
            except Exception:  # noqa: BLE001 - the page never ends what it shows, nor itself
                _log.warning("the page could not be made", exc_info=True)
            clock.sleep(EVERY_SECONDS)

    def _look(self) -> None:
        while not self._ended:
            self._wanted.wait()
            begin = clock.monotonic()
            with self._looks:
                self._looked()
            clock.sleep(max(EVERY_SECONDS, _REST * (clock.monotonic() - begin)))
