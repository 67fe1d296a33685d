"""A directory of the user's for what is set aside, in place of the one below the sink's state (`quarantineLocation`).

The record of the ledger that finishes a file about what was set aside says which directory it goes to. So what an earlier
location has stays where it is and is known, and a sink that is rebuilt from its notes (`finish`, `verify`, `retry`) needs
no option.

**A record alone leads nobody out of the output.** Whoever may write to the output is not trusted: a record of his could have
`penstock finish`, run by somebody else, put files anywhere. So a directory outside is published to only if it has a note
that names this output. The driver that was given the option puts it there (`claim`), and whoever could not write to the
directory cannot have put it. The note stays for as long as the directory does.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import xxhash

from penstock import unique
from penstock.errors import AlreadyThere, OptionError, PublishConflict, StorageError
from penstock.query.records import signed
from penstock.storage import TEMPORARY, entry_at

if TYPE_CHECKING:
    from penstock.storage import Storage


def claim(storage: Storage, place: str, root: str) -> None:
    """Note in the directory, which is made, that the output `root` sets aside there. Idempotent.

    `OptionError` if files of the output cannot be moved there, since it is another file system; `StorageError`.
    """
    storage.make_directory(place)
    source, target = (f"{directory}/{TEMPORARY}{unique.token()}" for directory in (root, place))
    with storage.create(source) as file:
        file.sync()
    try:
        storage.publish(source, target)
    except StorageError as error:
        msg = (
            f"quarantineLocation={place!r}: files cannot be moved there from {root!r} ({error.message}); choose a directory of "
            "the same file system"
        )
        raise OptionError(msg) from error
    finally:
        for path in (source, target):
            storage.delete(path)
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
    """Return the name of the note about an output; readers leave out what begins so."""
    return f"_penstock-{xxhash.xxh3_64_hexdigest(storage.resolve(root).encode('utf-8', 'surrogateescape'))}"
