"""Two ingests of one process into one output, as in a notebook: the second may have other options. Without Spark."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from penstock.ingestion.call import IngestCall
from penstock.ingestion.ingest import carried_out, here
from penstock.sink.existing import noted, sink_ids
from penstock.storage import LocalStorage
from tests.support.advice import penstock

if TYPE_CHECKING:
    from pathlib import Path


class Notebook:
    """A process that ingests a directory of JSON again and again."""

    def __init__(self, root: Path) -> None:
        self.src, self.dst = root / "in", root / "out"
        self.src.mkdir()

    def put(self, name: str, *lines: str) -> None:
        """Write an input file that has settled."""
        path = self.src / name
        path.write_text("".join(f"{line}\n" for line in lines))
        os.utime(path, (1e9 + len(os.listdir(self.src)),) * 2)

    def ingest(self, schema: str, **sink: str) -> None:
        """Run an ingest that takes what is new."""
        source = {"format": "json", "schema": schema, "badRecords": "quarantine"}
        run = here(IngestCall(str(self.src), str(self.dst), source=source, sink=sink))
        assert run is not None
        carried_out(run, None)

    @property
    def state(self) -> str:
        """Return the directory of the sink's state."""
        place = f"{self.dst}/_penstock"
        [sink] = sink_ids(LocalStorage(), place)
        return f"{place}/{sink}"


@pytest.fixture
def notebook(tmp_path: Path) -> Notebook:
    return Notebook(tmp_path)


def test_last_options_are_noted_and_the_same_ones_once(notebook: Notebook) -> None:
    """Each run with other options is a new epoch with its own note; a run with the same options has the note that is there."""
    notebook.put("a.json", '{"id":1}')
    notebook.ingest("id int", format="json")
    for name in ("b.json", "c.json"):
        notebook.put(name, '{"id":2}')
        notebook.ingest("id int", format="csv", header="true")
        assert noted(LocalStorage(), notebook.state).options["header"] == "true"
        assert noted(LocalStorage(), notebook.state).changed >= {"format", "header"}
    assert [name for name in os.listdir(notebook.state) if name.startswith("options-")] == ["options-000000000002.json"]


def test_what_was_set_aside_is_read_by_the_last_schema(notebook: Notebook) -> None:
    """A record that had no place in the first schema is taken in by `retry` after a run with a wider one, and `verify` proves it."""
    notebook.put("a.json", '{"id":1}', '{"id":5000000000}')
    notebook.ingest("id int", format="json")
    notebook.put("b.json", '{"id":2}')
    notebook.ingest("id bigint", format="json")
    status, said = penstock("retry", notebook.dst)
    assert (status, "took in 1 record, 1 row" in said) == (0, True), said
    rows = [json.loads(line)["id"] for path in notebook.dst.glob("*.json") for line in path.read_text().splitlines()]
    assert sorted(rows) == [1, 2, 5_000_000_000]
    status, said = penstock("verify", notebook.dst, "--source", notebook.src)
    assert status == 0, said
