"""Exactly-once file streams for Spark Structured Streaming.

``spark.readStream.format("penstock")`` reads a directory as a stream, and ``df.writeStream.format("penstock")`` writes a stream
into a directory. `ingest` does both in one stage, so that no record crosses into the JVM. Every name here is loaded when it is
first used: Spark imports this package in six processes for each query.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock import errors
    from penstock.aio.commons import Cache
    from penstock.aio.function import AsyncFunction, Call, Context, in_threads
    from penstock.aio.retry import Retry, retry_after
    from penstock.catalogs.follower import Catalogued, catalog
    from penstock.cli.progress import progress_bar
    from penstock.errors import CallFailed, PenstockError
    from penstock.ingestion.dry import DryRun
    from penstock.ingestion.ingest import dry_run, ingest
    from penstock.ingestion.ingested import Ingested
    from penstock.ingestion.late import Late, NotRead, late
    from penstock.ingestion.reset import Reset, reset
    from penstock.sink.adopt import Adopted, adopt
    from penstock.spark.aside import split_bad
    from penstock.spark.calls import AsyncMap, async_map, call_counts, split_errors
    from penstock.spark.local import local_session
    from penstock.spark.measuring import serve_metrics
    from penstock.spark.named import read_files
    from penstock.spark.register import register
    from penstock.spark.replayable import replayable
    from penstock.verify.retry import retry

__version__ = "0.1.0"
__all__ = [
    "Adopted",
    "AsyncFunction",
    "AsyncMap",
    "Cache",
    "Call",
    "CallFailed",
    "Catalogued",
    "Context",
    "DryRun",
    "Ingested",
    "Late",
    "NotRead",
    "PenstockError",
    "Reset",
    "Retry",
    "adopt",
    "async_map",
    "call_counts",
    "catalog",
    "dry_run",
    "errors",
    "in_threads",
    "ingest",
    "late",
    "local_session",
    "progress_bar",
    "read_files",
    "register",
    "replayable",
    "reset",
    "retry",
    "retry_after",
    "serve_metrics",
    "split_bad",
    "split_errors",
]

_HOMES = {
    "Adopted": "penstock.sink.adopt",
    "AsyncFunction": "penstock.aio.function",
    "AsyncMap": "penstock.spark.calls",
    "Cache": "penstock.aio.commons",
    "Call": "penstock.aio.function",
    "CallFailed": "penstock.errors",
    "Catalogued": "penstock.catalogs.follower",
    "Context": "penstock.aio.function",
    "DryRun": "penstock.ingestion.dry",
    "Ingested": "penstock.ingestion.ingested",
    "Late": "penstock.ingestion.late",
    "NotRead": "penstock.ingestion.late",
    "PenstockError": "penstock.errors",
    "Reset": "penstock.ingestion.reset",
    "Retry": "penstock.aio.retry",
    "adopt": "penstock.sink.adopt",
    "async_map": "penstock.spark.calls",
    "call_counts": "penstock.spark.calls",
    "catalog": "penstock.catalogs.follower",
    "dry_run": "penstock.ingestion.ingest",
    "in_threads": "penstock.aio.function",
    "ingest": "penstock.ingestion.ingest",
    "late": "penstock.ingestion.late",
    "local_session": "penstock.spark.local",
    "progress_bar": "penstock.cli.progress",
    "read_files": "penstock.spark.named",
    "register": "penstock.spark.register",
    "replayable": "penstock.spark.replayable",
    "reset": "penstock.ingestion.reset",
    "retry": "penstock.verify.retry",
    "retry_after": "penstock.aio.retry",
    "serve_metrics": "penstock.spark.measuring",
    "split_bad": "penstock.spark.aside",
    "split_errors": "penstock.spark.calls",
}
_MODULES = ("errors", "testing", "wal", "windows")


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever is asked for
    """Load a public name when it is first used."""
    import importlib

    if name in _MODULES:
        return importlib.import_module(f"penstock.{name}")
    if name not in _HOMES:
        msg = f"module 'penstock' has no attribute {name!r}"
        raise AttributeError(msg)
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted({*__all__, *_MODULES})
