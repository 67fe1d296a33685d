"""Where the time is spent: source and sink of one batch in one thread of a plain process, under cProfile, without Spark."""

from __future__ import annotations

import cProfile
import os
import pstats
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from benchmarks.data import schema
from penstock.formats.schema import to_arrow
from penstock.options import SINK, SOURCE, parse
from penstock.sink.sink import Batch, Sink
from penstock.source.configured import reading
from penstock.source.cursor import FileVersion, Split
from penstock.storage import LocalStorage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.source.read import Reading

ONE_THREAD = {"POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""What the environment of the profiled process must hold, since these libraries read it once."""

_SPARK_ROWS = 10_000  # Spark gives a sink Arrow batches of that many rows
_TOP = 15
_BUILT_IN = "~"

# The first rule that matches "file:function" names the share; a built-in has "~" as its file.
_RULES = (
    ("reading files", r"~:.*posix\.(pread|open|fstat|close|scandir|stat)\b|/storage/.*:(read|open|info|list|stat)$"),
    ("waiting for syncs", r"~:.*(acquire|posix\.f(data)?sync|Future)|threading\.py|concurrent/futures|selectors\.py"),
    ("writing files", r"~:.*posix\.(write|link|unlink|mkdir|chmod|umask|ftruncate)|/storage/.*:(write|create|publish|put_if_absent)"),
    ("digests of what is written", r"~:.*xxh"),
    ("parsing JSON (polars)", r"~:.*ndjson|PyLazyFrame|/polars/"),
    ("checking that polars read it right", r"/formats/json/dense\.py:"),
    ("encoding Parquet", r"~:.*(parquet|write_table)|/pyarrow/parquet/|/formats/(parquet|groups)\.py"),
    ("lines to rows and back", r"~:.*(pyarrow|_compute|from_buffers|cast|to_arrow)|/pyarrow/|/formats/(text|scal|schema|json)[\w/]*\.py"),
    ("finding records in bytes", r"~:.*(numpy|ndarray|(find|count|replace)' of 'bytes')|/numpy/|/formats/(lines|separators)\.py"),
    ("finding records in bytes", r"/source/(read|cutting|pieces)\.py"),
    ("joining and slicing bytes", r"~:.*(join|memoryview|startswith|endswith)"),
)  # fmt: skip


def profiled(what: str, directory: str, target: str) -> dict[str, Any]:
    """Run one batch, and again under the profiler: json-parquet, text-text (lines as bytes) or plain-text (as Arrow).

    Return the bytes read, the seconds without the profiler, and with it the seconds of each share and of the
    slowest functions.
    """
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    _run(what, directory, f"{target}/imports", files=1)
    start = time.perf_counter()
    size = _run(what, directory, f"{target}/timed")
    seconds = time.perf_counter() - start
    profile = cProfile.Profile()
    profile.enable()
    _run(what, directory, f"{target}/profiled")
    profile.disable()
    return {"bytes": size, "seconds": seconds} | shares(pstats.Stats(profile))


def _run(what: str, directory: str, target: str, *, files: int | None = None) -> int:
    """Send the files of `directory` (or the first few) through source and sink as one batch; return their bytes."""
    form, to = ("json", "parquet") if what == "json-parquet" else ("text", "text")
    storage, options = LocalStorage(), parse(SOURCE, {"path": directory, "format": form}, what="source")
    how, splits = reading(options, schema(form)), _splits(storage, directory)[:files]
    rows = how.text(splits) if what == "text-text" else _batches(how, splits, cut=what == "plain-text")
    sink = Sink(storage, target, parse(SINK, {"path": target, "format": to}, what="sink"), "profile")
    batch = Batch("profile", 0, final=True)
    begun = sink.begin("profile", batch)
    result = sink.write(begun, batch.query, batch.number, 0, to_arrow(schema(form)), rows)
    sink.commit(batch, [result])
    sink.finish("profile")
    return sum(split.end for split in splits)


def _splits(storage: LocalStorage, directory: str) -> list[Split]:
    found = []
    for name in sorted(name for name in os.listdir(directory) if not name.startswith("_")):  # noqa: PTH208 - names are what is wanted
        entry = storage.stat(str(Path(directory) / name))
        found.append(Split(FileVersion(name, entry.size, entry.modified_ns, entry.identity), 0, entry.size))
    return found


def _batches(how: Reading, splits: list[Split], *, cut: bool) -> Iterator[pa.RecordBatch]:
    for batch in how.batches(splits):
        if cut:
            yield from (batch.slice(begin, _SPARK_ROWS) for begin in range(0, batch.num_rows, _SPARK_ROWS))
        else:
            yield batch


def shares(stats: pstats.Stats) -> dict[str, Any]:
    """Return the seconds of each named share, the largest first, and of the functions that took most time themselves."""
    by_share: dict[str, float] = {}
    functions: list[tuple[str, float]] = []
    for (file, line, name), (_, _, own, _, _) in stats.stats.items():  # type: ignore[attr-defined]  # its stub lacks it
        label = share_of(file, name)
        by_share[label] = by_share.get(label, 0.0) + own
        functions.append((name if file == _BUILT_IN else f"{'/'.join(Path(file).parts[-2:])}:{line} {name}", own))
    return {
        "shares": sorted(by_share.items(), key=lambda item: -item[1]),
        "top": sorted(functions, key=lambda item: -item[1])[:_TOP],
    }


def share_of(file: str, name: str) -> str:
    """Return the share to which a function of the profile belongs."""
    place = f"{file}:{name}"
    return next((label for label, rule in _RULES if re.search(rule, place)), "everything else")
