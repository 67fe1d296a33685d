"""The formats that are registered by hand are those that Spark finds by itself."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.spark import register
from tests.test_layers import SOURCE

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
