"""Who may write state can spoil it. They must not gain more: no code is run from it, no file elsewhere is touched.

That nothing in the package can turn bytes into code is held by the rule `unsafe` of `tests/test_tidy.py`.
"""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from penstock.errors import DamagedState
from penstock.sink.existing import note_options, noted_options
from penstock.sink.ledger import FinishedFile, Growth, Segment, signed
from penstock.source.cursor import Split
from penstock.storage import LocalStorage
from tests.cli.conftest import Pipeline, Said, penstock, pipeline
from tests.support.output import Output

__all__ = ["penstock", "pipeline"]  # fixtures


class Evil:
    """What unpickling of runs code."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return open, (str(self.mark), "w")


def forge(line: Pipeline, transform: str) -> None:
    """Write the options that a sink has noted anew, with another transform, and a checksum that fits."""
    [path] = (line.dst / "_penstock/q").glob("options-*.json")
    record = json.loads(path.read_bytes())["record"]
    stage = json.loads(record["options"]["ingest"])
    record["options"]["ingest"] = json.dumps({**stage, "transform": transform})
    path.write_bytes(signed(record))


def test_a_forged_pickle_is_not_loaded(
    tmp_path: Path, penstock: Callable[..., Said], pipeline: Callable[..., Pipeline]
) -> None:
    """A function that somebody pickled into the noted options is never loaded, not by verify and not by anything else."""
    line = pipeline()
    line.put("a.log", "one")
    line.run()
    mark = tmp_path / "owned"
    forge(line, "pickle:" + base64.b64encode(pickle.dumps(Evil(mark))).decode())
    said = penstock("verify", line.dst, "--source", line.src)
    assert "was a Python function, which is not noted" in said.out
    for command in ("status", "files", "finish", "clean", "verify"):
        assert penstock(command, line.dst).status == 0
    assert not mark.exists()
    assert "pickle:" not in json.dumps(noted_options(LocalStorage(), f"{line.dst}/_penstock/q"))


OUTSIDE = ["../outside", "a/../../outside", "/etc/passwd", ".."]


@pytest.mark.parametrize("path", OUTSIDE)
@pytest.mark.parametrize("what", ["path", "staged", "segment", "grown"])
def test_forged_paths_lead_nowhere(output: Output, elsewhere: Path, path: str, what: str) -> None:
    """A record, with a checksum that fits, that names a file elsewhere is damaged: it is neither moved nor published."""
    sink = output.sink(fileName="f{seq}")
    output.batch(sink, 0, {0: ["x"]})
    head = sink.ledger.head()
    file = FinishedFile("f9.txt", "", 1, 7, "", 0, 0, "000000000001-0-0-x.part")
    segment = Segment(path, 0, 7, 1, "bytes", 7, "")
    forged = {
        "path": replace(head, n=head.n + 1, finished=(replace(file, path=path),)),
        "staged": replace(head, n=head.n + 1, finished=(replace(file, staged=path),)),
        "segment": replace(head, n=head.n + 1, open=(replace(head.open[0], segments=(segment,)),)),
        "grown": replace(head, n=head.n + 1, grown=(Growth(path, 0, 7, 1, ()),)),
    }[what]
    record = output.root / f"_penstock/s/ledger/{head.n + 1:012d}"
    record.write_bytes(signed(asdict(forged)))
    with pytest.raises(DamagedState, match="not a ledger record"):
        sink.finish("d1")
    assert output.visible() == {}
    assert (elsewhere / "secret.txt").read_text() == "secret\n"


@pytest.mark.parametrize("path", ["../secret", "a/../../b", ".."])
def test_forged_plans_lead_nowhere(path: str) -> None:
    """A plan in a checkpoint that names a file outside of the source is damaged, and that file is not read."""
    with pytest.raises(DamagedState, match="not in the source"):
        Split.from_json([path, 0, 1, 1, 0, ""])
    assert Split.from_json(["a..b/..c", 0, 1, 1, 0, ""]).file.path == "a..b/..c"


def test_credentials_are_not_noted(tmp_path: Path) -> None:
    """What stands before the @ of a URL among the options is not kept in the state, in the stage of an ingest neither."""
    given = {
        "path": "/data/out",
        "checkpointLocation": "hdfs://user:hunter2@host:8020/checkpoint",
        "ingest": json.dumps({"source": {"path": "s3://AKIA:hunter2/x@bucket/a@b"}, "transform": None}),
    }
    note_options(LocalStorage(), str(tmp_path), 1, given)
    [note] = tmp_path.iterdir()
    assert "hunter2" not in note.read_text()
    assert "AKIA" not in note.read_text()
    noted = noted_options(LocalStorage(), str(tmp_path))
    assert noted["checkpointLocation"] == "hdfs://***@host:8020/checkpoint"
    assert json.loads(noted["ingest"])["source"]["path"] == "s3://***@bucket/a@b"
