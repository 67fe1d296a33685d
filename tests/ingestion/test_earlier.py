"""An input that was ingested before is known by whatever path it is named, and also when its checkpoint is lost. Without Spark."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.support.advice import Lines, penstock
from tests.support.follows import follows

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def ingested(tmp_path: Path) -> Lines:
    """Return an input of two files that was ingested into an output."""
    lines = Lines(tmp_path)
    lines.put("a.txt", "1", "2")
    lines.put("b.txt", "3")
    assert penstock("ingest", lines.src, lines.dst, "--sink-option", "sinkId=s")[0] == 0
    return lines


@pytest.mark.parametrize("named", ["in", "./in/", "link", "file", "glob", "one file", "renamed"])
def test_lost_checkpoint_is_noticed_whatever_the_input_is_called(ingested: Lines, named: str) -> None:
    """DST's own checkpoint is lost: the input is refused by every name, as a part of it, and when its directory was renamed."""
    shutil.rmtree(ingested.dst / "_penstock/checkpoint")
    names = {
        "in": f"{ingested.src}",
        "./in/": f"{ingested.root}/./in/",
        "link": f"{ingested.root}/link",
        "file": f"file://{ingested.src}",
        "glob": f"{ingested.src}/*.txt",
        "one file": f"{ingested.src}/a.txt",
        "renamed": f"{ingested.root}/renamed",
    }
    (ingested.root / "link").symlink_to(ingested.src)
    if named == "renamed":
        ingested.src.rename(names[named])
    status, said = penstock("ingest", names[named], ingested.dst, "--sink-option", "sinkId=s")
    assert (status, "would be there twice" in said) == (1, True), said
    assert ingested.is_whole()


@pytest.mark.parametrize("named", ["link", "file"])
def test_other_checkpoint_is_noticed_by_the_directory_not_by_its_name(ingested: Lines, named: str) -> None:
    """Under a checkpoint of its own the same directory is refused as well, through a link and as a URL."""
    (ingested.root / "link").symlink_to(ingested.src)
    name = f"{ingested.root}/link" if named == "link" else f"file://{ingested.src}"
    status, said = penstock("ingest", name, ingested.dst, "--checkpoint", ingested.root / "other")
    assert (status, "would be there twice" in said) == (1, True), said
    assert ingested.is_whole()


@follows("PST-302")
def test_input_that_is_another_one_is_taken(ingested: Lines) -> None:
    """The checkpoint is lost, and SRC is another directory, still beside the first: nothing would be doubled, and it is taken.

    If the first one is gone, the other one could be the first one renamed: it is refused until it has a separate checkpoint, as the
    message says.
    """
    others = [ingested.root / "other", ingested.root / "third"]
    for place, line in zip(others, ["4", "5"], strict=True):
        place.mkdir()
        (place / "a.txt").write_text(f"{line}\n")
        os.utime(place / "a.txt", (1e9, 1e9))
    shutil.rmtree(ingested.dst / "_penstock/checkpoint")
    assert penstock("ingest", others[0], ingested.dst)[0] == 0
    shutil.rmtree(ingested.src)
    shutil.rmtree(ingested.dst / "_penstock/checkpoint")
    shutil.rmtree(others[0])
    status, said = penstock("ingest", others[1], ingested.dst)
    assert (status, "a separate checkpoint" in said) == (1, True), said
    assert penstock("ingest", others[1], ingested.dst, "--checkpoint", ingested.root / "checkpoint")[0] == 0
    assert ingested.lines() == Counter(["1", "2", "3", "4", "5"])


def test_checkpoint_without_its_metadata_is_a_new_one(ingested: Lines) -> None:
    """F8: only the file with the query's id is lost, so the query would begin anew: it is refused, and put back it goes on."""
    metadata = ingested.dst / "_penstock/checkpoint/metadata"
    kept = metadata.read_bytes()
    metadata.unlink()
    ingested.put("c.txt", "4")
    status, said = penstock("ingest", ingested.src, ingested.dst, "--sink-option", "sinkId=s")
    assert (status, "would be there twice" in said) == (1, True), said
    metadata.write_bytes(kept)
    assert penstock("ingest", ingested.src, ingested.dst, "--sink-option", "sinkId=s")[0] == 0
    assert ingested.is_whole()
