"""Plans, and lists of late files, that are too long for an offset: records beside the checkpoint, named by the digest of their text.

For a plan, the offset then has `{"file": name, "digest": ..., "splits": n, "at": directory}`; `at` is for readers that do not know the
directory. A record is put once and never altered, so a driver that makes the same plan again finds the same record.

A record is deleted one batch late. The failures that this must not bring about:

1. Two queries, or two sources of one, were given the same directory. 1. Source A puts a long plan, and B another one. 2. A batch of A is
   committed, and A deletes all records but its own last one. 3. The driver dies; B's batch is replayed, and its plan is gone. Rule: a
   source has a directory of its own in there, under a name that nobody else can have, and deletes nothing outside of it. The name is in
   the offset (`beside`), so the source has it again after a restart, also on another host. An offset of an earlier version has none: its
   plan is read from where it is, is not deleted, and the next offset has a name.
2. The two read the same files in the same batches. Their plans are the same, so they had the same record, and whoever was first deleted
   it for both. The same rule.
3. A is about to put a record, and B, which sweeps up what interrupted puts have left, takes its temporary file away. The same rule.
4. A driver dies after its first long plan, before Spark has any offset of it. The next one has another name, and a record stays for good,
   at most one each time. That is accepted: nobody can tell it from the record of a source that goes on.

A checkpoint that was copied, and goes on in two places, has one name in both: then a missing plan is still an error that says what to do.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import xxhash

from penstock import unique
from penstock.errors import AlreadyThere, DamagedState, NotThere
from penstock.query.records import state_bytes
from penstock.storage import names_at

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from penstock.storage import Storage

PLAN, LATE = "plan", "late"  # kinds of records
_BESIDE = "beside"  # the field of an offset for the name of the source's directory
INLINE_BYTES = 64 << 10  # a plan longer than this goes to a side record, if there is a place for one


class SideRecords:
    """The side records of one source, in a directory of its own in `place`: a storage and a directory; `None` if there is no such place.

    With `writes=False` they are only read.
    """

    def __init__(self, place: tuple[Storage, str] | None, *, writes: bool = True) -> None:
        self._place = place
        self._writes = writes
        self._own = unique.token()

    def resume(self, offset: Mapping[str, Any]) -> SideRecords:
        """Go on with the directory that an offset names; return this object."""
        self._own = offset.get(_BESIDE, self._own)
        return self

    def to_json(self) -> dict[str, str]:
        """Return what an offset has of this: the name of the directory, if there is a place for it."""
        return {} if self._place is None else {_BESIDE: self._own}

    def store(self, plan: list[Any], kind: str = PLAN) -> list[Any] | dict[str, Any]:
        """Return what the offset has for a plan: the plan itself, or a reference to a record that is durable now.

        The same for other lists; `kind` begins the record's name.
        """
        text = json.dumps(plan, separators=(",", ":")).encode()
        if self._place is None or not self._writes or len(text) <= INLINE_BYTES:
            return plan
        digest = xxhash.xxh3_128_hexdigest(text)
        name = f"{self._own}/{kind}-{digest}.json"
        storage, directory = self._place
        storage.make_directory(f"{directory}/{self._own}")
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
                "it, of an earlier version or with a copy of the checkpoint, give each a stateLocation of its own, and have the batch "
                "planned anew (`penstock replan CHECKPOINT DST`)"
            )
            raise DamagedState(msg) from error
        digest = xxhash.xxh3_128_hexdigest(text)
        if digest != reference["digest"]:
            msg = f"the plan {path!r} is damaged: checksum {digest}, expected {reference['digest']}; restore it from a copy"
            raise DamagedState(msg)
        plan: list[Any] = json.loads(text)
        return plan

    def forget_all_but(self, keep: Collection[str]) -> None:
        """Delete the source's records that are not in `keep`, and what an interrupted `store` left."""
        if self._place is None or not self._writes:
            return
        storage, directory = self._place
        for name in names_at(storage, f"{directory}/{self._own}"):
            if f"{self._own}/{name}" not in keep:
                storage.delete(f"{directory}/{self._own}/{name}")
