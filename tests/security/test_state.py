"""A user who can write the state can damage it, but must not gain more: no code of it runs, no file elsewhere is touched.

The rule `unsafe` of `tests/test_tidy.py` checks that nothing in the package can turn bytes into code.
"""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest

import penstock as penstock_package
from penstock.errors import DamagedState, OptionError
from penstock.ingestion import stage as stages
from penstock.options import SINK, parse
from penstock.query.records import signed
from penstock.sink.existing import NotedStage, note_options, noted
from penstock.sink.ledger import FinishedFile, Growth, OpenParts, Segment
from penstock.source.cursor import Split
from penstock.storage import LocalStorage
from tests.cli.conftest import Pipeline, Said, penstock, pipeline
from tests.support.output import Output

__all__ = ["penstock", "pipeline"]  # fixtures


class Evil:
    """Unpickling it runs code."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return open, (str(self.mark), "w")


def forge(line: Pipeline, transform: object, name: str = "ingest") -> None:
    """Rewrite the options that a sink has noted, with another transform under `name`, and a matching checksum."""
    [path] = (line.dst / "_penstock/q").glob("options-*.json")
    record = json.loads(path.read_bytes())["record"]
    stage = json.loads(record["options"].pop("ingest"))
    record["options"][name] = json.dumps({**stage, "transform": transform})
    path.write_bytes(signed(record))


def pickled(mark: Path) -> str:
    """Return the pickled form of a transform that makes the file `mark`."""
    return "pickle:" + base64.b64encode(pickle.dumps(Evil(mark))).decode()


def test_a_forged_pickle_is_not_loaded(
    tmp_path: Path, penstock: Callable[..., Said], pipeline: Callable[..., Pipeline]
) -> None:
    """Neither verify nor anything else loads a function that somebody pickled into the noted options."""
    line = pipeline()
    line.put("a.log", "one")
    line.run()
    mark = tmp_path / "owned"
    forge(line, pickled(mark))
    said = penstock("verify", line.dst, "--source", line.src)
    assert "was a Python function, which is not noted" in said.out
    for command in ("status", "files", "finish", "clean", "verify"):
        assert penstock(command, line.dst).status == 0
    assert not mark.exists()
    assert "pickle:" not in repr(noted(LocalStorage(), f"{line.dst}/_penstock/q"))


SPELLINGS = ["ingest", "INGEST", "Ingest", "inGest", " ingest"]


@pytest.mark.slow
@pytest.mark.parametrize("name", SPELLINGS)
@pytest.mark.parametrize("form", ["text", "spaced", "list", "upper"])
def test_no_spelling_of_a_forged_stage_is_loaded(
    tmp_path: Path, penstock: Callable[..., Said], pipeline: Callable[..., Pipeline], name: str, form: str
) -> None:
    """Option names ignore case: a stage under any spelling of its name is never loaded, nor run."""
    line = pipeline()
    line.put("a.log", "one")
    line.run()
    mark = tmp_path / "owned"
    code = pickled(mark)
    forge(
        line,
        {"text": code, "spaced": f" {code}", "list": [code], "upper": code.replace("pickle", "PICKLE")}[form],
        name,
    )
    for command in (("verify", "--source", line.src), ("status",), ("files",), ("finish",), ("clean",), ("verify",)):
        said = penstock(command[0], line.dst, *command[1:])
        assert said.status in {0, 1, 3}, said
        assert "Traceback" not in said.out + said.err
    assert not mark.exists()


def test_a_function_that_state_names_is_not_imported(
    tmp_path: Path, penstock: Callable[..., Said], pipeline: Callable[..., Pipeline], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing imports the module that a note names as `module:function`; a user who verifies names the function."""
    line = pipeline()
    line.put("a.log", "one")
    line.run()
    (tmp_path / "here").mkdir()
    mark = tmp_path / "imported"
    (tmp_path / "here" / "noted_by_state.py").write_text(
        f"open({str(mark)!r}, 'w').close()\ndef same(rows): return rows\n"
    )
    monkeypatch.chdir(tmp_path / "here")
    forge(line, "noted_by_state:same")
    said = penstock("verify", line.dst, "--source", line.src)
    assert said.status == 1
    assert "--transform noted_by_state:same" in said.out
    assert not mark.exists()
    said = penstock("verify", line.dst, "--source", line.src, "--transform", "noted_by_state:same")
    assert said.status == 0, said
    assert mark.exists()


def test_only_a_live_caller_gives_a_stage() -> None:
    """Text cannot become a stage: the sink has no such option, and a stage has its own type."""
    stage = json.dumps({"source": {"path": "/in"}, "schema": "{}", "transform": "os:system", "out": "{}"})
    noted_stage = NotedStage({"path": "/in"}, "{}", "{}", "os:system")
    with pytest.raises(OptionError, match="unknown option 'ingest'"):
        parse(SINK, {"path": "/out", "ingest": stage}, what="sink")
    for given in (stage, noted_stage, None):
        with pytest.raises((AttributeError, TypeError)):
            stages.Stage.of(given)


def test_what_loads_functions_is_named() -> None:
    """Only one module loads a stage, and only three unpickle functions, each for a live query."""
    made = {
        "LiveStage(": ["ingestion/stage.py"],
        "functions.unpacked(": ["ingestion/stage.py", "spark/calls.py", "spark/replayable.py"],
    }
    package = Path(penstock_package.__file__).parent
    texts = {path.relative_to(package).as_posix(): path.read_text("utf-8") for path in package.rglob("*.py")}
    assert {call: sorted(name for name, text in texts.items() if call in text) for call in made} == made


OUTSIDE = ["../outside", "a/../../outside", "/etc/passwd", ".."]


@pytest.mark.slow
@pytest.mark.parametrize("path", OUTSIDE)
@pytest.mark.parametrize("what", ["path", "staged", "segment", "grown", "length", "bucket"])
def test_forged_paths_lead_nowhere(output: Output, elsewhere: Path, path: str, what: str) -> None:
    """A record with a matching checksum that names a file elsewhere is damaged: that file is neither moved nor published."""
    sink = output.sink(fileName="f{seq}")
    output.batch(sink, 0, {0: ["x"]})
    head = sink.ledger.head()
    file = FinishedFile("f9.txt", "", 1, 7, "", 0, 0, "000000000001-0-0-x.part")
    segment = Segment(path, 0, 7, 1, "bytes", 7, "")
    forged = {
        "path": replace(head, n=head.n + 1, finished=(replace(file, path=path),)),
        "staged": replace(head, n=head.n + 1, finished=(replace(file, staged=path),)),
        "segment": replace(head, n=head.n + 1, open=OpenParts([replace(head.open[0], segments=(segment,))])),
        "grown": replace(head, n=head.n + 1, grown=(Growth(path, 0, 7, 1, ()),)),
        "length": replace(head, n=head.n + 1, lengths={path: 7}),
        "bucket": replace(head, n=head.n + 1, open=OpenParts([replace(head.open[0], bucket=path)])),
    }[what]
    record = output.root / f"_penstock/s/ledger/{head.n + 1:012d}"
    record.write_bytes(signed(asdict(forged) | {"open": [asdict(part) for part in forged.open]}))
    with pytest.raises(DamagedState, match="not a ledger record"):
        sink.finish("d1")
    assert output.visible() == {}
    assert (elsewhere / "secret.txt").read_text() == "secret\n"


@pytest.mark.parametrize("path", OUTSIDE)
def test_forged_folds_lead_nowhere(output: Output, elsewhere: Path, penstock: Callable[..., Said], path: str) -> None:
    """A file of folded records that names a file elsewhere is damaged: no command reads that file as output."""
    sink = output.sink(rollBatches="1")
    output.batch(sink, 0, {0: ["x"]})
    folds = output.root / "_penstock/s/ledger"
    file = FinishedFile(path, "", 1, 7, "", 0, 0, "000000000001-0-0-x.part")
    fold = {"sink": "s", "first": 1, "last": 1, "finished": [asdict(file)]}
    (folds / "000000000001-000000000001").write_bytes(signed(fold))
    with pytest.raises(DamagedState, match="not a fold"):
        list(sink.ledger.history())
    for command in ("files", "verify"):
        assert penstock(command, output.root).status == 3
    assert (elsewhere / "secret.txt").read_text() == "secret\n"


@pytest.mark.parametrize("finished", [None, [1], [{"path": "a"}], "text"])
def test_forged_folds_are_damaged_state(output: Output, finished: object) -> None:
    """A file of folded records with a matching checksum and an invalid form is `DamagedState`, not a traceback."""
    sink = output.sink(rollBatches="1")
    output.batch(sink, 0, {0: ["x"]})
    fold = {"sink": "s", "first": 1, "last": 1, "finished": finished}
    (output.root / "_penstock/s/ledger/000000000001-000000000001").write_bytes(signed(fold))
    with pytest.raises(DamagedState, match="not a fold"):
        list(sink.ledger.history())


@pytest.mark.parametrize("path", ["../secret", "a/../../b", ".."])
def test_forged_plans_lead_nowhere(path: str) -> None:
    """A plan in a checkpoint that names a file outside of the source is damaged, and that file is not read."""
    with pytest.raises(DamagedState, match="not in the source"):
        Split.from_json([path, 0, 1, 1, 0, ""])
    assert Split.from_json(["a..b/..c", 0, 1, 1, 0, ""]).file.path == "a..b/..c"


def test_credentials_are_not_noted(tmp_path: Path) -> None:
    """The text before the @ of a URL in the options is not kept in the state, nor in the stage of an ingest."""
    given = {
        "path": "/data/out",
        "checkpointLocation": "hdfs://user:hunter2@host:8020/checkpoint",
        "ingest": json.dumps(
            {"source": {"path": "s3://AKIA:hunter2/x@bucket/a@b"}, "schema": "", "out": "", "transform": None}
        ),
    }
    note_options(LocalStorage(), str(tmp_path), 1, given)
    [note] = tmp_path.iterdir()
    assert "hunter2" not in note.read_text()
    assert "AKIA" not in note.read_text()
    found = noted(LocalStorage(), str(tmp_path))
    assert found.options["checkpointLocation"] == "hdfs://***@host:8020/checkpoint"
    assert found.stage is not None
    assert found.stage.source["path"] == "s3://***@bucket/a@b"
