"""The values that options accept: each parser takes the text and the option's name, and returns the value or raises `OptionError`."""

from __future__ import annotations

import codecs
import difflib
import json
import re
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from penstock.errors import OptionError
from penstock.units import no_zone, parse_duration, parse_offset, parse_size

Parser = Callable[[str, str], Any]
_FILE_URL = re.compile(r"file:(?:(?=/[^/])|//(?=/))(/.*)", re.IGNORECASE | re.DOTALL)
_KEY_LENGTH_MAX = 200
_SHOWN_MAX = 40  # digits of a number that is refused
_MOST = 1 << 62  # bytes or nanoseconds: sums of two still fit 64 bits, here and in Arrow


def text(value: str, name: str) -> str:
    """Return the text, which must not be empty."""
    if not value:
        msg = f"{name} is empty"
        raise OptionError(msg)
    return value


def place_of_spark(value: str, name: str) -> str:
    """Return a place that Spark itself writes: for a `file:` URL, the path that Hadoop makes of it, in which `%20` is not a blank."""
    match = _FILE_URL.fullmatch(text(value, name))
    return match[1] if match else value


def any_text(value: str, name: str) -> str:
    """Return the text as it is; bytes that are not text come from a terminal as surrogates, and are refused."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        msg = f"{name}={value!r} is not text: expected characters in UTF-8, whatever the encoding of the files"
        raise OptionError(msg) from error
    return value


def characters(value: str, name: str) -> str:
    """Return text that is valid and not empty."""
    return any_text(text(value, name), name)


def choice(*allowed: str, **others: str) -> Parser:
    """Return a parser for one of these words, in any case; `others` maps Spark's words to ours."""

    def parse(value: str, name: str) -> str:
        word = others.get(value.lower(), value.lower())
        if word not in allowed:
            near = difflib.get_close_matches(value.lower(), allowed, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            msg = f"{name}={value!r} is not known: expected one of {', '.join(allowed)}{hint}"
            raise OptionError(msg)
        return word

    return parse


def mode(value: str, name: str) -> str:
    """Return one of Spark's words; `permissive` is accepted here, so that it is refused later with advice, but never suggested."""
    return value.lower() if value.lower() == "permissive" else str(choice("failfast", "dropmalformed")(value, name))


def inferred(value: str, name: str) -> str:
    """Return `infer`, the only value of the option for a schema."""
    if value.lower() != "infer":
        msg = f"{name}={value!r}: expected infer; columns are given by .schema(...), such as .schema('id bigint, name string')"
        raise OptionError(msg)
    return value.lower()


def flag(value: str, name: str) -> bool:
    """Return what `true` and `false` stand for."""
    if value.lower() not in {"true", "false"}:
        msg = f"{name}={value!r} is not a flag: expected true or false"
        raise OptionError(msg)
    return value.lower() == "true"


def count(value: str, name: str) -> int:
    """Return a whole number of at least 1."""
    if re.fullmatch("0*[1-9][0-9]{18,}", value.strip()):  # the largest number of 64 bits often stands for no limit
        msg = f"{name}={value[:_SHOWN_MAX]!r} is too large: expected at most {'9' * 18}, such as 1000"
        raise OptionError(msg)
    if not re.fullmatch(r"[0-9]{1,18}", value.strip()) or int(value) == 0:
        msg = f"{name}={value!r} is not a count: expected a whole number of at least 1, such as 1000"
        raise OptionError(msg)
    return int(value)


def number(value: str, name: str) -> int:
    """Return a whole number, which may be 0."""
    if not re.fullmatch("[0-9]+", value.strip()):
        msg = f"{name}={value!r} is not a number: expected a whole one, 0 or more, such as 1000"
        raise OptionError(msg)
    return count(value, name) if value.strip().strip("0") else 0


def fraction(value: str, name: str) -> float:
    """Return a part of a whole, from 0 to 1."""
    if not re.fullmatch(r"[0-9]*\.?[0-9]+", value.strip()) or float(value) > 1:
        msg = f"{name}={value!r} is not a part of a whole: expected a number from 0 to 1, such as 0.01"
        raise OptionError(msg)
    return float(value)


def level(value: str, name: str) -> int:
    """Return a compression level; each codec has its own range, which the sink knows."""
    if not re.fullmatch(r"[0-9]{1,2}", value.strip()):
        msg = f"{name}={value!r} is not a level: expected a whole number, such as 9"
        raise OptionError(msg)
    return int(value)


def size(value: str, name: str) -> int:
    """Return bytes: `128m`."""
    size = parse_size(value, name=name)
    if size == 0:
        msg = f"{name}={value!r} is too small: expected at least one byte, such as 128m"
        raise OptionError(msg)
    if size > _MOST:
        msg = f"{name}={value!r} is too large: expected at most 4096p, such as 128m"
        raise OptionError(msg)
    return size


def duration_ns(value: str, name: str) -> int:
    """Return nanoseconds: `15m`."""
    nanoseconds = round(parse_duration(value, name=name) * 1_000_000_000)
    if nanoseconds > _MOST:
        msg = f"{name}={value!r} is too long: expected at most 53375d, such as 15m"
        raise OptionError(msg)
    return nanoseconds


def pattern(value: str, name: str) -> str:
    """Return a regular expression as it was written."""
    text(value, name)
    try:
        re.compile(value)
    except re.error as error:
        wildcards = f", or pathGlobFilter={value}" if value.startswith("*") else ""
        msg = f"{name}={value!r} is not a regular expression: {error}; expected one such as part-\\d+\\.json{wildcards}"
        raise OptionError(msg) from error
    return value


# For names of hosts, and for literals of Python.
_NOT_OF_FILES = {"idna", "punycode", "unicode-escape", "raw-unicode-escape"}


def encoding(value: str, name: str) -> str:
    """Return Python's name of an encoding in which files can be read piece by piece."""
    try:
        "".encode(value)  # also fails for those that Python knows and that are not text, such as base64
        codec = codecs.lookup(value)
    except (LookupError, ValueError) as error:
        msg = f"{name}={value!r} is not an encoding Python knows; expected one such as UTF-8 or ISO-8859-1"
        raise OptionError(msg) from error
    if codec.name in _NOT_OF_FILES or codec.incrementaldecoder is None:
        msg = f"{name}={value!r} is not an encoding of files: it cannot be read piece by piece; expected one such as UTF-8"
        raise OptionError(msg)
    return codec.name


def separator(value: str, name: str) -> str:
    """Return the separator of the fields of a CSV record: one ASCII character."""
    value = {"\\t": "\t", "\\\\": "\\"}.get(value, value)  # Spark accepts these, too
    if not _is_character(value, but='\0\r\n"'):
        split = "; where it is another one, or several, split the lines of format=text in the query"
        msg = f'{name}={value!r}: expected one ASCII character other than a quote, a line break or NUL, such as ","{split}'
        raise OptionError(msg)
    return value


def character(value: str, name: str) -> str:
    """Return one ASCII character that has no meaning of its own in lines."""
    if not _is_character(value, but="\0\r\n"):
        msg = f"{name}={value!r}: expected one ASCII character other than a line break or NUL, such as {_CHARACTERS[name]}"
        raise OptionError(msg)
    return value


def _is_character(value: str, *, but: str) -> bool:
    """Tell whether the value is one ASCII character, and not one of `but`."""
    return len(value) == 1 and value.isascii() and value not in but


def quote(value: str, name: str) -> str:
    """Return one ASCII character as `character` does, or the empty string."""
    return character(value, name) if value else value


_CHARACTERS = {"quote": "' or \"", "escape": "\\, or the quote itself where quotes are doubled", "comment": "#"}


def zone(value: str, name: str) -> str:
    """Return the name of a time zone that every machine has; an offset as `+05:30`."""
    # The machine's own zone, and those that only some systems have; zones in `right/` count leap seconds.
    elsewhere = value == "localtime" or value.startswith(("right/", "posix/"))
    try:
        ZoneInfo("" if elsewhere else value)
    except (KeyError, ValueError, OSError) as error:
        ahead = parse_offset(value)
        if ahead is not None:
            hours, minutes = divmod(abs(ahead), 60)
            return f"{'-' if ahead < 0 else '+'}{hours:02}:{minutes:02}" if ahead else "UTC"
        raise no_zone(value, name) from error
    return value


def starting(value: str, name: str) -> str | int:
    """Return `earliest`, `latest`, or nanoseconds since the epoch."""
    if value.lower() in {"earliest", "latest"}:
        return value.lower()
    time = _time(value)
    if time is None:
        msg = f"{name}={value!r}: expected earliest, latest or a time such as 2026-01-31T12:00:00Z"
        raise OptionError(msg)
    return nanoseconds(time if time.shown.tzinfo else time._replace(shown=time.shown.replace(tzinfo=timezone.utc)))


class WrittenTime(NamedTuple):
    """A time as it was written: up to microseconds, with its zone if it has one, and the remaining nanoseconds."""

    shown: datetime
    more_ns: int


def moment(value: str, name: str) -> WrittenTime:
    """Return a time, with its zone if it has one."""
    time = _time(value)
    if time is None:
        msg = f"{name}={value!r}: expected a time such as 2026-01-31T12:00:00, in timeZone, or 2026-01-31T12:00:00Z"
        raise OptionError(msg)
    return time


def nanoseconds(time: WrittenTime) -> int:
    """Return the nanoseconds since the epoch of a time that has a zone."""
    shown = time.shown
    return int(shown.replace(microsecond=0).timestamp()) * 1_000_000_000 + shown.microsecond * 1000 + time.more_ns


def _time(value: str) -> WrittenTime | None:
    try:
        shown = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", value.strip()))
    except ValueError:
        return None
    # Times of files have nine digits after the point; `fromisoformat` ignores those after the sixth.
    more = re.search(r"[.,]\d{6}(\d{1,3})", value)
    return WrittenTime(shown, int(more[1].ljust(3, "0")) if more else 0)


def path_list(value: str, name: str) -> tuple[str, ...]:
    """Return the paths of a JSON list, which is how Spark's `load([...])` writes several."""
    try:
        paths = json.loads(value)
    except ValueError:
        paths = None
    if not isinstance(paths, list) or not paths or not all(isinstance(path, str) and path for path in paths):
        msg = f'{name}={value!r}: expected a JSON list of paths, such as ["/data/a", "/data/b/*"]'
        raise OptionError(msg)
    return tuple(paths)


def log_starting(value: str, name: str) -> str:
    """Return `earliest`, `latest`, or a position of a log as it was written."""
    if value.lower() in {"earliest", "latest"}:
        return value.lower()
    if not re.fullmatch(r"\d{1,12}:\d{1,15}", value):
        msg = f"{name}={value!r}: expected earliest, latest or a position such as 3:1024"
        raise OptionError(msg)
    return value


def event_starting(value: str, name: str) -> str:
    """Return `earliest`, `latest`, a ledger record as it was written (`12`, or `orders:12` of the sink `orders`), or an offset (JSON)."""
    if value.lower() in {"earliest", "latest"}:
        return value.lower()
    if not re.fullmatch(r"([A-Za-z0-9][A-Za-z0-9._-]{0,99}:)?[1-9]\d{0,11}|\s*\{.*\}\s*", value):
        msg = (
            f"{name}={value!r}: expected earliest, latest, a record such as 12, or orders:12 of the sink orders, or what an event has "
            "as `after`"
        )
        raise OptionError(msg)
    return value


def as_of(value: str, name: str) -> dict[str, int]:
    """Return ledger records by their sinks; for `12`, which names no sink, by `""`."""
    records: dict[str, int] = {}
    for item in value.split(","):
        match = re.fullmatch(r"(?:([A-Za-z0-9][A-Za-z0-9._-]{0,99}):)?([1-9]\d{0,11})", item.strip())
        if match is None or (match[1] or "") in records or "" in records:
            msg = (
                f"{name}={value!r}: expected a record of the ledger such as 12, or one of each sink, such as orders:12,returns:7; "
                "penstock status prints the last ones"
            )
            raise OptionError(msg)
        records[match[1] or ""] = int(match[2])
    return records


def batch_key(value: str, name: str) -> str:
    """Return the key of a batch, as it was written."""
    if not value.isprintable() or not 0 < len(value) <= _KEY_LENGTH_MAX:
        expected = f"1 to {_KEY_LENGTH_MAX} characters that name this batch and no other"
        msg = f"{name}={value[:50]!r}: expected {expected}, such as orders/2026-01-31"
        raise OptionError(msg)
    return value


def announcements(value: str, name: str) -> tuple[str, ...]:
    """Return how a complete time bucket is announced: `success-file`, `event`, or both."""
    words = tuple(part.strip().lower() for part in value.split(","))
    if not set(words) <= {"success-file", "event"} or len(set(words)) != len(words):
        msg = f"{name}={value!r}: expected success-file, event, or success-file,event"
        raise OptionError(msg)
    return words


def function_name(value: str, name: str) -> str:
    """Return the name of a function in a module; nothing is loaded."""
    if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*", value):
        msg = f"{name}={value!r}: expected module:function, such as catalogue:register"
        raise OptionError(msg)
    return value


_IDENTIFIER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def identifier(value: str, name: str) -> str:
    """Return a name that a directory may have."""
    if not _IDENTIFIER.fullmatch(value) or value.lower() == "checkpoint":  # where an ingest keeps Spark's checkpoint
        msg = (
            f"{name}={value!r}: expected up to 100 letters, digits, '.', '_' or '-', beginning with a letter or digit, "
            "and not 'checkpoint'"
        )
        raise OptionError(msg)
    return value


def reference(value: str, name: str) -> str:
    """Return where a secret is: `env:NAME` or `file:PATH`."""
    if not re.fullmatch(r"(env|file):.+", value):
        msg = f"{name} must say where the secret is, never what it is: expected env:NAME or file:/path/of/the/file"
        raise OptionError(msg)
    return value


CLEAR = "none"  # in place of a key: files that wait to be encrypted are stored unencrypted
_RECIPIENT = re.compile(r"age1[a-z0-9]{8,}|ssh-(ed25519|rsa) +[A-Za-z0-9+/=]{16,}( .*)?")


def key_or_clear(value: str, name: str) -> str:
    """Return where a key is, or that there is to be no key."""
    return CLEAR if value.lower() == CLEAR else reference(value, name)


def recipients(value: str, name: str) -> str | tuple[str, ...]:
    """Return recipients of age, from a list with commas, or where a list of them is: `file:PATH`."""
    if re.fullmatch(r"file:.+", value):
        return value
    words = tuple(word.strip() for word in re.split(r"[,\n]", value))
    for place, word in enumerate(words, 1):
        # The entry is not shown: it may be a secret that was written in the wrong place.
        if not _RECIPIENT.fullmatch(word):
            msg = (
                f"{name}: entry {place} of {len(words)} is not a recipient of age; expected age1..., ssh-ed25519 or ssh-rsa, several with "
                "commas between, or file:/path/of/a/file with one a line"
            )
            raise OptionError(msg)
    return words


_ENTRY = re.compile(r'\s*"((?:[^"]|"")+)"\s*,|([^,]*),')


def names_of(value: str, name: str) -> tuple[str, ...]:
    """Return the names of columns, each once; a name in double quotes may contain commas, and doubled quotes."""
    entries = _ENTRY.finditer(value + ",")
    names = tuple(entry[1].replace('""', '"') if entry[1] else entry[2].strip() for entry in entries)
    if not all(names) or len(set(names)) != len(names):
        msg = (
            f"{name}={value!r}: expected names of columns, each once, separated by commas, such as day,country; one with a comma is "
            'written as "a,b" in double quotes'
        )
        raise OptionError(msg)
    return names
