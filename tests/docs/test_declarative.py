"""The example of Spark's Declarative Pipelines: run, run again, and run with a full refresh."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import polars as pl
import pytest

from tests.docs.markdown import REPOSITORY
from tests.support.wait import PATIENCE_SECONDS, wait_for

pytest.importorskip("yaml", reason="spark-pipelines needs PyYAML (pip install 'pyspark[pipelines]')")

EXAMPLE = REPOSITORY / "examples" / "declarative"
PLACE = "/tmp/penstock-declarative"  # noqa: S108 - the name that stands in the example, and is not used here

# Spark waits at most ten seconds for a Python worker, which is little on a busy machine. A run that is begun anew for this reason
# also tests a restart.
_NOT_HEARD_OF = "Python worker failed to connect back"
_TRIES = 5


def land(place: Path, name: str, *numbers: int) -> None:
    (place / "in").mkdir(exist_ok=True)
    lines = [json.dumps({"id": number, "day": f"d{number % 3}"}) + "\n" for number in numbers]
    (place / "in" / name).write_text("".join(lines))


def run(project: Path, *arguments: str) -> None:
    program = Path(sys.executable).with_name("spark-pipelines")
    settings = ("spark.sql.catalogImplementation=hive", "spark.ui.enabled=false")
    command = [str(program), "run", *(part for setting in settings for part in ("--conf", setting)), *arguments]
    environment = os.environ | {"PATH": f"{program.parent}:{os.environ['PATH']}", "PYSPARK_PYTHON": sys.executable}
    for _ in range(_TRIES):
        done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)
        if done.returncode == 0 or _NOT_HEARD_OF not in done.stdout + done.stderr:
            break
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


def rows(files: list[Path]) -> Counter[int]:
    return Counter(number for path in files for number in pl.read_parquet(path)["id"].to_list())


@pytest.mark.spark
@pytest.mark.soak  # three JVMs one after another: more than a minute
@pytest.mark.timeout(4 * PATIENCE_SECONDS)
def test_a_declarative_pipeline_runs_again_and_anew(tmp_path: Path) -> None:
    """Each input record is once in Spark's table and once in our files: after one run, after another, and after a full refresh."""
    project, out = tmp_path / "project", tmp_path / "out"
    shutil.copytree(EXAMPLE, project)
    spec = project / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace(PLACE, str(tmp_path)))

    def both_have(*numbers: int) -> None:
        expected = Counter(numbers)
        wait_for(lambda: rows(list(out.glob("*/*.parquet"))) == expected, "finished files")
        assert rows(list((project / "spark-warehouse/events").glob("*.parquet"))) == expected

    land(tmp_path, "a.json", 1, 2, 3)
    run(project)
    both_have(1, 2, 3)
    land(tmp_path, "b.json", 4)
    run(project)
    both_have(1, 2, 3, 4)
    shutil.rmtree(out)  # as the recipe says, because Spark cannot empty a sink
    run(project, "--full-refresh-all")
    both_have(1, 2, 3, 4)
