"""Advice for SQL that an ingest does not accept: what to write instead.

Anything that is in no list here is also refused, with general advice.
"""

from __future__ import annotations

import difflib

NO_SELECT = "expected select ... from input where ..., one select over the rows of the source"
_QUERY = "readStream and writeStream with both formats 'penstock', and Spark's own SQL between them"
_TRANSFORM = "a transform (transform=, --transform)"

_MANY_ROWS = f"needs more than one row, and an ingest answers each by itself; use {_QUERY}"
CLAUSES = {
    "group": f"group by {_MANY_ROWS}",
    "having": f"having {_MANY_ROWS}",
    "order": "order by has no meaning in a stream of files, whose order is that of the source; leave it out",
    "sort": "sort by has no meaning in a stream of files, whose order is that of the source; leave it out",
    "cluster": "cluster by is for Spark's tasks; the sink's bucketBy places rows",
    "distribute": "distribute by is for Spark's tasks; the sink's bucketBy places rows",
    "limit": "limit would depend on which row comes first; leave it out, or take a sample by a condition",
    "offset": "offset would depend on which row comes first; leave it out",
    "distinct": f"distinct {_MANY_ROWS}",
    **dict.fromkeys(
        ("join", "inner", "cross", "left", "right", "full", "semi", "anti", "natural"),
        f"a join needs another table; use {_QUERY}",
    ),
    **dict.fromkeys(("union", "intersect", "minus", "except"), f"sets of rows need another table; use {_QUERY}"),
    "lateral": f"lateral view makes several rows of one; use {_TRANSFORM}",
    "window": f"window {_MANY_ROWS}",
    "pivot": f"pivot {_MANY_ROWS}",
    "unpivot": f"unpivot makes several rows of one; use {_TRANSFORM}",
    "tablesample": "a sample would be another one each time; take one by a condition on a column",
    "with": "with is not taken; write one select over input",
    "select": "a select inside of another is not taken; write one select over input",
}
FOLLOWING = {
    "[": "elements of arrays and maps are not taken; use " + _TRANSFORM + ", or members of structs by name: a.b",
    "over": f"a window {_MANY_ROWS}",
    "interval": "intervals are not taken; write date_add(day, 7) for days, and compare times with timestamp'2026-01-31 00:00:00'",
}
_AGGREGATES = (
    *(
        "count",
        "sum",
        "avg",
        "mean",
        "min",
        "max",
        "first",
        "last",
        "any_value",
        "collect_list",
        "collect_set",
        "stddev",
        "variance",
    ),
    *(
        "approx_count_distinct",
        "percentile",
        "median",
        "mode",
        "count_if",
        "max_by",
        "min_by",
        "bool_and",
        "bool_or",
        "array_agg",
    ),
    *("every", "some", "any", "listagg", "string_agg", "first_value", "last_value"),
)
_WINDOWS = (
    "row_number",
    "rank",
    "dense_rank",
    "lag",
    "lead",
    "ntile",
    "percent_rank",
    "cume_dist",
    "window",
    "session_window",
)
_CLOCKS = ("now", "current_timestamp", "current_date", "localtimestamp", "curdate", "unix_timestamp", "current_time")
_CHANCE = (
    "rand",
    "random",
    "randn",
    "uuid",
    "shuffle",
    "monotonically_increasing_id",
    "spark_partition_id",
    "randstr",
    "uniform",
)
_FUNCTIONS = {
    **dict.fromkeys(_AGGREGATES, _MANY_ROWS),
    **dict.fromkeys(_WINDOWS, _MANY_ROWS),
    **dict.fromkeys(
        _CLOCKS, "has another value in a replay; the time of the batch names directories: bucketBy, see docs/options.md"
    ),
    **dict.fromkeys(_CHANCE, "has another value in a replay; compute it of columns of the row"),
    **dict.fromkeys(
        ("input_file_name", "input_file_block_start", "input_file_block_length"),
        "is known to Spark's own sources alone; the source option metadataColumn has the path",
    ),
    **dict.fromkeys(
        ("explode", "explode_outer", "posexplode", "inline", "stack"), f"makes several rows of one; use {_TRANSFORM}"
    ),
    **dict.fromkeys(
        ("from_json", "get_json_object", "json_tuple", "parse_json"),
        "is not taken; give the column its nested type in the schema",
    ),
    **dict.fromkeys(("hash", "xxhash64", "md5", "sha", "sha1", "sha2", "crc32"), f"is not taken; use {_TRANSFORM}"),
    **dict.fromkeys(
        ("round", "bround", "floor", "ceil", "ceiling"),
        "is not taken: cast(x as bigint) cuts, cast(x as decimal(18,2)) rounds",
    ),
    **dict.fromkeys(
        ("instr", "locate", "position", "charindex"), "is not taken; contains(text, 'x') tells whether it is there"
    ),
    **dict.fromkeys(
        ("split", "split_part", "substring_index"), "is not taken; regexp_extract(text, '([^,]*)', 1) takes one part"
    ),
    "regexp_replace": f"is not taken; write replace(text, 'a', 'b'), or use {_TRANSFORM}",
    "try_to_timestamp": "is not taken; write try_cast(x as timestamp)",
    "reflect": f"is not taken; use {_TRANSFORM}",
    "java_method": f"is not taken; use {_TRANSFORM}",
}


def of_function(name: str, known: set[str]) -> str:
    """Return why a function is refused, and what to write instead."""
    if name in _FUNCTIONS:
        return f"{name}() {_FUNCTIONS[name]}"
    near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.75)
    if near:
        return f"{name}() is not among the functions whose answers are known to be Spark's; did you mean {near[0]}()?"
    return f"{name}() is not among the functions whose answers are known to be Spark's; use {_TRANSFORM}, or {_QUERY}"
