"""Functions on text; their kernels come from `strings`, `matching` and Arrow."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from penstock.ingestion.sql import matching, strings
from penstock.ingestion.sql.expression import applied
from penstock.ingestion.sql.given import FLAG, INTEGER, TEXT

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from penstock.ingestion.sql.expression import Expression, Values
    from penstock.ingestion.sql.given import Given, Maker


def _texts(kernel: Callable[..., Values], kind: pa.DataType = TEXT) -> Maker:
    """Return the maker for a function of one text."""

    def maker(given: Given) -> Expression:
        given.count(1)
        return applied(kernel, kind, given.text(0))

    return maker


def _joined(given: Given) -> Expression:
    operands = [given.text(place) for place in range(len(given.operands))]
    if not operands:
        given.count(1)

    def kernel(*values: Values) -> Values:
        return pc.binary_join_element_wise(*values, "", null_handling="emit_null")

    return applied(kernel, TEXT, *operands)


def _after(separator: str, values: Values) -> Values:
    return pc.binary_join_element_wise(separator, values, "", null_handling="emit_null")


def _joined_by(given: Given) -> Expression:
    if not given.operands:
        given.count(2)
    separator = given.words(0)
    operands = [given.text(place) for place in range(1, len(given.operands))]
    if not operands:
        given.count(2)

    def kernel(*values: Values) -> Values:
        pieces = [pc.if_else(pc.is_valid(value), _after(separator, value), "") for value in values]
        return pc.utf8_slice_codeunits(
            pc.binary_join_element_wise(*pieces, "", null_handling="emit_null"), len(separator)
        )

    return applied(kernel, TEXT, *operands)


def _part_of_text(given: Given) -> Expression:
    given.count(2, 3)
    length = given.number(2) if len(given.operands) > 2 else None  # noqa: PLR2004 - text, position, length
    position = given.number(1)
    return applied(lambda values: strings.part(values, position, length), TEXT, given.text(0))


def _left(given: Given) -> Expression:
    given.count(2)
    length = given.number(1)
    return applied(lambda values: strings.part(values, 1, length), TEXT, given.text(0))


def _right(given: Given) -> Expression:
    given.count(2)
    length = given.number(1)
    return applied(lambda values: strings.right(values, length), TEXT, given.text(0))


def _padded(given: Given) -> Expression:
    given.count(2, 3)
    width, padding = given.number(1), given.words(2) if len(given.operands) > 2 else " "  # noqa: PLR2004 - text, width, padding
    if len(padding) != 1:
        given.refuse("pads with one character, and no other number of them")
    return applied(
        lambda values: strings.padded(values, width, padding, left=given.name == "lpad"), TEXT, given.text(0)
    )


def _replaced(given: Given) -> Expression:
    given.count(2, 3)
    old, new = given.words(1), given.words(2) if len(given.operands) > 2 else ""  # noqa: PLR2004 - text, old, new
    kernel = (
        (lambda values: pc.replace_substring(values, pattern=old, replacement=new)) if old else (lambda values: values)
    )
    return applied(kernel, TEXT, given.text(0))


def _searched(given: Given) -> Expression:
    given.count(2)
    kernel = {"startswith": pc.starts_with, "endswith": pc.ends_with, "contains": pc.match_substring}[given.name]
    sought = given.words(1)
    return applied(lambda values: kernel(values, sought), FLAG, given.text(0))


def _extracted(given: Given) -> Expression:
    given.count(2, 3)
    group = given.number(2) if len(given.operands) > 2 else 1  # noqa: PLR2004 - text, pattern, group
    return applied(matching.extracted(given.words(1), group, given.at), TEXT, given.text(0))


def _trimmed(kernel: Callable[..., Values]) -> Maker:
    return _texts(lambda values: kernel(values, characters=" "))


MAKERS: dict[str, Maker] = {
    **dict.fromkeys(("upper", "ucase"), _texts(partial(strings.cased, upper=True))),
    **dict.fromkeys(("lower", "lcase"), _texts(partial(strings.cased, upper=False))),
    **dict.fromkeys(("length", "char_length", "character_length", "len"), _texts(pc.utf8_length, INTEGER)),
    **dict.fromkeys(("trim", "btrim"), _trimmed(pc.utf8_trim)),
    "ltrim": _trimmed(pc.utf8_ltrim),
    "rtrim": _trimmed(pc.utf8_rtrim),
    "reverse": _texts(pc.utf8_reverse),
    **dict.fromkeys(("||", "concat"), _joined),
    "concat_ws": _joined_by,
    **dict.fromkeys(("substr", "substring"), _part_of_text),
    "left": _left,
    "right": _right,
    **dict.fromkeys(("lpad", "rpad"), _padded),
    "replace": _replaced,
    **dict.fromkeys(("startswith", "endswith", "contains"), _searched),
    "regexp_extract": _extracted,
}
