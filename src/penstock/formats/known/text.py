"""The format text: a record is a line, and a row is its one string (or binary) column."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyarrow import types

from penstock.formats.families import RecordFormat
from penstock.formats.text import TextDecoder, TextEncoder

if TYPE_CHECKING:
    from penstock.formats.account import Account
    from penstock.formats.format import Decoder, Encoder, ReadFormat, WriteFormat


class _Text(RecordFormat):
    name = "text"
    extension = ".txt"
    read_options = frozenset({"lineSep", "encoding", "encodingErrors"})
    as_lines = True

    def decoder(self, fmt: ReadFormat, account: Account) -> Decoder:
        return TextDecoder(fmt, account)

    def encoder(self, fmt: WriteFormat) -> Encoder:
        return TextEncoder(fmt)

    def gives_text(self, fmt: ReadFormat) -> bool:
        return not types.is_binary(fmt.schema.field(0).type)


FORMAT = _Text()
