"""Spark's word for what becomes of records that cannot be parsed, `mode`, in ours.

A mode that would make null of what does not fit, or leave a record out without a word, has no counterpart: it is refused, with what
is here. So is one that says otherwise than `badRecords` does beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.options.option import Option

_BAD_RECORDS = {"failfast": "fail", "dropmalformed": "quarantine"}


def apply_mode(values: dict[str, Any], written: Mapping[str, str], options: Mapping[str, Option]) -> None:
    """Set `badRecords` to what `mode` means, where that is given; `options` has each by its lower-case name. Raises `OptionError`."""
    mode = values.get("mode")
    if mode is None or "badRecords" not in values:
        return
    meant = _BAD_RECORDS.get(mode)
    try:
        bad_records = meant and options["badrecords"].parse(meant, "badRecords")
    except OptionError:
        bad_records = None
    if bad_records is None:
        loss = "leaves records out" if mode == "dropmalformed" else "makes null of what does not fit"
        msg = (
            f"mode={mode.upper()} {loss} without a word; expected FAILFAST, which is badRecords=fail: what cannot be parsed fails the "
            "batch, by its path and offset. format=text has each line as it is, to be parsed in the query"
        )
        raise OptionError(msg)
    if "badRecords" in written and values["badRecords"] != bad_records:
        msg = f"mode={mode.upper()} is badRecords={bad_records}, found badRecords={values['badRecords']}, too; leave one of them out"
        raise OptionError(msg)
    values["badRecords"] = bad_records
