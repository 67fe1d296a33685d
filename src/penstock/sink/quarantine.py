"""The user's directory for what is set aside, instead of the one below the sink's state (`quarantineLocation`).

A file of what was set aside is finished by a record of the ledger, and the record says which directory the file goes to. So files
in an earlier location stay there and remain known, and a sink that is rebuilt from its notes (`finish`, `verify`, `retry`) needs
no option.

**A record alone never leads out of the output.** Users who may write to the output are not trusted: with a forged record, one of
them could make another user's `penstock finish` put files anywhere. So files are published to a directory outside the output only
if the directory has a note that names this output. The driver that was given the option puts the note there (`claim`); a user who
cannot write to the directory cannot have put it. The note stays as long as the directory does.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import xxhash

from penstock import unique
from penstock.errors import AlreadyThere, OptionError, PublishConflict, StorageError
from penstock.query.records import signed
from penstock.storage import TEMPORARY, entry_at, try_move

if TYPE_CHECKING:
    from penstock.storage import Storage


def claim(storage: Storage, place: str, root: str) -> None:
    """Make the directory, and note in it that the output `root` may set aside there. Idempotent.

    Raises `OptionError` if files of the output cannot be moved there because it is another file system, and `StorageError`.
    """
    storage.make_directory(place)
    trial = f"{root}/{TEMPORARY}{unique.token()}"
    with storage.create(trial) as file:
        file.sync()
    try:
        try_move(storage, trial, place)
    except StorageError as error:
        msg = (
            f"quarantineLocation={place!r}: files cannot be moved there from {root!r} ({error.message}); choose a directory of "
            "the same file system"
        )
        raise OptionError(msg) from error
    with suppress(AlreadyThere):
        storage.put_if_absent(f"{place}/{_note(storage, root)}", signed({"output": root}))


def check_claimed(storage: Storage, place: str, root: str) -> None:
    """Raise `PublishConflict` unless the directory has the note of the output."""
    if entry_at(storage, f"{place}/{_note(storage, root)}") is None:
        msg = (
            f"the ledger of {root!r} names {place!r} for what was set aside, and no ingest has noted there that this output may use it; "
            "nothing was changed there; run the ingest with this quarantineLocation again"
        )
        raise PublishConflict(msg)


def _note(storage: Storage, root: str) -> str:
    """Return the name of the note about an output; readers skip names that begin with `_`."""
    return f"_penstock-{xxhash.xxh3_64_hexdigest(storage.resolve(root).encode('utf-8', 'surrogateescape'))}"
