"""A JVM that is started without Spark's scripts: started as they would start it, and only where they would do nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock import clock
from penstock.cli.process import Interrupted, begun_session, session, status_of
from penstock.errors import DependencyError
from penstock.session import archive, direct, launch, local, pythons
from tests.support.wait import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

MASTER = "local[*]"


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Set up a private cache that holds the answer, and an environment in which no variable of Spark is set."""
    for name in list(os.environ):
        if name.startswith("SPARK_") or name in {"HADOOP_CONF_DIR", "YARN_CONF_DIR", "PYSPARK_SUBMIT_ARGS"}:
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    direct.learn()
    return tmp_path / "penstock"


def settings() -> tuple[dict[str, str], list[str]]:
    """Return the settings of a session for ingests, and its Java options."""
    ours, options = local._settings(MASTER, rows_in_jvm=False, quiet=True)
    return {"spark.master": MASTER, **ours}, options


def command() -> list[str] | None:
    """Return the command that starts the JVM of such a session directly."""
    given, options = settings()
    return direct._command(options, given, pythons.pyspark_home() or "")


@pytest.mark.slow
@pytest.mark.usefixtures("plain")
def test_it_is_started_as_by_sparks_scripts(tmp_path: Path) -> None:
    """Spark's own `spark-submit` runs, with a fake Java that prints its arguments instead of starting Spark: the words are the same."""
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
    """Where a variable that Spark's scripts read is set, or the answer is invalid or missing, the scripts start the JVM."""
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
    """It ends before it can be reached: nobody waits for it, and the session has Spark start another."""
    monkeypatch.setattr(direct, "_command", lambda *_: ["/bin/false"])
    begun = direct.begin({}, [], apart=True, output=None)
    assert begun is not None
    assert begun.gateway() is None


@pytest.mark.slow
def test_an_answer_that_is_damaged_is_none(plain: Path) -> None:
    """One changed byte anywhere, an early end or an empty file makes the answer unusable: Spark is asked."""
    (kept,) = plain.glob("command-*")
    whole = kept.read_bytes()
    assert command() is not None
    damaged = [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(len(whole))]
    for answer in [*damaged, *(whole[:length] for length in range(0, len(whole), 50)), whole + b"\0"]:
        kept.write_bytes(answer)
        assert command() is None
    kept.write_bytes(whole)
    assert command() is not None


@pytest.mark.slow
def test_what_others_could_have_written_is_not_run(plain: Path) -> None:
    """The answer is a command: if another user owns it or may write it, it is ignored, and so is an archive of classes."""
    (kept,) = plain.glob("command-*")
    classes = plain / archive.name("classes", "jsa")
    classes.write_bytes(b"")
    assert archive.flags()
    for path, known in ((kept, command), (classes, archive.flags)):
        path.chmod(0o622)
        assert not known()
        path.chmod(0o600)
        assert known()
        if os.getuid() == 0:
            os.chown(path, 10001, 10001)
            assert not known()


WRITE = "import os, sys; path = sys.argv[2].split('=')[1]; open(path, 'w').write('half'); os.chmod(path, 0o444); "


def test_an_archive_has_its_name_when_it_is_whole(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Java crashes on half an archive: a failed attempt leaves no archive and no temporary file, and the previous archive stays."""
    made = plain / archive.name("classes", "jsa")
    for before in (None, "whole"):
        monkeypatch.setattr(archive, "_MAKE", f"{WRITE} sys.exit(1)")
        with pytest.raises(DependencyError, match="could not be made"):
            archive.make()
        assert [path.read_text() for path in plain.glob("classes-*")] == ([] if before is None else [before])
        monkeypatch.setattr(archive, "_MAKE", f"{WRITE} os.chmod(path, 0o644); open(path, 'w').write('whole')")
        assert archive.make() == str(made)
        assert [path.read_text() for path in plain.glob("classes-*")] == ["whole"]
        assert archive.flags()


def test_a_cache_of_before_is_told(plain: Path) -> None:
    """The cache has an archive without the command, as earlier versions made it: the doctor says what to do, until it is done."""
    (plain / archive.name("classes", "jsa")).write_bytes(b"")
    assert archive.finding().state == "ok"
    (plain / archive.command_name()).unlink()
    assert (archive.finding().state, archive.finding().advice) == ("note", "make both anew with: penstock warmup")
    direct.learn()
    assert archive.finding().state == "ok"


@pytest.mark.slow
def test_an_answer_that_cannot_be_read_is_none(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may read anything, so the disk refuses here: the start uses Spark's scripts, as it does without an answer."""
    (kept,) = plain.glob("command-*")
    monkeypatch.setattr(direct, "cached", lambda _: f"{kept}/below")
    given, options = settings()
    assert direct.begin(given, options, apart=True, output=None) is None


@pytest.mark.usefixtures("plain")
def test_a_jvm_that_ends_where_it_has_told_how_to_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """The JVM is killed after it has written its address and before the first call: Spark's scripts start another for the session."""
    told = "printf '\\0\\0\\0\\1\\0\\0\\0\\6secret' > \"$_PYSPARK_DRIVER_CONN_INFO_PATH\""  # port 1, at which nobody listens
    monkeypatch.setattr(direct, "_command", lambda *_: ["/bin/sh", "-c", told])
    begun = direct.begin({}, [], apart=True, output=None)
    assert begun is not None
    assert begun.gateway() is None
    assert not Path(begun.place).exists()


@pytest.mark.usefixtures("plain")
def test_one_whose_taking_was_interrupted_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in a notebook while a session starts: that JVM ends, and the next start gets a new one, not one that no longer answers."""
    monkeypatch.setattr(launch, "_has_jvm", lambda: False)  # another test may have started one
    monkeypatch.setattr(direct, "_command", lambda *_: ["/bin/cat"])
    launch.begin_jvm({}, [], apart=True, output=None)
    assert launch._begun is not None
    first = launch._begun[0]

    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(clock, "sleep", interrupted)
    with pytest.raises(KeyboardInterrupt):
        launch._begun_gateway({}, [], apart=True)
    assert vars(launch)["_begun"] is None
    assert first.process.poll() is not None


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("version", ["4.0.1", None])
def test_none_is_begun_where_none_can_start(monkeypatch: pytest.MonkeyPatch, version: str | None) -> None:
    """PySpark is too old, or was removed: the early begin starts nothing and raises nothing, and leaves it to the start to say so."""
    if version is None:
        monkeypatch.setitem(sys.modules, "pyspark", None)
    else:
        monkeypatch.setattr("pyspark.__version__", version)
    monkeypatch.setattr(launch, "_has_jvm", lambda: False)
    monkeypatch.setattr(direct, "begin", pytest.fail)
    local.begin(MASTER, output=None)
    with pytest.raises(DependencyError, match="PySpark|pyspark"):
        local.require_pyspark()


@pytest.mark.usefixtures("plain")
def test_one_that_was_begun_in_another_environment_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable is set after the JVM was begun, as a user's module may do: that JVM ends, and another is started with the variable."""
    monkeypatch.setattr(launch, "_has_jvm", lambda: False)  # another test may have started one
    monkeypatch.setattr(direct, "_command", lambda *_: ["/bin/cat"])
    launch.begin_jvm({}, [], apart=True, output=None)
    assert launch._begun is not None
    first = launch._begun[0]
    monkeypatch.setattr(direct, "_command", lambda *_: ["/bin/sh", "-c", 'test "$LATER" = yes || exec cat'])
    monkeypatch.setenv("LATER", "yes")
    assert launch._begun_gateway({}, [], apart=True) is None
    assert first.process.poll() is not None


LEAVE = """
import os
from penstock.session import direct
direct._command = lambda *_: ["/bin/sh", "-c", 'echo > "$_PYSPARK_DRIVER_CONN_INFO_PATH"']
begun = direct.begin({}, [], apart=True, output=None)
begun.process.wait()
print(begun.place, flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.mark.usefixtures("plain")
def test_what_a_killed_process_has_left_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed command cannot remove the file with its JVM's address; a later command does, and removes only old files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def killed() -> Path:
        variables = os.environ | {"TMPDIR": str(tmp_path)}
        done = subprocess.run([sys.executable, "-c", LEAVE], env=variables, capture_output=True, text=True, check=False)
        return Path(done.stdout.strip())

    old, new = killed(), killed()
    os.utime(old, (time.time() - 4000,) * 2)
    monkeypatch.setattr(direct, "_command", lambda *_: ["/bin/cat"])
    begun = direct.begin({}, [], apart=True, output=None)
    assert begun is not None
    assert (old.exists(), new.exists()) == (False, True)
    begun.end()


@pytest.fixture
def unanswered() -> Iterator[None]:
    """An unanswered SIGTERM fails the test; by default it would end this process."""

    def told(number: int, frame: object) -> None:
        raise AssertionError(number)

    before = signal.signal(signal.SIGTERM, told)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("plain", "unanswered")
def test_sigterm_ends_a_jvm_that_is_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Ctrl-C does: a JVM that cannot be reached yet would notice only seconds later that nobody wants it."""
    monkeypatch.setattr(launch, "_has_jvm", lambda: False)  # another test may have started one
    monkeypatch.setattr(direct, "_command", lambda *_: ["/bin/cat"])
    begun = []

    def stopped() -> None:
        with begun_session(None, wanted=True):
            assert launch._begun is not None
            begun.append(launch._begun[0])
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted) as caught:
        stopped()
    assert status_of(caught.value) == 143
    assert begun[0].process.poll() is not None


@pytest.mark.usefixtures("unanswered")
def test_sigterm_is_answered_while_spark_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that is stopped at that moment says so, and ends with 143, as at any other time."""
    monkeypatch.setattr("penstock.spark.local.session_of", lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Interrupted), session(None):
        pytest.fail("it has started")


HOLD = """
import sys
from penstock.session import direct
direct._command = lambda *_: ["/bin/sh", "-c", "echo up; cat; echo down"]
begun = direct.begin({}, [], apart=True, output=1)
sys.stdin.read()
if sys.argv[1] == "ends": begun.end()
"""


@pytest.mark.parametrize("end", ["ends", "leaves"])
def test_nobody_is_left_after(end: str) -> None:
    """A JVM that was begun and never used ends with the process that began it: at once if told to, else when its input closes."""
    with subprocess.Popen([sys.executable, "-c", HOLD, end], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == b"up\n"
        process.stdin.close()
        said = process.stdout.read()
    assert said == (b"" if end == "ends" else b"down\n")


@pytest.mark.usefixtures("plain")
def test_where_it_tells_how_to_be_reached_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file with the JVM's address holds a secret: no other user can read it, and it is removed."""
    monkeypatch.setattr(
        direct, "_command", lambda *_: ["/bin/sh", "-c", 'echo > "$_PYSPARK_DRIVER_CONN_INFO_PATH"; cat']
    )
    begun = direct.begin({}, [], apart=True, output=None)
    assert begun is not None
    wait_for(lambda: Path(begun.place).exists(), "what it tells")
    assert Path(begun.place).parent.stat().st_mode & 0o077 == 0
    begun.end()
    assert not Path(begun.place).exists()
