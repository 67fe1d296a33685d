from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import penstock
from penstock.errors import OptionError
from penstock.formats import ReadFormat, file_extension, format_named
from penstock.formats.families import RecordFormat, TableFormat
from penstock.formats.format import WriteFormat
from penstock.formats.registry import enumerated, names, record_format, table_format
from penstock.formats.seen import Room, Seen
from penstock.options import SINK, SOURCE, parse
from penstock.options.formats import READ, VALUES, WRITTEN
from penstock.sink.parts import ARROW, BYTES
from penstock.storage import MemoryFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SCHEMA = pa.schema([("id", pa.int64())])
PACKAGE = Path(penstock.__file__).parent
KNOWN = PACKAGE / "formats" / "known"

# Files that may name a format, each with the reason.
NAMING = {
    "options/formats.py": "the registry",
    "formats/ddl.py": "types of Spark's DDL",
    "formats/schema.py": "types of Spark's",
    "session/ddl.py": "a method of Spark's schemas",
    "formats/json/lines.py": "JSON's own",
    "session/extras.py": "an extra of that name",
    "db/sink.py": "`text` is a type of SQL",
    "db/types.py": "`text` is a type of SQL",
    "db/loading.py": "`text` is a type of SQL",
    "cli/page/draw.py": "an element of SVG",
    "formats/aside.py": "what is set aside is told in lines of JSON, whatever the output is",
}


def test_every_format_has_a_file_and_a_line() -> None:
    """Registry and directory have the same formats; each object has the name of its file and belongs to exactly one family."""
    assert sorted(READ) == sorted(path.stem for path in KNOWN.glob("*.py") if path.stem != "__init__")
    for name in READ:
        form = format_named(name)
        assert form.name == name
        assert isinstance(form, RecordFormat) != isinstance(form, TableFormat)
        assert bool(form.codecs) == (name in WRITTEN)
        assert (name in WRITTEN) == bool(form.extension)


def named_in(paths: Iterable[Path]) -> Iterator[tuple[str, str]]:
    """Yield (file, name) for every string in these files that is the name of a format or the extension of its files.

    Only `.json` may occur elsewhere, because our own state files are JSON.
    """
    marks = {*READ, *(f".{name}" for name in READ if name != "json")}
    for path in sorted(paths):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and node.value in marks:
                yield path.relative_to(PACKAGE).as_posix(), node.value.removeprefix(".")


@pytest.mark.slow
def test_no_other_file_names_a_format() -> None:
    """No code compares names of formats: it asks the format objects for their differences."""
    found = [
        f"{place}: {name}" for place, name in named_in(path for path in PACKAGE.rglob("*.py") if path.parent != KNOWN)
    ]
    assert not [line for line in found if line.partition(":")[0] not in NAMING]


def test_every_exception_is_needed() -> None:
    """Each file in the list of exceptions really names a format."""
    assert set(NAMING) == {place for place, _ in named_in(PACKAGE / place for place in NAMING)}


@pytest.mark.parametrize(("table", "side"), [(SOURCE, "read_options"), (SINK, "write_options")])
def test_options_of_formats_are_marked(table: tuple[penstock.options.Option, ...], side: str) -> None:
    """Every option that a format claims as its own is marked in the options table as an option of some formats, and vice versa."""
    owned = {option for name in READ for option in getattr(format_named(name), side)}
    assert owned == {option.name for option in table if option.special}


def test_files_of_formats_know_no_other_format() -> None:
    """A format is one file, and no such file imports another."""
    for path in KNOWN.glob("*.py"):
        assert "penstock.formats.known" not in path.read_text(encoding="utf-8").replace('"""', ""), path


def test_no_format_is_called_as_a_form_of_segments() -> None:
    """A segment's form is one word: a piece of a file, or the name of a format for a whole file. A format must not share those words."""
    assert not {BYTES, ARROW} & set(READ)


def test_a_format_that_infers_nothing_says_so() -> None:
    """A format that implements no inference refuses to infer columns, with the usual form of an option error."""

    class Bare(RecordFormat):
        name = "bare"
        decoder = record_format("text").decoder
        encoder = record_format("text").encoder

    with pytest.raises(OptionError, match="the columns of format=bare are not inferred: expected a schema"):
        Bare().kinds(ReadFormat("bare", SCHEMA), Seen(), Room())
    with pytest.raises(OptionError, match="the columns of format=binary are not inferred"):
        table_format("binary").stored_schema(MemoryFile(b""), 0)


def test_unknown_formats_are_refused_by_name() -> None:
    """An unknown name is refused with a list of the known ones, in the options and where a format is looked up."""
    for ask in (format_named, record_format, table_format):
        with pytest.raises(OptionError, match="format='xml' is not known: expected one of text, json, csv, parquet"):
            ask("xml")
    with pytest.raises(OptionError, match="format='parque' is not known: expected one of .*; did you mean 'parquet'"):
        parse(SOURCE, {"path": "in", "format": "parque"}, what="source")
    with pytest.raises(OptionError, match="format='text' is not a table: expected parquet"):
        table_format("text")


def test_only_what_is_written_has_an_extension() -> None:
    """Each format that can be written has its own extension, and the others say which formats could be written instead."""
    extensions = {file_extension(WriteFormat(name, SCHEMA, format_named(name).codecs[0])) for name in WRITTEN}
    assert len(extensions) == len(WRITTEN)
    for name in set(READ) - set(WRITTEN):
        with pytest.raises(OptionError, match=f"format='{name}' cannot be written: expected text, json, csv"):
            file_extension(WriteFormat(name, SCHEMA))


def test_formats_of_one_column_say_its_type() -> None:
    """A format with one fixed column needs no schema, and no other format has such a column."""
    assert VALUES == {"text": "string", "binary": "binary"}


def test_names_are_told_in_words() -> None:
    """Names are listed in the order of the registry, with `or` before the last."""
    assert enumerated(("a",)) == "a"
    assert enumerated(("a", "b", "c")) == "a, b or c"
    assert names(lambda form: form.anchored) == ("csv",)


@pytest.mark.parametrize("name", READ)
def test_a_read_format_travels_by_name(name: str) -> None:
    """Tasks receive the name of the format and look up its object again; within one process it is the same object."""
    assert format_named(ReadFormat(name, SCHEMA).name) is format_named(name)
