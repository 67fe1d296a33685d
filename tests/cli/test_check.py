"""Pipeline files: every mistake is reported with file, line and key, all at once, and without Spark."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from penstock.cli.run import model, toml
from penstock.cli.run import plan as plans
from penstock.cli.run.logs import JsonLines, PlainLines
from penstock.cli.run.references import Secrets, resolved
from penstock.errors import PipelinesError
from penstock.options import SINK, SOURCE
from tests.docs.markdown import DOCS, blocks
from tests.support.follows import follows

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Said

GOOD = """\
drain = "5s"

[pipelines.logs]
source = { path = "in" }
sink = { path = "out", rollRows = 3, growing = false }
schedule = { watch = "2s" }
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory, which contains an input."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("a\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    return tmp_path


def pipeline(more: str = "", source: str = "", sink: str = "") -> str:
    """Return a file with a correct pipeline, plus additions at lines 2 (source), 3 (sink) and from 4 on."""
    return f'[pipelines.p]\nsource = {{ path = "in"{source} }}\nsink = {{ path = "out"{sink} }}\n{more}'


def problems(place: Path, text: str, name: str = "p.toml") -> list[tuple[int, str, str]]:
    """Return the problems of a file: line, key, message."""
    (place / name).write_text(text)
    _, wrong = plans.looked_at(name)
    return [(problem.line, problem.key, problem.message) for problem in wrong]


MISTAKES = {
    "no toml": ("[pipelines.p\n", 1, "", "not TOML"),
    "a value without end": (pipeline('transform = "x\n'), 4, "", "not TOML"),
    "twice the same": (pipeline('transform = "a:b"\ntransform = "a:b"\n'), 5, "", "not TOML"),
    "nothing": ("", 1, "pipelines", "is missing"),
    "an unknown table": ("[pipeline.p]\n", 1, "pipeline", "did you mean 'pipelines'?"),
    "an unknown key": (pipeline('schedul = "once"\n'), 4, "pipelines.p.schedul", "did you mean 'schedule'?"),
    "no source": ('[pipelines.p]\nsink = { path = "out" }\n', 1, "pipelines.p.source", "missing"),
    "no path": ('[pipelines.p]\nsource = { path = "in" }\n[pipelines.p.sink]\n', 3, "pipelines.p.sink.path", "missing"),
    "a path of another type": ('[pipelines.p]\nsource.path = 3\nsink.path = "o"\n', 2, "pipelines.p.source.path", "found 3"),
    "no paths": ('[pipelines.p]\nsource.path = []\nsink.path = "o"\n', 2, "pipelines.p.source.path", "found none"),
    "an unknown option": (pipeline(sink=', rolSize = "1m"'), 3, "pipelines.p.sink.rolSize", "did you mean 'rollSize'?"),
    "an option of the other side": (pipeline(source=", rollRows = 1"), 2, "pipelines.p.source.rollRows", "of the sink"),
    "a bad value": (pipeline(source=', settle = "5"'), 2, "pipelines.p.source.settle", "is not a duration"),
    "an option of a table": (pipeline(source=", settle = [1]"), 2, "pipelines.p.source.settle", "expected a valid string"),
    "an option without what it is for": (
        pipeline(source=', badFiles = "quarantine", maxBadRecords = 5', sink=', partitionReadyDelay = "1h"'),
        3, "pipelines.p.sink.partitionReadyDelay", "is for partitionReady",
    ),
    "an option given twice": (pipeline(source=', settle = "5s", SETTLE = "5s"'), 2, "pipelines.p.source", "twice"),
    "options that are not for an ingest": (
        pipeline(sink=', checkpointLocation = "c"'), 1, "pipelines.p", "takes that from checkpoint"),
    "no schema": (pipeline(source=', format = "json"'), 2, "pipelines.p.source", "schema is needed"),
    "a bad schema": (pipeline(source=', format = "json", schema = "id bigger"'), 1, "pipelines.p", "bigger"),
    "what cannot be written": (pipeline(source=', format = "binary"'), 3, "pipelines.p.sink", "sink.format is needed"),
    "a template of no column": (pipeline(sink=', bucketBy = "{day}"'), 1, "pipelines.p", "day"),
    "a transform that is not there": (pipeline('transform = "nothing:here"\n'), 4, "pipelines.p.transform", "nothing"),
    "a function to tell that is not there": (
        pipeline(sink=', onPublish = "nope:none"'), 3, "pipelines.p.sink.onPublish", "No module named 'nope'",
    ),
    "a transform that is none": (pipeline('transform = "here"\n'), 4, "pipelines.p.transform", "MODULE:FUNCTION"),
    "a bad schedule": (pipeline('schedule = "hourly"\n'), 4, "pipelines.p.schedule", "cron = '5 * * * *'"),
    "two schedules": (pipeline('[pipelines.p.schedule]\nwatch = true\ncron = "* * * * *"\n'), 4, "pipelines.p.schedule",
                      "found watch, cron"),
    "a bad interval": (pipeline('schedule = { watch = "5" }\n'), 4, "pipelines.p.schedule.watch", "is not a duration"),
    "a bad cron": (pipeline('schedule = { cron = "61 * * * *" }\n'), 4, "pipelines.p.schedule.cron", "not a cron schedule"),
    "a cron of no day": (pipeline('schedule = { cron = "0 0 30 2 *" }\n'), 4, "pipelines.p.schedule.cron", "not a cron schedule"),
    "a cron with seconds": (pipeline('schedule = { cron = "0 5 * * * *" }\n'), 4, "pipelines.p.schedule.cron", "found 6 fields"),
    "a zone of no cron": (pipeline('schedule = { watch = "10s", timeZone = "Europe/Berlin" }\n'), 4, "pipelines.p.schedule",
                          "timeZone is only for cron"),
    "a bad zone": (pipeline('schedule = { cron = "1 * * * *", timeZone = "Mars" }\n'), 4, "pipelines.p.schedule.timeZone",
                   "not a time zone"),
    "no attempts": (pipeline("retry.attempts = 0\n"), 4, "pipelines.p.retry.attempts", "greater than or equal to 1"),
    "a bad wait": (pipeline('retry.first = "soon"\n'), 4, "pipelines.p.retry.first", "is not a duration"),
    "a bad drain": (f"drain = 5\n{pipeline()}", 1, "drain", "found 5"),
    "a name that is none": ('[pipelines."a b"]\nsource.path = "in"\nsink.path = "o"\n', 1, 'pipelines."a b"', "not a name"),
    "a variable that is not set": (pipeline(source=', settle = "${NOT_SET_AT_ALL}"'), 2, "pipelines.p.source.settle",
                                   "${NOT_SET_AT_ALL:-text}"),
    "a file that is not there": (pipeline(source=', settle = "${file:no}"'), 2, "pipelines.p.source.settle", "no"),
    "a file that holds nothing": (pipeline(source=', settle = "${file:/dev/null}"'), 2, "pipelines.p.source.settle", "the file is empty"),
    "no reference": (pipeline(source=', settle = "${a b}"'), 2, "pipelines.p.source.settle", "is not a reference"),
    "an output in the input": ('[pipelines.p]\nsource.path = "in"\nsink.path = "in/out"\n', 1, "pipelines.p", "lies in SRC"),
    "a name that would break a line": ('[pipelines."a\\nb"]\nsource.path = "in"\nsink.path = "o"\n', 1, 'pipelines."a\\nb"', "not a name"),
    "a name that is nothing": ('[pipelines.""]\nsource.path = "in"\nsink.path = "o"\n', 1, 'pipelines.""', "not a name"),
    "a path with NUL": ('[pipelines.p]\nsource.path = "in"\nsink.path = "o\\u0000"\n', 1, "pipelines.p", "is no path"),
    "one of several paths of another type": (
        '[pipelines.p]\nsource.path = ["in", 3]\nsink.path = "o"\n', 2, "pipelines.p.source.path.1", "found 3"),
    "a table that is a text": ('[pipelines.p]\nsource.path = "in"\nsink = "o"\n', 3, "pipelines.p.sink", "valid table, found 'o'"),
    "an option that is a time": (pipeline(source=", startingFrom = 2026-01-01"), 2, "pipelines.p.source.startingFrom",
                                 "expected a valid string or a valid integer or a valid number or a valid boolean, found datetime.date("),
    "a bound that is none": (f'hungAfter = "0s"\n{pipeline()}', 1, "hungAfter", "a time above 0"),
    "a wait that is none": (pipeline('retry.first = "0s"\n'), 4, "pipelines.p.retry.first", "a time above 0"),
    "waits that shrink": (pipeline('retry = { first = "9s", most = "3s" }\n'), 4, "pipelines.p.retry", "is longer than most='3s'"),
    "a wait that Python cannot wait": (pipeline('retry.most = "200000d"\n'), 4, "pipelines.p.retry.most", "at most 3650d"),
    "a stop that never ends": (f'drain = "999999999999d"\n{pipeline()}', 1, "drain", "at most 3650d"),
    "an interval of ages": (pipeline('schedule = { watch = "99999999999d" }\n'), 4, "pipelines.p.schedule.watch", "at most 3650d"),
    "a master that is none": (f'[spark]\nmaster = "lokal"\n{pipeline()}', 2, "spark.master", "not one of Spark's"),
    "a setting that is not of Spark": (f'[spark.config]\n"driver.memory" = "2g"\n{pipeline()}', 2, 'spark.config."driver.memory"',
                                       "did you mean 'spark.driver.memory'?"),
    "a list as a setting": (f'[spark.config]\nspark.jars = ["a.jar"]\n{pipeline()}', 2, 'spark.config."spark.jars"', "valid string"),
    "a reference without an end": (pipeline('checkpoint = "${HOME"\n'), 4, "pipelines.p.checkpoint", "has no } after it"),
    "a reference in a reference": (pipeline('checkpoint = "${A:-${B:-c}}"\n'), 4, "pipelines.p.checkpoint", "has no } after it"),
    "what lies too deep": ("a" + ".a" * 3000 + " = 1\n", 1, "", "too deep"),
    "a list that lies too deep": ("a = " + "[" * 3000 + "]" * 3000 + "\n", 1, "", "too deep"),
    "a zone that is a path": (pipeline('schedule = { cron = "1 * * * *", timeZone = "../../etc/passwd" }\n'), 4,
                              "pipelines.p.schedule.timeZone", "not a time zone"),
    "a cron of six hours": (pipeline('schedule = { cron = "*/0 * * * *" }\n'), 4, "pipelines.p.schedule.cron", "not a cron schedule"),
    "no name in Spark": (pipeline(sink=', queryName = ""'), 3, "pipelines.p.sink.queryName", "is empty"),
    "a key below a long value": (pipeline('retry = { attempts = 3 }\ntransform = """\na\n"""\nschedul = "once"\n'), 8,
                                 "pipelines.p.schedul", "unknown key"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", list(MISTAKES))
def test_every_mistake_is_told_with_its_line_and_key(place: Path, mistake: str) -> None:
    """For every mistake, the report has its line, the key and what was expected; and nothing is planned."""
    text, line, key, words = MISTAKES[mistake]
    wrong = problems(place, text)
    assert [(at, name) for at, name, _ in wrong if words in _] == [(line, key)], wrong
    with pytest.raises(PipelinesError, match=r"p\.toml"):
        plans.plan("p.toml")
    assert sorted(path.name for path in place.iterdir()) == ["in", "p.toml"]


def test_what_only_can_be_read_is_written_as_something_else(place: Path) -> None:
    """The advice of the message that `sink.format` is needed works."""
    assert problems(place, pipeline(source=', format = "binary"', sink=', format = "parquet"')) == []


def test_options_that_mean_nothing_alone_are_right_beside_others(place: Path) -> None:
    """Each option is looked at by itself to find the one to blame: one that another gives its meaning is not."""
    source = ', badRecords = "quarantine", maxBadRecords = 5, follow = true, closeAfter = "1m"'
    sink = ', bucketBy = "d={time:%Y}", timeZone = "Asia/Tokyo", partitionReady = "event", partitionReadyDelay = "1h"'
    assert problems(place, pipeline(source=source, sink=sink)) == []


def test_all_mistakes_are_told_at_once(place: Path, penstock: Callable[..., Said]) -> None:
    """Several mistakes of several pipelines are several lines, in file order; --json lists them one by one; the exit status is 2."""
    text = (
        f'{GOOD}retry.attempts = 0\n[pipelines.b]\nsource.path = "in"\nsink.path = "o"\nsink.rollRows = "x"\nnot = 1\n'
    )
    (place / "p.toml").write_text(text)
    said = penstock("check", "p.toml", "--json")
    assert said.status == 2
    assert [problem["line"] for problem in said.facts["problems"]] == [7, 12]
    (place / "p.toml").write_text(text.replace("retry.attempts = 0\n", "").replace("not = 1\n", ""))
    said = penstock("check", "p.toml")
    assert (said.status, said.out.splitlines()[0]) == (2, "logs: in -> out, watch every 2s")
    assert f"{place}/p.toml:10: pipelines.b.sink.rollRows: rollRows='x' is not a count" in said.out


@follows("PST-800")
def test_a_file_with_mistakes_starts_nothing_and_says_how_to_go_on(place: Path, penstock: Callable[..., Said]) -> None:
    """`run` refuses a file and reports all its mistakes; once each is mended, `check` reports nothing more."""
    (place / "p.toml").write_text(pipeline("one = 1\ntwo = 2\nthree = 3\nfour = 4\n"))
    said = penstock("run", "p.toml")
    assert (said.status, said.err.count("unknown key")) == (2, 4)
    assert not (place / "out").exists()
    (place / "p.toml").write_text(pipeline())
    assert penstock("check", "p.toml").status == 0


def test_what_is_outside_is_no_mistake(place: Path, penstock: Callable[..., Said]) -> None:
    """`check` reports an input that does not exist yet, with status 1; the file can still be run."""
    (place / "p.toml").write_text(GOOD.replace('"in"', '"not-yet"'))
    said = penstock("check", "p.toml", "--json")
    assert (said.status, said.facts["problems"][0]["outside"]) == (1, True)
    assert list(plans.plan("p.toml").pipelines) == ["logs"]


def test_the_file_of_the_documents_is_right(place: Path) -> None:
    """The file on the documentation page about pipelines has no mistake, and uses every table that exists."""
    [block] = blocks(DOCS / "run.md", "toml")
    for name in ("logs", "events"):
        (place / "data" / name).mkdir(parents=True)
    assert problems(place, block.text.replace("/data/", f"{place}/data/")) == []
    tables = model.json_schema()["$defs"]["PipelineTable"]["properties"]
    page = (DOCS / "run.md").read_text(encoding="utf-8")
    assert all(f"`{name}" in page for name in tables)


def test_two_pipelines_with_one_checkpoint(place: Path) -> None:
    """Two pipelines into one output would be one query with two inputs: refused, unless one has a checkpoint of its own."""
    twin = '[pipelines.twin]\nsource.path = "in"\nsink.path = "./x/../out/"\n'
    assert problems(place, GOOD + twin)[0][:2] == (9, "pipelines.twin.sink")
    assert problems(place, f'{GOOD}{twin}checkpoint = "apart"\n') == []


@pytest.mark.parametrize(("first", "second"), [("out", "./out/deep/er"), ("out/deep/er", "in/../out")])
def test_an_output_within_another(place: Path, first: str, second: str) -> None:
    """Readers of the outer output would see the rows of both, and `verify` would call them doubled: refused, in either order."""
    other = '[pipelines.q]\nsource.path = "in"\nsink.path = "out"\n'
    [(line, key, message)] = problems(
        place, (pipeline() + other.replace('"out"', f'"{second}"')).replace('"out"', f'"{first}"')
    )
    assert (line, key) == (6, "pipelines.q.sink")
    assert "readers of the outer one would see the rows of both" in message
    assert problems(place, pipeline() + other.replace('"out"', '"out-2"')) == []


@pytest.mark.parametrize("turn", [1, -1])
@pytest.mark.parametrize("path", ['"in"', '["in/a*", "in/b"]', '"in/*/c"'])
def test_a_checkpoint_within_the_input_of_another(place: Path, path: str, turn: int) -> None:
    """The files that Spark writes into a checkpoint would be read as records, whichever pipeline comes first."""
    (place / "in" / "b").mkdir()
    one = f'[pipelines.one]\nsource.path = {path}\nsink.path = "out-one"\n'
    two = '[pipelines.two]\nsource.path = "other"\nsink.path = "out-two"\ncheckpoint = "in/b/c/d"\n'
    (place / "other").mkdir()
    [(line, key, message)] = problems(place, "".join([one, two][::turn]))
    if turn == 1:
        assert (line, key) == (7, "pipelines.two.checkpoint")
        assert "lies in the input of pipeline 'one'" in message
    else:
        assert (line, key) == (6, "pipelines.one.source")
        assert "the checkpoint of pipeline 'two' lies in it" in message


@pytest.mark.parametrize("name", ["in/_checkpoint", "in/b/.checkpoint/x", "in/z", "inside"])
def test_a_checkpoint_that_no_other_reads(place: Path, name: str) -> None:
    """A checkpoint may be in a hidden directory or one outside every input path; and a pipeline may read an output whose state holds it."""
    (place / "in" / "b").mkdir()
    (place / "other").mkdir()
    one = '[pipelines.one]\nsource.path = ["in/a*", "in/b"]\nsink.path = "out-one"\n'
    two = f'[pipelines.two]\nsource.path = "other"\nsink.path = "out-two"\ncheckpoint = "{name}"\n'
    (place / "out-two").mkdir()
    three = '[pipelines.three]\nsource.path = "out-two"\nsink.path = "out-three"\n'
    assert problems(place, one + two + three) == []


@pytest.mark.parametrize(("first", "last"), [("a", "a"), ("*", "a"), ("a/x=1", "a")])
def test_pipelines_that_go_round(place: Path, first: str, last: str) -> None:
    """If a pipeline reads what others made from its own output, every record would go round for ever; a chain is not a cycle."""
    names = [("one", first, "b"), ("two", "b", "c/c"), ("three", "c", last), ("beside", "c", "d")]
    for name in ("a/x=1", "b", "c", "d"):
        (place / "round" / name).mkdir(parents=True)
    text = [f'[pipelines.{name}]\nsource.path = "round/{src}"\nsink.path = "round/{dst}"\n' for name, src, dst in names]
    if first == "*":  # reads what it wrote itself
        text[0] = text[0].replace("round/*", "round/[a]")
    [(line, key, message)] = problems(place, "".join(text))
    assert (line, key) == (2, "pipelines.one.source")
    assert "what it reads is made of what it writes, by 'two', 'three': each record would go round for ever" in message
    assert problems(place, "".join([text[0], *text[2:]])) == []


def test_settings_of_spark_as_toml_has_them(place: Path) -> None:
    """TOML reads an unquoted dotted key as nested tables: it is the same Spark setting, and numbers and booleans become text."""
    (place / "p.toml").write_text(
        f'[spark.config]\nspark.driver.memory = "2g"\n"spark.ui.enabled" = true\nspark.sql.shuffle.partitions = 8\n{GOOD}'.replace(
            'drain = "5s"\n', ""
        )
    )
    config = plans.plan("p.toml").config
    assert config == {"spark.driver.memory": "2g", "spark.ui.enabled": "true", "spark.sql.shuffle.partitions": "8"}


def test_a_directory_is_all_its_files(place: Path) -> None:
    """The pipelines of all *.toml files of a directory run together; hidden and other files are ignored; names are unique across files."""
    (place / "d").mkdir()
    (place / "d" / ".hidden.toml").write_text("nonsense")
    (place / "d" / "notes.txt").write_text("nonsense")
    (place / "d" / "a.toml").write_text(GOOD)
    (place / "d" / "b.toml").write_text(GOOD.replace("logs", "more").replace('"out"', '"out2"').replace('"5s"', '"9s"'))
    plan = plans.plan("d")
    assert (sorted(plan.pipelines), plan.drain, len(plan.files)) == (["logs", "more"], 9.0, 2)
    (place / "d" / "c.toml").write_text(GOOD.replace('"out"', '"out3"'))
    with pytest.raises(PipelinesError, match=r"c\.toml:3: pipelines\.logs: .*a\.toml has a pipeline of this name"):
        plans.plan("d")
    with pytest.raises(PipelinesError, match=r"has no file \*\.toml"):
        plans.plan("in")
    with pytest.raises(PipelinesError, match="penstock init DIR"):
        plans.plan("nowhere.toml")


def test_two_files_have_one_spark(place: Path) -> None:
    """Spark settings that differ between two files are refused: all pipelines run in one session."""
    (place / "d").mkdir()
    for name, master in (("a", "local[1]"), ("b", "local[2]")):
        session = f'[spark]\nmaster = "{master}"\nconfig = {{ "spark.driver.memory" = "{name}" }}\n'
        text = GOOD.replace("logs", name).replace('"out"', f'"{name}"')
        (place / "d" / f"{name}.toml").write_text(text + session)
    with pytest.raises(PipelinesError, match="all pipelines run in one Spark") as raised:
        plans.plan("d")
    assert 'b.toml:9: spark.config."spark.driver.memory"' in raised.value.message


def test_references(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`${NAME}`, `${NAME:-text}`, `${file:PATH}` and `$${` are replaced in any string of a file, and nothing else is."""
    (place / "token").write_text("s3cr3t-token\n")
    (place / "windows").write_bytes(b"\xef\xbb\xbfpass-word\r\n")
    monkeypatch.setenv("WHERE", "in")
    monkeypatch.setenv("EMPTY", "")
    secrets = Secrets()
    given = {
        "a": "${WHERE}/x",
        "b": ["${NONE:-}", "$${WHERE}", 3],
        "c": "${file:token}",
        "d": "a$b{c}$",
        "e": "${NONE:-a:b}",
        "f": "${EMPTY:-as in a shell}${EMPTY}",
        "g": "${file:windows}",
    }
    expected = {"a": "in/x", "b": ["", "${WHERE}", 3], "c": "s3cr3t-token", "d": "a$b{c}$", "e": "a:b"}
    expected |= {"f": "as in a shell", "g": "pass-word"}
    assert resolved(given, secrets) == (expected, [])
    assert secrets.masked("it is s3cr3t-token!") == "it is ***!"


def test_a_file_of_another_editor(place: Path) -> None:
    """A file that begins with a UTF-8 mark, or has Windows line ends, means the same; lines of mistakes are counted the same way."""
    for content in (b"\xef\xbb\xbf" + GOOD.encode(), GOOD.replace("\n", "\r\n").encode()):
        (place / "p.toml").write_bytes(content)
        assert list(plans.plan("p.toml").pipelines) == ["logs"]
        (place / "p.toml").write_bytes(content + b"nonsense = 1\n")
        _, [wrong] = plans.looked_at("p.toml")
        assert (wrong.line, wrong.key) == (7, "pipelines.logs.nonsense")
    (place / "p.toml").write_bytes(GOOD.encode("utf-16"))
    with pytest.raises(PipelinesError, match="save it as UTF-8"):
        plans.plan("p.toml")


def test_what_is_no_file_in_a_directory_of_files(place: Path) -> None:
    """A directory, a pipe and a dangling link that have the name of a pipeline file are reported, and none of them blocks the command."""
    (place / "d" / "a.toml").mkdir(parents=True)
    os.mkfifo(place / "d" / "b.toml")
    (place / "d" / "c.toml").symlink_to("nowhere")
    (place / "d" / "e.toml").write_text(GOOD)
    _, wrong = plans.looked_at("d")
    assert [problem.file.rpartition("/")[2] for problem in wrong] == ["a.toml", "b.toml", "c.toml"]
    assert all("give it another one" in problem.message for problem in wrong[:2])


def test_two_pipelines_that_would_stop_each_other(place: Path) -> None:
    """Two pipelines with one sinkId in one directory, however its path is written, and two with one Spark name, are refused."""
    first = pipeline('checkpoint = "c1"\n', sink=', sinkId = "s"')
    second = first.replace(".p]", ".q]").replace("c1", "c2").replace('"out"', '"./in/../out/"')
    assert "one would fence the other" in problems(place, first + second)[0][2]
    assert problems(place, first + second.replace('"s"', '"t"')) == []
    named = pipeline(sink=', queryName = "q"') + pipeline(sink="").replace(".p]", ".q]").replace('"out"', '"out2"')
    assert "Spark runs one query of a name" in problems(place, named)[0][2]


@pytest.mark.parametrize(
    "secret", ['pa"ss\\word', "pässwörd", "a b\tc", "key-line-one\nkey-line-two", "100%/+secret", "\x1b[31mred"]
)
def test_secrets_are_masked_in_every_form(secret: str) -> None:
    """A secret is masked in every message and log, in every form: plain, escaped, quoted, in JSON, or split over lines."""
    secrets = Secrets({secret})
    record = logging.LogRecord("penstock.run", logging.WARNING, "", 0, "%s", (f"found {secret!r}, or {secret}",), None)
    texts = [secret, repr(secret), json.dumps({"a": secret}), quote(secret, safe=""), " ".join(secret.split())]
    texts += [formatter.format(record) for formatter in (JsonLines(), PlainLines())]
    for text in texts:
        masked = secrets.masked(text)
        assert "***" in masked, text
        assert not any(
            part in masked for part in ("word", "wörd", "w\\u00f6rd", "line-one", "line-two", "secret", "b\tc", "red")
        ), text


def test_secrets_are_told_by_no_message(place: Path) -> None:
    """A value that came from a file is in no message, even if the option is refused and its value would be shown."""
    (place / "token").write_text("s3cr3t-token")
    [(_, _, message)] = problems(place, pipeline(source=', settle = "${file:token}"'))
    assert "s3cr3t" not in message
    assert "***" in message


def test_a_plan_is_that_of_the_file(place: Path) -> None:
    """Paths, options, schedule and retries of a file are those of the ingest; numbers and flags become option strings."""
    [planned] = _planned(place, GOOD)
    assert planned.request.sink == {"rollRows": "3", "growing": "false", "format": "text"}
    assert (planned.schedule.watch, planned.schedule.once, planned.retrying.attempts) == ("2s", False, None)
    several = GOOD.replace('path = "in"', 'path = ["in", "in/a.txt"]').replace('schedule = { watch = "2s" }\n', "")
    [planned] = _planned(place, several)
    assert json.loads(planned.request.source["paths"]) == ["in/a.txt"]
    assert (planned.schedule.once, planned.retrying.attempts) == (True, 5)


def _planned(place: Path, text: str) -> list[plans.Planned]:
    (place / "p.toml").write_text(text)
    return list(plans.plan("p.toml").pipelines.values())


def test_waits_grow_to_their_bound() -> None:
    """Waits double from the first to the longest; a pipeline with a limit of attempts is given up after the last one."""
    waits = plans.Retrying(1.0, 10.0, 6)
    assert [waits.wait(failures) for failures in range(1, 7)] == [1.0, 2.0, 4.0, 8.0, 10.0, None]
    assert plans.Retrying(1.0, 10.0).wait(10_000) == 10.0


def test_lines_of_keys() -> None:
    """Keys of dotted names, inline tables, lists and multi-line strings are at the line where their statement begins."""
    text = '# a\n[a]\nb = 1\nc.d = { e = [\n 1,\n 2 ] }\n\n[[f]]\ng = """\n[x]\n"""\n[h."i.j"]\nk = 1 # [l]\n'
    at = toml.lines(text)
    assert {toml.dotted(key): line for key, line in at.items() if len(key) > 1 and key[-1] != "d"} == {
        "a.b": 3, "a.c": 4, "a.c.d.e": 4, "a.c.d.e.0": 4, "a.c.d.e.1": 4, "f.0": 8, "f.0.g": 9, 'h."i.j"': 12, 'h."i.j".k': 13,
    }  # fmt: skip
    assert toml.line_of(at, ("a", "missing")) == 2
    assert toml.line_of(at, ("missing",)) == 1


def test_the_schema_for_editors_has_every_option(penstock: Callable[..., Said]) -> None:
    """The JSON schema matches the types: every option of source and sink, with its meaning and default, and nothing else."""
    schema = penstock("check", "--schema", "--json").facts
    assert schema == model.json_schema()
    assert schema["title"] == "Pipelines of penstock run"
    for name, table in (("SourceTable", SOURCE), ("SinkTable", SINK)):
        properties = schema["$defs"][name]["properties"]
        assert set(properties) == {option.name for option in table} | ({"schema"} if name == "SourceTable" else set())
        assert all("description" in described for described in properties.values())


def test_a_first_file_of_a_look_at_a_directory(place: Path, penstock: Callable[..., Said]) -> None:
    """`init` writes a file that `check` accepts, with the format and columns of the files found; it never replaces a file."""
    (place / "ev ents").mkdir()
    (place / "ev ents" / "a.json").write_text('{"id": 1, "t": "2026-01-01T00:00:00Z", "${x}": "y"}\n')
    said = penstock("init", "ev ents", "--file", "p.toml", "--json")
    assert (said.status, said.facts["file"]) == (0, str(place / "p.toml"))
    [planned] = plans.plan("p.toml").pipelines.values()
    assert planned.name == "ev-ents"
    assert planned.request.source["format"] == "json"
    assert "id bigint" in planned.request.source["schema"]
    assert "${x}" in planned.request.source["schema"]
    before = (place / "p.toml").read_text()
    again = penstock("init", "ev ents", "--file", "p.toml")
    assert (again.status, (place / "p.toml").read_text()) == (2, before)
    assert penstock("init", "in", "--file", "-").out.startswith("# penstock check")
    assert penstock("init", "nowhere").status == 2
    (place / "nothing").mkdir()
    draft = penstock("init", "nothing", "--file", "-").out
    assert '# There is no file yet: say what they will be, such as format = "json" and a schema.' in draft
    (place / "p2.toml").write_text(draft)
    assert plans.plan("p2.toml").pipelines["nothing"].request.source["format"] == "text"


@pytest.mark.slow
def test_a_look_takes_no_spark_and_little_time(place: Path) -> None:
    """`check` of a thousand pipelines neither imports PySpark nor starts Java, and most of its second is Python's start-up."""
    text = "".join(
        GOOD.replace('drain = "5s"\n', "").replace("logs", f"p{n}").replace('"out"', f'"out{n}"') for n in range(1000)
    )
    (place / "p.toml").write_text(text)
    code = (
        "import sys, time; from penstock.cli.run import plan; begin = time.process_time(); plan.plan('p.toml'); "
        "print(time.process_time() - begin, 'pyspark' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    seconds, spark = ended.stdout.split()
    assert spark == "False"
    assert float(seconds) < 8  # measured: 1.5; quadratic growth would give 60
