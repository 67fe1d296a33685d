"""The options of the source, `spark.readStream.format("penstock")`."""

from __future__ import annotations

from penstock.options.formats import DEFAULT, READ
from penstock.options.option import Option
from penstock.options.parsers import (
    any_text,
    character,
    choice,
    count,
    duration_ns,
    encoding,
    flag,
    fraction,
    moment,
    number,
    path_list,
    pattern,
    quote,
    reference,
    separator,
    size,
    starting,
    text,
)

ASIDE = choice("fail", "quarantine")

SOURCE = (
    Option(
        "path",
        None,
        text,
        "directory or file to read: a plain path, file:, hdfs://, s3://, az:// or gs://, or a glob of those",
    ),
    Option("paths", None, path_list, "more of them, as a JSON list"),
    Option("basePath", None, text, "a directory that all paths lie in, below which directories are columns"),
    Option(
        "files",
        None,
        text,
        "ingests: rows name the files below path; published: those that this output of Penstock finishes, or lists of names",
    ),
    Option("format", DEFAULT, choice(*READ), "what the files hold"),
    Option("pathGlobFilter", None, text, "glob on the file name"),
    Option("pattern", None, pattern, "regular expression that must match the whole file name"),
    Option("recursiveFileLookup", "false", flag, "descend into directories"),
    Option(
        "namesRise", "false", flag, "in a store of objects: what comes later has a greater path, so only such is listed"
    ),
    Option(
        "partitionColumns", "auto", choice("auto", "none"), "auto: directories k=v are columns; none: they are names"
    ),
    Option("followSymlinks", "false", flag, "read what symbolic links out of path lead to"),
    Option("maxFilesPerTrigger", "1000", count, "at most that many files a batch"),
    Option("maxBytesPerTrigger", "1g", size, "at most that many bytes a batch; cuts inside a file"),
    Option("splitSize", "32m", size, "byte range one task reads"),
    Option("settle", "1s", duration_ns, "leave files alone that changed more recently than this"),
    Option("lateness", "10m", duration_ns, "how far behind the cursor a new file may appear and still be read"),
    Option("tooLate", "report", choice("report", "fail"), "what to do with files later than that"),
    Option("changedFiles", "fail", ASIDE, "a planned file that changed or vanished before it was read"),
    Option("badRecords", "fail", ASIDE, "a record that cannot be parsed"),
    Option("badFiles", "fail", ASIDE, "a file that cannot be read"),
    Option("badRecordColumn", None, text, "plain queries: a struct column of this name takes what is set aside"),
    Option("quarantineLocation", None, text, "where an ingest tells what it sets aside; unset: in the sink's state"),
    Option("maxBadRecords", None, number, "an ingest ends when more is set aside than so many records and files"),
    Option("maxBadFraction", None, fraction, "an ingest ends when more is set aside than this part of all records"),
    Option("modifiedAfter", None, moment, "only files that were modified after this time"),
    Option("modifiedBefore", None, moment, "only files that were modified before this time"),
    Option("batchBoundary", "none", choice("none", "file"), "file: each batch ends at the end of one file"),
    Option("startingFrom", "earliest", starting, "earliest, latest or a time"),
    Option("follow", "false", flag, "files may grow: only whole records, only new bytes, over rotations"),
    Option(
        "closeAfter", "5m", duration_ns, "how long a followed file stands still until its last record counts as whole"
    ),
    Option("cleanSource", "off", choice("off", "archive", "delete"), "what becomes of files that were read"),
    Option("sourceArchiveDir", None, text, "where cleanSource=archive moves them, by their paths below path"),
    Option("retention", "0s", duration_ns, "how long they stay where they are once they are read"),
    Option(
        "emit",
        "records",
        choice("records", "files", "published"),
        "files: path, time, size and tag instead of contents; published: of the finished files of an output, with options of its own",
    ),
    Option("metadataColumn", None, text, "adds a struct column of this name: path, modified, size, offset"),
    Option("decryptionKey", None, reference, "where the key is that opens files that end in .age: env: or file:"),
    Option("encoding", "UTF-8", encoding, "of text, json and csv", aliases=("charset",), special=True),
    Option(
        "encodingErrors",
        "fail",
        choice("fail", "replace", "quarantine"),
        "text that is not of its encoding; replace: by U+FFFD; unset: as badRecords says",
        special=True,
    ),
    Option("lineSep", None, text, "what ends a line; unset: \\n, \\r\\n and \\r", special=True),
    Option("header", "false", flag, "the first record of a csv file has the names of its columns", special=True),
    Option("sep", ",", separator, "between the fields of a csv record", aliases=("delimiter",), special=True),
    Option("quote", '"', quote, "around a csv field that has separators; empty: none", special=True),
    Option("escape", None, character, "in front of a quote inside quotes; unset: the quote itself", special=True),
    Option("comment", None, character, "csv records that begin with it are none", special=True),
    Option("nullValue", None, any_text, "a csv field without quotes that is null, as an empty one is", special=True),
    Option(
        "emptyValue",
        None,
        any_text,
        "what an empty csv field in quotes stands for; unset: the empty string",
        special=True,
    ),
    Option(
        "unknownFields",
        "ignore",
        choice("ignore", "fail", "rescue"),
        "names in the data that no column has",
        special=True,
    ),
    Option("missingFields", "null", choice("null", "fail"), "columns that a record has no name for", special=True),
    Option(
        "rescuedDataColumn",
        None,
        text,
        "string column: JSON of what no column has, and of values that do not fit",
        special=True,
    ),
    Option("schema", None, choice("infer"), "infer: the columns are inferred once, and noted in stateLocation"),
    Option("timestampFormat", None, text, "pattern of times in json and csv; unset: ISO 8601", special=True),
    Option("timestampNTZFormat", None, text, "the same of times of type timestamp_ntz", special=True),
    Option("dateFormat", None, text, "pattern of dates in json and csv; unset: ISO 8601", special=True),
    Option(
        "multiLine",
        "false",
        flag,
        "a json file is one document or one array; csv has line breaks in quotes anyway",
        special=True,
    ),
    Option(
        "mode", None, choice("failfast", "dropmalformed", "permissive"), "Spark's word for badRecords", special=True
    ),
    Option("timeZone", None, text, "zone of times that say none; unset: that of Spark's session, else UTC"),
    Option("sessionTimeZone", None, text, "zone of Spark's session, set by penstock.register and penstock.ingest"),
    Option("blockSize", None, size, "cut binary files into blocks of this size", special=True),
    Option("initialDelay", "0s", duration_ns, "how long after the start of a query path is first looked at"),
    Option("sleepTime", "0s", duration_ns, "how long path is not listed again; unset: each trigger lists it"),
    Option("strictMode", "true", flag, "false: a path that is not there, or goes away, is waited for"),
    Option("stateLocation", None, text, "directory for plans too long for an offset; unset: they stay in the offset"),
    Option("tasks", None, count, "pack a batch into at most that many tasks; unset: by splitSize"),
)
