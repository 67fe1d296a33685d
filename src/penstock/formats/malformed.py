"""Finding the one record that cannot be read in a block that could not be decoded.

Decoders work on whole blocks and say only that something in a block is wrong. Records do not depend on each other, so
halving finds the first bad one with about as much work as two more passes over the block; only then is anything looked
at one by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from penstock.errors import BadRecord

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

EXCERPT_CHARACTERS = 80


class MalformedError(ValueError):
    """Something in a block is not what the format or the schema says; the message is what was expected."""


def excerpt(data: bytes | str) -> str:
    """Return the beginning of `data` for a message: one line of at most 80 characters, escaped where need be."""
    text = data[: 4 * EXCERPT_CHARACTERS].decode("utf-8", "backslashreplace") if isinstance(data, bytes) else data
    shown = "".join(_printable(character) for character in text[: EXCERPT_CHARACTERS + 1])
    return shown if len(shown) <= EXCERPT_CHARACTERS else shown[: EXCERPT_CHARACTERS - 3] + "..."


def _printable(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode("ascii")


def raise_bad_record(
    block: bytes,
    starts: npt.NDArray[np.int64],
    decode: Callable[[bytes], pa.RecordBatch],
    error: MalformedError,
) -> NoReturn:
    """Raise `BadRecord` for the first record of `block` that `decode` refuses; `starts` is where each record begins.

    `error` is what `decode` said of the whole block.
    """
    bounds = [*starts.tolist(), len(block)]
    low, high = 0, len(starts)
    while high - low > 1:
        middle = (low + high) // 2
        refused = _refusal(decode, block[bounds[low] : bounds[middle]])
        low, high = (low, middle) if refused else (middle, high)
    record = block[bounds[low] : bounds[high]]
    reason = _refusal(decode, record) or error
    msg = f"found '{excerpt(record.rstrip())}', expected {reason}"
    raise BadRecord(msg, offset=bounds[low]) from reason


def _refusal(decode: Callable[[bytes], pa.RecordBatch], records: bytes) -> MalformedError | None:
    try:
        decode(records)
    except MalformedError as error:
        return error
    return None
