"""JSON files that are one document: read as Spark's `multiLine` does, with the file's offsets; anything else is reported."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadRecord
from penstock.formats.json import document as jsondocument
from penstock.formats.json.document import as_lines

TREE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.sampled_from('ab",[]{}\\\n\r\té:'), max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('ab,[{"\\', max_size=3), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text('ab,[{"\\', max_size=3), TREE, max_size=3)


@pytest.mark.slow
@given(documents=st.lists(OBJECTS, max_size=5), indent=st.none() | st.integers(0, 3), ascii_only=st.booleans())
def test_what_python_writes_becomes_its_lines(documents: list[Any], indent: int | None, ascii_only: bool) -> None:
    """Any array that Python writes, indented or not, becomes a line for each element, and each byte keeps its offset."""
    text = json.dumps(documents, indent=indent, ensure_ascii=ascii_only)
    lines = as_lines(text.encode())
    assert len(lines) == len(text.encode())
    assert [json.loads(line) for line in lines.split(b"\n") if line.strip()] == documents
    for document in documents:
        alone = as_lines(json.dumps(document, indent=indent).encode())
        assert b"\n" not in alone
        assert json.loads(alone) == document


@pytest.mark.parametrize(
    ("text", "at", "expected"),
    [
        ('[{"a":1}', 0, "a bracket that closes the array"),
        ('[{"a":1}] x', 9, "the end of the file after the array"),
        ('[{"a":1},]', 8, "a value between commas"),
        ('[,{"a":1}]', 0, "a value between commas"),
        ('[{"a":1},, {"a":2}]', 8, "a value between commas"),
        ('{"a":"x\ny"}', 7, "no line break in a string"),
    ],
)
def test_what_is_no_document_is_told_with_its_place(text: str, at: int, expected: str) -> None:
    """The offset is the place of the error, and the message says what was expected."""
    with pytest.raises(BadRecord, match=expected) as caught:
        as_lines(text.encode())
    assert caught.value.offset == at


def test_a_document_that_is_too_long_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A document is held in memory as a whole, so its length is limited, and the error says what to do."""
    monkeypatch.setattr(jsondocument, "DOCUMENT_BYTES_MAX", 4)
    with pytest.raises(BadRecord, match="write it as one object a line"):
        jsondocument.whole([b"{ ", b" }", b"\n"])
