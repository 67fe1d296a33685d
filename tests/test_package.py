"""What `import penstock` provides, and what it costs."""

from __future__ import annotations

import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from penstock.errors import OptionError
from penstock.ingestion import ingest

if TYPE_CHECKING:
    from collections.abc import Callable


def test_every_public_name_is_there() -> None:
    """Each public name exists, and `dir` lists only those."""
    pytest.importorskip("pyspark")
    assert {"async_map", "ingest", "wal", "windows"} <= set(dir(penstock))
    for name in dir(penstock):
        assert getattr(penstock, name) is not None
    with pytest.raises(AttributeError, match="'penstock' has no attribute 'nothing'"):
        penstock.nothing  # noqa: B018 - it is to fail


@pytest.mark.slow
@pytest.mark.parametrize("module", ["errors", "testing", "wal", "windows"])
def test_modules_need_no_import_of_their_own(module: str) -> None:
    """`penstock.wal.Writer` works after `import penstock`, and none of it is loaded before."""
    code = f"""
import sys, penstock
assert not [name for name in sys.modules if name.startswith(("penstock.", "pyarrow", "pyspark"))]
print(penstock.{module}.__name__)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == f"penstock.{module}\n", done.stderr


GIVEN_BY_US = {
    "Adopted",
    "AsyncFunction",
    "Call",
    "CallFailed",
    "Catalogued",
    "Context",
    "DryRun",
    "Ingested",
    "Late",
    "NotRead",
    "PenstockError",
    "Reset",
    "progress_bar",
}  # users do not call these with parameters
CALLED = [
    (penstock, name) for name in penstock.__all__ if name not in GIVEN_BY_US and callable(getattr(penstock, name))
]
CALLED += [(penstock.wal, name) for name in ("Log", "Manager", "Reader", "Writer")] + [
    (penstock.windows, "WindowStore")
]


@pytest.mark.parametrize(("module", "name"), CALLED, ids=lambda each: getattr(each, "__name__", each))
def test_a_parameter_that_is_misspelt_is_told_by_all_that_is_public(module: Any, name: str) -> None:
    """Everything that users call refuses an unknown parameter before it does anything, and names the nearest one."""
    called = getattr(module, name)
    parameters = list(inspect.signature(called).parameters)
    nearest = parameters[-1]
    with pytest.raises(OptionError) as caught:
        called(**{f"{nearest}s": None})
    assert f"{name}: unknown parameter '{nearest}s'; did you mean '{nearest}'?" in caught.value.message
    with pytest.raises(OptionError) as caught:
        called(zzzzzz=None)
    assert f"{name}: unknown parameter 'zzzzzz'; expected one of {', '.join(parameters)}" in caught.value.message


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda of: of.dry_run("in", {"format": "json"}), "dst is a dict; expected a path"),
        (lambda of: of.dry_run(5, "out"), "src is a int; expected a path"),
        (lambda of: of.dry_run("in", "out", checkpoint=True), "checkpoint is a bool; expected a path"),
        (lambda of: of.dry_run("in", "out", source="json"), "such as source={'format': 'json'}"),
        (lambda of: of.dry_run("in", "out", sink=[("format", "json")]), "sink is a list; expected a dictionary"),
        (lambda of: of.dry_run("in", "out", source={5: "x"}), "source has 5 for the name of an option"),
        (lambda of: of.dry_run("/usr", "/x", source={"lineSep": ["a"]}), "option 'lineSep' is a list; expected a text"),
        (lambda of: of.dry_run("/usr", "/x", source={"Paths": ["/a"]}), "option 'Paths' is a list; expected a text"),
        (lambda of: of.dry_run("/usr", "/x", source={"emit": "published"}), "emit=published is for spark.readStream"),
        (lambda of: of._sources(Counter()), "src is a Counter; expected a path, or a list of them"),
        (lambda of: of._sources(["in", 5]), "each of src is a int; expected a path"),
        (lambda of: of._interval(5), "watch=5; expected True or False, or how often to look for new files"),
    ],
)
def test_what_is_of_another_kind_is_told_by_its_name(call: Callable[[Any], None], told: str) -> None:
    """A value that is no path, no options or no interval is our error, which says what is expected."""
    with pytest.raises(OptionError, match=re.escape(told)):
        call(ingest)


def test_an_option_that_is_none_is_not_given(tmp_path: Path) -> None:
    """`pattern=None` means no pattern, and not a pattern that matches only a file named `None`."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("a\n")
    os.utime(tmp_path / "in" / "a.txt", (1e9, 1e9))
    unset = {"pattern": None, "maxFilesPerTrigger": None, "schema": None}
    done = ingest.dry_run(tmp_path / "in", tmp_path / "out", source=unset, sink={"bucketBy": None, "rollRows": None})
    assert [batch.files for batch in done.batches] == [1]


def test_a_warm_cache_that_is_gone_is_made_anew(tmp_path: Path) -> None:
    """`make warm` after the user's cache was removed makes the archive again; if it cannot be made, that is tried only once."""
    shutil.copy(Path(__file__).parents[1] / "Makefile", tmp_path)
    archive, program = tmp_path / "cache" / "an archive.jsa", tmp_path / ".venv/bin/penstock"
    sources = [f"src/penstock/session/{name}.py" for name in ("archive", "direct")]
    for name in [
        *sources,
        "requirements/build.txt",
        "requirements/dev.txt",
        ".venv/.environment",
        ".venv/bin/penstock",
    ]:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path, (1e9,) * 2)
    os.utime(tmp_path / ".venv/.environment", (1e9 + 1,) * 2)
    (tmp_path / ".venv/bin/python").symlink_to(sys.executable)
    archive.parent.mkdir()

    def made(*, fails: bool = False) -> bool:
        """Tell whether `make` ran the command, which makes the archive or fails."""
        answer = {"ok": False} if fails else {"ok": True, "path": str(archive)}
        done = "exit 1" if fails else f"touch '{archive}'"
        program.write_text(f"#!/bin/sh\ntouch '{tmp_path}/ran'\necho '{json.dumps(answer)}'\n{done}\n")
        program.chmod(0o755)
        subprocess.run([str(shutil.which("make")), ".venv/.warm"], cwd=tmp_path, check=True, capture_output=True)
        ran = (tmp_path / "ran").exists()
        (tmp_path / "ran").unlink(missing_ok=True)
        return ran

    assert made()
    assert not made()
    archive.unlink()
    assert made()
    assert not made()
    archive.unlink()
    assert made(fails=True)
    assert not made(fails=True)


def test_a_warm_cache_is_made_anew_with_what_makes_it(tmp_path: Path) -> None:
    """`make warm` in an updated clone: if the code that makes the cache for fast starts has changed, the cache is made again."""
    shutil.copy(Path(__file__).parents[1] / "Makefile", tmp_path)
    sources = [f"src/penstock/session/{name}.py" for name in ("archive", "direct")]
    for age, names in enumerate(
        [[".venv/.warm"], [".venv/.environment"], [*sources, "requirements/build.txt", "requirements/dev.txt"]]
    ):
        for name in names:
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            os.utime(path, (1e9 - age,) * 2)

    def is_made() -> bool:
        return not subprocess.run(
            [str(shutil.which("make")), "-q", ".venv/.warm"], cwd=tmp_path, check=False
        ).returncode

    assert is_made()
    for source in sources:
        os.utime(tmp_path / source, (1e9 + 1,) * 2)
        assert not is_made()
        os.utime(tmp_path / source, (1e9 - 9,) * 2)
