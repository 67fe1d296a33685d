"""Every error Penstock raises, grouped by what a handler would do.

::

    PenstockError
    +-- UsageError                  the call is wrong: change it (exit status 2)
    |   +-- OptionError             an option is unknown, missing or has a bad value
    |   +-- TemplateError           a bucketBy or fileName template cannot be used
    |   +-- DependencyError         a library, or what else of the machine is needed, is not there
    |   +-- PositionError           a position is not one of this log
    +-- InputError                  the input is wrong: mend the file, run again
    |   +-- BadRecord               a record cannot be parsed
    |   +-- BadFile                 a file cannot be read at all
    |   +-- FileChanged             a planned file shrank, changed or vanished
    |   +-- FileTooLate             a file appeared further behind the cursor than `lateness`
    +-- CommitError                 a batch was not committed: look at why, run again
    |   +-- Fenced                  a newer driver owns the sink: stop this one
    |   +-- CheckpointMismatch      checkpoint and ledger (or store) tell different stories
    |   +-- PublishConflict         a finished file cannot be made visible
    +-- DamagedState                a state file is cut, altered or missing (exit status 3)
    +-- StorageError                the file system refused: look at the cause, run again
    |   +-- AlreadyThere            an exclusive create found the name taken
    |   +-- NotThere                the named file does not exist
    |   +-- NoSpace                 disk or quota is full
    |   +-- Locked                  another process holds what only one may hold
    |   +-- NotSupported            this storage cannot do that
    +-- DatabaseError               the database refused: look at its words, run again
    |   +-- DatabaseAway            it cannot be reached, or what is needed stays locked
    |   +-- TableMismatch           the table is not there, or is not one for these rows
    |   +-- RowRefused              a row cannot be stored: mend it, or take `badRows=quarantine`
    +-- CallFailed                  an asynchronous call failed for good: mend the service, or take `on_error`

Every class has a stable, append-only `code`; messages may change, codes do not. Messages say what,
where, found against expected, and what to do next; they never hold a secret. All errors survive
pickling: they cross from executors to the driver.
"""

from __future__ import annotations

import re
from typing import ClassVar

# What stands between `://` and the last `@` in front of the path. A password may hold slashes; a port is none.
_CREDENTIALS = re.compile(r"""(?<=://)(?:[^/\s"'@:]*:(?!\d+[/\s"'])[^\s"'@]*|[^/\s"'@]*)(?:@[^/\s"'@]*)*(?=@)""")


class PenstockError(Exception):
    """Base of all errors of Penstock. `exit_status` is what the command line ends with."""

    code: ClassVar[str] = "PST-000"
    exit_status: ClassVar[int] = 1

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return f"[{self.code}] {self.message}"


class UsageError(PenstockError):
    """The call cannot work as it stands; nothing was read or written."""

    code = "PST-100"
    exit_status = 2


class OptionError(UsageError):
    """An option is unknown, missing, or has a value that does not fit."""

    code = "PST-101"


class TemplateError(UsageError):
    """A `bucketBy` or `fileName` template cannot be used with this data."""

    code = "PST-102"


class DependencyError(UsageError):
    """What this use needs of the machine is missing or not fit: a library, Java, a directory; the message says what to do."""

    code = "PST-103"


class PositionError(UsageError):
    """A position of a log lies inside a record, before the first one that is kept, or behind the end."""

    code = "PST-104"


class InputError(PenstockError):
    """The input is not what the options say it is."""

    code = "PST-200"


class BadRecord(InputError):
    """A record cannot be parsed.

    `path` is the file, `offset` the byte at which the record begins (in the uncompressed content).
    """

    code = "PST-201"

    def __init__(self, message: str, *, path: str | None = None, offset: int | None = None) -> None:
        super().__init__(message)
        self.path = path
        self.offset = offset

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.message, {"path": self.path, "offset": self.offset})


class BadFile(InputError):
    """A file cannot be read as the format it should have."""

    code = "PST-202"


class FileChanged(InputError):
    """A planned file shrank, changed or vanished before or while it was read."""

    code = "PST-203"


class FileTooLate(InputError):
    """A new file appeared further behind the cursor than `lateness` allows, and `tooLate=fail`."""

    code = "PST-204"


class CommitError(PenstockError):
    """A batch could not be committed; none of it is visible."""

    code = "PST-300"


class Fenced(CommitError):
    """A newer driver owns this sink; this one must stop and has changed nothing."""

    code = "PST-301"


class CheckpointMismatch(CommitError):
    """The checkpoint and the ledger, or a window store, disagree about what was committed."""

    code = "PST-302"


class PublishConflict(CommitError):
    """A finished part cannot be made visible under the name the ledger gave it."""

    code = "PST-303"


class DamagedState(PenstockError):
    """A state file is empty, cut, altered or missing. Nothing was guessed, nothing was changed."""

    code = "PST-400"
    exit_status = 3


class StorageError(PenstockError):
    """The file system refused an operation; `__cause__` is its own error."""

    code = "PST-500"


class AlreadyThere(StorageError):
    """An exclusive create, a publish or a put_if_absent found the name taken."""

    code = "PST-501"


class NotThere(StorageError):
    """The named file or directory does not exist."""

    code = "PST-502"


class NoSpace(StorageError):
    """The disk or the quota is full."""

    code = "PST-503"


class Locked(StorageError):
    """Another process, or another holder in this one, holds what only one may hold."""

    code = "PST-504"


class NotSupported(StorageError):
    """The storage has no such operation."""

    code = "PST-505"


class CallFailed(PenstockError):
    """A call of an `async_map` failed for good, or its function could not be run at all; its task has failed."""

    code = "PST-600"


class DatabaseError(PenstockError):
    """The database refused a statement; nothing of the batch in flight is in it."""

    code = "PST-700"


class DatabaseAway(DatabaseError):
    """The database could not be reached, or a lock not be had, in all tries; the last one's words are in the message."""

    code = "PST-701"


class TableMismatch(DatabaseError):
    """The table is not there, lacks a column or a unique key, or has a column of another type."""

    code = "PST-702"


class RowRefused(DatabaseError):
    """A row cannot be stored: it breaks a constraint, does not fit its column, or has no key."""

    code = "PST-703"


def without_credentials(text: str) -> str:
    """Return text with `***` for what stands before the `@` of URLs in it: a user, a password, an access key."""
    return _CREDENTIALS.sub("***", text)


def from_text(text: str) -> PenstockError:
    """Return the error that another process raised, from the text in which Spark wrapped it; the last one it names.

    Without a code in it the whole text is the message of a plain `PenstockError`.
    """
    found = re.findall(r"\[(PST-\d+)\] (.*)", text)
    if not found:
        return PenstockError(text)
    code, message = found[-1]
    return _kind_of(code)(message.strip())


def _kind_of(code: str) -> type[PenstockError]:
    kinds = [PenstockError]
    for kind in kinds:
        if kind.code == code:
            return kind
        kinds += kind.__subclasses__()
    return PenstockError


def _rebuild(kind: type[PenstockError], message: str, fields: dict[str, object]) -> PenstockError:
    error = kind(message)
    error.__dict__.update(fields)
    return error
