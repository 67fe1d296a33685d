"""`python -m tests.support.run_s3`: the demo on an object store on this machine, which is started before it and stopped after it."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from penstock.cli.answer import console
from penstock.cli.demo import play, source, story
from penstock.cli.process import interrupted_by_signals
from penstock.errors import PenstockError
from tests.support.stores import NoStore, running

_SERVER = "versitygw"
# Fewer than the demo has on a local disk: a batch is some twenty requests, one after another.
_FILES = 1_000
_INGEST = ["--recursive", "--max-bytes", "2m", "--roll-size", "1m", "--master", "local[2]"]


def main() -> int:
    """Run the demo; return 0 if every line came through once."""
    out = console()
    try:
        with (
            interrupted_by_signals(),
            tempfile.TemporaryDirectory(prefix="penstock-s3-") as directory,
            running(_SERVER, _made(directory, "server")) as store,
        ):
            os.environ.update(store.environment)
            out.print(f"{_SERVER} runs at {store.endpoint}", soft_wrap=True)
            source._FILES_MAX, story._INGEST = _FILES, [*_INGEST, "--checkpoint", f"{directory}/checkpoint"]
            bucket = store.make("demo")
            answer = play(f"{bucket}/work", keep=True, as_json=False)
            answer.show(out)
            return answer.exit_status
    except (NoStore, PenstockError) as error:
        out.print(f"error: {error}", soft_wrap=True)
    except KeyboardInterrupt:
        out.print(f"interrupted; {_SERVER} is stopped")
    return 1


def _made(directory: str, name: str) -> Path:
    path = Path(directory, name)
    path.mkdir()
    return path


if __name__ == "__main__":
    sys.exit(main())
