"""What a finished window read, kept on the log so that it can be had again."""

from __future__ import annotations

from penstock.windows.store import NO_WINDOW, WindowStore

__all__ = ["NO_WINDOW", "WindowStore"]
