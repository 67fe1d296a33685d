"""Spark's word for what becomes of records that cannot be parsed, `mode`, in ours.

A record that cannot be parsed is set aside where Spark would leave it out without a word. A mode that would make null of what does not
fit has no counterpart: it is refused, with what is here. So is one that says otherwise than `badRecords` does beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping


_BAD_RECORDS = {"failfast": "fail", "dropmalformed": "quarantine"}


def apply_mode(values: dict[str, Any], written: Mapping[str, str]) -> None:
    """Set `badRecords` to what `mode` means, where that is given. Raises `OptionError`."""
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
