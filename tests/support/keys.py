"""Age keys for tests, and functions that encrypt to them and decrypt. Everybody can read the keys here, so use them for nothing else."""

from __future__ import annotations

import pyrage

READER = "age13eqyja9l8928380m6yc7qw4np89rskaafufdwj4t904qqr2m49kqrxmn8n"
"""A recipient of finished files."""
READER_KEY = "AGE-SECRET-KEY-15TC9HCE5LUL24X2GQDCSTXMHG6CCT664Y4Y598P8JXSE9U9K78VQD9QW97"
OTHER = "age1v30dt7fwd62mq49q64qefggadzcg363tunzstxd6anjt74ck2cdqmk5z7u"
"""Another one."""
OTHER_KEY = "AGE-SECRET-KEY-1X2KNLPJYV5YRXFWEKWR79ATWXDQEGTGWNKG4QZLSXXZPUDNYQWZSPQQUVE"
STAGING = "age1l7jnylq4jstcqav0l2djffsuradytw2lfadx8yd0ljcwpg6caq9susd0x6"
"""The public half of a staging key."""
STAGING_KEY = "AGE-SECRET-KEY-1ZZNTWR3RLWNJ6H6SQR3Z4X3GLJYM38TH5GJNQUXLP9NTNSQ0K0UQT6M4AT"
STAGING_VARIABLE = "PENSTOCK_TEST_STAGING_KEY"
ENCRYPTED = {"encryptTo": READER, "encryptionKey": f"env:{STAGING_VARIABLE}"}
"""The options of a sink that encrypts all; the variable must be set."""


def encrypted(data: bytes, *recipients: str) -> bytes:
    """Return the data encrypted as an age file."""
    return bytes(pyrage.encrypt(data, [pyrage.x25519.Recipient.from_str(to) for to in recipients or (READER,)]))


def opened(data: bytes, key: str = READER_KEY) -> bytes:
    """Return the content of an age file."""
    return bytes(pyrage.decrypt(data, [pyrage.x25519.Identity.from_str(key)]))
