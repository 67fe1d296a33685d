"""What a sink leaves beside its ledger, so that it can be rebuilt without its query: `finish`, `verify`, `status`.

A record of the ledger has all that decides. What it does not have is how the query would have gone on: `fileName`,
`timeZone`, the limits; and, for `verify`, where the checkpoint is and what an ingest did with what it read. So whoever
claims a sink notes the options it came with, as `options-<epoch>.json` in the sink's directory: one line of JSON with
its checksum, in the form of the ledger's records. The note follows the claim. A crash between the two leaves the note
before, which is that of the driver that wrote what is open.

No secret is in it: the options of a sink hold references to secrets, never literals, and what stands before the `@` of a URL
is left out. A function that was pickled into
the option `ingest` is left out: a state file is never run.
"""

from __future__ import annotations

import contextlib
import json
import re
from typing import TYPE_CHECKING

from penstock.errors import AlreadyThere, DamagedState, NotThere, without_credentials
from penstock.sink.ledger import checked, signed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.storage import Storage

OPAQUE = {"opaque": True}  # in place of a transform that cannot be repeated from its record
_RECORD = re.compile(r"options-(\d{12})\.json")


def note_options(storage: Storage, directory: str, epoch: int, given: Mapping[str, str]) -> None:
    """Note what the driver of `epoch` was given, forget what earlier ones were; called by the owner of the epoch."""
    record = {"sink": directory.rpartition("/")[2], "epoch": epoch, "options": _open(given)}
    with contextlib.suppress(AlreadyThere):  # the reply to an earlier try was lost
        storage.put_if_absent(f"{directory}/{_name(epoch)}", signed(record))
    for older in _epochs(storage, directory):
        if older < epoch:
            storage.delete(f"{directory}/{_name(older)}")


def noted_options(storage: Storage, directory: str) -> dict[str, str]:
    """Return what the last driver noted, nothing if none did. `DamagedState` if it is not what was put."""
    epochs = _epochs(storage, directory)
    if not epochs:
        return {}
    path = f"{directory}/{_name(epochs[-1])}"
    record = checked(storage.read(path), path)
    if (record.get("sink"), record.get("epoch"), "options" in record) != (
        directory.rpartition("/")[2],
        epochs[-1],
        True,
    ):
        found = f"the options of epoch {record.get('epoch')} of sink {record.get('sink')!r}"
        msg = f"{path!r} has {found}: it was moved here; restore it from a copy"
        raise DamagedState(msg)
    return _open(record["options"])  # again: somebody else may have put it there


def sink_ids(storage: Storage, state: str) -> list[str]:
    """Return the sinks that have a ledger below the state directory `state`, sorted; `NotThere` if there is none."""
    return sorted(name for name in storage.names(state) if _is_directory(storage, f"{state}/{name}/ledger"))


def _is_directory(storage: Storage, path: str) -> bool:
    try:
        return storage.stat(path).is_directory
    except NotThere:
        return False


def _open(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options without secrets, and without what must not be run from a file."""
    given = {name: without_credentials(value) for name, value in given.items()}
    if "ingest" not in given:
        return given
    stage = json.loads(given["ingest"])
    if str(stage["transform"]).startswith("pickle:"):
        stage["transform"] = OPAQUE
    return {**given, "ingest": json.dumps(stage)}


def _epochs(storage: Storage, directory: str) -> list[int]:
    return sorted(int(match[1]) for name in storage.names(directory) if (match := _RECORD.fullmatch(name)))


def _name(epoch: int) -> str:
    return f"options-{epoch:012d}.json"
