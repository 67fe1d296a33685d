"""Checks that rows go below a header of their own columns, in files that grow over many batches, before anything is committed."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.errors import NotThere, OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.sink.batch import TaskResult
    from penstock.sink.decide import Rules
    from penstock.storage import Storage

_SHOWN = 200  # bytes of a file that are looked at, at least, to show the header that it has


def check_headers(
    storage: Storage, root: str, rules: Rules, results: Iterable[TaskResult], lengths: Mapping[str, int]
) -> None:
    """Raise `OptionError` if rows would go below the header of other columns in a growing file.

    `lengths` are those of all growing files. Only headers that can be compared byte by byte are checked: another version may
    compress the same header differently. A file that is gone is left to publishing, which says so.
    """
    parts = [part for result in results for part in result.open if part.kind.header and not part.is_aside]
    headers = {
        path: part.kind.header_bytes
        for part in parts
        if part.kind.compression == "none" and lengths.get(path := rules.path(part.place, part.kind))
    }
    for path, header in headers.items():
        with suppress(NotThere), storage.open(f"{root}/{path}") as file:
            beginning = bytes(file.read(0, max(len(header), _SHOWN)))
            if not beginning.startswith(header):
                first_line = beginning.partition(b"\n")[0].decode(errors="replace")
                msg = (
                    f"{path!r} in {root!r} begins with the header {first_line!r}, and the rows of this batch have "
                    f"{header.decode().rstrip()!r}: a growing file has the same columns all along; nothing was committed; set "
                    "another fileName, or write the columns that it has"
                )
                raise OptionError(msg)
