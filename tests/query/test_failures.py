"""What an error of Spark means for an ingest, by the text of the error. Without Spark."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock import errors
from penstock.ingestion.failures import meaning

LOCAL = "\n\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)\n\tat java.base/java.io.FileOutputStream.write(F.java:349)"
HADOOP = "\n\tat org.apache.hadoop.fs.RawLocalFileSystem$LocalFSFileOutputStream.write(RawLocalFileSystem.java:375)"
SHUFFLE = "\n\tat org.apache.spark.storage.TimeTrackingOutputStream.write(TimeTrackingOutputStream.java:58)"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "terminated with exception: No space left on device" + LOCAL + HADOOP,
            "cannot write the checkpoint '/ck': No space left",
        ),
        (
            "Job aborted: Lost task 0.3: java.io.IOException: No space left on device" + LOCAL + SHUFFLE,
            "spark.local.dir",
        ),
        ("java.io.IOException: Disk quota exceeded" + LOCAL + SHUFFLE, "spark.local.dir"),
    ],
    ids=["checkpoint", "shuffle", "quota"],
)
def test_a_disk_that_is_full_under_spark_is_told(text: str, words: str) -> None:
    """A full disk met by Spark, not by our task, is `NoSpace`, with advice where to make room; it once was PST-000 with Java's text."""
    error = meaning(RuntimeError(text), "/ck", cast("Any", None))
    assert isinstance(error, errors.NoSpace)
    assert words in error.message


@pytest.mark.parametrize(
    "words",
    [
        "Python worker failed to connect back.",
        "EOFException occurred while reading the port number from pyspark.daemon's stdout and terminated with code: 3.",
        'Cannot run program "/opt/python": error=2, No such file or directory',
    ],
)
def test_a_python_worker_that_cannot_be_started_is_told(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is `DependencyError`, with the missing Python and the command that examines it; it once was PST-000 with Java's text."""
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    error = meaning(
        RuntimeError(f"An error occurred.\n: org.apache.spark.SparkException: {words}{LOCAL}"), "/ck", cast("Any", None)
    )
    assert isinstance(error, errors.DependencyError)
    assert words.rstrip(".").partition(": error")[0] in error.message
    assert "PYSPARK_PYTHON='/opt/python'" in error.message
    assert "penstock doctor" in error.message


@pytest.mark.parametrize("python", ["python3", sys.executable])
def test_a_python_worker_without_our_packages_is_told(python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark takes the first `python3` of the PATH, which is not that of an environment that nobody has activated."""
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    session = SimpleNamespace(sparkContext=SimpleNamespace(pythonExec=python))
    text = "Traceback (most recent call last):\n  File 'worker.py'\nModuleNotFoundError: No module named 'psutil'\n"
    error = meaning(RuntimeError(text), "/ck", cast("Any", session))
    assert isinstance(error, errors.DependencyError)
    assert "No module named 'psutil'" in error.message
    assert (f"set PYSPARK_PYTHON={sys.executable}" in error.message) == (python == "python3")


def test_of_what_is_not_known_the_cause_is_told_and_not_the_plan() -> None:
    """An unknown error of Spark is reported with its first words and its root cause, without its pages of offsets and plans."""
    bottom, middle = (
        RuntimeError("Illegal size 5 of collection, expected 6\n\tat scala"),
        RuntimeError("Task not serializable"),
    )
    error = RuntimeError(
        "terminated with exception: Task not serializable\n=== Streaming Query ===\nIdentifier: p\nLogical Plan: x"
    )
    error._cause, middle._cause = middle, bottom  # type: ignore[attr-defined]
    told = "terminated with exception: Task not serializable; caused by: Illegal size 5 of collection, expected 6"
    session = SimpleNamespace(sparkContext=SimpleNamespace(_gateway=None))
    assert meaning(error, "/ck", cast("Any", session)).message == told
