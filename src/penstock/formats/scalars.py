"""Single values and their text, a column at a time: the code that json and csv share.

`parse` accepts what Spark's readers accept for a type, except what changes a value or depends on the day of the
reading, and refuses everything else: nothing becomes null because it does not fit. The meaning of a text depends on
that text alone. A fast path for a whole column accepts only forms that the slow path reads alike, and leaves other
texts to the slow path, one by one. `render` writes what Spark's writers write, except times, which keep their
microseconds. `parse(render(column)) == column` for every column that can be rendered, except intervals, which nothing
here reads.
"""

from __future__ import annotations

import decimal
import re
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from penstock.errors import OptionError
from penstock.formats.malformed import MalformedError, excerpt
from penstock.formats.patterns import TimeForms, compiled
from penstock.formats.schema import UTC_MICROS, spark_name
from penstock.formats.spans import extents
from penstock.formats.zones import instants

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

LOCAL_MICROS = pa.timestamp("us")
_MICROS_PER_SECOND = 1_000_000
_MICROS_PER_DAY = 86_400 * _MICROS_PER_SECOND

_DATE = r"(?P<year>\d{4})(?:-(?P<month>\d{1,2})(?:-(?P<day>\d{1,2})"
_ZONE = r"(?P<zone>Z|(?:UTC|GMT)?(?:(?P<sign>[+-])(?P<zone_hour>\d{1,2})(?::?(?P<zone_minute>[0-5]\d))?)?)"
_SECOND = r"(?::(?P<second>\d{1,2})(?:\.(?P<fraction>\d*))?)?"
_TIME = rf"(?P<hour>\d{{1,2}})(?::(?P<minute>\d{{1,2}}){_SECOND})? ?{_ZONE}"
_DATE_FORM = rf"^\s*{_DATE}(?:[ T].*)?)?)?\s*$"
TIME_FORM = rf"^\s*{_DATE}(?:[ T]{_TIME})?)?)?\s*$"
_NUMBER_FORM = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_DECIMAL_DIGITS = 38
_SMALL_POWER_OF_TEN = 9  # the zeros of the largest power of ten of 32 bits
_OFFSET_HOURS_MAX = 23  # Arrow's limit; Java's zones have 18
_DAY_LENGTH, _TIME_LENGTH = len("2024-01-31"), len("2024-01-31T12:00:00")
_OFFSET_LENGTH = len("+01:00")
_NOT_A_NUMBER_FORM = r"^(?:NaN|[+-]?Inf(?:inity)?)$"

# Years 0000 to 9999, for which the text forms have room.
_DAYS_MIN, _DAYS_MAX = -719_528, 2_932_896
_MICROS_MIN, _MICROS_MAX = _DAYS_MIN * 86_400_000_000, (_DAYS_MAX + 1) * 86_400_000_000 - 1


def is_scalar(kind: pa.DataType) -> bool:
    """Tell whether values of this type have a text form that is written and read here; intervals are only written."""
    checks = (
        types.is_string,
        types.is_binary,
        types.is_boolean,
        types.is_signed_integer,
        types.is_decimal,
        types.is_date32,
    )
    floats = types.is_float32(kind) or types.is_float64(kind)
    return bool(any(check(kind) for check in checks) or floats or kind in {UTC_MICROS, LOCAL_MICROS})


def is_rendered(kind: pa.DataType) -> bool:
    """Tell whether `render` has a text for values of this type."""
    return is_scalar(kind) or types.is_duration(kind)


ISO_8601 = TimeForms()


def parse(text: pa.Array, kind: pa.DataType, name: str, times: TimeForms = ISO_8601) -> pa.Array:
    """Return the values of type `kind` for the strings (or nulls) of `text`; `times` says how times are written.

    Raises `MalformedError`, which names the column as `name`, if any of them is not a value of the type.
    """
    try:
        return _parsed(text, kind, times)
    except (pa.ArrowInvalid, MalformedError) as error:
        raise misfit(text, kind, name) from error


def misfit(text: pa.Array, kind: pa.DataType, name: str) -> MalformedError:
    """Return the error that `text` has a value which is not of type `kind`."""
    value = text[0].as_py() if len(text) == 1 else None
    shown = "" if value is None else f", not '{excerpt(value)}'"
    return MalformedError(f"{spark_name(kind)} in column {name!r}{shown}")


def render(column: pa.Array, name: str) -> pa.Array:
    """Return the text of each value, null where it is null, as large strings; `name` is the column, for the message.

    Raises `OptionError` for a date or time outside the years 0000 to 9999.
    """
    kind = column.type
    if types.is_floating(kind):
        return _float_text(column)
    if types.is_timestamp(kind):
        return _time_text(column, name)
    if types.is_binary(kind):
        return _base64_text(column)
    if types.is_duration(kind):
        return _interval_text(column)
    if types.is_date32(kind):
        _check_years(column.view(pa.int32()), _DAYS_MIN, _DAYS_MAX, name)
    return column.cast(pa.large_string())


def digits(column: pa.Array) -> pa.Array:
    """Return the text of decimals without an exponent; like Java, `render` writes one if six zeros follow the point."""
    kind = column.type
    text = column.cast(pa.large_string())
    if not np.any(codes(text) == ord("E")):
        return text
    unscaled = pa.Array.from_buffers(
        pa.decimal128(kind.precision, 0), len(column), column.buffers(), column.null_count, column.offset
    )
    text = unscaled.cast(pa.large_string())
    sign = pc.if_else(pc.starts_with(text, "-"), "-", "").cast(pa.large_string())
    unsigned = pc.utf8_ltrim(text, "-")
    if kind.scale <= 0:
        return joined(
            sign, unsigned, pc.if_else(pc.equal(unsigned, "0"), "", "0" * -kind.scale).cast(pa.large_string())
        )
    padded = pc.utf8_lpad(unsigned, kind.scale + 1, "0")
    whole = pc.utf8_slice_codeunits(padded, 0, -kind.scale)
    return joined(sign, whole, ".", pc.utf8_slice_codeunits(padded, -kind.scale))


def seconds(numbers: pa.Array) -> pa.Array:
    """Return the times of whole seconds since 1970; `pa.ArrowInvalid` for a time that Arrow cannot hold."""
    return pc.multiply_checked(numbers.cast(pa.int64()), _MICROS_PER_SECOND).view(UTC_MICROS)


def parse_base64(text: pa.Array) -> pa.Array:
    """Return the bytes that padded Base64 stands for; white space in it is skipped. Raises `MalformedError`."""
    import polars as pl  # importing takes a tenth of a second, and few schemas have binary columns

    squeezed = pc.replace_substring_regex(text, r"[\x00-\x20]", "")
    try:
        decoded = pl.Series("", squeezed).str.decode("base64", strict=True)
    except pl.exceptions.PolarsError as error:
        msg = "Base64"
        raise MalformedError(msg) from error
    return decoded.to_arrow().cast(pa.binary())


def _parsed(text: pa.Array, kind: pa.DataType, times: TimeForms) -> pa.Array:
    pattern = times.pattern_of(kind)
    if pattern is not None:
        return compiled(pattern).parse(text, kind, times.zone)
    if types.is_timestamp(kind):
        return _times(text, times.zone) if kind.tz else _clock_times(text)
    if types.is_boolean(kind):
        return _booleans(text)
    if types.is_binary(kind):
        return parse_base64(text)
    return next((parser(text, kind) for check, parser in _PARSERS if check(kind)), text)


def _integers(text: pa.Array, kind: pa.DataType) -> pa.Array:
    if np.any((codes(text) | 32) == ord("x")):
        msg = "a decimal number"
        raise MalformedError(msg)
    try:
        return text.cast(kind)
    except pa.ArrowInvalid:
        return pc.replace_substring_regex(text, r"^\+(\d)", r"\1").cast(kind)


def _floats(text: pa.Array, kind: pa.DataType) -> pa.Array:
    if np.any(np.isin(codes(text), np.frombuffer(b"nNiI", np.uint8))):
        words = pc.match_substring_regex(text, "[nNiI]")
        if pc.any(pc.and_not(words, pc.match_substring_regex(text, _NOT_A_NUMBER_FORM))).as_py():
            msg = "a number, NaN, Infinity or -Infinity"
            raise MalformedError(msg)
    try:
        return text.cast(kind)
    except pa.ArrowInvalid:
        return pc.ascii_trim_whitespace(text).cast(kind)  # Java trims for these types only


def _booleans(text: pa.Array) -> pa.Array:
    folded = pc.ascii_lower(text)
    true, false = pc.equal(folded, "true"), pc.equal(folded, "false")
    if pc.all(pc.or_(true, false)).as_py() is False:
        msg = "true or false"
        raise MalformedError(msg)
    return true


def _decimals(text: pa.Array, kind: pa.DataType) -> pa.Array:
    text = _replaced(text, _overflowing(text, kind.scale), lambda odd: pa.array(_quantized(odd, kind.scale), text.type))
    try:
        return text.cast(kind)
    except pa.ArrowInvalid:
        return _rounded(text, kind)


def _overflowing(text: pa.Array, scale: int) -> npt.NDArray[np.bool_]:
    """Tell which numbers may have more than 38 digits, as they are or at that scale: Arrow silently wraps them."""
    length = pc.binary_length(text).fill_null(0).to_numpy()
    point = pc.find_substring(text, ".").fill_null(-1).to_numpy()
    whole = np.where(point < 0, length, point)
    odd: npt.NDArray[np.bool_] = (whole + scale > _DECIMAL_DIGITS) | (length - (point >= 0) > _DECIMAL_DIGITS)
    if np.any((codes(text) | 32) == ord("e")):
        odd |= (
            pc.match_substring(text, "e", ignore_case=True).fill_null(fill_value=False).to_numpy(zero_copy_only=False)
        )
    return odd


def _quantized(text: pa.Array, scale: int) -> list[str]:
    """Return numbers rounded to the scale, as text without an exponent. Raises `MalformedError` for more than 38 digits."""
    context = decimal.Context(_DECIMAL_DIGITS, decimal.ROUND_HALF_UP)
    unit = decimal.Decimal(1).scaleb(-scale)
    numbers = text.to_pylist()
    if not all(map(_NUMBER_FORM.fullmatch, numbers)):
        msg = "a number"
        raise MalformedError(msg)
    try:
        return [f"{decimal.Decimal(number).quantize(unit, context=context):f}" for number in numbers]
    except decimal.InvalidOperation as error:
        msg = "a number of at most 38 digits"
        raise MalformedError(msg) from error


def _rounded(text: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return decimals for numbers with more digits than the type has: a half is rounded away from zero, as in Spark."""
    tiny = pc.less(pc.abs(text.cast(pa.float64())), 10.0 ** -(kind.scale + 1))
    text = pc.if_else(tiny, "0", text)
    return rounded(text.cast(pa.decimal256(76, max(kind.scale + 1, _DECIMAL_DIGITS))), kind.scale).cast(kind)


def rounded(values: pa.Array, scale: int) -> pa.Array:
    """Return decimals with at most `scale` digits after the point: a half is rounded away from zero, as in Spark.

    Digits after the first dropped one do not matter then. They are cut off in steps: for a power of ten of more than 32
    bits Arrow (26) divides some numbers wrongly, such as 9223372036854775807 with 38 digits after the point.
    """
    wide = pa.decimal128 if types.is_decimal128(values.type) else pa.decimal256
    precision = values.type.precision
    while values.type.scale > scale + 1:
        step = max(values.type.scale - _SMALL_POWER_OF_TEN, scale + 1)
        values = values.cast(wide(precision, step), safe=False)
    return pc.round(values, ndigits=scale, round_mode="half_towards_infinity")


def _dates(text: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return text.cast(kind)
    except pa.ArrowInvalid:
        return _day_text(_groups(text, _DATE_FORM)).cast(kind)


def _times(text: pa.Array, zone: str) -> pa.Array:
    plain, zoned = _plain_times(text)
    if not plain.all():
        return _either(plain, text, lambda usual: _times(usual, zone), lambda odd: _any_time(odd, zone))
    try:
        if zoned.all():
            return text.cast(UTC_MICROS)
        if zoned.any():
            return _either(zoned, text, lambda whole: whole.cast(UTC_MICROS), lambda local: _times(local, zone))
        return instants(text.cast(LOCAL_MICROS), zone)
    except pa.ArrowInvalid:
        usual = np.ones(len(text), np.bool_)
        usual[places_with_others(text, _TIME_BYTES)] = False
        if usual.all() or not usual.any():
            return _any_time(text, zone)
    return _either(~usual, text, lambda odd: _any_time(odd, zone), lambda others: _times(others, zone))


def _clock_times(text: pa.Array) -> pa.Array:
    plain, zoned = _plain_times(text)
    try:
        if (plain & ~zoned).all():
            return text.cast(LOCAL_MICROS)
    except pa.ArrowInvalid:
        pass
    groups = _groups(text, TIME_FORM)
    if pc.any(pc.not_equal(groups["zone"], "")).as_py():
        msg = "a time without a zone"
        raise MalformedError(msg)
    return _clock_text(groups).cast(LOCAL_MICROS)


def _plain_times(text: pa.Array) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Tell which values have a form that Arrow reads as we do, if it reads it at all, and which of those have a zone.

    These forms are days, and days with hour, minute and second, an optional fraction of up to six digits, and Z, an
    offset like +01:00, or no zone. Nulls are plain, and count as either kind.
    """
    starts, lengths, data = extents(text)
    ends = starts + lengths

    def byte(at: npt.NDArray[np.int64], character: str) -> npt.NDArray[np.bool_]:
        """Tell where a character stands at these places; any result for a place before or after the values."""
        same: npt.NDArray[np.bool_] = data.take(at, mode="clip") == ord(character)
        return same

    utc = byte(ends - 1, "Z")
    suffix = utc.astype(np.int64)
    if not utc.all():
        sign = byte(ends - _OFFSET_LENGTH, "+") | byte(ends - _OFFSET_LENGTH, "-")
        suffix[sign & byte(ends - 3, ":") & (lengths > _TIME_LENGTH)] = _OFFSET_LENGTH
    core = lengths - suffix
    time = byte(starts + 13, ":") & byte(starts + 16, ":")
    if not (core == _TIME_LENGTH).all():
        fraction = (core > _TIME_LENGTH + 1) & (core <= _TIME_LENGTH + 7) & byte(starts + _TIME_LENGTH, ".")
        time &= (core == _TIME_LENGTH) | fraction
    plain, zoned = time | (lengths == _DAY_LENGTH), time & (suffix > 0)
    if text.null_count:
        missing = text.is_null().to_numpy(zero_copy_only=False)
        plain, zoned = plain | missing, zoned | missing
    return plain, zoned


def _either(
    mask: npt.NDArray[np.bool_],
    text: pa.Array,
    yes: Callable[[pa.Array], pa.Array],
    no: Callable[[pa.Array], pa.Array],
) -> pa.Array:
    """Return the results of `yes` for the values under `mask` and of `no` for the others, in their places."""
    places = np.empty(len(mask), np.int64)
    places[np.concatenate((np.flatnonzero(mask), np.flatnonzero(~mask)))] = np.arange(len(mask))
    parts = [yes(text.filter(pa.array(mask))), no(text.filter(pa.array(~mask)))]
    return pa.concat_arrays(parts).take(pa.array(places))


_PARSERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array, pa.DataType], pa.Array]], ...] = (
    (types.is_signed_integer, _integers),
    (types.is_floating, _floats),
    (types.is_decimal, _decimals),
    (types.is_date32, _dates),
)


def _any_time(text: pa.Array, zone: str) -> pa.Array:
    """Return the times of text of any form, by converting each to the one form that Arrow reads, with its zone apart."""
    groups = _groups(text, TIME_FORM)
    local = _clock_text(groups).cast(LOCAL_MICROS)
    number = {part: pc.if_else(pc.equal(groups[part], ""), "0", groups[part]) for part in ("zone_hour", "zone_minute")}
    hours, minutes = (number[part].cast(pa.int64()) for part in ("zone_hour", "zone_minute"))
    if pc.any(pc.greater(hours, _OFFSET_HOURS_MAX)).as_py():
        msg = "an offset of less than a day"
        raise MalformedError(msg)
    offset = pc.add(pc.multiply(hours, 3600), pc.multiply(minutes, 60))
    signed = pc.if_else(pc.equal(groups["sign"], "-"), pc.negate(offset), offset)
    whole = pc.subtract(local.view(pa.int64()), pc.multiply(signed, _MICROS_PER_SECOND)).view(UTC_MICROS)
    none = pc.equal(groups["zone"], "")
    return pc.coalesce(instants(pc.if_else(none, local, None), zone), whole)


def _clock_text(groups: dict[str, pa.Array]) -> pa.Array:
    """Return the wall-clock times of matched text in one form."""
    hour, minute, second = (_two_digits(groups[part], "0") for part in ("hour", "minute", "second"))
    fraction = pc.utf8_rpad(pc.utf8_slice_codeunits(groups["fraction"], 0, 6), 6, "0")
    return joined(_day_text(groups), "T", joined(hour, ":", minute, ":", second), ".", fraction)


def _day_text(groups: dict[str, pa.Array]) -> pa.Array:
    month, day = (_two_digits(groups[part], "1") for part in ("month", "day"))
    return joined(groups["year"], "-", month, "-", day)


def _two_digits(number: pa.Array, default: str) -> pa.Array:
    return pc.utf8_lpad(pc.if_else(pc.equal(number, ""), default, number), 2, "0")


def _groups(text: pa.Array, form: str) -> dict[str, pa.Array]:
    """Return what the groups of the regular expression match, "" for an absent group; all text must match."""
    matches = pc.extract_regex(text, form)
    if matches.null_count > text.null_count:
        msg = "an ISO 8601 date or time"
        raise MalformedError(msg)
    return {field.name: part for field, part in zip(matches.type, matches.flatten(), strict=True)}


def joined(first: pa.Array | str, second: pa.Array | str, *more: pa.Array | str) -> pa.Array:
    """Return the concatenated pieces of each row, null if one of them is null.

    A `str` is the same in every row. The arrays are strings of one type, and one of the first two pieces is an array.
    """
    kind = next(piece.type for piece in (first, second) if not isinstance(piece, str))
    pieces = [pa.scalar(piece, kind) if isinstance(piece, str) else piece for piece in (first, second, *more, "")]
    return pc.binary_join_element_wise(*pieces)


def joined_filled(pieces: list[pa.Array | str]) -> pa.Array:
    """Return the concatenated pieces of each row, large strings or the same `str` in every row; null counts as ""."""
    scalars = [pa.scalar(piece, pa.large_string()) if isinstance(piece, str) else piece for piece in (*pieces, "")]
    return pc.binary_join_element_wise(*scalars, null_handling="replace", null_replacement="")


def contents(text: pa.Array) -> pa.Buffer:
    """Return the concatenated bytes of a string or binary array, plain or large, without a copy."""
    large = types.is_large_string(text.type) or types.is_large_binary(text.type)
    offsets, data = text.buffers()[1:]
    if not len(text) or data is None:
        return pa.py_buffer(b"")
    bounds = np.frombuffer(offsets, np.int64 if large else np.int32)[text.offset : text.offset + len(text) + 1]
    return data.slice(int(bounds[0]), int(bounds[-1] - bounds[0]))


def bytes_of(characters: bytes) -> npt.NDArray[np.bool_]:
    """Return a table of all byte values that is true for these."""
    return np.isin(np.arange(256), np.frombuffer(characters, np.uint8))


def places_with_others(text: pa.Array, usual: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Return which strings contain a byte that is not a usual one."""
    if not len(text):
        return np.zeros(0, np.int64)
    _, offsets, data = text.buffers()
    bounds = np.frombuffer(offsets, np.int32)[text.offset : text.offset + len(text) + 1]
    characters = np.frombuffer(b"" if data is None else data, np.uint8)[bounds[0] : bounds[-1]]
    at = np.flatnonzero(~usual[characters]) + bounds[0]
    return np.unique(np.searchsorted(bounds, at, side="right") - 1)


_TIME_BYTES = bytes_of(b"+-.:0123456789TZ ")


def codes(text: pa.Array) -> npt.NDArray[np.uint8]:
    """Return `contents` as numbers."""
    return np.frombuffer(contents(text), np.uint8)


def _float_text(column: pa.Array) -> pa.Array:
    """Return the shortest digits that read back as the same number; whole numbers keep a fraction (`3.0`), as in Java."""
    text = column.cast(pa.large_string())
    values = column.fill_null(0.5).to_numpy(zero_copy_only=False)
    text = _replaced(text, np.isnan(values), lambda _: "NaN")
    text = _replaced(text, np.isinf(values), lambda odd: pc.replace_substring(odd, "inf", "Infinity"))
    return _replaced(text, np.trunc(values) == values, _with_fraction)


def _with_fraction(whole: pa.Array) -> pa.Array:
    plain = pc.invert(pc.match_substring_regex(whole, "[eIy]"))
    return pc.if_else(plain, joined(whole, ".0"), whole)


def _time_text(column: pa.Array, name: str) -> pa.Array:
    """Return `2024-01-31T12:00:00.000Z`; six digits for the fraction if three are not enough, no Z without a zone."""
    micros = column.view(pa.int64())
    _check_years(micros, _MICROS_MIN, _MICROS_MAX, name)
    local = micros.view(LOCAL_MICROS)
    text = local.cast(pa.timestamp("ms"), safe=False).cast(pa.large_string())
    odd = micros.fill_null(0).to_numpy(zero_copy_only=False) % 1000 != 0
    text = _replaced(text, odd, lambda _: local.filter(pa.array(odd)).cast(pa.large_string()))
    text = pc.binary_replace_slice(text, 10, 11, "T")
    return joined(text, "Z") if column.type.tz else text


def _interval_text(column: pa.Array) -> pa.Array:
    """Return `INTERVAL '1 02:03:04.5' DAY TO SECOND`, with the sign before the days."""
    micros = column.cast(pa.duration("us")).view(pa.int64())
    numbers = micros.fill_null(0).to_numpy(zero_copy_only=False)
    # The lowest number has no opposite.
    days, rest = np.divmod(np.abs(numbers).view(np.uint64), np.uint64(_MICROS_PER_DAY))
    clock = pa.array(rest.astype(np.int64)).view(pa.time64("us")).cast(pa.large_string())
    clock = pc.replace_substring_regex(clock, r"\.?0*$", "")
    opening = pa.array(np.where(numbers < 0, "INTERVAL '-", "INTERVAL '"), pa.large_string())
    text = joined(opening, pa.array(days).cast(pa.large_string()), " ", clock, "' DAY TO SECOND")
    return pc.if_else(micros.is_valid(), text, None) if micros.null_count else text


def _base64_text(column: pa.Array) -> pa.Array:
    import polars as pl  # as in `parse_base64`

    return pl.Series("", column).bin.encode("base64").to_arrow().cast(pa.large_string())


def _replaced(text: pa.Array, mask: npt.NDArray[np.bool_], by: Callable[[pa.Array], pa.Array | str]) -> pa.Array:
    """Return `text` with the values under `mask` replaced by what `by` makes of them, in order."""
    if not mask.any():
        return text
    chosen = pa.array(mask)
    new = by(text.filter(chosen))
    return pc.replace_with_mask(text, chosen, pa.scalar(new, text.type) if isinstance(new, str) else new)


def _check_years(numbers: pa.Array, low: int, high: int, name: str) -> None:
    limits = pc.min_max(numbers)
    if limits["min"].is_valid and (limits["min"].as_py() < low or limits["max"].as_py() > high):
        msg = (
            f"column {name!r} has a date or time outside the years 0000 to 9999, which text cannot hold; write Parquet"
        )
        raise OptionError(msg)
