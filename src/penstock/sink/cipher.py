"""Whom a sink encrypts to, and the key of what waits to be encrypted: where its options say they are.

Finished files are encrypted to *recipients*, which are public; their readers have the private halves, and no process of a query
needs one. Rows that are committed and wait until their part is complete are encrypted to the public half of the *staging key*, or
are clear if the user says so. The tasks and the driver that assemble parts need that key. So it opens what is staged, for minutes,
and no finished file.

A sink is pickled, noted and shown in plans, so it holds where a secret is. Each process reads it there when it needs it.
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
        """Raise `UsageError` unless everything that is named is there and is what it should be. Called before a query begins."""
        self.recipients()
        self.keys()

    def recipients(self) -> tuple[str, ...]:
        """Return whom parts are encrypted to that are opened now, none if they are clear; a file of them is read anew. `OptionError`.

        Each is there once, in an order that does not depend on that of the file: the same readers have the same parts.
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
        """Return the staging key, and those that follow it in its file; `None` where staged files are clear. `OptionError`."""
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
    """Raise `OptionError` while parts are open that were not to be encrypted: no file of a sink that encrypts becomes clear."""
    clear = sum(not part.kind.recipients for part in head.open)
    if clear:
        msg = (
            f"encryptTo is set, and sink {head.sink!r} has {clear} open parts of a run without it, which would become files that anybody "
            f"can read; publish them so first: penstock finish {quote(root)}; or start once more without encryptTo"
        )
        raise OptionError(msg)
