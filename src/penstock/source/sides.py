"""Plans, and lists of late files, that are too long for an offset: records beside the checkpoint, named by the digest of their text.

For a plan, the offset then has `{"file": name, "digest": ..., "splits": n, "at": directory}`; `at` is for readers that do not know the
directory. A record is put once and never altered, so a driver that makes the same plan again finds the same record.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import xxhash

from penstock.errors import AlreadyThere, DamagedState, NotThere
from penstock.query.records import state_bytes
from penstock.storage import TEMPORARY, names_at

if TYPE_CHECKING:
    from collections.abc import Collection

    from penstock.storage import Storage

PLAN, LATE = "plan", "late"  # kinds of records
INLINE_BYTES = 64 << 10  # a plan longer than this goes to a side record, if there is a place for one


class SideRecords:
    """The side records of one query, in `place`: a storage and a directory; `None` if the query has no such place.

    With `writes=False` they are only read.
    """

    def __init__(self, place: tuple[Storage, str] | None, *, writes: bool = True) -> None:
        self._place = place
        self._writes = writes

    def store(self, plan: list[Any], kind: str = PLAN) -> list[Any] | dict[str, Any]:
        """Return what the offset has for a plan: the plan itself, or a reference to a record that is durable now.

        The same for other lists; `kind` begins the record's name.
        """
        text = json.dumps(plan, separators=(",", ":")).encode()
        if self._place is None or not self._writes or len(text) <= INLINE_BYTES:
            return plan
        digest = xxhash.xxh3_128_hexdigest(text)
        name = f"{kind}-{digest}.json"
        storage, directory = self._place
        storage.make_directory(directory)
        with suppress(AlreadyThere):  # the same bytes, put by a driver that died before Spark wrote its offset
            storage.put_if_absent(f"{directory}/{name}", text)
        return {"file": name, "digest": digest, "splits": len(plan)} | ({"at": directory} if kind == PLAN else {})

    def load(self, reference: list[Any] | dict[str, Any]) -> list[Any]:
        """Return the plan for what `store` returned, a plan or a reference; `DamagedState` if the record is missing or was changed."""
        if isinstance(reference, list):
            return reference
        if self._place is None:
            msg = f"the plan {reference['file']!r} lies beside the offset, and stateLocation does not say where; set it as it was"
            raise DamagedState(msg)
        storage, directory = self._place
        path = f"{directory}/{reference['file']}"
        try:
            text = state_bytes(storage, path)
        except NotThere as error:
            msg = (
                f"the plan {path!r} that the checkpoint points at is missing; restore it with the checkpoint; if another source removed "
                "it, give each a stateLocation of its own, and have the batch planned anew (`penstock replan CHECKPOINT DST`)"
            )
            raise DamagedState(msg) from error
        digest = xxhash.xxh3_128_hexdigest(text)
        if digest != reference["digest"]:
            msg = f"the plan {path!r} is damaged: checksum {digest}, expected {reference['digest']}; restore it from a copy"
            raise DamagedState(msg)
        plan: list[Any] = json.loads(text)
        return plan

    def forget_all_but(self, keep: Collection[str]) -> None:
        """Delete the records whose names are not in `keep`, and what an interrupted `store` left."""
        if self._place is None or not self._writes:
            return
        storage, directory = self._place
        for name in names_at(storage, directory):
            if name.startswith((f"{PLAN}-", f"{LATE}-", TEMPORARY)) and name not in keep:
                storage.delete(f"{directory}/{name}")
