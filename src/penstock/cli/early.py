"""Early start of an ingest: its session's JVM starts before anything large is imported, if a first look finds work.

Importing everything that checks a call takes as long as starting a JVM, so both happen at once. A call with wrong flags
ends the JVM again. No JVM is started for an ingest that has never committed, or that has nothing to read.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from penstock.cli.process import begun_session, importable_by_workers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.cli.ingest import Flags


@contextlib.contextmanager
def begun(
    src: list[str],
    dst: str,
    source: Flags,
    checkpoint: str | None,
    master: str | None,
    *,
    watch: bool,
    dry: bool,
    has_functions: bool,
    has_page: bool,
) -> Iterator[bool]:
    """Yield whether the ingest surely has work. Then its JVM is starting; after the block it ends, unless a session took it.

    `has_functions`: the user has given functions, which Spark's workers will import from here. An ingest that may do
    without Spark starts no JVM. It surely needs Spark if it has a `master`, watches, calls functions or `has_page`.
    """
    wanted = False
    if not dry:
        from penstock.ingestion.newer import has_newer

        flags, pairs = source
        given = {name: value for name, value in flags.items() if value is not None}
        given |= dict(pair.split("=", 1) for pair in pairs if "=" in pair)
        wanted = has_newer(src, dst, source=given, checkpoint=checkpoint, watch=watch)
    if wanted and has_functions:
        importable_by_workers()
    needs_spark = watch or has_functions or has_page or master is not None
    with begun_session(master, wanted=wanted and needs_spark):
        yield wanted
