"""Records and bytes, with Arrow on one side: nothing here touches a file system, a clock or Spark.

`decoder` and `encoder` serve the formats whose records are lines (text, json, csv); `parquet` and `binary` have
functions of their own. `lines` and `delimited` find records in bytes, `codecs` handles compressed files, `schema`
Spark's schemas, `staged` the form in which rows wait to be written.

Decoders take UTF-8: who reads a file in another `encoding` converts it first, and that encoding must extend ASCII for a
file to be read in ranges.
"""

from __future__ import annotations

from penstock.errors import OptionError
from penstock.formats.format import Decoder, Encoder, ReadFormat, WriteFormat
from penstock.formats.staged import arrow_batches, arrow_stream

__all__ = ["Decoder", "Encoder", "ReadFormat", "WriteFormat", "arrow_batches", "arrow_stream", "decoder", "encoder"]

LINES = (
    "text",
    "json",
    "csv",
)  # each in a module that is imported when it is asked for: most processes of a query need none


def decoder(fmt: ReadFormat) -> Decoder:
    """Return what turns blocks of `fmt` (text, json or csv) into rows.

    Raises `OptionError` when the schema or an option is not for this format, or the format has no decoder.
    """
    if fmt.name == "text":
        from penstock.formats.text import TextDecoder

        return TextDecoder(fmt)
    if fmt.name == "json":
        from penstock.formats.jsonl import JsonDecoder

        return JsonDecoder(fmt)
    if fmt.name == "csv":
        from penstock.formats.delimited import CsvDecoder

        return CsvDecoder(fmt)
    msg = f"format={fmt.name!r} is not read in lines: expected text, json or csv"
    raise OptionError(msg)


def encoder(fmt: WriteFormat) -> Encoder:
    """Return what turns rows into bytes of `fmt` (text, json or csv).

    Raises `OptionError` when the schema or an option is not for this format, or the format has no encoder.
    """
    if fmt.name == "text":
        from penstock.formats.text import TextEncoder

        return TextEncoder(fmt)
    if fmt.name == "json":
        from penstock.formats.jsonl import JsonEncoder

        return JsonEncoder(fmt)
    if fmt.name == "csv":
        from penstock.formats.delimited import CsvEncoder

        return CsvEncoder(fmt)
    msg = f"format={fmt.name!r} is not written in lines: expected text, json or csv"
    raise OptionError(msg)
