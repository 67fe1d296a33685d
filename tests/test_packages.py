"""The packages that are released: built, installed where there is nothing of the repository, and run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.support.stage import Stage

REPOSITORY = Path(__file__).parent.parent

pytestmark = pytest.mark.slow

IMPORT_ALL = """
import importlib, pathlib, pkgutil, sys, penstock
names = [module.name for module in pkgutil.walk_packages(penstock.__path__, "penstock.")]
for name in names:
    if not name.endswith("__main__"):
        importlib.import_module(name)
print(len(names), pathlib.Path(penstock.__file__).is_relative_to(sys.prefix))
"""


def built(source: Path, target: Path, form: str) -> Path:
    """Build a package of the tree at `source`, by what the lock has for that."""
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(target), "--target", form]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (package,) = target.iterdir()
    return package


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Return the sdist, the tree that is in it, and the wheel that is built of that tree."""
    root = tmp_path_factory.mktemp("packages")
    sdist = built(REPOSITORY, root / "sdist", "sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(root / "tree", filter="data")
    (tree,) = (root / "tree").iterdir()
    return sdist, tree, built(tree, root / "wheel", "wheel")


def test_source_package_has_what_a_clone_has(packages: tuple[Path, Path, Path]) -> None:
    """Nothing that is versioned is missing but what only a clone needs, and nothing else is there."""
    _, tree, _ = packages
    git = shutil.which("git")
    if git is None or not (REPOSITORY / ".git").exists():
        pytest.skip("this is no clone, or there is no git: what is versioned cannot be told")
    listed = subprocess.run([git, "ls-files"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    there = {str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file()}
    assert set(listed.stdout.splitlines()) - there <= {".gitignore"}
    assert there - set(listed.stdout.splitlines()) <= {"PKG-INFO"}


def test_wheel_has_the_package_alone(packages: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """Built of the source package or of the tree it is the same: our modules and what belongs to them."""
    wheel = packages[2]
    with zipfile.ZipFile(wheel) as archive, zipfile.ZipFile(built(REPOSITORY, tmp_path, "wheel")) as direct:
        contents = {name: archive.read(name) for name in archive.namelist()}
        assert contents == {name: direct.read(name) for name in direct.namelist()}
    tops = {name.partition("/")[0] for name in contents}
    ours = {"penstock", "pyspark_penstock", "pyspark_penstock_db", "pyspark_penstock_kafka", "pyspark_penstock_wal"}
    assert tops == {*ours, wheel.name.removesuffix("-py3-none-any.whl") + ".dist-info"}
    others = {name for name in contents if not name.endswith(".py") and name.startswith("penstock/")}
    assert others == {"penstock/py.typed", "penstock/session/log4j2.properties", "penstock/session/launcher/python3"}


def test_wheel_is_installed_and_runs(packages: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """In an environment that has the dependencies and not the repository each module is imported, and the command works."""
    place = tmp_path / "an environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    (others,) = place.glob("lib/python*/site-packages")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(others)]
    subprocess.run([*pip, str(packages[2])], check=True, capture_output=True)
    # A directory of a .pth file is searched behind those that are there, and its own .pth files (ours) are not read.
    (others / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

    def run(*command: str) -> str:
        ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    count, inside = run(str(place / "bin/python"), "-c", IMPORT_ALL).split()
    assert int(count) > 100
    assert inside == "True"
    stage = Stage(tmp_path)
    stage.put("a.log", "one", "two")
    command = str(place / "bin/python"), "-m", "penstock"
    assert run(*command, "--version").startswith("penstock ")
    assert "would read 1 file, 8 B" in run(*command, "ingest", str(stage.src), str(stage.dst), "--dry-run")
