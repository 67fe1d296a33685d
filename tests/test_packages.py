"""The released packages: built, installed without the repository, and run."""

from __future__ import annotations

import email
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from penstock.session.extras import NEWER_PYTHON, PACKAGES
from penstock.session.java import JAVA_AT_LEAST
from penstock.session.pythons import PYSPARK_AT_LEAST
from tests.docs.markdown import table
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


# The mark of a place that can only be filled in at a release.
AT_RELEASE = "AT RELEASE"
RELATIVE = re.compile(r"\[[^\]]*\]\((?!https://|#)")


def project() -> dict[str, Any]:
    """Return the content of `pyproject.toml`."""
    tomllib = pytest.importorskip("tomllib")  # Python 3.10 has no tomllib
    return dict(tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")))


def built(source: Path, target: Path, form: str) -> Path:
    """Build a package of the tree at `source`, with the build tools from the lock file."""
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(target), "--target", form]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (package,) = target.iterdir()
    return package


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Return the sdist, the tree that it contains, and the wheel built from that tree."""
    root = tmp_path_factory.mktemp("packages")
    sdist = built(REPOSITORY, root / "sdist", "sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(root / "tree", filter="data")
    (tree,) = (root / "tree").iterdir()
    return sdist, tree, built(tree, root / "wheel", "wheel")


def test_source_package_has_what_a_clone_has(packages: tuple[Path, Path, Path]) -> None:
    """Of the versioned files only those that a clone alone needs are missing, and nothing else is added."""
    _, tree, _ = packages
    git = shutil.which("git")
    if git is None or not (REPOSITORY / ".git").exists():
        pytest.skip("this is no clone, or there is no git: what is versioned cannot be told")
    listed = subprocess.run([git, "ls-files"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    there = {str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file()}
    assert set(listed.stdout.splitlines()) - there <= {".gitignore"}
    assert there - set(listed.stdout.splitlines()) <= {"PKG-INFO"}


def test_wheel_has_the_package_alone(packages: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """The wheel is the same from the source package and from the repository: our modules and their files."""
    wheel = packages[2]
    with zipfile.ZipFile(wheel) as archive, zipfile.ZipFile(built(REPOSITORY, tmp_path, "wheel")) as direct:
        contents = {name: archive.read(name) for name in archive.namelist()}
        assert contents == {name: direct.read(name) for name in direct.namelist()}
    tops = {name.partition("/")[0] for name in contents}
    ours = {path.parent.name for path in (REPOSITORY / "src").glob("*/__init__.py")}
    assert tops == {*ours, wheel.name.removesuffix("-py3-none-any.whl") + ".dist-info"}
    others = {name for name in contents if not name.endswith(".py") and name.startswith("penstock/")}
    page = {"penstock/cli/page/page.css", "penstock/cli/page/page.js"}
    assert others == page | {
        "penstock/py.typed",
        "penstock/session/log4j2.properties",
        "penstock/session/launcher/python3",
    }


def description(wheel: Path) -> str:
    """Return the description that a package index shows for a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        message = email.message_from_bytes(archive.read(metadata))
    assert message["Description-Content-Type"] == "text/markdown"
    payload = message.get_payload(decode=True)
    assert isinstance(payload, bytes)
    return payload.decode()


def test_description_has_no_link_that_leads_nowhere(packages: tuple[Path, Path, Path]) -> None:
    """A package index has none of our files: relative links of the README become plain text there, and nothing else changes."""
    shown = description(packages[2])
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    assert RELATIVE.search(readme)
    assert not RELATIVE.search(shown)
    text = re.sub(r"^!\[.*\]\(.*\)\n\n", "", readme, flags=re.MULTILINE)
    assert shown.strip() == re.sub(r"\[([^\]]*)\]\((?!https://|#)[^)]*\)", r"\1", text).strip()


def test_links_can_lead_to_the_repository() -> None:
    """With the replacement in the checklist each link of the README leads to a file of this version."""
    pictures, links = project()["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]
    replacement = re.search(
        r"replacement = '(\[.*?)' makes", (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    )
    assert replacement is not None
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    text = re.sub(pictures["pattern"], pictures["replacement"], text)
    linked = re.sub(links["pattern"], replacement[1].replace("ADDRESS", "https://example.org/penstock"), text)
    assert not RELATIVE.search(linked)
    paths = re.findall(r"\(https://example.org/penstock/blob/v\$HFPR_VERSION/([^)#]+)", linked)
    assert len(paths) > 20
    assert all((REPOSITORY / path).exists() for path in paths)


def test_checklist_names_each_place_that_a_release_fills_in() -> None:
    """What is only known at a release is marked, and the table of the checklist lists exactly the files with a mark."""
    marked = {
        path.relative_to(REPOSITORY).as_posix()
        for path in REPOSITORY.iterdir()
        if path.is_file() and path.name != "CONTRIBUTING.md" and AT_RELEASE in path.read_text(encoding="utf-8")
    }
    rows = table(REPOSITORY / "CONTRIBUTING.md", "File", "What is filled in")
    assert {row[0].strip("`") for row in rows} == marked | {"CHANGELOG.md", "src/penstock/__init__.py"}


def test_table_of_extras_is_that_of_the_project() -> None:
    """`penstock --version` looks for what pip installs with each extra, and says for which Pythons there is none."""
    extras: dict[str, list[str]] = project()["project"]["optional-dependencies"]
    lines = {name: [line for line in lines if "python_version <" not in line] for name, lines in extras.items()}
    packages = {name: {re.split(r"[><=; ]", line)[0] for line in lines} for name, lines in lines.items()}
    packages["connect"] = {"grpcio", "grpcio-status"}  # what a client needs of what `pyspark[connect]` installs
    assert {name: set(each) for name, each in PACKAGES.items()} == packages
    older = {re.split(r"[><=; ]", line)[0] for each in extras.values() for line in each if "python_version <" in line}
    newer = {
        name
        for name, each in lines.items()
        if any("python_version >= '3.11'" in line and re.split(r"[><=; ]", line)[0] not in older for line in each)
    }
    assert set(NEWER_PYTHON) == newer


def test_versions_page_says_what_the_project_says() -> None:
    """The support table has each Python that the package names, and the versions of PySpark and Java that a start requires."""
    said = project()["project"]
    named = [line.rpartition(" ")[2] for line in said["classifiers"] if re.search(r":: 3\.\d+$", line)]
    page = REPOSITORY / "docs/versions.md"
    assert [row[0] for row in table(page, "Python")] == named
    assert said["requires-python"] == f">={named[0]}"
    spark, _ = said["optional-dependencies"]["spark"]
    least = spark.removeprefix("pyspark>=").partition(",")[0]
    assert [row[0] for row in table(page, "PySpark")][:1] == [least]
    assert least == ".".join(map(str, PYSPARK_AT_LEAST))
    assert [row[0] for row in table(page, "Java")][:1] == [str(JAVA_AT_LEAST)]


@pytest.mark.timeout(900)  # each downloads 150 MB
@pytest.mark.parametrize("number", os.environ.get("PENSTOCK_REQUIRE_PYTHONS", "").split(","))
def test_wheel_runs_on_each_python(packages: tuple[Path, Path, Path], tmp_path: Path, number: str) -> None:
    """With only the locked dependencies it installs on each supported Python, and works without Spark."""
    if not number:
        pytest.skip("it needs a package index; `make pythons` runs it")
    python = python_of(number)
    place = tmp_path / "environment"
    subprocess.run([python, "-m", "venv", str(place)], check=True)
    pip = [str(place / "bin/python"), "-m", "pip", "install", "--quiet", "--only-binary", ":all:"]
    subprocess.run([*pip, "--require-hashes", "--requirement", str(REPOSITORY / "requirements/run.txt")], check=True)
    subprocess.run([*pip, "--no-deps", "--no-index", str(packages[2])], check=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    stage = Stage(tmp_path)
    stage.put("a.log", "one", "two")
    commands = {
        "--version": f"Python {number}.",
        f"ingest {stage.src} {stage.dst} --dry-run": "would read 1 file, 8 B",
        f"schema {stage.src} --format csv": "_c0 string",
    }
    for words, answer in commands.items():
        command = [str(place / "bin/penstock"), *words.split()]
        ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
        assert answer in ended.stdout


def python_of(number: str) -> str:
    """Return the interpreter of a version, from the path or from pyenv."""
    homes = sorted(Path.home().glob(f".pyenv/versions/{number}.*/bin"))
    where = os.pathsep.join([*map(str, homes), os.environ["PATH"]])
    python = shutil.which(f"python{number}", path=where)
    if python is None:
        pytest.fail(
            f"there is no python{number}; name those that are here: make pythons PYTHONS=3.11,3.12", pytrace=False
        )
    return python


def test_wheel_is_installed_and_runs(packages: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """In an environment with the dependencies but without the repository every module can be imported, and the command works."""
    place = tmp_path / "an environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    (others,) = place.glob("lib/python*/site-packages")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(others)]
    subprocess.run([*pip, str(packages[2])], check=True, capture_output=True)
    # The directory in a .pth file is searched after the existing ones, and its own .pth files (ours) are not read.
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
