"""What the demo prints, and when: `python site/record.py` runs `penstock demo` and writes `site/demo.cast`, an asciicast.

`site/draw.py` draws the picture of the README from it; any player of asciicasts shows it, too.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

CAST = Path(__file__).parent / "demo.cast"
WIDTH, HEIGHT = 100, 24


def record(command: list[str]) -> list[tuple[float, str]]:
    """Return each line that a command writes, with the seconds since it began. Raises `SystemExit` if it fails."""
    began = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:  # noqa: S603 - our own command
        assert process.stdout is not None  # noqa: S101 - asked for above
        lines = [(round(time.monotonic() - began, 2), line) for line in process.stdout]
    if process.returncode:
        raise SystemExit("".join(line for _, line in lines))
    return lines


def cast(lines: list[tuple[float, str]]) -> str:
    """Return lines as an asciicast, version 2."""
    header = {"version": 2, "width": WIDTH, "height": HEIGHT, "title": "penstock demo"}
    return "".join(f"{json.dumps(entry)}\n" for entry in [header, *([at, "o", line] for at, line in lines)])


if __name__ == "__main__":
    CAST.write_text(cast(record([sys.executable, "-m", "penstock", "demo"])), encoding="utf-8")
