"""What a finished window read, kept so that it can be had again: a store on the log, and a stream on the store.

`store` says what is kept and in which form; `replay` makes a stream of a function that can be read only once.
"""

from __future__ import annotations

from penstock.windows.store import NO_WINDOW, WindowStore

__all__ = ["NO_WINDOW", "WindowStore"]
