"""Who else on the machine can read unpublished data, or interfere with it."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import unique
from penstock.errors import StorageError
from penstock.storage import HostFact, LocalStorage, cache_directory
from tests.support.output import Output


@pytest.fixture(params=[0o022, 0o002, 0o000, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(root: Path) -> dict[str, int]:
    """Return the permissions of everything below a directory, by relative path; `.` is the directory."""
    found = {}
    for folder, _, names in os.walk(root):
        for path in (folder, *(f"{folder}/{name}" for name in names)):
            found[os.path.relpath(path, root)] = stat.S_IMODE(os.stat(path).st_mode)
    return found


def test_staged_rows_are_the_owners_and_finished_ones_everybodys(tmp_path: Path, output: Output, umask: int) -> None:
    """Whatever the umask: state is 0600 in 0700, and everything that readers need follows the umask.

    This includes a new output directory: it and its parents were once closed to all others, like the staging directory.
    """
    output.root = tmp_path / "new" / "out"
    sink = output.sink(rollBatches="2", fileName="f{seq}")
    for batch in range(3):
        output.batch(sink, batch, {0: ["row"]})
    found = modes(tmp_path / "new")
    staged = {path for path in found if path.startswith("out/_penstock/s/staging/")}
    records = {path for path in found if re.search(r"/ledger/\d|/options-", path)}
    assert staged
    assert records
    assert {found[path] for path in staged | records} == {0o600}
    state = "out/_penstock/s"
    assert {found.pop(path) for path in (state, f"{state}/staging", f"{state}/ledger")} == {0o700}
    assert found["out/f0.txt"] == 0o666 & ~umask
    folders = {path for path in found if (tmp_path / "new" / path).is_dir()}
    assert {found[path] for path in folders} == {0o777 & ~umask}


def test_names_of_temporaries_cannot_be_guessed() -> None:
    """The names of staged files and temporaries have 128 random bits, so that nobody can create them first."""
    tokens = {unique.token() for _ in range(1_000)}
    assert len(tokens) == 1_000
    assert all(re.fullmatch(r"[0-9a-f]{32}", token) for token in tokens)


def test_records_are_put_by_private_temporaries(tmp_path: Path, umask: int) -> None:
    """A record is readable only by its owner from its first byte on, and leaves no temporary file."""
    LocalStorage().put_if_absent(f"{tmp_path}/record", b"x")
    assert modes(tmp_path)["record"] == 0o600
    assert os.listdir(tmp_path) == ["record"]


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the host's temporary directory."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_facts_are_the_owners(temporary: Path, umask: int) -> None:
    """The notes between driver and keeper, which hold the sink's options, are 0600 in 0700."""
    with HostFact("a").locked() as fact:
        fact["busy"] = True
    found = modes(temporary / f"penstock-{os.getuid()}")
    assert found == {".": 0o700, "a.json": 0o600}


@pytest.mark.parametrize("how", ["open", "link", "file"])
def test_a_directory_that_is_not_ours_is_not_used(temporary: Path, elsewhere: Path, how: str) -> None:
    """Anyone can create a name in the temporary directory before us: a link, or a directory that others can write to, is refused."""
    ours = temporary / f"penstock-{os.getuid()}"
    if how == "open":
        ours.mkdir()
        ours.chmod(0o777)  # whatever the umask
        (ours / "a.json").symlink_to(elsewhere / "secret.txt")
    elif how == "link":
        elsewhere.chmod(0o755)
        ours.symlink_to(elsewhere)
    else:
        ours.touch()
    with pytest.raises(StorageError, match="set TMPDIR"), HostFact("a").locked() as fact:
        fact["busy"] = True
    with pytest.raises(StorageError, match="set TMPDIR"):
        HostFact.all()
    assert (elsewhere / "secret.txt").read_text() == "secret\n"


def test_a_link_in_place_of_a_fact_is_not_followed(temporary: Path, elsewhere: Path) -> None:
    """A link under the name of a note is refused, and its target is not emptied."""
    ours = temporary / f"penstock-{os.getuid()}"
    ours.mkdir(0o700)
    (ours / "a.json").symlink_to(elsewhere / "secret.txt")
    with pytest.raises(OSError, match="symbolic links"), HostFact("a").locked():
        pass
    assert (elsewhere / "secret.txt").read_text() == "secret\n"


def test_the_cache_is_the_owners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, umask: int) -> None:
    """The directory of the class-data archive, which the JVM maps and runs, is closed to other users."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert stat.S_IMODE(os.stat(cache_directory()).st_mode) == 0o700
