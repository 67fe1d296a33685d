"""`python -m benchmarks.encryption`: lines to lines, clear and encrypted, against pyrage alone; in one process, without Spark.

Processor seconds of the same work in turns, the best of some rounds: the results are ratios. Lines that are only copied are the
worst case, because they need almost no other work.
"""

from __future__ import annotations

import os
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyrage
from rich.console import Console
from rich.table import Table

from benchmarks.data import Recipe, made
from penstock.formats.lines import blocks
from penstock.options import SINK, parse
from penstock.query.batch import Batch
from penstock.sink.sink import Sink
from penstock.storage import LocalStorage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MB = 1_000_000
_SIZE, _ROUNDS, _QUERY = 75 * MB, 5, "q"
_VARIABLE = "PENSTOCK_BENCH_KEY"
_SCHEMA = pa.schema([("value", pa.string())])
_console = Console(highlight=False, soft_wrap=True)


def carried(path: str, batches: int, options: dict[str, str]) -> None:
    """Copy the lines of a file, in this number of batches, to an output that is deleted afterwards."""
    with tempfile.TemporaryDirectory() as output:
        checked = parse(SINK, {"path": output, "format": "text", "rollSize": "16m", **options}, what="sink")
        sink = Sink(LocalStorage(), output, checked, "s")
        size = Path(path).stat().st_size
        for number in range(batches):
            span = size * number // batches, size * (number + 1) // batches
            batch = Batch(_QUERY, number)
            begun = sink.begin("driver", batch)
            sink.commit(batch, [sink.write(begun, _QUERY, number, 0, _SCHEMA, _lines(path, size, span))])
        sink.finish()


def _lines(path: str, size: int, span: tuple[int, int]) -> Iterator[bytes]:
    with LocalStorage().open(path) as handle:
        for _, data in blocks(handle.read, size, *span, sep=None):
            yield data


def alone(path: str, recipient: pyrage.x25519.Recipient) -> None:
    """Encrypt the file with pyrage, into another one."""
    with tempfile.TemporaryFile() as target, open(path, "rb") as source:  # noqa: PTH123 - plain files, as plain as can be
        pyrage.encrypt_io(source, target, [recipient])


def spent(work: Callable[[], None]) -> float:
    """Return the processor seconds that the work takes."""
    start = time.process_time()
    work()
    return time.process_time() - start


def main() -> None:
    """Measure, and print."""
    recipient = pyrage.x25519.Identity.generate().to_public()
    os.environ[_VARIABLE] = str(pyrage.x25519.Identity.generate())
    to = {"encryptTo": str(recipient)}
    keyed = to | {"encryptionKey": f"env:{_VARIABLE}"}
    table = Table(
        "MB", "batches", "clear", "pyrage alone", "encryptionKey=none", "with a staging key", title="processor seconds"
    )
    with tempfile.TemporaryDirectory() as room:
        path = made(Recipe("json", _SIZE, 1), Path(room)).paths[0]
        for batches in (1, 4):
            write = partial(carried, path, batches)
            works = (
                partial(write, {}), partial(alone, path, recipient), partial(write, to | {"encryptionKey": "none"}), partial(write, keyed)
            )  # fmt: skip
            rounds = [[spent(work) for work in works] for _ in range(_ROUNDS)]
            best = [min(each) for each in zip(*rounds, strict=True)]
            shown = [f"{seconds:.3f} ({seconds / best[0]:.2f} x)" for seconds in best]
            table.add_row(str(_SIZE // MB), str(batches), *shown)
    _console.print(table)


if __name__ == "__main__":
    main()
