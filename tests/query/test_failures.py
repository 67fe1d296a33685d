"""What an error of Spark means to an ingest, by the text that Spark gives it. Without Spark."""

from __future__ import annotations

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
    """A full disk that Spark meets, and not a task of ours, is `NoSpace`, with where to make room; it was PST-000 and Java's words."""
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
    """It is `DependencyError`, with the Python that it was to be and the command that looks at it; it was PST-000 and Java's words."""
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    error = meaning(
        RuntimeError(f"An error occurred.\n: org.apache.spark.SparkException: {words}{LOCAL}"), "/ck", cast("Any", None)
    )
    assert isinstance(error, errors.DependencyError)
    assert words.rstrip(".").partition(": error")[0] in error.message
    assert "PYSPARK_PYTHON='/opt/python'" in error.message
    assert "penstock doctor" in error.message
