"""Translates Spark's option for records that cannot be parsed, `mode`, into our options.

A record that cannot be parsed is set aside where Spark would silently leave it out. A mode that would replace values that do not fit by
null has no counterpart: it is refused, with what to use instead. A mode that contradicts `badRecords` is refused, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping


_BAD_RECORDS = {"failfast": "fail", "dropmalformed": "quarantine"}


def apply_mode(values: dict[str, Any], written: Mapping[str, str]) -> None:
    """Set `badRecords` to what `mode` means, if it is given. Raises `OptionError`."""
    mode = values.get("mode")
    if mode is None or "badRecords" not in values:
        return
    bad_records = _BAD_RECORDS.get(mode)
    if bad_records is None:
        msg = (
            f"mode={mode.upper()} makes null of what does not fit without a word; expected DROPMALFORMED, which is badRecords=quarantine: "
            "such records are set aside, or FAILFAST, which is badRecords=fail. format=text has each line as it is, to be parsed in the "
            "query"
        )
        raise OptionError(msg)
    if "badRecords" in written and values["badRecords"] != bad_records:
        msg = f"mode={mode.upper()} is badRecords={bad_records}, found badRecords={values['badRecords']}, too; leave one of them out"
        raise OptionError(msg)
    values["badRecords"] = bad_records
