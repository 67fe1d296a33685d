"""Reads files that an attacker may have made, in a separate process, so that a file that kills the process is noticed.

`outcomes` runs this file: for each file of a directory it prints the file's name before it is read, and then the
result: the number of rows, or the error.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pyarrow as pa

from penstock.errors import PenstockError
from penstock.formats import ReadFormat
from penstock.source.cursor import FileVersion, Split
from penstock.source.read import Reading
from penstock.storage import LocalStorage

MEMORY_BYTES = 4 << 30
SECONDS_MAX = 240
TYPES = {
    "long": pa.int64(),
    "string": pa.string(),
    "double": pa.float64(),
    "decimal": pa.decimal128(38, 0),
    "list": pa.list_(pa.int32()),
    "struct": pa.struct([("x", pa.int32()), ("y", pa.string())]),
    "map": pa.map_(pa.string(), pa.int32()),
    "time": pa.timestamp("us", tz="UTC"),
}


def outcomes(
    directory: Path, form: str, columns: dict[str, str], *, memory_bytes: int = MEMORY_BYTES
) -> dict[str, str]:
    """Return, for each file name of the directory, `rows: n` or the error; fail if the process dies.

    `columns` maps columns to names of `TYPES`; the process has at most `memory_bytes` of address space.
    """
    command = [sys.executable, __file__, str(directory), form, json.dumps(columns), str(memory_bytes)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    died = f"the process ended with {done.returncode} at {lines[-1] if lines else 'its start'}\n{done.stderr[-2000:]}"
    assert done.returncode == 0, died
    found = {name: said for name, said in lines if said is not None}
    assert sorted(found) == sorted(os.listdir(directory))
    return found


def _outcome(directory: str, name: str, fmt: ReadFormat) -> str:
    info = os.stat(f"{directory}/{name}")
    file = FileVersion(name, info.st_size, info.st_mtime_ns, str(info.st_ino))
    try:
        batches = Reading(LocalStorage(), directory, fmt).batches([Split(file, 0, info.st_size)])
        return f"rows: {sum(batch.num_rows for batch in batches)}"
    except PenstockError as error:
        return str(error)


def _main(directory: str, form: str, columns: str, memory_bytes: str) -> None:
    schema = pa.schema([(name, TYPES[kind]) for name, kind in json.loads(columns).items()])
    resource.setrlimit(resource.RLIMIT_AS, (int(memory_bytes), int(memory_bytes)))
    for name in sorted(os.listdir(directory)):
        _say(name, None)
        _say(name, _outcome(directory, name, ReadFormat(form, schema)))


def _say(name: str, outcome: str | None) -> None:
    sys.stdout.write(json.dumps([name, outcome]) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _main(*sys.argv[1:])
