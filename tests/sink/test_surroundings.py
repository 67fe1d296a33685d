"""What is done to an output from outside while a query runs: told as what it is, with a way on that works."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from penstock.errors import DamagedState, PublishConflict, StorageError
from penstock.sink.sink import Batch
from tests.support.output import QUERY, Output

if TYPE_CHECKING:
    from pathlib import Path


def test_a_directory_that_is_removed_or_put_back_in_mid_batch_is_no_rival(output: Output, tmp_path: Path) -> None:
    """It was told as `Fenced`, by a driver '', with the advice to start again; put back as it was the query goes on."""
    sink, copy, kept = output.sink(rollBatches="1"), tmp_path / "copy", tmp_path / "kept"
    output.batch(sink, 0, {0: ["a"]})
    begun = sink.begin("d1", Batch(QUERY, 1))
    results = output.write(sink, begun, 1, {0: ["b"]})
    output.root.rename(kept)
    with pytest.raises(DamagedState, match="is gone, which this driver has gone on from.*put it back as it was and start again"):
        sink.commit(Batch(QUERY, 1), results)
    with pytest.raises(DamagedState, match="is gone"):
        output.write(sink, begun, 1, {0: ["b"]})
    shutil.copytree(kept, copy)
    for record in (copy / "_penstock/s/ledger").iterdir():
        if not record.name.startswith("000000000001"):
            record.unlink()
    shutil.rmtree(copy / "_penstock/s/staging")
    copy.rename(output.root)
    with pytest.raises(DamagedState, match="ends with record 1, which"):
        output.write(sink, begun, 1, {0: ["b"]})
    shutil.rmtree(output.root)
    kept.rename(output.root)
    output.batch(output.sink(), 1, {0: ["b"]}, owner="d2", final=True)
    assert output.lines() == ["a", "b"]


@pytest.mark.parametrize("bucket", ["{b}", "{b}/below"])
def test_a_file_where_a_bucket_has_to_be_is_named_and_moved_away(output: Output, bucket: str) -> None:
    """It was "Not a directory" for a directory below; moved away, what was committed is published."""
    output.schema = pa.schema([("value", pa.string()), ("b", pa.string())])
    sink = output.sink(bucketBy=bucket, dropBucketColumns="true")
    output.root.mkdir()
    (output.root / "x").write_text("a file")
    with pytest.raises(StorageError, match="/x' is a file, expected a directory; move it away"):
        output.batch(sink, 0, {0: ["1|x"]}, final=True)
    (output.root / "x").unlink()
    output.batch(sink, 0, {0: ["1|x"]}, final=True)
    assert output.lines() == ["1"]


@pytest.mark.parametrize(
    ("kind", "says"),
    [("file", "/out' is a file, expected a directory; move it away"), ("link", "a symbolic link that leads nowhere")],
)
def test_an_output_that_is_no_directory_is_told_as_what_it_is(output: Output, kind: str, says: str) -> None:
    """A file, or a link whose target is not mounted, in the place of the output; mended, the query begins."""
    if kind == "file":
        output.root.write_text("a file")
    else:
        output.root.symlink_to("nowhere")
    with pytest.raises(StorageError, match=says):
        output.batch(output.sink(), 0, {0: ["1"]})
    output.root.unlink()
    output.batch(output.sink(), 0, {0: ["1"]}, final=True)
    assert output.lines() == ["1"]


def test_a_link_in_place_of_a_growing_file_is_not_written_through(output: Output, tmp_path: Path) -> None:
    """What it leads to is not touched, the message names the link, and the file put back is gone on with."""
    sink = output.sink(growing="true", fileName="all.log")
    output.batch(sink, 0, {0: ["1"]})
    file, away = output.root / "all.log", tmp_path / "away"
    file.rename(away)
    file.symlink_to(away)
    with pytest.raises(PublishConflict, match=r"all.log'.*and no link to it: put it back as it was"):
        output.batch(sink, 1, {0: ["2"]})
    assert away.read_text() == "1\n"
    os.replace(away, file)
    output.batch(sink, 1, {0: ["2"]})
    assert output.visible() == {"all.log": "1\n2\n"}
