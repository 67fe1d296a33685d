"""Globs, and values in directory names: Spark's recorded answers, and ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import PenstockError
from tests.formats.test_spark_dialects import ANSWERS
from tests.source.test_inferred import inferring
from tests.source.test_partitions import Input
from tests.source.test_where import Tree

REFUSED = "refused"
SPARK_NAMES = {"integer": "int", "long": "bigint"}

# Spark refuses a mixture of column names, and globs that match nothing; a stream may have to wait for its first file, and accepts
# both.
REFUSED_BY_SPARK_ALONE = {"*", "**", "*/", "[^ab]*", "dt=*", "dt=[12]", "{x,y}", "[]y]", "[[]y[]]", "{}", "a}"}
HIDDEN = {"*/1.txt", "*/*.txt", "_*", ".*"}  # what is hidden stays hidden, even if a glob matches its name
REFUSED_HERE_ALONE = {"*/../top.txt", "]z"}  # refused by name, with what to write instead
BOTH_LEVELS = {"dt=2"}  # Spark skips files beside a directory that is a column

# With several column names, or none, our stream takes those of the schema; when inferred, each name is a column.
NO_COLUMNS_TO_SPARK = {
    "empty value",
    "empty name",
    "conflict depth",
    "conflict names",
    "mixed plain",
    "twice",
}
NOT_ENTERED = {"plain below", "plain above"}  # a plain directory needs recursiveFileLookup, and a message says so
INFERRED_HERE = {"null": "string", "1d": "string", "1f": "string"}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    tree = Tree(tmp_path_factory.mktemp("globs"))
    tree.put(*ANSWERS["globs"]["tree"])
    return tree


def _read(tree: Tree, glob: str) -> Any:
    try:
        return sorted(tree.read(glob))
    except PenstockError:
        return REFUSED


def test_globs_lead_where_they_do_in_spark(tree: Tree) -> None:
    """Each glob matches the files that `spark.read` finds with it, except for the listed deviations."""
    ours = {glob: _read(tree, glob) for glob in ANSWERS["globs"]["answers"]}
    other = {glob: files for glob, files in ANSWERS["globs"]["answers"].items() if ours[glob] != files}
    assert set(other) == REFUSED_BY_SPARK_ALONE | HIDDEN | REFUSED_HERE_ALONE | BOTH_LEVELS
    assert {glob for glob in other if ours[glob] == REFUSED} == REFUSED_HERE_ALONE
    assert {glob for glob, files in other.items() if files == REFUSED} == REFUSED_BY_SPARK_ALONE
    for glob in HIDDEN:
        assert ours[glob] == [file for file in other[glob] if not file.startswith(("_", "."))]


@pytest.mark.parametrize("name", ANSWERS["partitions"])
def test_directories_are_columns_as_in_spark(name: str, tmp_path: Path) -> None:
    """Inferred types, and values of a given type, are those of Spark's partition discovery, except for the listed deviations."""
    answer = ANSWERS["partitions"][name]
    files = Input(tmp_path)
    for place, directory in enumerate(answer["dirs"]):
        files.put(f"{directory}/f{place}.txt", f"{directory}\n".encode())
    if name not in NO_COLUMNS_TO_SPARK | NOT_ENTERED:
        fields = json.loads(inferring(tmp_path, "text").json)["fields"]
        types = {field["name"].lower(): SPARK_NAMES.get(field["type"], field["type"]) for field in fields}
        expected = answer["types"] | ({"k": INFERRED_HERE[name]} if name in INFERRED_HERE else {})
        assert types == {"value": "string"} | {column.lower(): kind for column, kind in expected.items()}
    try:
        rows: Any = sorted(([row["value"], row["k"]] for row in files.rows("value string, k integer", "text")), key=str)
    except PenstockError:
        rows = REFUSED
    if name not in {"empty name", "twice"} | NOT_ENTERED:
        assert rows == answer["with k int"]
