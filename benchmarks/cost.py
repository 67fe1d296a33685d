"""What a run costs: `python -m benchmarks.cost [MEGABYTES]...` adds whole processes over several sizes to `docs/cost.json`.

JSON to Parquet, by Spark's own source and sink and by `penstock ingest` in turn, each as a process with all its children: the
seconds that it took, the processor seconds of all its processes, and the peak of their memory together (shared memory
counts once). On a machine with other work only the last two mean something. `site/draw.py` draws them;
docs/why-fast.md shows them.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import psutil
import typer

from benchmarks import room as rooms
from benchmarks.data import Recipe, made
from benchmarks.measure import MB, checked, ingest_arguments, job

if TYPE_CHECKING:
    from types import TracebackType

    from benchmarks.data import DataSet

FIGURES = rooms.REPOSITORY / "docs" / "cost.json"
ENGINES = ("spark", "ingest")
_SIZES = (64, 256, 1024, 4096)
_FILES = 4
_MADE_BYTES = 256 * MB
_SAMPLE_SECONDS = 0.1
_SAMPLES_A_LOOK = 5  # measuring shared memory takes the kernel some milliseconds a process


@dataclass(frozen=True)
class Cost:
    """The cost of one run for `bytes` of input: `seconds` by the clock, processor seconds, and peak bytes of memory."""

    engine: str
    bytes: int
    seconds: float
    processor: float
    peak: int
    day: str


class Meter:
    """Adds up the usage of all child processes for the length of a `with` block; processes that start in the last moment are missed."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._spent: dict[tuple[int, float], float] = {}
        self.peak = 0

    @property
    def processor(self) -> float:
        """Return the processor seconds."""
        return sum(self._spent.values())

    def __enter__(self) -> Meter:
        """Begin."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        looks = 0
        while not self._over.wait(_SAMPLE_SECONDS):
            below = psutil.Process(os.getpid()).children(recursive=True)
            memory = 0
            for process in below:
                with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                    times = process.cpu_times()
                    self._spent[process.pid, process.create_time()] = times.user + times.system
                    if looks % _SAMPLES_A_LOOK == 0:
                        memory += process.memory_full_info().pss
            self.peak = max(self.peak, memory)
            looks += 1


def several(size: int, room: rooms.Room) -> DataSet:
    """Return this number of bytes of JSON lines; long inputs are copies of a shorter one, since generating takes longer than reading."""
    data = made(Recipe("json", min(size, _MADE_BYTES), _FILES), room.data)
    copies = round(size / data.size)
    if copies <= 1:
        return data
    directory = Path(f"{data.directory}-x{copies}")
    directory.mkdir(exist_ok=True)
    paths = []
    for number in range(copies):
        for path in map(Path, data.paths):
            paths.append(directory / f"{path.stem}-{number:04d}{path.suffix}")
            if not paths[-1].exists():
                shutil.copy2(path, paths[-1])
    return replace(
        data, paths=tuple(map(str, paths)), directory=str(directory), rows=data.rows * copies, size=data.size * copies
    )


def measured(engine: str, size: int, room: rooms.Room) -> Cost:
    """Run one contender over this number of bytes."""
    data = several(size, room)
    data.warm()
    output = room.work / f"cost-{engine}"
    rooms.clear(output)
    with Meter() as meter:
        if engine == "ingest":
            seconds = rooms.whole_command(ingest_arguments(data, str(output), "parquet"), room)
        else:
            seconds = rooms.whole_process(engine, {"op": "run", "job": job(engine, data, output, "parquet")}, room)
    checked("parquet", data.rows)(output)
    rooms.clear(output)
    day = f"{datetime.now(timezone.utc):%Y-%m-%d}"
    return Cost(engine, data.size, round(seconds, 2), round(meter.processor, 2), meter.peak, day)


def main(
    sizes: Annotated[list[int] | None, typer.Argument(metavar="[MEGABYTES]...", help=f"By default {_SIZES}.")] = None,
    *,
    engine: Annotated[list[str] | None, typer.Option(help=f"Of {', '.join(ENGINES)}; both by default.")] = None,
    data: Annotated[Path | None, typer.Option(help="Where input is kept and output goes.", show_default=False)] = None,
    out: Annotated[Path, typer.Option(help="The file of figures that is added to.")] = FIGURES,
) -> None:
    """Measure what whole runs cost."""
    room = rooms.Room((data or Path(tempfile.gettempdir()) / "penstock-benchmarks").resolve())
    rooms.ensure_archive(room)
    for megabytes in sizes or _SIZES:
        for name in engine or ENGINES:
            cost = measured(name, megabytes * MB, room)
            figures = json.loads(out.read_text(encoding="utf-8")) if out.exists() else []
            out.write_text(json.dumps([*figures, asdict(cost)], indent=1) + "\n", encoding="utf-8")
            print(
                f"{name:7} {megabytes:6} MB: {cost.seconds:7.1f} s, {cost.processor:7.1f} processor seconds, {cost.peak / MB:6.0f} MB",
                flush=True,
            )


if __name__ == "__main__":
    typer.run(main)
