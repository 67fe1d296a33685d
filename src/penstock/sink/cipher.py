"""The recipients that a sink encrypts to, and its staging key, as its options name them.

Finished files are encrypted to *recipients*, which are public keys. The readers of the files have the private keys, and no
process of a query needs one. Rows that are committed and wait until their part is complete are encrypted to the public half of
the *staging key*, or stay clear if the user says so. The tasks and the driver that assemble parts need the staging key. It opens
what is staged for some minutes, and no finished file.

A sink is pickled, noted and shown in plans. So it holds only where a secret is, and each process reads the secret when it needs
it.
"""

from __future__ import annotations

from dataclasses import dataclass
from shlex import quote
from typing import TYPE_CHECKING

from penstock.errors import OptionError
from penstock.formats.encryption import Keys, check_recipients, recipients_in
from penstock.options.parsers import CLEAR
from penstock.storage import secret

if TYPE_CHECKING:
    from penstock.options import Options
    from penstock.sink.ledger import State


@dataclass(frozen=True)
class Cipher:
    """What the options of a sink say about encryption. Picklable: it holds references."""

    options: Options

    def check(self) -> None:
        """Raise `UsageError` unless every key that is named exists and is of the right kind. Called before a query begins."""
        self.recipients()
        self.keys()

    def recipients(self) -> tuple[str, ...]:
        """Return the recipients of parts that are opened now, none if parts are clear; reads a file of recipients again. `OptionError`.

        Each recipient occurs once, in an order that does not depend on the file, so that the same set of readers gives the same
        kind of part.
        """
        to = self.options["encryptTo"]
        if to is None:
            return ()
        is_file = isinstance(to, str)
        named = (
            recipients_in(secret(to, "encryptTo"), f"encryptTo={to!r}")
            if is_file
            else check_recipients(to, "encryptTo")
        )
        return tuple(sorted(set(named)))

    def keys(self) -> Keys | None:
        """Return the staging key and the keys after it in its file; `None` if staged files are clear. `OptionError`."""
        reference = self.options["encryptionKey"]
        if reference in {None, CLEAR}:
            return None
        where = f"encryptionKey={reference!r}"
        keys = Keys(secret(reference, "encryptionKey"), where)
        if keys.recipient is None:
            msg = f"{where} is an SSH key, and staged files take a key of age: expected AGE-SECRET-KEY-1..., as age-keygen prints it"
            raise OptionError(msg)
        return keys


def check_none_clear(head: State, root: str) -> None:
    """Raise `OptionError` while parts are open that were begun without encryption: a sink that encrypts publishes no clear file."""
    clear = sum(not part.kind.recipients for part in head.open)
    if clear:
        msg = (
            f"encryptTo is set, and sink {head.sink!r} has {clear} open parts of a run without it, which would become files that anybody "
            f"can read; publish them so first: penstock finish {quote(root)}; or start once more without encryptTo"
        )
        raise OptionError(msg)
