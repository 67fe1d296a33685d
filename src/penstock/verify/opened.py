"""The contents of an output's files, and of pieces of them: decrypted where they are encrypted and there is a key.

Lengths and digests of the ledger are those of the cipher text, so everybody can compare them. To see what a file holds takes a
key: that of one of its recipients for a finished file, the staging key of the sink for what waits.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock.errors import OptionError, StorageError, UsageError, WrongKey
from penstock.formats.encryption import MAGIC, Keys
from penstock.storage import Scratch, secret

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.sink.sink import Sink
    from penstock.storage import ReadableFile, Storage

KEY_OPTION = "--key"


def keys_at(reference: str | None) -> Keys | None:
    """Return the keys where the caller says they are: `env:NAME` or `file:PATH`. `OptionError`, `NotThere`."""
    if reference is None:
        return None
    if not reference.startswith(("env:", "file:")):  # it is not shown: it may be the key itself
        msg = f"{KEY_OPTION} must say where the key is, never what it is: expected env:NAME or file:/path/of/the/file"
        raise OptionError(msg)
    return Keys(secret(reference, KEY_OPTION), f"{KEY_OPTION}={reference!r}")


def staging_keys(sink: Sink, keys: Keys | None) -> Keys | None:
    """Return what opens the staged files of a sink: its own staging key where it can be had here, else `keys`."""
    try:
        return sink.cipher.keys() or keys
    except (UsageError, StorageError):  # it is not for this host, or not in its environment
        return keys


@contextmanager
def opened(
    storage: Storage, path: str, start: int, end: int, keys: Keys | None
) -> Iterator[tuple[ReadableFile, int, int]]:
    """Give the file that bytes [start, end) are of, and where they are; of a file of age what is in it, and where that is.

    `OptionError` without a key, `WrongKey`, `BadFile`.
    """
    with storage.open(path) as handle:
        if handle.read(start, len(MAGIC)) != MAGIC:
            yield handle, start, end
            return
        if keys is None:
            msg = f"{path!r} is encrypted; say where a key is that opens it: {KEY_OPTION} env:NAME or file:/path"
            raise OptionError(msg)
        with Scratch() as scratch:
            try:
                keys.decrypt(lambda at, size: handle.read(start + at, size), end - start, scratch.write)
            except WrongKey as error:
                msg = f"{path!r}, bytes {start} to {end}: {error.message}"
                raise WrongKey(msg) from error
            yield scratch, 0, scratch.size


def check_opens(storage: Storage, path: str, size: int, keys: Keys) -> None:
    """Decrypt all of a file, and keep nothing of it. `WrongKey`, `BadFile`."""
    with storage.open(path) as handle:
        keys.decrypt(handle.read, size, lambda _: None)
