"""`python -m tests.support.run_hdfs`: the demo on a real HDFS on this machine, which is started before it and stopped after it."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from penstock.cli.answer import console
from penstock.cli.demo import play, source, story
from penstock.cli.process import interrupted_by_signals
from penstock.errors import PenstockError
from tests.support.hdfs import DATA_NODES, running
from tests.support.jars import NoJars

# Fewer than the demo has on a local disk: each file waits for three DataNodes, which all run on this machine.
_FILES = 1_000
_INGEST = ["--recursive", "--max-bytes", "2m", "--roll-size", "1m", "--master", "local[2]"]


def main() -> int:
    """Run the demo; return 0 if every line came through once, and no file is left open or has missing blocks."""
    source._FILES_MAX, story._INGEST = _FILES, _INGEST
    out = console()
    out.print("starting HDFS: 15 s; the first time its classes are fetched, too (56 MB)")
    try:
        with (
            interrupted_by_signals(),
            tempfile.TemporaryDirectory(prefix="penstock-hdfs-") as directory,
            running(Path(directory)) as hdfs,
        ):
            out.print(f"HDFS runs at {hdfs.url}: a NameNode and {DATA_NODES} DataNodes", soft_wrap=True)
            answer = play(f"{hdfs.url}/demo", keep=True, as_json=False)
            answer.show(out)
            said = hdfs.fsck(f"{hdfs.url}/demo/output")
            whole = "is HEALTHY" in said
            out.print("fsck: the output is healthy" if whole else said, soft_wrap=True)
            return answer.exit_status or int(not whole)
    except (NoJars, PenstockError) as error:
        out.print(f"error: {error}", soft_wrap=True)
    except KeyboardInterrupt:
        out.print("interrupted; HDFS is stopped")
    return 1


if __name__ == "__main__":
    sys.exit(main())
