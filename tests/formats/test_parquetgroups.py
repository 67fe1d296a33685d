"""What of a footer is understood, byte by byte: forms that Arrow does not write today, but that the protocol has."""

from __future__ import annotations

import pytest

from penstock.formats.parquetgroups import Footer, NotKnown

# Heads of fields: the step from the field before, and the type. 6 is a number, which is doubled (4 is 08), 9 a list, c a struct.
ABOUT = "96 08"  # field 9, the place of the first page
GROUPS = "19 1c"  # field 4 behind field 3: a list of one struct


def footer(groups: str, schema: str = "0c", rows: str = "16 02") -> Footer:
    """Return the footer with these bytes for its row groups, which are field 4."""
    return Footer.parsed(bytes.fromhex(f"29 {schema} {rows} {groups} 00"))


def group(chunk: str, more: str = "") -> str:
    """Return a row group of one row and one column."""
    return f"19 1c {chunk} 16 02 16 02 {more} 00"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(group(f"26 00 1c {ABOUT} 00 00"), group("26 00 1c 96 d0 01 00 00"), id="as Arrow says it"),
        pytest.param(group(f"26 08 1c {ABOUT} 00 00"), group("26 d0 01 1c 96 d0 01 00 00"), id="a column says where"),
        pytest.param(
            group(f"26 00 1c {ABOUT} 00 00", "26 08"),
            group("26 00 1c 96 d0 01 00 00", "26 d0 01"),
            id="a row group says where",
        ),
        pytest.param(
            group("26 00 1c 96 08 16 0a 16 0c 00 00"),
            group("26 00 1c 96 d0 01 16 d2 01 16 d4 01 00 00"),
            id="all pages",
        ),
    ],
)
def test_each_place_moves(before: str, after: str) -> None:
    """Every place that a footer may name is 100 bytes further on in the footer of the other file, and what names none stays."""
    (moved,) = footer(f"{GROUPS} {before}").groups(lambda _: 100)
    assert moved.form == bytes.fromhex(after)
    assert (moved.rows, moved.size) == (1, 1)


def test_fields_with_large_numbers_are_passed_over() -> None:
    """A type such as a variant is field 16 of its union: such a number does not fit into the head, and follows it."""
    variant = "1c 0c 20 00 00"
    assert footer("19 0c", variant).schema == bytes.fromhex(variant)
    long = footer("09 08 0c", rows="06 06 02")
    assert (long.schema, long.groups()) == (b"\x0c", [])


@pytest.mark.parametrize(
    "groups",
    [
        pytest.param("1d 00", id="a type that the protocol does not have"),
        pytest.param("19 15 02", id="row groups that are numbers"),
        pytest.param(f"1a 1c {group(f'26 00 1c {ABOUT} 00 00')}", id="row groups in a set"),
        pytest.param("19 1c 19 0c 16 02 18 01 02 00", id="a number of rows that is text"),
        pytest.param("19 1c 19 0c 16 02 00", id="no number of rows"),
        pytest.param("19 2c 19 0c 16 02 16 02 00", id="fewer row groups than it says"),
    ],
)
def test_what_is_not_understood_is_not_taken_over(groups: str) -> None:
    """Whatever else is there, the rows are read and written like any others."""
    with pytest.raises(NotKnown):
        footer(groups).groups(lambda _: 100)


def test_a_type_that_the_protocol_does_not_have() -> None:
    """How long such a value is cannot be known, wherever it is."""
    with pytest.raises(NotKnown):
        footer("19 0c", schema="1c 1d 00 00")
