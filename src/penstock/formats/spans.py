"""The extents of a string column's values in its bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from pyarrow import types

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa


def extents(text: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Return where each value of a string array begins, how long it is, and the bytes that contain all values."""
    large = types.is_large_string(text.type) or types.is_large_binary(text.type)
    offsets, data = text.buffers()[1:]
    if not len(text) or not data:
        zeros = np.zeros(len(text), np.int64)
        return zeros, zeros, np.zeros(1, np.uint8)
    bounds = np.frombuffer(offsets, np.int64 if large else np.int32)[text.offset : text.offset + len(text) + 1]
    bounds = bounds.astype(np.int64)
    return bounds[:-1], np.diff(bounds), np.frombuffer(data, np.uint8)
