"""Real logs of real systems, repeated until they are large: data that no generator of ours has made.

They are those of loghub (see CITATION beside them), which lie beside the repository and are no part of it: without them the case says so
and measures nothing. What a log has is kept: CRLF, a lone CR, long lines. Only a last line without its end gets one where it is repeated.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from benchmarks.cases import ALONE, INGEST, PARTS, ROUNDS_TO_WARM, SPARK, alone, bare, case, facts, sessions
from benchmarks.data import LONG_AGO, DataSet
from benchmarks.figures import Figure
from benchmarks.measure import MB, Bench, warm
from benchmarks.output import Same
from benchmarks.room import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

REAL_LOGS = "real-logs"
LOGS = REPOSITORY.parent / "shared" / "data" / "loghub"
_BYTES = 200 * MB


@case(
    REAL_LOGS,
    "Real logs (loghub), each repeated to 200 MB, as text to Parquet, both in a session that is up, the worst first. Both outputs must "
    "hold the same rows, by a third engine.",
)
def _real_logs(bench: Bench) -> list[Figure]:
    samples = sorted(LOGS.glob("*.log"))
    if not samples:
        bench.tell(f"no real logs: expected those of loghub in {LOGS}")
        return []
    figures: list[list[Figure]] = []
    with sessions(bench, "ingest") as (theirs, ours), bare(bench) as pair:
        for sample in samples:
            data = repeated(sample, bench.scaled(_BYTES, PARTS), bench.room.data)
            data.warm()
            same = Same(data.rows)
            contenders = [
                warm(SPARK, theirs, "spark", data, "parquet"),
                warm(INGEST, ours, "ingest", data, "parquet"),
                alone(pair, data),
            ]
            spark, mine, floor = bench.alternate([replace(one, check=same) for one in contenders], drop=ROUNDS_TO_WARM)
            what = f"log of {sample.stem} to Parquet"
            whole = Figure(REAL_LOGS, what, mine, spark, "faster", 3, facts(data, mine))
            figures.append([whole, Figure(REAL_LOGS, f"{what}: {ALONE}", floor, spark, "faster")])
    return [figure for two in sorted(figures, key=lambda two: two[0].ratio or 0) for figure in two]


def repeated(sample: Path, size: int, root: Path) -> DataSet:
    """Return files below `root` of at least `size` bytes in all, each the whole sample several times; made unless they are there."""
    log = sample.read_bytes()
    whole = log if log.endswith((b"\n", b"\r")) else log + b"\n"
    times = -(-size // (len(whole) * PARTS))
    directory = root / f"log-{sample.stem}-{times}-{len(log)}"
    paths = list(_files(directory, whole, times))
    rows = len(whole.splitlines()) * times * PARTS
    return DataSet(tuple(paths), str(directory), "text", rows, len(whole) * times * PARTS)


def _files(directory: Path, whole: bytes, times: int) -> Iterator[str]:
    directory.mkdir(parents=True, exist_ok=True)
    for number in range(PARTS):
        path = directory / f"part-{number:06d}.log"
        if not path.is_file():
            making = directory / f"_making-{os.getpid()}"
            with making.open("wb") as file:
                for _ in range(times):
                    file.write(whole)
            os.utime(making, (LONG_AGO, LONG_AGO))
            making.rename(path)
        yield str(path)
