"""Followers that are killed: forked from one process that has loaded the libraries, so that ten cost no more than two."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.catalogs.tables import Table

_POINTS = ("catalog.commit=kill", "catalog.committed=kill")
_PROGRAM = """
import os, random, signal, sys, time
import deltalake, pyiceberg.catalog.sql, pyiceberg.io.pyarrow  # loaded, not used: nothing of them runs before the fork
from penstock import failpoints
from penstock.catalogs.follower import catalog

root, options = sys.argv[1], {sys.argv[2]: eval(sys.argv[3])}
random.seed(21)
for line in sys.stdin:
    child = os.fork()
    if not child:
        failpoints.arm(line.strip())
        catalog(root, **options)
        signal.pause()
    if not line.strip():
        time.sleep(random.uniform(0.005, 0.15))
        os.kill(child, signal.SIGKILL)
    print(os.WTERMSIG(os.waitpid(child, 0)[1]), flush=True)
"""


class Kills:
    """A process whose children follow an output, and are killed: before a commit, behind it, or at any time."""

    def __init__(self, table: Table) -> None:
        options = ["delta", "True"] if table.kind == "delta" else ["iceberg", repr(table.flags[1])]
        command = [sys.executable, "-c", _PROGRAM, str(table.root), *options]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.count = 0

    def next(self) -> None:
        """Start a follower; return when it was killed."""
        point = (*_POINTS, "")[self.count % 3]
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{point}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "9\n"
        self.count += 1

    def end(self) -> None:
        """End the process."""
        self._process.communicate(timeout=60)
