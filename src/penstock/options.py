"""The options of source, sink and log: names, defaults, what each accepts, and one way to refuse the rest.

`docs/options.md` has these tables for users. Spark hands options over in any case (`rollsize`); they are matched without
regard to it and named in messages as they are written here. An option that is not in the table is refused with the
nearest name, so that a typing error never silently means a default.
"""

from __future__ import annotations

import codecs
import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, NoReturn
from zoneinfo import ZoneInfo

from penstock import elsewhere
from penstock.errors import OptionError
from penstock.units import parse_duration, parse_size

Parser = Callable[[str, str], Any]
_MOST = 1 << 62  # bytes or nanoseconds: sums of two still fit 64 bits, here and in Arrow


@dataclass(frozen=True)
class Option:
    """One option: its name, its default as a user would write it (`None`: none), its parser, and Spark's other names of it."""

    name: str
    default: str | None
    parse: Parser
    meaning: str
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Options:
    """Checked options of one source or sink: `o["rollSize"]` is the parsed value, `o.given` what the user wrote.

    `parse(table, o.given)` gives the same options again, in another process.
    """

    values: Mapping[str, Any]
    given: Mapping[str, str] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - each option has a type of its own
        """Return the parsed value of the option; its default if it was not given."""
        return self.values[name]

    def given_of(self, table: tuple[Option, ...]) -> dict[str, str]:
        """Return what the user wrote for the options of `table`, which may be only some of those there are."""
        names = {option.name for option in table}
        return {name: text for name, text in self.given.items() if name in names}


def _text(value: str, name: str) -> str:
    if not value:
        msg = f"{name} is empty"
        raise OptionError(msg)
    return value


def _any_text(value: str, name: str) -> str:  # noqa: ARG001 - a parser
    return value


def _choice(*allowed: str) -> Parser:
    def parse(value: str, name: str) -> str:
        if value.lower() not in allowed:
            near = difflib.get_close_matches(value.lower(), allowed, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            msg = f"{name}={value!r} is not known: expected one of {', '.join(allowed)}{hint}"
            raise OptionError(msg)
        return value.lower()

    return parse


def _flag(value: str, name: str) -> bool:
    if value.lower() not in {"true", "false"}:
        msg = f"{name}={value!r} is not a flag: expected true or false"
        raise OptionError(msg)
    return value.lower() == "true"


def _count(value: str, name: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", value.strip()) or int(value) == 0:
        msg = f"{name}={value!r} is not a count: expected a whole number of at least 1, such as 1000"
        raise OptionError(msg)
    return int(value)


def _size(value: str, name: str) -> int:
    size = parse_size(value, name=name)
    if size == 0:
        msg = f"{name}={value!r} is too small: expected at least one byte, such as 128m"
        raise OptionError(msg)
    if size > _MOST:
        msg = f"{name}={value!r} is too large: expected at most 4096p, such as 128m"
        raise OptionError(msg)
    return size


def _duration_ns(value: str, name: str) -> int:
    nanoseconds = round(parse_duration(value, name=name) * 1_000_000_000)
    if nanoseconds > _MOST:
        msg = f"{name}={value!r} is too long: expected at most 53375d, such as 15m"
        raise OptionError(msg)
    return nanoseconds


def _pattern(value: str, name: str) -> str:
    _text(value, name)
    try:
        re.compile(value)
    except re.error as error:
        msg = f"{name}={value!r} is not a regular expression: {error}; expected one such as part-\\d+\\.json"
        raise OptionError(msg) from error
    return value


_NOT_OF_FILES = {"idna", "punycode", "unicode-escape", "raw-unicode-escape"}  # names of hosts, and literals of Python


def _encoding(value: str, name: str) -> str:
    try:
        "".encode(value)  # also of those that Python knows and that are no text, such as base64
        codec = codecs.lookup(value)
    except (LookupError, ValueError) as error:
        msg = f"{name}={value!r} is not an encoding Python knows; expected one such as UTF-8 or ISO-8859-1"
        raise OptionError(msg) from error
    if codec.name in _NOT_OF_FILES or codec.incrementaldecoder is None:
        msg = f"{name}={value!r} is no encoding of files: it cannot be read piece by piece; expected one such as UTF-8"
        raise OptionError(msg)
    return codec.name


def _separator(value: str, name: str) -> str:
    value = {"\\t": "\t"}.get(value, value)  # as Spark takes it, for those who cannot type a tab
    if len(value) != 1 or not value.isascii() or value in '\0\r\n"':
        msg = f'{name}={value!r}: expected one ASCII character other than a quote, a line break or NUL, such as ","'
        raise OptionError(msg)
    return value


def _character(value: str, name: str) -> str:
    if len(value) != 1 or not value.isascii() or value in "\0\r\n":
        msg = f"{name}={value!r}: expected one ASCII character other than a line break or NUL, such as {_CHARACTERS[name]}"
        raise OptionError(msg)
    return value


def _quote(value: str, name: str) -> str:
    return _character(value, name) if value else value


_CHARACTERS = {"quote": "' or \"", "escape": "\\, or the quote itself where quotes are doubled", "comment": "#"}


def _zone(value: str, name: str) -> str:
    try:
        ZoneInfo(value if value != "localtime" else "")  # the machine's, which another machine has not
    except (KeyError, ValueError, OSError) as error:
        msg = f"{name}={value!r} is not a time zone; expected one such as UTC or Europe/Berlin"
        raise OptionError(msg) from error
    return value


def _starting(value: str, name: str) -> str | int:
    """Return `earliest`, `latest`, or nanoseconds since the epoch."""
    if value.lower() in {"earliest", "latest"}:
        return value.lower()
    try:
        moment = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", value.strip()))
    except ValueError as error:
        msg = f"{name}={value!r}: expected earliest, latest or a time such as 2026-01-31T12:00:00Z"
        raise OptionError(msg) from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    whole = int(moment.replace(microsecond=0).timestamp())
    return whole * 1_000_000_000 + moment.microsecond * 1000


def _log_starting(value: str, name: str) -> str:
    if value.lower() in {"earliest", "latest"}:
        return value.lower()
    if not re.fullmatch(r"\d{1,12}:\d{1,15}", value):
        msg = f"{name}={value!r}: expected earliest, latest or a position such as 3:1024"
        raise OptionError(msg)
    return value


_IDENTIFIER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def _identifier(value: str, name: str) -> str:
    if not _IDENTIFIER.fullmatch(value) or value == "checkpoint":  # where ingest keeps Spark's
        msg = (
            f"{name}={value!r}: expected up to 100 letters, digits, '.', '_' or '-', beginning with a letter or digit, "
            "and not 'checkpoint'"
        )
        raise OptionError(msg)
    return value


def _reference(value: str, name: str) -> str:
    if not re.fullmatch(r"(env|file):.+", value):
        msg = f"{name} must say where the secret is, never what it is: expected env:NAME or file:/path/of/the/file"
        raise OptionError(msg)
    return value


def _names(value: str, name: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in value.split(","))
    if not all(names) or len(set(names)) != len(names):
        msg = f"{name}={value!r}: expected names of columns, each once, separated by commas, such as day,country"
        raise OptionError(msg)
    return names


SOURCE = (
    Option("path", None, _text, "directory or file to read: a plain path or file:"),
    Option("format", "text", _choice("text", "json", "csv", "parquet", "binary"), "what the files hold"),
    Option("pathGlobFilter", None, _text, "glob on the file name"),
    Option("pattern", None, _pattern, "regular expression that must match the whole file name"),
    Option("recursiveFileLookup", "false", _flag, "descend into directories"),
    Option(
        "partitionColumns", "auto", _choice("auto", "none"), "auto: directories k=v are columns; none: they are names"
    ),
    Option("followSymlinks", "false", _flag, "read what symbolic links out of path lead to"),
    Option("maxFilesPerTrigger", "1000", _count, "at most that many files a batch"),
    Option("maxBytesPerTrigger", "1g", _size, "at most that many bytes a batch; cuts inside a file"),
    Option("splitSize", "32m", _size, "byte range one task reads"),
    Option("settle", "1s", _duration_ns, "leave files alone that changed more recently than this"),
    Option("lateness", "10m", _duration_ns, "how far behind the cursor a new file may appear and still be read"),
    Option("tooLate", "report", _choice("report", "fail"), "what to do with files later than that"),
    Option("changedFiles", "fail", _choice("fail"), "a planned file that changed before it was read"),
    Option("badRecords", "fail", _choice("fail"), "a record that cannot be parsed"),
    Option("badFiles", "fail", _choice("fail"), "a file that cannot be read"),
    Option("batchBoundary", "none", _choice("none", "file"), "file: each batch ends at the end of one file"),
    Option("startingFrom", "earliest", _starting, "earliest, latest or a time"),
    Option("emit", "records", _choice("records", "files", "splits"), "files: path, time and size instead of contents"),
    Option("metadataColumn", None, _text, "adds a struct column of this name: path, modified, size, offset"),
    Option("encoding", "UTF-8", _encoding, "of text, json and csv", aliases=("charset",)),
    Option(
        "encodingErrors", "fail", _choice("fail", "replace"), "text that is not of its encoding; replace: by U+FFFD"
    ),
    Option("lineSep", None, _text, "what ends a line; unset: \\n, \\r\\n and \\r"),
    Option("header", "false", _flag, "the first record of a csv file has the names of its columns"),
    Option("sep", ",", _separator, "between the fields of a csv record", aliases=("delimiter",)),
    Option("quote", '"', _quote, "around a csv field that has separators; empty: none"),
    Option("escape", None, _character, "in front of a quote inside quotes; unset: the quote itself"),
    Option("comment", None, _character, "csv records that begin with it are none"),
    Option("nullValue", None, _any_text, "a csv field without quotes that is null, as an empty one is"),
    Option("emptyValue", None, _any_text, "what an empty csv field in quotes stands for; unset: the empty string"),
    Option("timeZone", None, _text, "zone of times that say none; unset: that of Spark's session, else UTC"),
    Option("sessionTimeZone", None, _text, "zone of Spark's session, set by penstock.register and penstock.ingest"),
    Option("blockSize", None, _size, "cut binary files into blocks of this size"),
    Option("stateLocation", None, _text, "directory for plans too long for an offset; unset: they stay in the offset"),
    Option("tasks", None, _count, "pack a batch into at most that many tasks; unset: by splitSize"),
)

SINK = (
    Option("path", None, _text, "output directory"),
    Option("format", "text", _choice("text", "json", "csv", "parquet"), "what the files hold"),
    Option(
        "compression", None, _choice("none", "gzip", "zstd", "snappy"), "none (parquet: snappy), gzip, zstd", ("codec",)
    ),
    Option("encodingErrors", "fail", _choice("fail", "replace"), "strings that are not UTF-8; replace: by U+FFFD"),
    Option("header", "false", _flag, "each csv file begins with the names of its columns"),
    Option("quote", '"', _character, "around a csv field that needs it"),
    Option("escape", None, _character, "in front of a quote inside quotes; unset: the quote itself"),
    Option("comment", "#", _character, "a first csv field that begins with it is quoted"),
    Option("nullValue", None, _any_text, "what null is in csv; unset: an empty field"),
    Option("emptyValue", None, _any_text, "what the empty string is in csv; unset: two quotes"),
    Option("bucketBy", None, _text, "template of the output directories over columns and batch time"),
    Option("dropBucketColumns", "false", _flag, "leave the columns named in bucketBy out of the data"),
    Option("fileName", "part-{sink}-{writer}-{seq}", _text, "template of file names"),
    Option("rollSize", "128m", _size, "close a part before the record that would pass this size"),
    Option("rollRows", None, _count, "close a part at this many rows"),
    Option("rollInterval", "15m", _duration_ns, "close a part this long after it was opened"),
    Option("rollInactivity", "1m", _duration_ns, "close a part this long after it was last written"),
    Option("rollBatches", None, _count, "close a part after that many batches; 1: every batch"),
    Option("timeZone", "UTC", _zone, "zone of the times in bucketBy and fileName"),
    Option("sinkId", None, _identifier, "names the sink's own state; unset: the query id"),
    Option("growing", "false", _flag, "one file, or one a bucket, that grows under its readers"),
    Option("checkpointLocation", None, _text, "Spark's checkpoint of the query"),
    Option("queryName", None, _any_text, "Spark's name of the query, which it hands on"),
    Option("mergeBelow", None, _size, "tasks leave smaller parts for the driver to merge; unset: half of rollSize"),
)

LOG = (
    Option("path", None, _text, "directory of the log: a plain path, file: or hdfs://"),
    Option("maxBytesPerTrigger", "1g", _size, "at most that many bytes a batch, in whole groups"),
    Option("splitSize", "32m", _size, "bytes that one task reads"),
    Option("startingFrom", "earliest", _log_starting, "earliest, latest or a position"),
)


DATABASE = (
    Option("url", None, _text, "sqlite:///path or postgresql://user@host/database; without a password"),
    Option("password", None, _reference, "where the password is: env:NAME or file:PATH"),
    Option("table", None, _text, "the table: name or schema.name, exactly as it is written"),
    Option(
        "mode", "append", _choice("append", "upsert", "merge"), "append; upsert by key; merge: add numbers up by key"
    ),
    Option("keyColumns", None, _names, "what tells rows apart in upsert and merge: names, separated by commas"),
    Option("createTable", "true", _flag, "create the table from the schema when there is none"),
    Option("sinkId", None, _identifier, "who writes: the key in batchTable; unset: the query id"),
    Option("batchTable", "penstock_batches", _text, "the table of the last batch of each sink"),
    Option("badRows", "fail", _choice("fail", "quarantine"), "a row that the database refuses"),
    Option("stagingLocation", None, _text, "directory that tasks and driver share; unset: in the checkpoint"),
    Option("checkpointLocation", None, _text, "Spark's checkpoint of the query"),
    Option("queryName", None, _any_text, "Spark's name of the query, which it hands on"),
)

# What must be given where a table has it, and how.
_NEEDED = {
    "path": '.option("path", directory) or the path as the last argument',
    "url": '.option("url", "postgresql://user@host/database") or sqlite:///path/of/the/file.db',
    "table": '.option("table", "name")',
}


def parse(table: tuple[Option, ...], given: Mapping[str, str], *, what: str) -> Options:
    """Return the checked options; `what` ("source", "sink", "log") is for messages.

    Raises `OptionError` for an unknown name, naming the nearest one, for one that is there twice, in different case or by
    different names, and for a value its parser refuses. What is given by another name is there by its own.
    """
    known = {name.lower(): option for option in table for name in (option.name, *option.aliases)}
    values = {o.name: None if o.default is None else o.parse(o.default, o.name) for o in table}
    written = {}
    for name, value in given.items():
        option = known.get(name.lower())
        if option is None:
            _refuse(name, [o.name for o in table], what)
        if option.name in written:
            names = " and ".join(other for other in given if known.get(other.lower()) is option)
            msg = f"{what} option {option.name} is given twice, as {names}; leave one of them out"
            raise OptionError(msg)
        written[option.name] = str(value)
        values[option.name] = option.parse(str(value), option.name)
    for name, needed in _NEEDED.items():
        if name in values and values[name] is None:
            msg = f"the {what} needs a {name}: expected {needed}"
            raise OptionError(msg)
    return Options(values, written)


def _refuse(name: str, known: list[str], what: str) -> NoReturn:
    msg = f"unknown option {name!r} for the penstock {what}"
    if instead := elsewhere.advice(name, what):
        msg = f"unknown option {instead[0]!r} for the penstock {what}: {instead[1]}"
        raise OptionError(msg)
    tables = {"source": SOURCE, "sink": SINK, "log": LOG, "database sink": DATABASE}
    others = [other for other, table in tables.items() if name.lower() in {option.name.lower() for option in table}]
    near = difflib.get_close_matches(name.lower(), [k.lower() for k in known], n=1, cutoff=0.6)
    hint = next((f"; did you mean {k!r}?" for k in known if near and k.lower() == near[0]), "")
    if others:
        hint = f": it is one of the {' and the '.join(others)}"
    msg = f"{msg}{hint}; known are {', '.join(sorted(known))}"
    raise OptionError(msg)
