"""What a byte of HDFS costs its client: our client, hdfs-native under `penstock.storage`, against Hadoop's own in Java.

Processor seconds per GB to write a file with its three replicas and to read it again: of the client's process, and of the three
DataNodes meanwhile. The cost of a file of one byte, the start of the process, is subtracted. A read goes to
`/dev/null`: writing a local file would take as long as the read. The DataNodes' cost limits every job from HDFS to HDFS on the
same machine, whichever client reads and writes.

`python -m benchmarks.hdfsclient put LOCAL URL`, or `cat URL`, is our side.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.cases import case
from benchmarks.figures import Figure, Series
from benchmarks.hdfs import an_hdfs
from benchmarks.measure import MB, Contender
from benchmarks.output import WrongResult
from benchmarks.room import clear
from tests.support.hdfs import class_path
from tests.support.jars import java

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.measure import Bench

PREFIX = "hdfs-"
"""How the names of all cases on HDFS begin."""

_BYTES = 1000 * MB
_BLOCK_BYTES = 8 << 20  # the size of a read
_OURS, _THEIRS = "penstock.storage", "Hadoop's client"
_WRITE, _READ = "put", "cat"


def moved(verb: str, *arguments: str) -> None:
    """Copy a local file to HDFS, or an HDFS file to stdout, as the sink writes and the source reads: in blocks, synced at the end."""
    from penstock.storage import locate  # noqa: PLC0415 - what is measured begins here

    storage, path = locate(arguments[-1])
    if verb == _WRITE:
        with open(arguments[0], "rb") as source, storage.create(path) as output:  # noqa: PTH123 - a plain file, as plain as can be
            while block := source.read(_BLOCK_BYTES):
                output.write(block)
            output.sync()
        return
    with storage.open(path) as handle:
        size = handle.info().size
        for start in range(0, size, _BLOCK_BYTES):
            sys.stdout.buffer.write(handle.read(start, min(_BLOCK_BYTES, size - start)))


def _spent(command: list[str]) -> float:
    """Run a command; return the processor seconds of it and its child processes."""
    before = os.times()
    done = subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    after = os.times()
    if done.returncode:
        raise WrongResult(done.stderr[-2000:])
    return after.children_user + after.children_system - before.children_user - before.children_system


def _ours(verb: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "benchmarks.hdfsclient", verb, *arguments]


def _theirs(settings: Path, verb: str, *arguments: str) -> list[str]:
    """Return Hadoop's command line; `settings` is a directory with its settings, which are the defaults."""
    shell = [java(), "-cp", f"{settings}:{class_path()}", "org.apache.hadoop.fs.FsShell"]
    return [*shell, f"-{verb}", *(["-f"] if verb == _WRITE else []), *arguments]


@case(
    "hdfs-client",
    "One file to HDFS with three replicas, and back: processor seconds for each GB of the client alone, without its start, and of the "
    "DataNodes meanwhile; and how long 1 GB from HDFS to HDFS takes at least, if all processors work for the DataNodes alone.",
)
def _clients(bench: Bench) -> list[Figure]:
    data = bench.data("text", _BYTES, 1)
    directory = bench.directory("client")
    directory.mkdir()
    little = directory / "little"
    little.write_bytes(b"x")
    (directory / "core-site.xml").write_text("<configuration/>")
    much = Path(data.paths[0])
    gigabytes = much.stat().st_size / (1000 * MB)
    figures, of_data_nodes = [], []
    with an_hdfs(bench) as place:
        place.client.mkdirs("/client")
        for verb, what in ((_WRITE, "written to HDFS"), (_READ, "read from HDFS")):
            data_nodes: dict[str, list[float]] = {_OURS: [], _THEIRS: []}

            def contender(
                label: str,
                command: Callable[..., list[str]],
                verb: str = verb,
                meanwhile: dict[str, list[float]] = data_nodes,
            ) -> Contender:
                side = label.partition(" ")[0]

                def line(path: Path) -> list[str]:
                    url = f"{place.url}/client/{side}-{path.name}"
                    return command(verb, str(path), url) if verb == _WRITE else command(verb, url)

                def cost(path: Path) -> tuple[float, float]:
                    """Write or read one file; return the processor seconds of the client, and of the DataNodes."""
                    if verb == _WRITE:
                        place.clear(f"/client/{side}-{path.name}")
                    before = place.data_node_seconds()
                    return _spent(line(path)), place.data_node_seconds() - before

                def run(_: Path) -> float:
                    started, all_of_it = cost(little), cost(much)
                    meanwhile[label].append((all_of_it[1] - started[1]) / gigabytes)
                    return (all_of_it[0] - started[0]) / gigabytes

                def check(_: Path) -> None:
                    if verb == _READ:
                        _same(line(much), much)

                return Contender(label, run, check)

            theirs, ours = bench.alternate([contender(_THEIRS, partial(_theirs, directory)), contender(_OURS, _ours)])
            their_nodes, our_nodes = (
                Series(label, tuple(data_nodes[label][-bench.repeat :])) for label in (_THEIRS, _OURS)
            )
            of_data_nodes.append(our_nodes)
            figures += [
                Figure("hdfs-client", f"1 GB {what}, processor seconds of the client", ours, theirs, "faster", 2),
                Figure("hdfs-client", f"1 GB {what}, processor seconds of the DataNodes", our_nodes, their_nodes),
            ]
    clear(directory)
    return [*figures, _floor(*of_data_nodes)]


def _floor(written: Series, read: Series) -> Figure:
    """Return the minimum time for a GB from HDFS to HDFS if the DataNodes share the processors with the client."""
    cores = os.cpu_count() or 1
    values = tuple(sum(each) / cores for each in zip(written.values, read.values, strict=True))
    what = f"1 GB HDFS to HDFS, if all {cores} processors worked for the DataNodes alone"
    return Figure("hdfs-client", what, Series("the DataNodes", values))


def _same(command: list[str], original: Path) -> None:
    """Raise `WrongResult` unless a command writes the file's contents to stdout."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as reader:
        found = subprocess.run(["cmp", "-s", "-", original], stdin=reader.stdout, check=False)  # noqa: S607 - POSIX has it
    if found.returncode:
        msg = f"what {command[-1]} holds is not {original}"
        raise WrongResult(msg)


if __name__ == "__main__":
    moved(*sys.argv[1:])
