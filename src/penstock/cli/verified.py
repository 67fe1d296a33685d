"""The last result of `penstock verify`, noted in the output's state for `status` and the page.

A note is one small file beside the ledgers, `_penstock/verified-<n>.json`, in the form of the ledger's records; the
newest counts, and older ones are removed. Nothing is decided by it. A user who may read the output but not write to it
can verify all the same, and leaves no note.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from penstock import clock
from penstock.errors import DamagedState, StorageError
from penstock.query.records import checked_at, signed
from penstock.sink.ledger import STATE_DIRECTORY
from penstock.storage import names_at

if TYPE_CHECKING:
    from penstock.storage import Storage
    from penstock.verify.proof import Proof

_NOTE = re.compile(r"verified-(\d{12})\.json")


@dataclass(frozen=True)
class LastProof:
    """A result: `problems` counts files with something wrong, `proved` is about the records, `None` if no source was given.

    `rows` are the rows of each sink that were finished at that time.
    """

    ok: bool
    time_ns: int
    problems: int
    proved: bool | None
    files: int
    rows: dict[str, int]

    @staticmethod
    def of(proof: Proof) -> LastProof:
        """Return the result of a proof that was made just now."""
        sinks = proof.output.sinks
        return LastProof(
            ok=proof.ok,
            time_ns=clock.now_ns(),
            problems=len(proof.output.problems),
            proved=None if proof.source is None else proof.source.proved,
            files=sum(sink.files for sink in sinks),
            rows={sink.sink: sink.rows for sink in sinks},
        )


def leave(storage: Storage, root: str, verdict: LastProof) -> None:
    """Write a note of a result, if possible."""
    directory = f"{root}/{STATE_DIRECTORY}"
    with suppress(StorageError):  # the note is optional: a user who cannot write here has verified all the same
        numbers = _numbers(storage, directory)
        storage.put_if_absent(_path(directory, max(numbers, default=0) + 1), signed(asdict(verdict)))
        for number in numbers:
            storage.delete(_path(directory, number))


def last(storage: Storage, root: str) -> LastProof | None:
    """Return the last result, `None` if there is none that can be read."""
    directory = f"{root}/{STATE_DIRECTORY}"
    with suppress(StorageError, DamagedState, KeyError, TypeError):
        for number in sorted(_numbers(storage, directory), reverse=True)[:1]:
            path = _path(directory, number)
            return _verdict(checked_at(storage, path))
    return None


def _verdict(record: dict[str, Any]) -> LastProof:
    fields = {name: record[name] for name in LastProof.__dataclass_fields__}
    return LastProof(**fields | {"time_ns": int(fields["time_ns"]), "rows": dict(fields["rows"])})


def _numbers(storage: Storage, directory: str) -> list[int]:
    return [int(match[1]) for name in names_at(storage, directory) if (match := _NOTE.fullmatch(name))]


def _path(directory: str, number: int) -> str:
    return f"{directory}/verified-{number:012d}.json"
