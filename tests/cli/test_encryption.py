"""Encrypted input and output through the commands: what can be proved with a key, and what is reported without one."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.errors import OptionError
from penstock.verify import verify
from tests.cli.test_aside import SCHEMA
from tests.support.keys import (
    ENCRYPTED,
    OTHER_KEY,
    READER_KEY,
    STAGING_KEY,
    STAGING_VARIABLE,
    encrypted,
    opened,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import Pipeline, Said

KEY = "PENSTOCK_TEST_KEY"
SOURCE = {"format": "json", "badRecords": "quarantine", "decryptionKey": f"env:{KEY}"}


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STAGING_VARIABLE, STAGING_KEY)
    monkeypatch.setenv(KEY, READER_KEY)
    monkeypatch.setenv("OTHER", OTHER_KEY)


@pytest.fixture(params=["json", "parquet", "csv"])
def ingested(request: pytest.FixtureRequest, pipeline: Callable[..., Pipeline]) -> Pipeline:
    """Return an ingest of clear and encrypted files into encrypted ones, with a bad record; a part is open at the end."""
    form = {"format": request.param, "compression": "zstd"} | ({"header": "true"} if request.param == "csv" else {})
    ingest = pipeline(schema=SCHEMA, source=SOURCE, sink_options=form | ENCRYPTED)
    ingest.put("a.json", '{"id": 1, "name": "a"}', "hunter2")
    inner = b'{"id": 2, "name": "b"}\n{"id": 3, "name": "c"}\n'
    put(ingest, "b.json.gz.age", encrypted(gzip.compress(inner)))
    ingest.run()
    ingest.put("c.json", '{"id": 4, "name": "d"}')
    ingest.run(finish=False)
    return ingest


def put(ingest: Pipeline, name: str, data: bytes) -> None:
    """Write an input file of these bytes that has settled."""
    path = ingest.put(name)
    time = path.stat().st_mtime
    path.write_bytes(data)
    os.utime(path, (time, time))


def test_with_the_key_every_record_is_proved(ingested: Pipeline, penstock: Callable[..., Said]) -> None:
    """Encrypted input and output; rows that are finished, waiting, or set aside: each is in the output once."""
    said = penstock("verify", ingested.dst, "--source", ingested.src, "--key", f"env:{KEY}", "--json")
    facts = said.facts
    assert (said.status, facts["ok"]) == (0, True), facts
    assert (facts["source"]["source_records"], facts["source"]["set_aside"]) == (5, 1)
    (sink,) = facts["output"]["sinks"]
    assert (sink["encrypted_files"], sink["locked_files"]) == (2, 0)
    assert "encrypted: 2 files, whole" in penstock("verify", ingested.dst, "--key", f"env:{KEY}").out


def test_without_the_key_it_is_said_what_is_not_known(ingested: Pipeline, penstock: Callable[..., Said]) -> None:
    """The bytes are still compared; the answer says that no content was examined, and does not count records as proved."""
    said = penstock("verify", ingested.dst)
    assert said.status == 0
    assert "encrypted: 2 files; what 2 of them hold is not known: --key" in said.out
    facts = penstock("verify", ingested.dst, "--source", ingested.src, "--json").facts
    assert facts["ok"] is False
    assert "2 files are encrypted" in facts["source"]["reason"]
    assert "--key env:NAME" in facts["source"]["reason"]


def test_with_another_key_files_are_locked(ingested: Pipeline, penstock: Callable[..., Said]) -> None:
    """A key that does not open the files is reported as a problem; a literal key as a parameter is refused, and not shown."""
    facts = penstock("verify", ingested.dst, "--key", "env:OTHER", "--json").facts
    assert {problem["kind"] for problem in facts["output"]["problems"]} == {"locked"}
    assert facts["ok"] is False
    with pytest.raises(OptionError, match="never what it is") as caught:
        verify(str(ingested.dst), key=READER_KEY)
    assert READER_KEY not in str(caught.value)


def test_files_that_are_damaged_or_exchanged(ingested: Pipeline, penstock: Callable[..., Said]) -> None:
    """The digest covers the ciphertext, so damage and exchange are found without a key."""
    (path,) = ingested.dst.glob("*.age")
    good = path.read_bytes()
    path.write_bytes(encrypted(opened(good)))  # the same rows, encrypted for the same reader, by somebody else
    assert {p.kind for p in verify(str(ingested.dst)).output.problems} <= {"altered", "cut"}
    assert not verify(str(ingested.dst)).ok
    path.write_bytes(good)
    assert verify(str(ingested.dst)).ok


@pytest.mark.slow
def test_what_was_set_aside_is_retried_with_the_key(
    ingested: Pipeline, penstock: Callable[..., Said], tmp_path: Path
) -> None:
    """The holder of the key opens and mends the lines, and their rows are encrypted like the others."""
    (lines,) = ingested.dst.glob("_penstock/*/quarantine/*.age")
    line = json.loads(opened(lines.read_bytes()))
    (tmp_path / "mended").write_text(json.dumps(line | {"bytes": '{"id": 9, "name": "mended"}'}) + "\n")
    assert "--key" in penstock("retry", ingested.dst, "--mended", tmp_path / "mended").err
    said = penstock("retry", ingested.dst, "--mended", tmp_path / "mended", "--key", f"env:{KEY}", "--json")
    assert (said.status, said.facts["records"]) == (0, 1), said
    assert penstock("finish", ingested.dst).status == 0
    report = verify(str(ingested.dst), str(ingested.src), key=f"env:{KEY}")
    assert report.ok, report
    assert all(path.suffix == ".age" for path in ingested.dst.glob("*.*"))


def test_no_key_is_in_any_file(ingested: Pipeline) -> None:
    """No key is in the checkpoint, the plan, the ledger, the notes, or the staged files."""
    for path in ingested.dst.rglob("*"):
        data = path.read_bytes() if path.is_file() else b""
        assert not [key for key in (READER_KEY, STAGING_KEY, OTHER_KEY) if key.encode() in data], path
        assert b"hunter2" not in data, path


@pytest.mark.slow
def test_a_host_without_the_staging_key(
    ingested: Pipeline, penstock: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can compare every byte, also of waiting rows; those rows can be proved and published where the key is, and are not lost."""
    monkeypatch.delenv(STAGING_VARIABLE)
    assert penstock("verify", ingested.dst, "--key", f"env:{KEY}").status == 0
    assert penstock("status", ingested.dst).status == 0
    said = penstock("verify", ingested.dst, "--source", ingested.src, "--key", f"env:{KEY}")
    assert said.status == 2
    assert "is encrypted to none of the keys" in said.err
    said = penstock("finish", ingested.dst)
    assert said.status == 2
    assert f"no variable '{STAGING_VARIABLE}'" in said.err
    monkeypatch.setenv(STAGING_VARIABLE, STAGING_KEY)
    assert penstock("finish", ingested.dst).status == 0
    assert verify(str(ingested.dst), str(ingested.src), key=f"env:{KEY}").ok
