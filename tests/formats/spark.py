"""Spark's answers (`spark_answers.json`) and ours, spelled the same way so that they can be compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types

ANSWERS: dict[str, Any] = json.loads(Path(__file__).with_name("spark_answers.json").read_text(encoding="utf-8"))
REFUSED = "refused"

TYPES = {
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "decimal(10,4)": pa.decimal128(10, 4),
    "decimal(38,2)": pa.decimal128(38, 2),
    "binary": pa.binary(),
    "array<bigint>": pa.list_(pa.int64()),
    "struct<x:bigint,y:string>": pa.struct([("x", pa.int64()), ("y", pa.string())]),
    "map<string,bigint>": pa.map_(pa.string(), pa.int64()),
}


def same(ours: str | None, sparks: str | None, kind: pa.DataType) -> bool:
    """Tell whether two answers are the same; numbers may be spelled differently."""
    if ours == sparks or None in {ours, sparks} or not types.is_floating(kind) or REFUSED in {ours, sparks}:
        return ours == sparks
    left, right = (np.float32(str(text)) if types.is_float32(kind) else float(str(text)) for text in (ours, sparks))
    return bool(left == right or (np.isnan(left) and np.isnan(right)))


def cast_to_string(value: pa.Scalar) -> str | None:
    """Return the string that Spark's `cast(... as string)` gives for a value."""
    if not value.is_valid:
        return None
    if types.is_list(value.type):
        return f"[{', '.join(map(_shown, value))}]"
    if types.is_struct(value.type):
        return f"{{{', '.join(map(_shown, value.values()))}}}"
    if types.is_map(value.type):
        entries = value.cast(pa.list_(pa.struct([value.type.key_field, value.type.item_field])))
        return f"{{{', '.join(f'{_shown(entry[0])} -> {_shown(entry[1])}' for entry in entries)}}}"
    if types.is_binary(value.type):
        return str(value.as_py(), "utf-8", "replace")
    text = str(pa.array([value]).cast(pa.string())[0])
    return text.removesuffix("Z").rstrip("0").removesuffix(".") if types.is_timestamp(value.type) else text


def _shown(value: pa.Scalar) -> str:
    return cast_to_string(value) or "null"
