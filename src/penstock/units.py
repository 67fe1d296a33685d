"""Sizes and durations as users write them, and back.

Sizes are `128m`, `1g`, `128MB`, `4096`; the units are powers of 1024, as in Spark's configuration.
Durations are `500ms`, `1s`, `15m`, `1h`, `1d`. Inside Penstock a size is an `int` of bytes and a
duration a `float` of seconds; nothing else ever crosses a function boundary.
"""

from __future__ import annotations

import re
from zoneinfo import available_timezones

from penstock.errors import OptionError

# No useful number has more than 18 digits, and Python refuses to parse thousands of them.
_DIGITS_MAX = 18
_SHOWN_MAX = 40  # characters of a number that is refused
_SIZE = re.compile(r"([0-9]+)\s*([kmgtp]?)(?:i?b)?", re.IGNORECASE)
_RATE = re.compile(r"([0-9]{1,18}(?:\.[0-9]+)?)\s*/\s*(s|m|min|h)", re.IGNORECASE)
_DURATION = re.compile(r"([0-9]{1,18}(?:\.[0-9]+)?)\s*(ms|s|m|min|h|d)", re.IGNORECASE)
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?(?:([+-])([0-9]{1,2})(?::?([0-5][0-9]))?)?|Z")
_OFFSET_MINUTES_MAX = 18 * 60  # Java's
_KIBI, _SIXTY = 1024, 60
_SIZE_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def counted(number: int, noun: str) -> str:
    """Return a count for people: `1 file`, `12,000 files`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def parse_size(text: str, *, name: str) -> int:
    """Return the bytes that `text` stands for; `name` is the option, for the message.

    Raises `OptionError` for anything that is not a whole, non-negative number with an optional unit.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        msg = f"{name}={text!r} is not a size: expected a whole number with an optional unit (k, m, g, t), such as 128m or 1g"
        raise OptionError(msg)
    if len(match[1].lstrip("0")) > _DIGITS_MAX:  # users often give the largest 64-bit number for "no limit"
        msg = f"{name}={text[:_SHOWN_MAX]!r} is too large: expected at most 4096p, such as 128m"
        raise OptionError(msg)
    return int(match[1].lstrip("0") or "0") * int(_KIBI ** _SIZE_POWERS[match[2].lower()])


def parse_duration(text: str, *, name: str) -> float:
    """Return the seconds that `text` stands for; `name` is the option, for the message.

    Raises `OptionError` when the unit is missing or unknown, or the number is negative.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        if text.strip() == "0":
            return 0.0
        msg = f"{name}={text!r} is not a duration: expected a number with a unit (ms, s, m, h, d), such as 500ms or 15m"
        raise OptionError(msg)
    return float(match[1]) * _SECONDS[match[2].lower()]


def parse_rate(text: object, *, name: str) -> float:
    """Return the number a second that `text` stands for (`500/s`, `30/min`); `name` is the option, for the message.

    Raises `OptionError` for anything else, and for 0.
    """
    match = _RATE.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None or not float(match[1]):
        msg = (
            f"{name}={text!r} is not a rate: expected a number above 0 and a unit (s, min, h), such as 500/s or 30/min"
        )
        raise OptionError(msg)
    return float(match[1]) / _SECONDS[match[2].lower()]


def format_size(size: float) -> str:
    """Return `size` bytes for people: `0 B`, `12.3 KiB`, `1.0 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < _KIBI:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= _KIBI
    return f"{size:.1f} TiB"


def format_duration(seconds: float) -> str:
    """Return `seconds` for people: `0.4 s`, `2 min 05 s`, `1 h 03 min`."""
    if seconds < _SIXTY:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), _SIXTY)
    if minutes < _SIXTY:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, _SIXTY)
    return f"{hours} h {minutes:02d} min"


def no_zone(name: str, said_by: str) -> OptionError:
    """Return the error for an unknown time zone, with the name that was probably meant, if there is one."""
    near = [each for each in available_timezones() if each.lower() == name.replace(" ", "_").lower()]
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return OptionError(
        f"{said_by}={name!r} is not a time zone; expected one such as UTC, Europe/Berlin or +05:30{hint}"
    )


def parse_offset(text: str) -> int | None:
    """Return the minutes ahead of UTC of `+05:30`, `-3`, `UTC+2`, `GMT` or `Z`, as Spark reads them; `None` for anything else."""
    match = _OFFSET.fullmatch(text) if text else None
    if match is None:
        return None
    sign, hours, minutes = match.groups()
    ahead = int(hours or 0) * _SIXTY + int(minutes or 0)
    if ahead > _OFFSET_MINUTES_MAX:
        return None
    return -ahead if sign == "-" else ahead
