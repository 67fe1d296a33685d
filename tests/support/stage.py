"""Directories and queries for tests with a real Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.support.wait import PATIENCE_SECONDS


class Stage:
    """An input and an output directory, and what an outside reader sees of the output."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.src, self.dst, self.checkpoint = root / "in", root / "out", root / "checkpoint"
        self.src.mkdir()

    def put(self, name: str, *lines: str) -> None:
        """Write an input file, dated back so that it has settled."""
        path = self.src / name
        path.write_text("".join(f"{line}\n" for line in lines))
        long_ago = path.stat().st_mtime - 60
        os.utime(path, (long_ago, long_ago))

    def files(self) -> list[Path]:
        """Return the visible files: a plain walk that skips what begins with `_` or `.`, as every engine does."""
        found = []
        for folder, folders, names in os.walk(self.dst):
            folders[:] = [name for name in folders if name[0] not in "._"]
            found += [Path(folder) / name for name in names if name[0] not in "._"]
        return sorted(found)

    def lines(self) -> Counter[str]:
        """Return how often each line is visible."""
        return Counter(line for path in self.files() for line in path.read_text().splitlines())


def run_python(
    code: str, *arguments: str, failpoints: str = "", timeout: float = PATIENCE_SECONDS
) -> subprocess.CompletedProcess[str]:
    """Run code in a new interpreter (and so in a new Spark), with failpoints armed."""
    environment = os.environ | {"PENSTOCK_FAILPOINTS": failpoints}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout, check=False)
