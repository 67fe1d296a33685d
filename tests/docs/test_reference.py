"""The reference pages agree with the code: options, templates, escaping, errors, failpoints."""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
from datetime import date, datetime, timezone
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

import penstock.options
from penstock.clock import SECOND_NS
from penstock.errors import PenstockError
from penstock.options import DATABASE, LOG, PUBLISHED, SINK, SOURCE, Option, batch, checked, finished
from penstock.options.elsewhere import KNOWN_ELSEWHERE
from penstock.options.formats import READ, WRITTEN
from penstock.options.internal import LIVE_SOURCE
from penstock.options.kafka import KAFKA
from penstock.options.models import MODELS
from penstock.sink.buckets import BucketTemplate
from penstock.sink.names import FIELDS, NameTemplate
from penstock.sink.places import FileColumns
from tests.docs.markdown import DOCS, REPOSITORY, code, table

TABLES = (*SOURCE, *SINK, *LOG, *DATABASE, *PUBLISHED, *batch.OWN, *finished.OWN, *KAFKA)
OPTIONS = table(DOCS / "options.md", "Option", "Default", "Example", "Meaning")
ROW = {
    "ts": datetime(2026, 1, 31, 23, 30, tzinfo=timezone.utc),
    "day": date(2026, 1, 31),
    "country": "de",
    "id": 7,
    "price": 1.5,
    "paid": True,
    "note": None,
}
SCHEMA = pa.schema(
    [
        ("ts", pa.timestamp("us", tz="UTC")),
        ("day", pa.date32()),
        ("country", pa.string()),
        ("id", pa.int64()),
        ("price", pa.float64()),
        ("paid", pa.bool_()),
        ("note", pa.string()),
    ]
)


def default(option: Option) -> str:
    """Return the default of an option as the page shows it."""
    if option.name in {"path", "url", "table"}:
        return "required"
    return "none" if option.default is None else f"`{option.default}`"


def test_options_are_the_tables_of_the_code() -> None:
    """The page has every option of sources, sinks and log, in order, with its default, and no other option."""
    expected = [(f"`{option.name}`", default(option)) for option in TABLES]
    assert [(row[0], row[1]) for row in OPTIONS] == expected


def test_examples_of_options_are_good_values() -> None:
    """Every option accepts its example; only an internal option has none."""
    for option, row in zip(TABLES, OPTIONS, strict=True):
        example = code(row[2])
        assert example or row[3].startswith("Internal"), option.name
        if example:
            option.parse(example, option.name)


def test_formats_are_told_where_they_are_chosen() -> None:
    """The rows of `format`, for source and sink, have exactly the names of the registry that can be read or written."""
    reading, writing = (
        {name for name in re.findall(r"`(\w+)`", row[3]) if name in READ} for row in OPTIONS if row[0] == "`format`"
    )
    assert (reading, writing) == (set(READ), set(WRITTEN))


def bucket(template: str, row: dict[str, object], zone: str) -> str:
    """Return the bucket of a row."""
    batch = pa.RecordBatch.from_pylist([row], schema=SCHEMA)
    ((found, _),) = BucketTemplate.of(template, SCHEMA, zone=zone).split(batch, 0)
    return found


@pytest.mark.parametrize("cells", table(DOCS / "options.md", "Template", "Time zone", "Directory"), ids=lambda c: c[0])
def test_examples_of_buckets(cells: list[str]) -> None:
    """Every example of `bucketBy` gives the directory that the page shows."""
    template, zone, directory = map(code, cells)
    assert bucket(template, ROW, zone) == directory


@pytest.mark.parametrize("cells", table(DOCS / "options.md", "Value", "Bucket of `{country}`"), ids=lambda c: c[0])
def test_examples_of_escaping(cells: list[str]) -> None:
    """Every example of a value, written as JSON, gives the name that the page shows."""
    value, expected = map(code, cells)
    assert bucket("{country}", ROW | {"country": json.loads(value)}, "UTC") == expected


@pytest.mark.parametrize("cells", table(DOCS / "options.md", "Template", "Name"), ids=lambda c: c[0])
def test_examples_of_file_names(cells: list[str]) -> None:
    """Every example of `fileName` gives the name that the page shows."""
    template, expected = map(code, cells)
    opened = int(datetime(2026, 1, 31, 12, tzinfo=ZoneInfo("UTC")).timestamp()) * SECOND_NS
    values = {"sink": "orders", "writer": 3, "seq": 7, "batch": 42, "host": "worker-1", "pid": 4711, "time": opened}
    assert NameTemplate.of(template, zone="UTC", growing=False).render(".json", **values) == expected


@pytest.mark.parametrize(
    "cells", table(DOCS / "options.md", "Template with columns", "Name with columns"), ids=lambda c: c[0]
)
def test_examples_of_file_names_with_columns(cells: list[str]) -> None:
    """Every example of `fileName` with columns gives the name that the page shows."""
    template, expected = map(code, cells)
    opened = int(datetime(2026, 1, 31, 12, tzinfo=ZoneInfo("UTC")).timestamp()) * SECOND_NS
    names = NameTemplate.of(template, zone="UTC", growing=False)
    filled = FileColumns.of(names, pa.schema([("name", pa.string())])).place(["a/b"])
    assert names.of_part(filled).render(".json" if "." not in template else ".txt", seq=0, time=opened) == expected


def test_fields_of_file_names_are_all_there() -> None:
    """The page explains every field of `fileName`, and no other field."""
    rows = table(DOCS / "options.md", "Field", "Meaning")
    assert sorted(re.findall(r"\{(\w+)\}", " ".join(row[0] for row in rows))) == sorted(FIELDS)


def kinds(kind: type[PenstockError] = PenstockError) -> list[type[PenstockError]]:
    """Return an error class and all its subclasses."""
    return [kind, *(below for child in kind.__subclasses__() for below in kinds(child))]


def test_errors_are_the_classes_of_the_code() -> None:
    """The page has every error class with its code and exit status, ordered by code, and no other class."""
    ours = [kind for kind in kinds() if kind.__module__ == "penstock.errors"]
    expected = sorted((kind.code, f"`{kind.__name__}`", str(kind.exit_status)) for kind in ours)
    rows = table(DOCS / "errors.md", "Class", "Code", "Exit status", "Meaning", "What to do")
    assert [(row[1], row[0], row[2]) for row in rows] == expected
    assert all(all(row) for row in rows)


def test_the_table_of_every_connector_is_on_the_page() -> None:
    """A table in `options` that is not `internal` belongs to a connector: users see it, and messages say whose options they are."""
    modules = [name for _, name, _ in pkgutil.iter_modules(penstock.options.__path__) if name != "internal"]
    tables = [value for name in modules for value in vars(importlib.import_module(f"penstock.options.{name}")).values()]
    options = {entry for table in tables if isinstance(table, tuple) for entry in table if isinstance(entry, Option)}
    shown, known = {option.name for option in TABLES}, set().union(*checked.BY_CONNECTOR.values())
    internal = {option.name for option in (*LIVE_SOURCE, *finished.LIVE_FINISHED)}
    assert {option.name for option in options} <= shown | internal
    assert {name.lower() for name in shown} <= known


def test_options_known_elsewhere_are_those_of_the_code() -> None:
    """The page has every option of Spark and Auto Loader that we answer, with the words of the answer, and no other option."""
    rows = table(DOCS / "from-spark.md", "Of the", "Option of Spark or Auto Loader", "Here")
    shown = {(what, name): said for what, names, said in rows for name in re.findall(r"`([^`]+)`", names)}
    ours = KNOWN_ELSEWHERE.items()
    assert shown == {(what, name): said for what, answers in ours for name, said in answers.items()}


def test_options_of_other_systems_are_those_of_the_code() -> None:
    """The page has every option of IBM Streams, Flink and Apex that we answer, with the words of the answer, and no other option."""
    rows = table(DOCS / "from-others.md", "System", "Of the", "Option", "Here")
    shown = {
        (system, what, name): said for system, what, names, said in rows for name in re.findall(r"`([^`]+)`", names)
    }
    ours = ((system, what, answers) for system, sides in MODELS.items() for what, answers in sides.items())
    assert shown == {(system, what, name): said for system, what, answers in ours for name, said in answers.items()}


def test_failpoints_are_those_of_the_code() -> None:
    """The page has every failpoint that the code can hit, and no other failpoint."""
    source = REPOSITORY / "src" / "penstock"
    texts = [path.read_text(encoding="utf-8") for path in source.rglob("*.py") if path.name != "failpoints.py"]
    hit = {point for text in texts for point in re.findall(r'failpoints\.hit\("([^"]+)"\)', text)}
    rows = table(DOCS / "operations.md", "Failpoint", "Where")
    assert sorted(re.findall(r"`([^`]+)`", " ".join(row[0] for row in rows))) == sorted(hit)
