"""A JVM that is started without Spark's scripts: as they would, and only where they would do nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.session import archive, direct, launch, local, pythons
from tests.support.wait import wait_for

MASTER = "local[*]"


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache of one's own in which the answer is, and an environment in which nothing of Spark's is set."""
    for name in list(os.environ):
        if name.startswith("SPARK_") or name in {"HADOOP_CONF_DIR", "YARN_CONF_DIR", "PYSPARK_SUBMIT_ARGS"}:
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    direct.learn()
    return tmp_path / "penstock"


def settings() -> tuple[dict[str, str], list[str]]:
    """Return those of a session for ingests, and the options of Java in them."""
    ours, options = local._settings(MASTER, rows_in_jvm=False, quiet=True)
    return {"spark.master": MASTER, **ours}, options


def command() -> list[str] | None:
    """Return how the JVM of such a session is started directly."""
    given, options = settings()
    return direct._command(options, given, pythons.pyspark_home() or "")


@pytest.mark.slow
@pytest.mark.usefixtures("plain")
def test_it_is_started_as_by_sparks_scripts(tmp_path: Path) -> None:
    """Spark's own `spark-submit` runs, with a Java that tells its arguments instead of starting Spark: the same words."""
    java = tmp_path / "java/bin/java"
    java.parent.mkdir(parents=True)
    real = archive.java()
    java.write_text(
        f'#!/bin/sh\ncase " $* " in *" org.apache.spark.launcher.Main "*) exec {real} "$@";; esac\n'
        'for word in "$@"; do printf "%s\\0" "$word"; done\n'
    )
    java.chmod(0o755)
    given, _ = settings()
    words = [word for name, value in given.items() for word in ("--conf", f"{name}={value}")]
    script = f"{pythons.pyspark_home()}/bin/spark-submit"
    variables = os.environ | {"JAVA_HOME": str(java.parent.parent), "SPARK_HOME": pythons.pyspark_home() or ""}
    done = subprocess.run([script, *words, "pyspark-shell"], env=variables, capture_output=True, check=True)
    ours = command()
    assert ours is not None
    theirs = [os.fsdecode(word) for word in done.stdout.split(b"\0")[:-1]]
    end = theirs.index("--conf")
    assert ours[1 : end + 1] == theirs[:end]
    assert sorted(ours[end + 1 :]) == sorted(theirs[end:])  # settings have no order
    assert Path(ours[0]).samefile(real)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SPARK_CONF_DIR", "SPARK_DRIVER_MEMORY", "SPARK_SUBMIT_OPTS", "HADOOP_CONF_DIR"])
def test_what_is_set_is_for_the_scripts(plain: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A variable that Spark's scripts ask for, and an answer that is none, or is not there: then Spark is asked."""
    assert command() is not None
    monkeypatch.setenv(name, "/somewhere")
    assert command() is None
    monkeypatch.delenv(name)
    (answer,) = plain.glob("command-*")
    answer.write_bytes(answer.read_bytes()[:100])
    assert command() is None
    answer.unlink()
    assert command() is None


@pytest.mark.usefixtures("plain")
def test_a_jvm_that_does_not_come_up_is_left_to_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends before it can be reached: nobody waits for it, and whoever starts the session has Spark start one."""
    monkeypatch.setattr(direct, "_command", lambda *_: ["/bin/false"])
    begun = direct.begin({}, [], apart=True, output=None)
    assert begun is not None
    assert begun.gateway() is None


@pytest.mark.usefixtures("plain")
def test_one_that_was_begun_in_another_environment_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable is set behind its begin, as a user's module may do: it ends, and another one is started, which has it."""
    monkeypatch.setattr(launch, "_has_jvm", lambda: False)  # that of other tests may be there
    monkeypatch.setattr(direct, "_command", lambda *_: ["/bin/cat"])
    launch.begin_jvm({}, [], apart=True, output=None)
    assert launch._begun is not None
    first = launch._begun[0]
    monkeypatch.setattr(direct, "_command", lambda *_: ["/bin/sh", "-c", 'test "$LATER" = yes || exec cat'])
    monkeypatch.setenv("LATER", "yes")
    assert launch._begun_gateway({}, [], apart=True) is None
    assert first.process.poll() is not None


HOLD = """
import sys
from penstock.session import direct
direct._command = lambda *_: ["/bin/sh", "-c", "echo up; cat; echo down"]
begun = direct.begin({}, [], apart=True, output=1)
sys.stdin.read()
if sys.argv[1] == "ends": begun.end()
"""


@pytest.mark.parametrize("end", ["ends", "leaves"])
def test_nobody_is_left_behind(end: str) -> None:
    """A JVM that was begun and never wanted ends with who began it: at once if that one says so, else as its standard input does."""
    with subprocess.Popen([sys.executable, "-c", HOLD, end], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == b"up\n"
        process.stdin.close()
        said = process.stdout.read()
    assert said == (b"" if end == "ends" else b"down\n")


@pytest.mark.usefixtures("plain")
def test_where_it_tells_how_to_be_reached_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file with its secret, which no other user can read, does not stay."""
    monkeypatch.setattr(
        direct, "_command", lambda *_: ["/bin/sh", "-c", 'echo > "$_PYSPARK_DRIVER_CONN_INFO_PATH"; cat']
    )
    begun = direct.begin({}, [], apart=True, output=None)
    assert begun is not None
    wait_for(lambda: Path(begun.place).exists(), "what it tells")
    assert Path(begun.place).parent.stat().st_mode & 0o077 == 0
    begun.end()
    assert not Path(begun.place).exists()
