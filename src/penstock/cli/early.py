"""What an ingest begins before anything large is imported: the JVM of its session, where a first look sees that there is work.

An import of all that checks a call takes as long as a JVM takes to be reached, so both are done at once. A call whose flags turn out to
be wrong ends the JVM; an ingest that has never committed, or has nothing to read, begins none.
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
    """Yield whether the ingest surely has work; then its JVM is on its way, and ends behind the block unless a session took it.

    `has_functions` of a user's, which Spark's workers will look for here. An ingest that may do without Spark begins none: it has a
    `master`, watches, calls functions or `has_page` where it surely does not.
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
