"""Records set aside in a directory that the user chose, and next to files that grow."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock import clock, failpoints
from penstock.errors import DamagedState, OptionError, PublishConflict, StorageError
from penstock.ingestion.places import check_quarantine
from penstock.sink import quarantine
from penstock.sink.ledger import FinishedFile, Ledger
from penstock.source.where import where_of
from penstock.storage import LocalStorage
from penstock.testing import FakeClock
from tests.cli.test_aside import JSON, held, raw, rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import Pipeline, Said


def told(place: Path) -> list[dict[str, Any]]:
    """Return the lines about what was set aside, from the files of a directory."""
    return [json.loads(line) for file in sorted(place.glob("aside-*")) for line in file.read_bytes().splitlines()]


def elsewhere(pipeline: Callable[..., Pipeline], place: Path) -> Pipeline:
    """Return an ingest of JSON that sets aside in a directory of the user's, claimed in the way `ingest` claims it."""
    where = {"quarantineLocation": str(place)}
    made = pipeline(**JSON | {"sink_options": {"format": "json"} | where})
    made.dst.mkdir()
    quarantine.claim(LocalStorage(), str(place), str(made.dst))
    return made


def test_what_is_set_aside_goes_where_the_user_says(
    pipeline: Callable[..., Pipeline], penstock: Callable[..., Said], tmp_path: Path
) -> None:
    """The lines are in the named directory, and nowhere below the output; `status`, `verify` and `retry` find them there."""
    made = elsewhere(pipeline, place := tmp_path / "for people")
    raw(made, "a.json", b'{"id": 1}\n{"id": 2\n')
    made.run()
    assert [held(line) for line in told(place)] == [b'{"id": 2']
    assert not list(made.dst.glob("_penstock/*/quarantine/*"))
    assert penstock("status", made.dst, "--json").facts["sinks"][0]["aside"]["path"] == str(place)
    said = penstock("verify", made.dst, "--source", made.src)
    assert (said.status, "1 line, 1 file finished" in said.out) == (0, True), said.out
    copy = tmp_path / "mended"
    copy.write_text(json.dumps(told(place)[0] | {"bytes": '{"id": 2}'}) + "\n")
    assert penstock("retry", made.dst, "--mended", copy).status == 0
    assert rows(made.dst) == ['{"id":1}', '{"id":2}']
    assert len(told(place)) == 2
    next(place.glob("aside-*")).unlink()
    said = penstock("verify", made.dst)
    assert (said.status, f"missing: {place}/aside-" in said.out) == (1, True), said.out


def test_another_location_leaves_what_is_there(pipeline: Callable[..., Pipeline], tmp_path: Path) -> None:
    """After a restart with another directory, new lines go there; lines in an earlier one stay, and are still found.

    A file of somebody else that is named as only this sink names files is taken for a sign of a later ledger, and never replaced.
    """
    made = elsewhere(pipeline, first := tmp_path / "first")
    raw(made, "a.json", b"bad\n")
    made.run()
    made.sink_options["quarantineLocation"] = str(second := tmp_path / "second")
    quarantine.claim(LocalStorage(), str(second), str(made.dst))
    theirs = [second / "aside-q-0-1.json", second / "aside-q--1-1.json"]
    for path in theirs:
        path.write_text("of somebody else")
    raw(made, "b.json", b"worse\n")
    with pytest.raises(PublishConflict, match="expected no such file, since its ledger has none"):
        made.run()
    assert [path.read_text() for path in theirs] == ["of somebody else"] * 2
    for path in theirs:
        path.rename(tmp_path / path.name)
    made.run()
    assert [held(line) for line in told(first)] == [b"bad"]
    files = {file.at(str(made.dst)) for file in made.sink().ledger.history()}
    assert {Path(file).parent for file in files} == {first, second}


@pytest.mark.parametrize("point", ["sink.publish.one", "sink.publish.before-note"])
def test_a_crash_before_the_lines_are_there(
    pipeline: Callable[..., Pipeline], penstock: Callable[..., Said], tmp_path: Path, point: str
) -> None:
    """`finish`, which gets no option, moves the files that were decided and not yet moved."""
    made = elsewhere(pipeline, place := tmp_path / "aside")
    made.sink_options["rollBatches"] = "1"
    raw(made, "a.json", b'{"id": 1}\nbad\n')
    failpoints.arm(f"{point}=error")
    with pytest.raises((OSError, StorageError)):
        made.run()
    failpoints.arm("")
    assert penstock("finish", made.dst).status == 0
    assert [held(line) for line in told(place)] == [b"bad"]
    assert penstock("verify", made.dst).status == 0


def test_a_record_alone_leads_nobody_out_of_the_output(pipeline: Callable[..., Pipeline], tmp_path: Path) -> None:
    """If the ledger names a directory that no ingest has claimed, nothing is moved there; after a claim, as the error advises, it is."""
    made = elsewhere(pipeline, tmp_path / "aside")
    raw(made, "a.json", b"bad\n")
    made.run(finish=False)
    sink = made.sink()
    victim = tmp_path / "victim"
    victim.mkdir()
    sink.rules = replace(sink.rules, aside=str(victim))
    with pytest.raises(PublishConflict, match="run the ingest with this quarantineLocation again"):
        sink.finish()
    assert list(victim.iterdir()) == []
    quarantine.claim(LocalStorage(), str(victim), str(made.dst))  # as the error advises
    sink.finish()
    assert [held(line) for line in told(victim)] == [b"bad"]


@pytest.mark.parametrize(
    ("bucket", "place"), [("", "/etc"), ("_penstock/q/quarantine", "/a/../etc"), ("_penstock/q/quarantine", "etc")]
)
def test_a_record_that_names_a_directory_as_none_of_ours_does(tmp_path: Path, bucket: str, place: str) -> None:
    """Files of rows have no directory of their own, and no directory contains `..`: such a record is damaged."""
    ledger = Ledger(LocalStorage(), str(tmp_path), "q")
    file = FinishedFile(f"{bucket}/x".strip("/"), bucket, 1, 1, "0", 0, 0, "staged", place)
    ledger.put(replace(ledger.head(), n=1, finished=(file,)))
    with pytest.raises(DamagedState, match="directory"):
        ledger.read(1)


def test_records_without_a_location_are_what_they_were(pipeline: Callable[..., Pipeline]) -> None:
    """For an output without the option, the ledger has no extra field."""
    made = pipeline(**JSON)
    raw(made, "a.json", b"bad\n")
    made.run()
    assert not [file for file in made.dst.glob("_penstock/q/ledger/0*") if b'"place"' in file.read_bytes()]


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("in/aside", "would be read as input"),
        ("out/aside", "would take it for rows"),
        ("out", "would take it for rows"),
        ("out/_penstock/x", "would take it for rows"),
        ("file", "is a file"),
        ("hdfs://far/aside", "on another storage"),
    ],
)
def test_a_location_that_cannot_be(tmp_path: Path, place: str, words: str) -> None:
    """Refused before Spark starts: an input or a place for rows, a path that is not a directory, and one to which files cannot be moved."""
    for name in ("in", "out"):
        (tmp_path / name).mkdir()
    (tmp_path / "file").touch()
    place = place if "://" in place else str(tmp_path / place)
    with pytest.raises(OptionError, match=words):
        check_quarantine(place, where_of((str(tmp_path / "in"),)), LocalStorage(), str(tmp_path / "out"))


def test_a_location_beside_the_rows_that_readers_leave_out(tmp_path: Path) -> None:
    """A directory in the output is accepted if its name begins with `_`, because readers leave it out."""
    (tmp_path / "in").mkdir()
    place = str(tmp_path / "out" / "_rejected")
    assert check_quarantine(place, where_of((str(tmp_path / "in"),)), LocalStorage(), str(tmp_path / "out")) == place


def test_a_location_on_another_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If files cannot be moved there, the start reports it, and nothing is left behind."""

    def publish(*_: object) -> None:
        msg = "cannot publish: Invalid cross-device link"
        raise StorageError(msg)

    monkeypatch.setattr(LocalStorage, "publish", publish)
    (tmp_path / "out").mkdir()
    with pytest.raises(OptionError, match="cross-device.*same file system"):
        quarantine.claim(LocalStorage(), str(tmp_path / "aside"), str(tmp_path / "out"))
    assert {path.name for path in tmp_path.rglob("*")} == {"out", "aside"}


GROWS = {"format": "json", "growing": "true", "fileName": "all.json"}


def test_what_is_set_aside_beside_a_file_that_grows(
    pipeline: Callable[..., Pipeline], penstock: Callable[..., Said]
) -> None:
    """Good records are in the growing file after each batch; lines about the others are in finished files once those roll."""
    made = pipeline(**JSON | {"sink_options": GROWS})
    for batch in range(3):
        raw(made, f"{batch}.json", b'{"id": %d}\nbad %d\n' % (batch, batch))
        made.run(finish=batch == 2)
        assert rows(made.dst) == [f'{{"id":{number}}}' for number in range(batch + 1)]
        said = penstock("verify", made.dst, "--source", made.src)
        assert said.status == 0, said.out
    lines = told(made.dst / "_penstock" / "q" / "quarantine")
    assert [held(line) for line in lines] == [b"bad 0", b"bad 1", b"bad 2"]
    assert len(list(made.dst.glob("_penstock/q/quarantine/*"))) == 1


@pytest.mark.parametrize("point", ["sink.ledger.after-put", "sink.publish.one", "sink.publish.grow", "sink.forget"])
def test_growing_and_set_aside_by_one_record(
    pipeline: Callable[..., Pipeline], penstock: Callable[..., Said], point: str
) -> None:
    """Stopped between put and note, a batch that grows a file and finishes a quarantine file is completed by the next start."""
    made = pipeline(**JSON | {"sink_options": GROWS})
    raw(made, "a.json", b'{"id": 1}\nbad\n')
    made.run(finish=False)
    (opened,) = made.sink().ledger.head().open
    assert opened.is_aside
    raw(made, "b.json", b'{"id": 2}\nbad\n')
    failpoints.arm(f"{point}=error")
    time_is_up = opened.opened_ns / clock.SECOND_NS + 3600
    with clock.use(FakeClock(time_is_up)):
        with pytest.raises((OSError, StorageError)):
            made.run(finish=point == "sink.publish.one")
        failpoints.arm("")
        made.owner = "another"
        made.run()
    assert rows(made.dst) == ['{"id":1}', '{"id":2}']
    assert len(told(made.dst / "_penstock" / "q" / "quarantine")) == 2
    said = penstock("verify", made.dst, "--source", made.src)
    assert said.status == 0, said.out
