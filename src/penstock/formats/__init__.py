"""Records and bytes, with Arrow on one side: nothing here touches a file system, a clock or Spark.

`decoder` and `encoder` serve the formats whose records are lines (text, json, csv); `parquet` and `binary` have
functions of their own. `lines` and `csvcut` find records in bytes, `codecs` handles compressed files, `schema`
Spark's schemas, `staged` the form in which rows wait to be written.

Decoders take UTF-8: who reads a file in another encoding converts it first. `charsets` says in which encodings records can be
found in the bytes of a file, so that it can be read in ranges.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import OptionError
from penstock.formats.account import Account
from penstock.formats.format import Decoder, Dialect, Encoder, ReadFormat, WriteFormat
from penstock.formats.staged import arrow_batches, arrow_stream

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "Decoder",
    "Dialect",
    "Encoder",
    "ReadFormat",
    "WriteFormat",
    "arrow_batches",
    "arrow_stream",
    "decoder",
    "encoder",
    "file_header",
]

LINES = ("text", "json", "csv")


def decoder(fmt: ReadFormat, account: Account | None = None) -> Decoder:
    """Return what turns blocks of `fmt` (text, json or csv) into rows, and enters what no column has into `account`.

    Raises `OptionError` when the schema or an option is not for this format, or the format has no decoder.
    """
    return _made_by(fmt.name, "read")[0](fmt, Account() if account is None else account)


def encoder(fmt: WriteFormat) -> Encoder:
    """Return what turns rows into bytes of `fmt` (text, json or csv).

    Raises `OptionError` when the schema or an option is not for this format, or the format has no encoder.
    """
    return _made_by(fmt.name, "written")[1](fmt)


def file_header(fmt: WriteFormat) -> bytes:
    """Return what every file of `fmt` begins with, in UTF-8, not compressed: nothing, but for a csv that has a header."""
    if fmt.name != "csv" or not fmt.csv.header:
        return b""
    from penstock.formats.delimited import header_record

    return header_record(fmt)


def _made_by(name: str, done: str) -> tuple[Callable[[ReadFormat, Account], Decoder], Callable[[WriteFormat], Encoder]]:
    """Return what makes a format's decoder and encoder; imported when asked for, as most processes of a query need none."""
    if name == "text":
        from penstock.formats.text import TextDecoder, TextEncoder

        return TextDecoder, TextEncoder
    if name == "json":
        from penstock.formats.jsonl import JsonDecoder, JsonEncoder

        return JsonDecoder, JsonEncoder
    if name == "csv":
        from penstock.formats.delimited import CsvDecoder, CsvEncoder

        return CsvDecoder, CsvEncoder
    msg = f"format={name!r} is not {done} in lines: expected text, json or csv"
    raise OptionError(msg)
