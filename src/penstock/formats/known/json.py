"""The format JSON: a record is a line with one object or, with `multiLine`, a document; a row is its members by name."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from penstock.errors import BadRecord
from penstock.formats.families import RecordFormat
from penstock.formats.format import FIELD_OPTIONS, TIME_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.formats.account import Account
    from penstock.formats.charsets import Charset
    from penstock.formats.families import Found, Kinds
    from penstock.formats.format import Decoder, Encoder, ReadFormat, WriteFormat
    from penstock.formats.seen import Room, Seen


class _Json(RecordFormat):
    name = "json"
    extension = ".json"
    other_extensions = (".jsonl", ".ndjson")
    read_options = frozenset(
        {"lineSep", "encoding", "encodingErrors", "multiLine", "mode", *FIELD_OPTIONS, *TIME_OPTIONS}
    )

    def decoder(self, fmt: ReadFormat, account: Account) -> Decoder:
        from penstock.formats.json.lines import JsonDecoder

        return JsonDecoder(fmt, account)

    def kinds(self, fmt: ReadFormat, seen: Seen, room: Room) -> Kinds:
        from penstock.formats.json.kinds import JsonKinds

        return JsonKinds(fmt, seen, room)

    def encoder(self, fmt: WriteFormat) -> Encoder:
        from penstock.formats.json.lines import JsonEncoder

        return JsonEncoder(fmt)

    def advice(self, fmt: ReadFormat, record: bytes) -> str:
        start = record.lstrip()
        if b"\0" in start[:4]:
            return "; set encoding to what the file has, such as UTF-16LE"
        if fmt.multi_line and not _is_json(record):
            return "; multiLine=true takes a file for one object, or one array of objects: leave it out if each line is one"
        if not fmt.multi_line and (start.startswith(b"[") or start == b"{"):
            return "; set multiLine=true if a file is one document, or one array of them"
        return ""

    def in_bytes(self, fmt: ReadFormat) -> bool:
        return not fmt.multi_line and super().in_bytes(fmt)

    def streamed(self, fmt: ReadFormat, chunks: Iterable[bytes], how: Charset) -> Found:
        if not fmt.multi_line:
            return super().streamed(fmt, chunks, how)
        from penstock.formats.json.document import as_lines, whole

        document = whole(chunks)
        try:
            lines = as_lines(document)
        except BadRecord as error:
            if fmt.refuse is None:
                raise
            fmt.refuse(0, document, error.message.rpartition("', ")[2])
            lines = b""
        return b"", self.stream_blocks(fmt, (lines,) if lines else (), how)


def _is_json(record: bytes) -> bool:
    """Tell whether a record is one JSON value of any kind: then the file was read in the right way."""
    try:
        json.loads(record)
    except (ValueError, RecursionError):
        return False
    return True


FORMAT = _Json()
