"""JSON lines: a record is a line with one object in it, a row its members by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.formats.families import RecordFormat
from penstock.formats.format import FIELD_OPTIONS

if TYPE_CHECKING:
    from penstock.formats.account import Account
    from penstock.formats.families import Kinds
    from penstock.formats.format import Decoder, Encoder, ReadFormat, WriteFormat
    from penstock.formats.seen import Room, Seen


class _Json(RecordFormat):
    name = "json"
    extension = ".json"
    other_extensions = (".jsonl", ".ndjson")
    read_options = frozenset({"lineSep", "encoding", "encodingErrors", *FIELD_OPTIONS})

    def decoder(self, fmt: ReadFormat, account: Account) -> Decoder:
        from penstock.formats.jsonl import JsonDecoder

        return JsonDecoder(fmt, account)

    def kinds(self, fmt: ReadFormat, seen: Seen, room: Room) -> Kinds:
        from penstock.formats.jsonkinds import JsonKinds

        return JsonKinds(fmt, seen, room)

    def encoder(self, fmt: WriteFormat) -> Encoder:
        from penstock.formats.jsonl import JsonEncoder

        return JsonEncoder(fmt)


FORMAT = _Json()
