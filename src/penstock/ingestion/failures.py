"""Finds out what an error of Spark means for an ingest, in which Spark itself writes nothing but the checkpoint."""

from __future__ import annotations

import os
import re
import shutil
import sys
from typing import TYPE_CHECKING

from penstock import errors
from penstock.session.connect import is_remote
from penstock.session.local import has_ended

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What Spark says if two drivers write one checkpoint: in the same batch, in the first one, in one application.
_ANOTHER_DRIVER = ("CONCURRENT_STREAM_LOG_UPDATE", "concurrently using", "CONCURRENT_QUERY")
_DAMAGED = re.compile(r"Checksum error: \S+|Failed to read log file \S+|batch \d+ doesn't exist")
# A refusal of HDFS to Spark's JVM, at the start and later. The JVM writes only the checkpoint of an ingest.
_REFUSED = re.compile(r"(?:\n: [\w.$()]+|terminated with exception): (.+)(?:\n.*){0,2}?\n\s+at org\.apache\.hadoop\.")
# What Spark says if a Python worker that it starts ends at once, writes something else first, or does not answer.
_NO_WORKER = re.compile(
    r"Python worker failed to connect back|\w+ occurred while reading the port number from \S+ stdout[^\n]*?(?=\.*\n|\.*$)"
    r"|Bad data in \S+ standard output|Cannot run program \"[^\"\n]*\"",
    re.MULTILINE,
)
# What a Python worker says that has another Python than this process, without what Penstock needs.
_NOT_IMPORTED = re.compile(r"ModuleNotFoundError: No module named '[\w.]+'")
_FULL = re.compile(r"No space left on device|Disk quota exceeded")
_STATE_OF_QUERY = "\n=== Streaming Query ==="  # Spark's offsets and plans follow, pages long
_JVM_ENDED = (
    "Spark's JVM has ended under way (killed, or out of memory); what is committed stays, nothing else is visible, and the "
    "same call goes on from there in a new session"
)


def meaning(error: Exception, checkpoint: str, spark: SparkSession) -> errors.PenstockError:
    """Return what an error of Spark means; one of our own errors may be in its text, or in the text of a cause.

    `checkpoint` is the location of the checkpoint of the query that has failed.
    """
    ours = errors.of(error)
    if ours is not None:
        return ours
    text = _with_causes(error)
    known = _of_checkpoint(text, checkpoint) or _of_workers(text, spark)
    if known is not None:
        return known
    return errors.PenstockError(_JVM_ENDED if not is_remote(spark) and has_ended(spark) else _unknown(error))


def _unknown(error: Exception) -> str:
    """Return the words of an unknown error of Spark, without the state of the query that follows them, and with the first cause."""
    words = str(error).partition(_STATE_OF_QUERY)[0].rstrip()
    cause: BaseException = error
    while (deeper := getattr(cause, "_cause", None)) is not None:
        cause = deeper
    first = str(cause).strip().partition("\n")[0]
    return words if first in words else f"{words}; caused by: {first}"


def _of_checkpoint(text: str, checkpoint: str) -> errors.PenstockError | None:
    """Return the error for a text about the checkpoint, None if the text is about something else."""
    if any(condition in text for condition in _ANOTHER_DRIVER):
        return errors.Fenced(
            f"another driver uses the checkpoint {checkpoint!r} of this ingest; this one has changed nothing "
            "more; leave it to the other, or run the same command again when that has ended"
        )
    if damaged := _DAMAGED.search(text):
        return errors.DamagedState(
            f"Spark cannot read the checkpoint {checkpoint!r}: {damaged[0]}; restore it from a copy, with the "
            ".crc beside each file; nothing was changed"
        )
    if refused := _REFUSED.search(text):
        kind = errors.NoSpace if "quota" in refused[1].lower() or _FULL.search(refused[1]) else errors.StorageError
        return kind(
            f"Spark cannot write the checkpoint {checkpoint!r}: {refused[1]}; nothing of this batch is "
            "visible, and the same call goes on from there"
        )
    if full := _FULL.search(text):
        return errors.NoSpace(
            f"Spark has met a full disk: {full[0]}; make room where it keeps what it works with (spark.local.dir, else the temporary "
            f"directory) and for the checkpoint {checkpoint!r}; nothing of this batch is visible, and the same call goes on from there"
        )
    return None


def _of_workers(text: str, spark: SparkSession) -> errors.PenstockError | None:
    """Return the error for a text about Spark's Python workers, None if the text is about something else."""
    if missing := _NOT_IMPORTED.search(text):
        return errors.DependencyError(
            f"a Python worker of Spark has failed ({missing[0]}); its Python is {_python_of(spark)}: install there what is missing; "
            "nothing of this batch is visible, and the same call goes on from there"
        )
    absent = _NO_WORKER.search(text)
    if absent is None:
        return None
    return errors.DependencyError(
        f"Spark could not start a Python worker ({absent[0]}); its Python is {_python_of(spark)}: see what `penstock doctor` says of it; "
        "on a machine that is very busy the same call may do; nothing of this batch is visible, and it goes on from there"
    )


def _python_of(spark: SparkSession) -> str:
    """Return which Python the workers of a session have, and what to do if it is another one than this.

    Where nobody says which to take, Spark takes the first `python3` on the PATH, also in a virtual environment that is not activated.
    """
    named = os.environ.get("PYSPARK_PYTHON")
    if named:
        return f"PYSPARK_PYTHON={named!r}"
    taken = None if is_remote(spark) else spark.sparkContext.pythonExec
    if taken in {None, sys.executable}:
        return f"this Python, {sys.executable!r}"
    where = shutil.which(taken) or "not on the PATH"
    return f"{taken!r} ({where}), not this one (set PYSPARK_PYTHON={sys.executable} before the session starts)"


def _with_causes(error: BaseException | None) -> str:
    """Return the text of an error of Spark and of all its causes. If an abort fails, too, only a cause gives the reason."""
    texts = []
    while error is not None:
        texts.append(str(error))
        error = getattr(error, "_cause", None)
    return "\n".join(texts)
