"""`penstock replan`: a batch that was planned but never committed is planned anew; one that may be committed is not. Without Spark."""

from __future__ import annotations

import gzip
import json
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.errors import BadFile, BadRecord, DamagedState, FileChanged, OptionError
from penstock.query import driver
from penstock.query.checkpoint import Checkpoint
from penstock.source import sides
from penstock.storage import LocalStorage
from tests.support.follows import follows

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import Pipeline, Said

DEAD = f"{socket.gethostname()}:999999999:1:q"  # no process has this number
JSON = {"format": "json"}
IDS = '{"fields":[{"metadata":{},"name":"id","nullable":true,"type":"long"}],"type":"struct"}'


@pytest.fixture
def query(pipeline: Callable[..., Pipeline]) -> Pipeline:
    """Return a query that has committed one batch, and whose second batch met a bad record."""
    made = pipeline(source=JSON, schema=IDS, owner=DEAD, sink_options={"format": "json"})
    made.put("a.json", '{"id": 1}')
    made.run(finish=False)
    made.put("b.json", '{"id": 2}')
    made.put("c.json", '{"id": 3}', "{")
    with pytest.raises(BadRecord):
        made.run(finish=False)
    return made


def ids(query: Pipeline) -> list[int]:
    """Return the ids in the output, sorted."""
    query.sink().finish()
    lines = [line for path in query.dst.glob("*.json") for line in path.read_text().splitlines()]
    return sorted(json.loads(line)["id"] for line in lines)


@follows("PST-203")
def test_batch_that_failed_is_planned_anew(penstock: Callable[..., Said], query: Pipeline) -> None:
    """After the file was mended and the batch replanned, the batch has the mended file; without that it would fail for ever."""
    query.put("c.json", '{"id": 3}', '{"id": 4}')
    for _ in range(2):
        with pytest.raises(FileChanged, match="penstock replan CHECKPOINT DST"):
            query.run()
    before = (query.checkpoint / "offsets/1").read_bytes()
    facts = penstock("replan", query.checkpoint, query.dst, "--json").facts
    assert (facts["batch"], facts["files"], facts["given_up"]) == (1, 2, [])
    assert Path(facts["kept"]).read_bytes() == before
    query.run()
    assert ids(query) == [1, 2, 3, 4]
    said = penstock("replan", query.checkpoint, query.dst)
    assert (said.status, said.out) == (0, "every batch that was planned is committed: nothing to plan again\n")


def test_file_that_is_gone_is_left_away(penstock: Callable[..., Said], query: Pipeline) -> None:
    """A bad file that was removed is not read any more."""
    (query.src / "c.json").unlink()
    with pytest.raises(FileChanged, match="is gone; put the planned version back.*or leave it away"):
        query.run()
    said = penstock("replan", query.checkpoint, query.dst)
    assert "batch 1 (2 files) is planned again" in said.out
    query.run()
    assert ids(query) == [1, 2]


def test_a_plan_that_another_source_has_removed(
    penstock: Callable[..., Said], pipeline: Callable[..., Pipeline], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HZ-21: two sources had one stateLocation. As the error says, the batch is planned anew, and has all its rows, once."""
    monkeypatch.setattr(sides, "INLINE_BYTES", 10)
    source = {**JSON, "stateLocation": str(tmp_path / "plans")}
    query = pipeline(source=source, schema=IDS, owner=DEAD, sink_options={"format": "json"})
    query.put("a.json", '{"id": 1}')
    query.run(finish=False)
    query.put("b.json", '{"id": 2}', "{")
    with pytest.raises(BadRecord):
        query.run(finish=False)
    query.put("b.json", '{"id": 2}')
    for plan in (tmp_path / "plans").rglob("plan-*"):
        plan.unlink()
    with pytest.raises(DamagedState, match=r"stateLocation of its own.*penstock replan CHECKPOINT DST"):
        query.run()
    assert "batch 1 (1 file) is planned again" in penstock("replan", query.checkpoint, query.dst).out
    query.run()
    assert ids(query) == [1, 2]


def test_batch_that_the_ledger_has_is_left_alone(penstock: Callable[..., Said], query: Pipeline) -> None:
    """Spark has not noted the batch but the ledger has it: nothing is planned anew, whatever the user says."""
    query.put("c.json", '{"id": 3}')
    penstock("replan", query.checkpoint, query.dst)
    query.run(finish=False)
    (query.checkpoint / "commits/1").unlink()
    for word in ([], ["--nothing-written"], ["--nothing-written", "--give-up-rest"]):
        said = penstock("replan", query.checkpoint, query.dst, *word)
        assert said.status == 2
        assert "[PST-100] batch 1" in said.err
        assert "is committed" in said.err
    assert Checkpoint(str(query.checkpoint)).numbers("offsets") == [0, 1]


def test_batch_that_was_committed_while_its_query_was_waited_for(
    penstock: Callable[..., Said], query: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The query commits its batch in flight, and ends, while the command waits for that; the plan of the committed batch was removed."""
    planned = os.stat(query.src / "c.json").st_mtime_ns
    lives = iter([True, False])

    def ends(_: str) -> bool:
        if goes_on := next(lives):
            (query.src / "c.json").write_text('{"id": 3}\n \n')
            os.utime(query.src / "c.json", ns=(planned, planned))
            query.run(finish=False)
        return goes_on

    monkeypatch.setattr(driver, "lives", ends)
    said = penstock("replan", query.checkpoint, query.dst)
    assert (said.status, said.out) == (0, "every batch that was planned is committed: nothing to plan again\n")
    assert Checkpoint(str(query.checkpoint)).numbers("offsets") == [0, 1]
    assert ids(query) == [1, 2, 3]


def test_where_the_output_is_has_to_be_known(penstock: Callable[..., Said], query: Pipeline, tmp_path: Path) -> None:
    """Without DST, or with a DST that has no batch of the query, it is unknown what was written: the user has to say."""
    (tmp_path / "other").mkdir()
    other = query.__class__(tmp_path / "other", owner=DEAD, query="other")
    other.put("x", "1")
    other.run()
    for place in ([], [other.dst]):
        said = penstock("replan", query.checkpoint, *place)
        assert said.status == 2
        assert "rows could then be there twice" in said.err
        assert "--nothing-written" in said.err
    assert Checkpoint(str(query.checkpoint)).numbers("offsets") == [0, 1]
    assert penstock("replan", query.checkpoint, "--nothing-written").status == 0
    query.put("c.json", '{"id": 3}')
    query.run()
    assert ids(query) == [1, 2, 3]


def test_checkpoint_of_an_ingest_says_where_its_output_is(penstock: Callable[..., Said], query: Pipeline) -> None:
    """If the checkpoint of an ingest is inside its output, DST is not needed."""
    usual = query.dst / "_penstock/checkpoint"
    query.checkpoint.rename(usual)
    assert "batch 1" in penstock("replan", usual).out


@pytest.mark.usefixtures("nobody_is_ending")
def test_query_that_runs_is_left_alone(penstock: Callable[..., Said], query: Pipeline) -> None:
    """The application of the sink is alive and may be in the batch; so may be one on a host that cannot be checked."""
    query.put("c.json", '{"id": 3}')
    for owner, status, words in (
        (driver.owner("q", None), 1, "[PST-504]"),
        ("elsewhere:1:1:q", 2, "on the host 'elsewhere'"),
    ):
        query.owner = owner
        query.sink().begin(owner, None)
        said = penstock("replan", query.checkpoint, query.dst)
        assert said.status == status
        assert words in said.err
        assert Checkpoint(str(query.checkpoint)).numbers("offsets") == [0, 1]
    assert penstock("replan", query.checkpoint, query.dst, "--nothing-written").status == 0


def test_first_batch(penstock: Callable[..., Said], pipeline: Callable[..., Pipeline]) -> None:
    """A first batch that failed is planned anew; its sink is found by the query's id."""
    query = pipeline(source=JSON, schema=IDS, owner=DEAD, sink_options={"format": "json"})
    query.put("a.json", "{")
    with pytest.raises(BadRecord):
        query.run()
    query.put("a.json", '{"id": 1}')
    query.sink().begin(DEAD, None)
    said = penstock("replan", query.checkpoint, query.dst)
    assert said.status == 0, said.err
    query.run()
    assert ids(query) == [1]


def test_what_is_no_checkpoint(penstock: Callable[..., Said], query: Pipeline, tmp_path: Path) -> None:
    """A path that is not a checkpoint, or does not exist, is refused by name; so is a DST that is not an output."""
    for place in (tmp_path, tmp_path / "nowhere", query.dst):
        said = penstock("replan", place)
        assert (said.status, f"{str(place)!r} is no checkpoint" in said.err) == (2, True)
    assert "is no output of Penstock" in penstock("replan", query.checkpoint, tmp_path).err


def test_entry_is_kept_before_it_goes(
    penstock: Callable[..., Said], query: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after any step, the command completes when it is run again; the old plan is kept exactly once."""
    steps = ["make_directory", "put_if_absent", "delete", "delete"]
    for step in range(len(steps)):
        left = step

        def stops(name: str) -> Callable[..., None]:
            does = getattr(LocalStorage, name)

            def call(self: LocalStorage, *arguments: object) -> None:
                nonlocal left
                if left == 0:
                    raise KeyboardInterrupt
                left -= 1
                does(self, *arguments)

            return call

        with monkeypatch.context() as patch:
            for name in set(steps):
                patch.setattr(LocalStorage, name, stops(name))
            assert penstock("replan", query.checkpoint, query.dst).status == 130
    assert penstock("replan", query.checkpoint, query.dst).status == 0
    assert len(os.listdir(query.checkpoint / "penstock")) == 1
    query.put("c.json", '{"id": 3}')
    query.run()
    assert ids(query) == [1, 2, 3]


def test_mistake_can_be_taken_back(penstock: Callable[..., Said], query: Pipeline) -> None:
    """If the old plan is put back, it is the batch again."""
    facts = penstock("replan", query.checkpoint, query.dst, "--json").facts
    os.rename(facts["kept"], query.checkpoint / "offsets/1")
    with pytest.raises(BadRecord):
        query.run()


@pytest.mark.slow
@pytest.mark.parametrize("failed", [True, False])
@pytest.mark.parametrize("change", ["rewritten", "gone"])
@follows("PST-203")
def test_rest_is_given_up(
    penstock: Callable[..., Said], pipeline: Callable[..., Pipeline], change: str, failed: bool
) -> None:
    """A file that shrank differs from its first byte on, or is gone: with the user's permission the present file is read as a new one."""
    query = pipeline(
        source=JSON | {"maxBytesPerTrigger": "20"}, schema=IDS, owner=DEAD, sink_options={"format": "json"}
    )
    query.put("a.json", *(f'{{"id": {i}}}' for i in range(10, 15)), "{" if failed else '{"id": 15}')
    query.put("b.json", '{"id": 1}')
    for _ in range(2):
        query.run(finish=False)
    if failed:
        with pytest.raises(BadRecord):
            query.run(finish=False)
    done = ids(query)
    assert done == [10, 11, 12, 13]
    path = query.src / "a.json"
    path.unlink()
    if change == "rewritten":
        path.write_text('{"id": 21}\n{"id": 22}\n')
        os.utime(path, ns=((now := query.sink().storage.now_ns() - 30 * 10**9), now))
    if failed:
        assert penstock("replan", query.checkpoint, query.dst).status == 0
    with pytest.raises(FileChanged, match="--give-up-rest"):
        query.run()
    said = penstock("replan", query.checkpoint, query.dst, "--give-up-rest")
    assert said.status == 0, said.err
    assert "given up: 'a.json' from byte" in said.out
    for _ in range(4):
        query.run()
    assert ids(query) == sorted([*done, *([21, 22] if change == "rewritten" else []), 1])
    said = penstock("replan", query.checkpoint, query.dst, "--give-up-rest")
    assert "no file of the checkpoint" in said.err


def start_again(query: Pipeline, **options: str) -> None:
    """Continue the query with other options of its source."""
    done = query.batch, query.offset
    query.source = {"maxBytesPerTrigger": "4"} | options
    query.__post_init__()
    query.batch, query.offset = done


@pytest.mark.slow
@pytest.mark.parametrize("remedy", ["as they were", "given up"])
@follows("PST-101")
def test_rest_by_other_options(penstock: Callable[..., Said], pipeline: Callable[..., Pipeline], remedy: str) -> None:
    """`OptionError`: another separator moves the start of a file's rest. With the old options, or the rest given up, it continues."""
    query = pipeline(source={"maxBytesPerTrigger": "4"}, owner=DEAD)
    query.put("a.txt", "1,2", "3,4", "5,6")
    query.run(finish=False)
    start_again(query, lineSep=",")
    with pytest.raises(OptionError, match="set format, encoding, lineSep and blockSize as they were.*--give-up-rest"):
        query.run(finish=False)
    if remedy == "as they were":
        start_again(query)
    else:
        said = penstock("replan", query.checkpoint, query.dst, "--give-up-rest")
        assert said.status == 0, said.err
    for _ in range(6):
        query.run(finish=False)
    query.sink().finish()
    text = "".join(path.read_text() for path in sorted(query.dst.glob("*.txt")))
    assert text == ("1,2\n3,4\n5,6\n" if remedy == "as they were" else "1,2\n1\n2\n3\n4\n5\n6\n\n")


@follows("PST-202")
def test_corrupt_file_is_mended(penstock: Callable[..., Said], pipeline: Callable[..., Pipeline]) -> None:
    """The advice of PST-202 works: the corrupt .gz is replaced, and the batch replanned."""
    query = pipeline(source=JSON, schema=IDS, owner=DEAD, sink_options={"format": "json"})
    query.put("a.json", '{"id": 1}')
    query.run(finish=False)
    good = gzip.compress(b'{"id": 2}\n')
    path = query.put("b.json.gz", "")
    path.write_bytes(good[:-9])
    os.utime(path, (1000, 1 + os.stat(query.src / "a.json").st_mtime))
    with pytest.raises(BadFile, match="penstock replan CHECKPOINT DST"):
        query.run(finish=False)
    path.write_bytes(good)
    os.utime(path, (1000, 2 + os.stat(query.src / "a.json").st_mtime))
    assert penstock("replan", query.checkpoint, query.dst).status == 0
    query.run()
    assert ids(query) == [1, 2]
