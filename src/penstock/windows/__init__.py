"""What a finished window read, kept so that it can be read again: a store on a log, and a stream on the store.

*What lives here.* `store` says what is kept, and in which form. `replay` turns a function whose results can be read only once into a
stream.

*What may be touched.* One log in a directory of its own, through `wal`.

*What it may know.* The log and what is below it. An artifact is bytes, and Spark is an engine that counts batches.
"""

from __future__ import annotations

from penstock.windows.store import NO_WINDOW, WindowStore

__all__ = ["NO_WINDOW", "WindowStore"]
