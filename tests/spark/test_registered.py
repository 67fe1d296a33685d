"""The formats that are registered by hand are those that Spark finds by itself."""

from __future__ import annotations

import importlib
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from penstock.errors import DependencyError
from penstock.spark import register
from tests.support.follows import follows
from tests.test_layers import SOURCE

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytest.importorskip("pyspark")


def test_every_format_that_spark_finds_is_registered_by_hand_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A format with a separate package but no line in `register_formats` would be missing where the package is not on Spark's path."""
    by_hand: list[Any] = []
    beside: list[str] = []
    monkeypatch.setattr(register, "side_by_side", lambda _, *names: beside.extend(names))
    register.register_formats(cast("Any", SimpleNamespace(dataSource=SimpleNamespace(register=by_hand.append))))
    found = {importlib.import_module(path.name).DefaultSource for path in SOURCE.glob("pyspark_penstock*")}
    assert {source.name() for source in found} == {source.name() for source in by_hand} == set(beside)
    assert all(f"`{source.name()}`" in str(register.register.__doc__) for source in found)


@follows("PST-103")
def test_a_python_that_executors_alone_have(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If only executors unpacked an environment, each query ended with Java's "Cannot run program": the driver plans with that Python."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "./environment/bin/python")
    session = spark.newSession()
    with pytest.raises(
        DependencyError, match=r"PYSPARK_PYTHON='\./environment/bin/python' is not found.*unpack it here"
    ):
        register.register(session)
    (tmp_path / "environment").symlink_to(sys.prefix)
    register.register(session)
