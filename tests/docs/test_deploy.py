"""The examples of Penstock as a service: the tool for each accepts it, and its commands are valid commands of ours.

`make test-deploy` installs hadolint and kubernetes-validate, and gives their place in PENSTOCK_LINTERS; without them the tests check the
same files with the tools that are installed.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock.cli.app import app
from penstock.cli.run.toml import values
from penstock.units import parse_duration
from tests.docs.markdown import REPOSITORY

DEPLOY = REPOSITORY / "examples" / "deploy"
ENDING_SECONDS = 15  # after `drain`, docs/run.md


def tool(name: str) -> str:
    """Return the path of a tool; skip if it is missing."""
    path = shutil.which(name, path=os.pathsep.join([os.environ.get("PENSTOCK_LINTERS", ""), os.environ["PATH"]]))
    if path is None:
        pytest.skip(f"{name} is not on this machine (make test-deploy installs it, but for systemd)")
    return path


def text(name: str) -> str:
    return (DEPLOY / name).read_text(encoding="utf-8")


def manifests() -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml")
    return list(yaml.safe_load_all(text("kubernetes.yaml")))


def deployment() -> dict[str, Any]:
    spec: dict[str, Any] = next(each for each in manifests() if each["kind"] == "Deployment")["spec"]["template"][
        "spec"
    ]
    return spec


def commands() -> dict[str, list[str]]:
    """Return the arguments of penstock in each file."""
    [start] = re.findall(r"^ExecStart=\S+/penstock (.+)$", text("penstock.service"), re.MULTILINE)
    [cmd] = re.findall(r"^CMD \[(.+)\]$", text("Dockerfile"), re.MULTILINE)
    return {
        "penstock.service": shlex.split(start),
        "Dockerfile": [word.strip().strip('"') for word in cmd.split(",")],
        "kubernetes.yaml": deployment()["containers"][0]["args"],
    }


@pytest.mark.parametrize("name", ["penstock.service", "Dockerfile", "kubernetes.yaml"])
def test_its_command_is_one_of_ours(name: str) -> None:
    """`penstock run` has each flag; an unknown one would end a service at every start."""
    arguments = commands()[name]
    assert arguments[0] == "run"
    said = CliRunner().invoke(app, ["run", "--help"], env={"COLUMNS": "200"}).stdout
    for flag in filter(lambda word: word.startswith("--"), arguments):
        assert flag in said, flag


@pytest.mark.parametrize("name", ["pipelines.toml", "kubernetes.yaml"])
def test_its_pipelines_are_well(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`penstock check` finds nothing wrong with the file of pipelines, once its input is there."""
    given = text(name) if name.endswith("toml") else manifests()[0]["data"]["pipelines.toml"]
    (tmp_path / "in").mkdir()
    monkeypatch.setenv("PENSTOCK_IN", str(tmp_path / "in"))
    monkeypatch.setenv("PENSTOCK_OUT", str(tmp_path / "out"))
    (tmp_path / "pipelines.toml").write_text(given.replace("/data/", f"{tmp_path}/"))
    result = CliRunner().invoke(app, ["check", str(tmp_path / "pipelines.toml")])
    assert result.exit_code == 0, result.stdout


def test_who_stops_it_waits_for_it() -> None:
    """A stop gives the command the time of `drain` and of its end; otherwise it would be killed during each drain."""
    drains = [values(given)["drain"] for given in (text("pipelines.toml"), manifests()[0]["data"]["pipelines.toml"])]
    least = max(parse_duration(drain, name="drain") for drain in drains) + ENDING_SECONDS
    [unit] = re.findall(r"^TimeoutStopSec=(\d+)$", text("penstock.service"), re.MULTILINE)
    [image] = re.findall(r"--stop-timeout (\d+)", text("Dockerfile"))
    assert min(int(unit), int(image), deployment()["terminationGracePeriodSeconds"]) >= least


def test_probes_ask_for_what_is_answered() -> None:
    """The probes use the paths and the port on which the command answers; the image has a health check for itself."""
    container = deployment()["containers"][0]
    metrics = container["args"][container["args"].index("--metrics") + 1]
    assert container["ports"] == [{"name": "metrics", "containerPort": int(metrics.rpartition(":")[2])}]
    probes = {name: container[f"{name}Probe"]["httpGet"] for name in ("liveness", "readiness", "startup")}
    assert {name: probe["path"] for name, probe in probes.items()} == {
        "liveness": "/health", "readiness": "/ready", "startup": "/ready",
    }  # fmt: skip
    assert {probe["port"] for probe in probes.values()} == {"metrics"}
    assert "http://127.0.0.1:9108/health" in text("Dockerfile")


def test_there_is_never_a_second_one() -> None:
    """There is one pod, and the old one ends before the new one starts: two would fence each other."""
    spec = next(each for each in manifests() if each["kind"] == "Deployment")["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    """systemd's own checker reports nothing, with this environment's command in place of the one in /opt."""
    penstock = tmp_path / "penstock"  # its own path may have a blank, which a unit has to quote
    penstock.symlink_to(Path(sys.executable).with_name("penstock"))
    unit = tmp_path / "penstock.service"
    unit.write_text(text("penstock.service").replace("/opt/penstock/bin/penstock", str(penstock)))
    ended = subprocess.run(
        [tool("systemd-analyze"), "verify", "--man=no", str(unit)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    ours = [line for line in ended.stderr.splitlines() if "penstock" in line]
    assert ours == []


def test_hadolint_takes_the_image() -> None:
    """hadolint finds nothing in the Dockerfile except what a comment there explains."""
    ended = subprocess.run(
        [tool("hadolint"), str(DEPLOY / "Dockerfile")], capture_output=True, text=True, check=False, timeout=60
    )
    assert (ended.returncode, ended.stdout) == (0, "")


def test_kubernetes_takes_the_manifest() -> None:
    """Each object fits the schema of Kubernetes' own API, without unknown fields."""
    ended = subprocess.run(
        [tool("kubernetes-validate"), "--strict", str(DEPLOY / "kubernetes.yaml")],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
