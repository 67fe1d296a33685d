"""Whatever happens to a state file: an error that names it, or exactly the right rows, never others and never fewer."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from itertools import permutations
from pathlib import Path

import pytest

from penstock.cli import state
from penstock.errors import CheckpointMismatch, DamagedState, PenstockError, StorageError
from penstock.sink.existing import noted
from penstock.sink.sink import Batch
from penstock.verify import verify
from tests.support.damage import damages, exchange, put_back, tree, unsynced
from tests.support.effort import effort
from tests.support.output import QUERY, Output
from tests.support.scene import EXPECTED, FORMS, Scene, rows, small


@pytest.fixture
def scene(request: pytest.FixtureRequest, output: Output) -> Iterator[Scene]:
    """Return the scene of a form, ready to be damaged."""
    output.storage = unsynced()
    with small(request.param):
        made = Scene(output, FORMS[request.param])
        made.begin()
        yield made


every_form = pytest.mark.parametrize("scene", FORMS, indirect=True)
one_form = pytest.mark.parametrize("scene", ["bytes"], indirect=True)


@pytest.mark.slow
@every_form
def test_staged_file_that_changed_after_its_commit(scene: Scene) -> None:
    """Any change of the bytes that a record names is `DamagedState`, and no reader sees a wrong row; extra bytes at the end do not count.

    `verify` reports the damage before anybody needs the file. In the larger files, those of tables, every eleventh byte stands
    for all, because only bytes are compared, whatever they mean; in lines, packed or not, it is every byte. The gate takes
    fewer of both.
    """
    root = scene.output.root
    head = scene.sink().ledger.head()
    held = [part.segments for part in head.open] + [growth.segments for growth in head.grown]
    named = {segment.file for some in held for segment in some} | {file.staged for file in head.finished}
    assert {f"_penstock/s/staging/{name}" for name in named} <= tree(root).keys()
    for name in named:
        path = f"_penstock/s/staging/{name}"
        data = (root / path).read_bytes()
        for what, broken in damages(data, every=effort(4, 1) if len(data) < 100 else effort(37, 11)):
            with put_back(root):
                exchange(root / path, broken)
                report = verify(str(root)).output
                error = scene.attempt(scene.sink().finish, path, ends=False)
                assert (type(error) is DamagedState) == bool(report.problems), what
                assert error or "doubled" in what


@pytest.mark.slow
@one_form
def test_every_change_of_a_record(scene: Scene) -> None:
    """F24: a record, a fold or a note of options that was cut, altered or zeroed is `DamagedState` for everyone who reads it.

    Whoever does not need it continues with exactly the right rows; all commands that read the history say what is damaged.
    """
    root, sink = scene.output.root, scene.sink()
    for kind in (
        "ledger/000000000001-000000000002",
        "ledger/000000000003",
        "ledger/000000000004",
        "options-000000000001.json",
    ):
        path, is_needed = f"_penstock/s/{kind}", kind[:-1] == "ledger/00000000000"
        data = (root / path).read_bytes()
        for number, (what, broken) in enumerate(damages(data, every=effort(3, 1))):
            exchange(root / path, broken)
            with pytest.raises(DamagedState, match=Path(path).name):
                pytest.fail(f"{what}: {list(sink.ledger.history()), noted(sink.storage, sink.state)}")
            if number % 41 == 0:
                with put_back(root):
                    for command in (state.files, verify):
                        assert type(scene.attempt(partial(command, str(root)), path)) is DamagedState, what
                    assert (type(scene.attempt(scene.go_on, path)) is DamagedState) == is_needed, what
        (root / path).write_bytes(data)
    scene.go_on()
    assert rows(scene.visible()) == EXPECTED


@pytest.mark.slow
@every_form
def test_state_file_that_is_gone(scene: Scene) -> None:
    """A deleted state file is an error that names it, or all rows are right without it; also if Spark repeats the batch."""
    root = scene.output.root
    found = {}
    for path in scene.state():
        for step in (scene.go_on, scene.repeat):
            with put_back(root):
                (root / path).unlink()
                found[Path(path).name, step.__name__] = type(scene.attempt(step, path))
    assert found["000000000004", "go_on"] is CheckpointMismatch
    assert found["000000000004", "repeat"] is type(None)  # the record is put again, with the rows of the second try


@one_form
def test_directory_in_place_of_a_state_file(scene: Scene) -> None:
    """A directory in place of a state file is damaged state (exit status 3), not a failing storage, unless nobody needs the file."""
    root = scene.output.root
    found = {}
    steps: list[Callable[[], object]] = [
        scene.go_on,
        scene.repeat,
        partial(state.files, str(root)),
        partial(verify, str(root)),
    ]
    for path in scene.state():
        for number, step in enumerate(steps):
            with put_back(root):
                (root / path).unlink()
                (root / path).mkdir()
                found[path, number] = type(scene.attempt(step, path, ends=False))
                if (root / path).is_dir():
                    (root / path).rmdir()
    assert DamagedState in {kind for (path, _), kind in found.items() if "options-" in path}
    assert StorageError not in found.values()


@pytest.mark.slow
@every_form
def test_state_files_that_were_exchanged(scene: Scene) -> None:
    """Two state files that were exchanged, or one that was copied over another, are an error, or all rows are right.

    The gate takes a third of all pairs, a different third for each seed.
    """
    root = scene.output.root
    pairs = list(permutations(scene.state(), 2))
    for one, other in random.sample(pairs, len(pairs) // effort(3, 1)):
        with put_back(root) as files:
            if one < other:
                (root / other).write_bytes(files[one])
            (root / one).write_bytes(files[other])
            scene.attempt(scene.go_on, one, other)
            if not scene.options.get("format"):
                scene.attempt(lambda: state.files(str(root)), one, other, ends=False)


@one_form
def test_last_record_is_lost_after_its_publishing(scene: Scene) -> None:
    """The last record was published and noted, then deleted, and Spark repeats its batch: the note tells, and no row occurs twice.

    1. Batch 2 is put as record 4, its file is published, the note is written; the driver dies before Spark has noted the batch.
    2. Record 4 is deleted. The last record is that of batch 1, so batch 2 would follow it.
    3. Its rows would be written again, under the next free name.
    """
    scene.sink().finish()
    last = scene.sink().ledger.head().n
    before = scene.visible()
    for n in range(4, last + 1):
        (scene.output.root / f"_penstock/s/ledger/{n:012d}").unlink()
    for step in (scene.repeat, scene.go_on, lambda: state.status(str(scene.output.root))):
        error = scene.attempt(step, f"{last:012d}", ends=False)
        assert type(error) is DamagedState
    assert scene.visible() == before


@one_form
def test_older_generations(output: Output, scene: Scene) -> None:
    """S47, S48: if the whole state is replaced by any earlier copy, a checkpoint that has moved on refuses it."""
    generations = []
    root = output.root
    with put_back(root):
        for batch in range(3):
            generations.append({n: d for n, d in tree(root).items() if n.startswith("_penstock")})
            output.batch(scene.sink(), 3 + batch, {0: [f"{batch}"]}, mark=f"m{3 + batch}")
        head = scene.sink().ledger.head()
        for older in generations:
            with put_back(root):
                for name in scene.state():
                    (root / name).unlink()
                for name, data in older.items():
                    (root / name).write_bytes(data)
                before = scene.visible()
                with pytest.raises(CheckpointMismatch, match="put back from an older copy"):
                    scene.sink().begin("d3", Batch(QUERY, 6))
                assert scene.visible().items() >= before.items()
        assert scene.sink().ledger.head() == head


@pytest.mark.parametrize("gone", ["_penstock/s/ledger", "_penstock/s/staging", "_penstock/s", "_penstock"])
@one_form
def test_state_that_is_deleted_whole(scene: Scene, gone: str) -> None:
    """A missing directory of the state is an error; the visible files stay."""
    shutil.rmtree(scene.output.root / gone)
    before = scene.visible()
    with pytest.raises(PenstockError, match=r"has none of it|staged file is there"):
        scene.go_on()
    assert scene.visible() == before
