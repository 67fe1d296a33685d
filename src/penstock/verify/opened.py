"""Reads the contents of an output's files, or pieces of them, and decrypts them if they are encrypted and there is a key.

The ledger has lengths and digests of the cipher text, so they can be compared without a key. Reading the contents of an encrypted
file needs a key: the key of one of its recipients for a finished file, the sink's staging key for staged segments.
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
    """Return the keys from the place that the caller names: `env:NAME` or `file:PATH`. `OptionError`, `NotThere`."""
    if reference is None:
        return None
    if not reference.startswith(("env:", "file:")):  # it is not shown: it may be the key itself
        msg = f"{KEY_OPTION} must say where the key is, never what it is: expected env:NAME or file:/path/of/the/file"
        raise OptionError(msg)
    return Keys(secret(reference, KEY_OPTION), f"{KEY_OPTION}={reference!r}")


def staging_keys(sink: Sink, keys: Keys | None) -> Keys | None:
    """Return the keys for the staged files of a sink: its own staging key if it is available here, else `keys`."""
    try:
        return sink.cipher.keys() or keys
    except (UsageError, StorageError):  # the staging key is not on this host, or not in the environment
        return keys


@contextmanager
def opened(
    storage: Storage, path: str, start: int, end: int, keys: Keys | None
) -> Iterator[tuple[ReadableFile, int, int]]:
    """Yield a file with the bytes [start, end), and where they begin and end in it; an age file is decrypted into a scratch file first.

    Raises `OptionError` without a key, `WrongKey`, `BadFile`.
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
    """Decrypt a whole file, and keep nothing of it. `WrongKey`, `BadFile`."""
    with storage.open(path) as handle:
        keys.decrypt(handle.read, size, lambda _: None)
