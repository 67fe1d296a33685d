"""`penstock warmup`: the class-data archive and the command that make Spark start faster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock import clock
from penstock.cli.answer import Answer
from penstock.units import format_duration, format_size

if TYPE_CHECKING:
    from rich.console import Console


def warmup(*, as_json: bool) -> Answer:
    """Make the archive, and learn the JVM's command line; `DependencyError` if the archive fails, which leaves starts as they are."""
    from penstock.cli.answer import console
    from penstock.session import archive, direct
    from penstock.session.local import require_pyspark
    from penstock.storage import locate

    require_pyspark()
    if not as_json:
        console(stderr=True).print(
            "Making the archive: Spark runs a small ingest, half a minute, or minutes where much else runs ..."
        )
    start = clock.monotonic()
    path = archive.make()
    direct.learn()
    storage, archived = locate(path)
    size, seconds = storage.stat(archived).size, clock.monotonic() - start

    def show(out: Console) -> None:
        out.print(f"Made {path} ({format_size(size)}) in {format_duration(seconds)}; Spark starts faster from now on.")

    return Answer({"ok": True, "path": path, "bytes": size, "seconds": round(seconds, 1)}, show)
