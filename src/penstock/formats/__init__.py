"""Formats: they turn records into bytes and back, with Arrow on one side.

*What lives here.* A format is one object in its own file in `known`, with one line in the registry (`options.formats`).
It belongs to one of two `families`, which define all that source, sink and `verify` ask of a format; no other code
compares names of formats. `json`, `csv` and `parquet` are each the machinery of one format. `lines` finds records in
bytes, `codecs` handles compressed files, `schema` reads Spark's schemas, `staged` is the form in which rows wait to be
written, and `trial` finds out which types a table can hold.

*What may be touched.* Bytes, rows, and file objects that are passed in: no file system. A clock tells which of two
readers is faster (`json.race`); no row depends on it.

*What it may know.* Storage's errors, options and what is below it; no source, no sink, no Spark.

Decoders take UTF-8: the code that reads a file in another encoding converts it first. `charsets` says in which
encodings records can be found in the bytes of a file, so that it can be read in ranges.
"""

from __future__ import annotations

from penstock.errors import OptionError
from penstock.formats.account import Account
from penstock.formats.format import Decoder, Dialect, Encoder, ReadFormat, WriteFormat
from penstock.formats.registry import enumerated, format_named, record_format
from penstock.formats.staged import arrow_batches, arrow_stream
from penstock.options.formats import WRITTEN

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
    "file_extension",
    "format_named",
]


def decoder(fmt: ReadFormat, account: Account | None = None) -> Decoder:
    """Return a decoder that turns blocks of `fmt` (text, json or csv) into rows, and counts in `account` what no column has.

    Raises `OptionError` when the schema or an option is not for this format, or the format has no decoder.
    """
    return record_format(fmt.name, "read").decoder(fmt, Account() if account is None else account)


def encoder(fmt: WriteFormat) -> Encoder:
    """Return an encoder that turns rows into bytes of `fmt` (text, json or csv).

    Raises `OptionError` when the schema or an option is not for this format, or the format has no encoder.
    """
    return record_format(fmt.name, "written").encoder(fmt)


def file_extension(fmt: WriteFormat) -> str:
    """Return the extension of such files: `.json`, `.csv.gz`, `.parquet`. Raises `OptionError`."""
    form = format_named(fmt.name)
    if not form.codecs:
        msg = f"format={fmt.name!r} cannot be written: expected {enumerated(WRITTEN)}"
        raise OptionError(msg)
    return form.file_extension(fmt.compression)
