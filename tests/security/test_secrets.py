"""What must not be repeated: passwords in URLs, values of unknown options, the environment."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import OptionError, without_credentials
from penstock.ingestion import stage as stages
from penstock.options import SINK, SOURCE, parse
from penstock.storage import locate
from tests.cli.conftest import TEXT_SCHEMA, Said, penstock
from tests.support.output import Output

__all__ = ["penstock"]  # a fixture
SECRET = "hunter2"  # noqa: S105 - nobody's


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://AKIA123:hunter2@bucket/a", "s3://***@bucket/a"),
        ("s3://AKIA123:hun/ter2@bucket/a@b", "s3://***@bucket/a@b"),
        ("hdfs://user:hunter2@name:8020/a", "hdfs://***@name:8020/a"),
        ("postgresql://u:p@ss@host/db", "postgresql://***@host/db"),
        ("https://token@host", "https://***@host"),
        ("'x://a:b@c' and \"y://d@e\"", "'x://***@c' and \"y://***@e\""),
        ("hdfs://name:8020/a@b", "hdfs://name:8020/a@b"),
        ("file:///home/me@work/x", "file:///home/me@work/x"),
        ("/data/a@b:c", "/data/a@b:c"),
    ],
)
def test_credentials_of_urls_are_left_out(text: str, shown: str) -> None:
    """The text before the @ of a URL's host is replaced; an @ in a path, and a port, stay."""
    assert without_credentials(text) == shown


@pytest.mark.parametrize("name", ["path", "checkpointLocation", "stateLocation", "DST"])
def test_a_refused_url_is_told_without_its_password(name: str) -> None:
    """The error for an unknown file system names the file system, and not the password in the URL."""
    with pytest.raises(OptionError, match=r"s3://\*\*\*@bucket/a") as caught:
        locate(f"s3://AKIA:{SECRET}@bucket/a", name=name)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("table", [SOURCE, SINK], ids=["source", "sink"])
@pytest.mark.parametrize("name", ["password", "encryptionKey", "encryptTo", "url", "fs.s3a.secret.key", "pathh"])
def test_values_of_unknown_options_are_not_told(table: tuple[object, ...], name: str) -> None:
    """An option that nobody knows, or that holds no secret, is refused by its name; its value, which may be one, is not in the message."""
    with pytest.raises(
        OptionError, match=f"unknown option '{name}'|{name}.*(never what it is|not a recipient)"
    ) as caught:
        parse(table, {"path": "/x", name: SECRET}, what="source")  # type: ignore[arg-type]  # - one of the two
    assert SECRET not in str(caught.value)


@pytest.mark.slow
def test_commands_do_not_tell_passwords(
    penstock: Callable[..., Said], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No command prints a password from its arguments or from its environment, not even with a traceback."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("PENSTOCK_DEBUG", "1")
    url = f"s3://AKIA:{SECRET}@bucket/a"
    calls: list[tuple[object, ...]] = [(command, url) for command in ("status", "files", "verify", "finish", "clean")]
    calls += [("ingest", url, tmp_path / "out"), ("ingest", tmp_path, url)]
    calls += [
        ("ingest", tmp_path, tmp_path / "out", flag, f"password={SECRET}")
        for flag in ("--source-option", "--sink-option")
    ]
    for call in calls:
        for as_json in ((), ("--json",)):
            said = penstock(*call, *as_json)
            assert said.status == 2, call
            assert SECRET not in said.out + said.err, call


def test_state_holds_no_password(penstock: Callable[..., Said], output: Output) -> None:
    """With a password in the URLs of the checkpoint and the source, no file of the state holds it, and no command prints it."""
    source = {"path": "/in", "stateLocation": f"hdfs://u:{SECRET}@h/plans"}
    stage = stages.Stage.describe(source, TEXT_SCHEMA, None)
    checkpoint = f"hdfs://u:{SECRET}@h/checkpoint"
    output.table = stages.LIVE_SINK
    sink = output.sink(checkpointLocation=checkpoint, ingest=stage.text, rollBatches="2")
    for batch in range(3):
        output.batch(sink, batch, {0: ["x"]})
    files = [path for path in output.root.rglob("*") if path.is_file()]
    assert len(files) > 4
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []
    for command in ("status", "files", "finish", "clean", "verify"):
        said = penstock(command, output.root, "--json")
        assert said.status == 0
        assert SECRET not in json.dumps(said.facts)
