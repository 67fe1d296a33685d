"""Reads the log of Spark's own file sink, `_spark_metadata`, which says which files of an output Spark's readers see.

A batch writes its files under their final names, and then `_spark_metadata/<batch>`: a line `v1`, and one JSON object for each
file with `path` (a URI, percent-encoded), `size` and `action` (`add`, or `delete` for a file that no longer counts). At regular
intervals the log file is `<batch>.compact`, with all entries up to that batch; log files before the last compaction are deleted
some time later. Spark's readers of the directory see only the files of the log: neither what a killed batch has left, nor what
another writer adds.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from shlex import quote
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from penstock.errors import DamagedState, OptionError, UsageError
from penstock.query.checkpoint import Checkpoint
from penstock.sink.ledger import STATE_DIRECTORY
from penstock.storage import entry_at, locate

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.storage import Storage

LOG = "_spark_metadata"
_NAME = re.compile(r"(\d+)(\.compact)?")


def no_output(storage: Storage, root: str) -> UsageError:
    """Return the error for a directory that none of our sinks has written to; it says what is there instead."""
    entry = entry_at(storage, root)
    if entry is None:
        why = "there is nothing of that name"
    elif not entry.is_directory:
        why = "it is a file"
    elif entry_at(storage, f"{root}/{LOG}") is not None:
        return UsageError(
            f"DST={root!r} is no output of Penstock: Spark's own sink has written it; penstock adopt {quote(root)} takes it over"
        )
    else:
        why = f"it has no {STATE_DIRECTORY!r}"
    return UsageError(f"DST={root!r} is no output of Penstock: {why}; name the directory that was written")


@dataclass(frozen=True)
class Logged:
    """A file in the log: its decoded path, its size, and the first and last batch that may have written it."""

    path: str
    size: int
    first_batch: int
    last_batch: int


def read(storage: Storage, directory: str) -> dict[str, Logged]:
    """Return the files that a log lists, by their paths; `DamagedState` if a part of the log is missing or malformed."""
    listed: dict[str, Logged] = {}
    for name, first, last in _parts(storage, directory):
        for entry in _entries(storage.read(f"{directory}/{name}"), f"{directory}/{name}"):
            path = _decoded(entry["path"])
            listed.pop(path, None)
            if entry.get("action", "add") == "add":
                listed[path] = Logged(path, entry["size"], first, last)
    return listed


def _parts(storage: Storage, directory: str) -> list[tuple[str, int, int]]:
    """Return the files of a log that count, each with the first and the last batch that it covers."""
    matches = filter(None, map(_NAME.fullmatch, storage.names(directory)))
    files = {(int(match[1]), match[2] is not None): match[0] for match in matches}
    compacted = max((number for number, compact in files if compact), default=None)
    numbers = sorted(number for number, compact in files if not compact and (compacted is None or number > compacted))
    _check_whole(directory, compacted, numbers)
    parts = [] if compacted is None else [(files[compacted, True], 0, compacted)]
    return parts + [(files[number, False], number, number) for number in numbers]


def _check_whole(directory: str, compacted: int | None, numbers: list[int]) -> None:
    """Raise `DamagedState` unless the log has all batches after its last compaction.

    A log without a compaction may begin with a later batch than 0: another query has begun it.
    """
    first = compacted + 1 if compacted is not None else (numbers[0] if numbers else 0)
    if numbers and numbers != list(range(first, numbers[-1] + 1)):
        missing = sorted(set(range(first, numbers[-1] + 1)) - set(numbers))
        msg = f"{directory!r} lacks batch {missing[0]}, so it is unknown which files count; restore it from a copy; nothing was changed"
        raise DamagedState(msg)


def _entries(data: bytes, path: str) -> list[dict[str, Any]]:
    version, *lines = data.splitlines() or [b""]
    try:
        entries = [json.loads(line) for line in filter(None, lines)]
        whole = version == b"v1" and all(map(_is_entry, entries))
    except (ValueError, RecursionError):
        entries, whole = [], False
    if not whole:
        msg = (
            f"{path!r} is no file of the log of Spark's sink ({len(data)} bytes, version {version[:20]!r}): expected v1 and one JSON "
            "object a file; restore it from a copy, nothing was changed"
        )
        raise DamagedState(msg)
    return entries


def _is_entry(entry: Any) -> bool:  # noqa: ANN401 - any JSON
    known = isinstance(entry, dict) and isinstance(entry.get("path"), str) and isinstance(entry.get("size"), int)
    return known and entry.get("action", "add") in {"add", "delete"}


def _decoded(uri: str) -> str:
    """Return the path of a URI, or of a plain path."""
    path = urlsplit(uri).path if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", uri) else uri
    return unquote(path, errors="surrogateescape")


def check_no_log(storage: Storage, root: str) -> None:
    """Raise `UsageError` if a log of Spark's sink would hide what we write from Spark's readers."""
    if entry_at(storage, f"{root}/{LOG}") is not None:
        msg = (
            f"{root!r} has a {LOG}, the log of Spark's own file sink: Spark's readers see the files that it lists and no others, so "
            f"they would not see what is written here; stop that query and take the output over (`penstock adopt {quote(root)}`), or "
            "choose another directory"
        )
        raise UsageError(msg)


def check_apart(storage: Storage, root: str, checkpoint: str | None) -> None:
    """Raise `OptionError` if readers of the output would take the checkpoint's files for rows, unless the checkpoint is in use already."""
    try:
        own, path = locate(checkpoint, name="checkpoint") if checkpoint else (storage, "")
    except OptionError:  # Spark may support file systems that we do not
        return
    target, output = own.addressed_as(storage, own.resolve(path)) if path else "", storage.resolve(root).rstrip("/")
    if not f"{target}/".startswith(f"{output}/"):
        return
    names = target[len(output) :].strip("/").split("/")
    hidden = any(name.startswith(("_", ".")) for name in names)
    if (hidden and names != [STATE_DIRECTORY]) or Checkpoint(str(checkpoint)).numbers("commits"):
        return
    msg = (
        f"checkpoint={checkpoint!r} lies in the output {root!r}, whose readers would take Spark's files for rows; choose a directory "
        "outside of it, or one whose name begins with `_`"
    )
    raise OptionError(msg)


def relative(listed: Iterable[Logged], root: str, sizes: dict[str, int]) -> dict[str, Logged]:
    """Return the listed files by their paths below `root`; `sizes` are the sizes of the files that are there, by path.

    The log has absolute paths. If the output was moved in the meantime, these begin with another directory. That directory is
    found by the longest end of a listed path that is a file here.
    """
    entries = list(listed)
    base = f"{root.rstrip('/')}/"
    if entries and not any(entry.path.startswith(base) for entry in entries):
        base = next((directory for entry in entries if (directory := _base(entry, sizes)) is not None), base)
    return {entry.path.removeprefix(base): entry for entry in entries}


def _base(entry: Logged, sizes: dict[str, int]) -> str | None:
    """Return the directory before the longest end of a listed path that is a file here with the listed size."""
    names = entry.path.split("/")
    for start in range(1, len(names)):
        end = "/".join(names[start:])
        if sizes.get(end) == entry.size:
            return entry.path.removesuffix(end)
    return None
