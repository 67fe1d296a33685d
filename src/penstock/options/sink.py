"""The options of the sink, `df.writeStream.format("penstock")`."""

from __future__ import annotations

from penstock.options.formats import DEFAULT, WRITTEN
from penstock.options.option import Option
from penstock.options.parsers import (
    announcements,
    any_text,
    character,
    choice,
    count,
    duration_ns,
    flag,
    function_name,
    identifier,
    key_or_clear,
    level,
    place_of_spark,
    recipients,
    size,
    text,
    zone,
)

_NAMED = ("bucketBy", "fileName")

SINK = (
    Option("path", None, text, "output directory"),
    Option("format", DEFAULT, choice(*WRITTEN), "what the files hold"),
    Option(
        "compression",
        None,
        choice("none", "gzip", "zstd", "snappy", "lz4", "brotli", uncompressed="none"),
        "none (parquet: snappy), gzip, zstd; for parquet also lz4, brotli",
        ("codec",),
    ),
    Option("compressionLevel", None, level, "how hard to compress, where the codec has levels; unset: its default"),
    Option("encryptTo", None, recipients, "whom finished files are encrypted to: recipients of age, or file: of them"),
    Option(
        "encryptionKey",
        None,
        key_or_clear,
        "with encryptTo: the key of staged files, env: or file:; none: clear",
        needs=("encryptTo",),
    ),
    Option("encodingErrors", "fail", choice("fail", "replace"), "strings that are not UTF-8; replace: by U+FFFD"),
    Option("header", "false", flag, "each csv file begins with the names of its columns", special=True),
    Option("quote", '"', character, "around a csv field that needs it", special=True),
    Option("escape", None, character, "before a quote inside quotes; unset: the quote itself", special=True),
    Option("comment", "#", character, "a first csv field that begins with it is quoted", special=True),
    Option("nullValue", None, any_text, "what null is in csv; unset: an empty field", special=True),
    Option("emptyValue", None, any_text, "what the empty string is in csv; unset: two quotes", special=True),
    Option("bucketBy", None, text, "template of the output directories over columns and batch time"),
    Option(
        "dropBucketColumns",
        "false",
        flag,
        "leave the columns named in bucketBy and fileName out of the data",
        needs=_NAMED,
    ),
    Option("fileName", "part-{sink}-{writer}-{seq}", text, "template of file names, which may name columns"),
    Option(
        "timeFormat",
        "yyyyMMdd_HHmmss",
        text,
        "how times in fileName are written that have no format of their own",
        needs=("fileName",),
    ),
    Option("rollSize", "128m", size, "close a part before the record that would pass this size"),
    Option("rollRows", None, count, "close a part at this many rows"),
    Option("rollInterval", "15m", duration_ns, "close a part this long after it was opened"),
    Option("rollInactivity", "1m", duration_ns, "close a part this long after it was last written"),
    Option("rollBatches", None, count, "close a part after that many batches; 1: every batch"),
    Option("timeZone", "UTC", zone, "zone of the times in bucketBy and fileName", needs=_NAMED),
    Option("partitionReady", None, announcements, "success-file, event: how a complete time bucket is announced"),
    Option(
        "partitionReadyBy",
        "data",
        choice("data", "cursor"),
        "what is past its end then: times of rows, or the source",
        needs=("partitionReady",),
    ),
    Option("partitionReadyDelay", "10m", duration_ns, "how far past its end that is", needs=("partitionReady",)),
    Option("sinkId", None, identifier, "names the sink's own state; unset: the query id"),
    Option("growing", "false", flag, "one file, one a bucket or one a name, that grows under its readers"),
    Option("onPublish", None, function_name, "module:function that is called with what was published, at least once"),
    Option("quarantineLocation", None, text, "where an ingest reports what it sets aside, as its source's options say"),
    Option("checkpointLocation", None, place_of_spark, "Spark's checkpoint of the query"),
    Option("queryName", None, text, "Spark's name of the query, which it hands on"),
    Option("mergeBelow", None, size, "tasks leave smaller parts for the driver to merge; unset: half of rollSize"),
)
