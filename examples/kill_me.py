"""Kill an ingest in the middle with SIGKILL, look at what is visible, start it again, and prove that nothing is lost.

Run it with `python examples/kill_me.py`. The ingest is a separate process; SIGKILL ends it and its JVM, and none of
its code runs afterwards. At that moment a reader sees only finished files. The second start continues where the first one stopped.
"""
# ruff: noqa: INP001, S603, T201
# An example is a standalone script, it starts itself again, and it prints what it did.

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import penstock
from penstock.verify import verify

FILES, LINES = 30, 500
KILL_AT_RECORD = 8


def run_ingest(source: str, output: str) -> None:
    """Ingest in small batches and small files, so that there is a middle in which to kill it."""
    spark = penstock.local_session("local[2]", rows_in_jvm=False)
    done = penstock.ingest(spark, source, output, source={"maxBytesPerTrigger": "20k"}, sink={"rollSize": "50k"})
    print(f"ingest: done at batch {done.batch}, {done.rows} rows", flush=True)
    spark.stop()


def start(source: Path, output: Path) -> subprocess.Popen[bytes]:
    """Start the ingest in a separate process group."""
    command = [sys.executable, __file__, str(source), str(output)]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)


def kill_in_the_middle(process: subprocess.Popen[bytes], output: Path) -> None:
    """Kill the ingest and its JVM once the ledger has `KILL_AT_RECORD` records."""
    while process.poll() is None:
        if len(list(output.glob("_penstock/*/ledger/" + "[0-9]" * 12))) >= KILL_AT_RECORD:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            print(f"killed with SIGKILL after record {KILL_AT_RECORD} of the ledger")
            return
        time.sleep(0.02)
    sys.exit("the ingest ended before it could be killed")


def visible_lines(output: Path) -> list[str]:
    """Return the lines that a reader sees: all files except those in directories that begin with `_`."""
    files = [path for path in output.rglob("*.txt") if not path.relative_to(output).parts[0].startswith("_")]
    return [line for path in files for line in path.read_text().splitlines()]


def main() -> None:
    """Start, kill, look, start again, verify."""
    with tempfile.TemporaryDirectory() as work:
        source, output = Path(work, "in"), Path(work, "out")
        source.mkdir()
        for number in range(FILES):
            text = "".join(f"file {number:02} line {line:03}\n" for line in range(LINES))
            (source / f"{number:02}.log").write_text(text)

        kill_in_the_middle(start(source, output), output)
        seen = visible_lines(output)
        print(f"visible now: {len(seen)} of {FILES * LINES} lines, {len(seen) - len(set(seen))} of them twice")

        run_ingest(str(source), str(output))
        report = verify(str(output), str(source))
        assert report.source is not None  # noqa: S101 - a source was given
        print(
            f"verified: {report.ok}; {report.source.source_records} records read, {report.source.output_records} written"
        )
        if not report.ok:
            sys.exit(1)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run_ingest(*sys.argv[1:])
    else:
        main()
