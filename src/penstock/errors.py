"""Every error Penstock raises, grouped by what a handler would do.

::

    PenstockError
    +-- UsageError                  the call is wrong: change it (exit status 2)
    |   +-- OptionError             an option is unknown, missing or has a bad value
    |   |   +-- SqlError            the SQL of an ingest cannot be evaluated row by row as Spark would
    |   +-- TemplateError           a bucketBy or fileName template cannot be used
    |   +-- DependencyError         a library, or something else that the machine needs, is missing
    |   +-- PositionError           a position is not one of this log
    |   +-- SchemaChanged           a stream is restarted with a schema that it cannot continue with
    |   +-- PipelinesError          a file of pipelines has mistakes: mend each line that is named
    |   +-- WrongKey                the data is encrypted for other keys than the given one
    +-- InputError                  the input is wrong: mend the file, run again
    |   +-- BadRecord               a record cannot be parsed
    |   +-- BadFile                 a file cannot be read at all
    |   +-- FileChanged             a planned file shrank, changed or vanished
    |   +-- FileTooLate             a file appeared that is older than the cursor by more than `lateness`
    |   +-- FilesCleaned            the checkpoint is older than what `cleanSource` has taken away
    |   +-- TooMuchSetAside         more was set aside than `maxBadRecords` or `maxBadFraction` allow
    +-- CommitError                 a batch was not committed: see why, run again
    |   +-- Fenced                  a newer driver owns the sink: stop this one
    |   +-- CheckpointMismatch      checkpoint and ledger (or store) disagree
    |   +-- PublishConflict         a finished file cannot be made visible
    |   +-- Unwritable              rows that an earlier version accepted cannot be written to their files
    +-- DamagedState                a state file is cut, altered or missing (exit status 3)
    +-- StorageError                the file system refused: see the cause, run again
    |   +-- AlreadyThere            an exclusive create found the name taken
    |   +-- NotThere                the named file does not exist
    |   +-- NoSpace                 disk or quota is full
    |   +-- Locked                  another process holds a lock that only one may hold
    |   +-- NotSupported            this storage cannot do that
    |   +-- AccessRefused           the store denies this process an operation that it needs
    |   +-- UnfitStore              the store does not keep a promise that exactly-once needs
    +-- EventsLost                  the ledger no longer has a reader's next events: start again
    +-- CallbackFailed              `onPublish` failed: mend it, start again
    +-- DatabaseError               the database refused: read its message, run again
    |   +-- DatabaseAway            it cannot be reached, or a lock stays taken
    |   +-- TableMismatch           the table does not exist, or does not fit these rows
    |   +-- RowRefused              a row cannot be stored: mend it, or use `badRows=quarantine`
    +-- CallFailed                  an asynchronous call failed for good: mend the service, or use `on_error`
    +-- BrokerError                 a Kafka broker refused: read its message, run again
    |   +-- BrokerAway              no broker answers, or the leader of a partition does not
    |   +-- TopicNotThere           a topic or a partition does not exist (any more)
    |   +-- TopicReplaced           a topic was deleted and created again under its name
    |   +-- RecordsLost             retention took records that the query has not read
    |   +-- RecordsReplaced         other records have taken the place of planned or read ones
    |   +-- TransactionOpen         a producer's transaction is open before the end of a batch
    +-- CatalogError                a table refused, or cannot hold a file: see why, run again

Every class has a stable, append-only `code`; messages may change, codes do not. Messages say what, where, found against
expected, and what to do next; they never contain a secret.

How an error travels. Between Python processes it is pickled. Through Spark's JVM it travels as the text of a traceback,
and that text can contain anything: the content of a record, other errors, Java, file names. So `leave` attaches a note
to an error that leaves for the JVM. Python prints the note on its own line after the message:

::

    penstock.errors.BadRecord: [PST-201] '/data/a.json', byte 8: found 'not json', expected a record that is one JSON object
    (penstock {"code": "PST-201", "length": 83, "fields": {"path": "/data/a.json", "offset": 8}})

`of` looks for the last valid note. The `length` characters before it are the message, whatever they contain, and the
code comes before the message. A message cannot forge the note of its own error, because the note comes after it. A text
may have no note (an error that a user's function raised, a text from elsewhere). Then `of` takes the last line that
begins like one of our errors in a traceback, to the end of the line. Spark itself refuses some calls that concern us
before it asks us; for these `of` returns our own message.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any, ClassVar

DEBUG = "PENSTOCK_DEBUG"

# What stands between `://` and the last `@` before the path. A password may contain slashes. A port is not a password.
_CREDENTIALS = re.compile(r"""(?<=://)(?:[^/\s"'@:]*:(?!\d+[/\s"'])[^\s"'@]*|[^/\s"'@]*)(?:@[^/\s"'@]*)*(?=@)""")


class PenstockError(Exception):
    """Base of all errors of Penstock. `exit_status` is the exit status of the command line."""

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


class SqlError(OptionError):
    """The SQL of an ingest is invalid, or cannot be evaluated row by row as Spark would. Raised before anything starts."""

    code = "PST-106"


class TemplateError(UsageError):
    """A `bucketBy` or `fileName` template cannot be used with this data."""

    code = "PST-102"


class DependencyError(UsageError):
    """Something that this use needs is missing or does not fit: a library, Java, a directory; the message says what to do."""

    code = "PST-103"


class PositionError(UsageError):
    """A position of a log lies inside a record, before the first kept record, or after the end."""

    code = "PST-104"


class SchemaChanged(UsageError):
    """A stream was restarted with a schema that lacks an earlier column, or has a column of another type."""

    code = "PST-105"


class PipelinesError(UsageError):
    """A file of pipelines has mistakes: a line each with file, line and key. Nothing was started; pipelines that already run go on."""

    code = "PST-800"


class WrongKey(UsageError):
    """The data is not encrypted for any of the given keys, or its header is damaged; none of it was read."""

    code = "PST-520"


class InputError(PenstockError):
    """The input is not what the options say it is."""

    code = "PST-200"


class BadRecord(InputError):
    """A record cannot be parsed.

    `path` is the file, `offset` the byte (of the uncompressed content) where the record begins.
    """

    code = "PST-201"

    def __init__(self, message: str, *, path: str | None = None, offset: int | None = None) -> None:
        super().__init__(message)
        self.path = path
        self.offset = offset


class BadFile(InputError):
    """A file cannot be read as the format it should have."""

    code = "PST-202"


class FileChanged(InputError):
    """A planned file shrank, changed or vanished before or while it was read."""

    code = "PST-203"


class FileTooLate(InputError):
    """A new file appeared that is older than the cursor by more than `lateness`, and `tooLate=fail`."""

    code = "PST-204"


class FilesCleaned(InputError):
    """Files were read and cleaned that the checkpoint does not know: it was put back from an older copy."""

    code = "PST-206"


class TooMuchSetAside(InputError):
    """More records and files were set aside than `maxBadRecords` or `maxBadFraction` allow; nothing of the batch is visible."""

    code = "PST-205"


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


class Unwritable(CommitError):
    """Rows that an earlier version accepted have a column that their files cannot hold; they are staged, and none is lost."""

    code = "PST-304"


class DamagedState(PenstockError):
    """A state file is empty, cut, altered or missing. Penstock guessed nothing and changed nothing."""

    code = "PST-400"
    exit_status = 3


class StorageError(PenstockError):
    """The file system refused an operation; `__cause__` is the original error."""

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
    """Another process, or another holder in this process, holds a lock that only one may hold."""

    code = "PST-504"


class NotSupported(StorageError):
    """The storage has no such operation."""

    code = "PST-505"


class AccessRefused(StorageError):
    """An object store denies this process an operation that it needs: its keys are wrong, or lack the permission."""

    code = "PST-540"


class UnfitStore(StorageError):
    """An object store breaks a promise that exactly-once needs: two clients put the same key at the same time, and both succeeded."""

    code = "PST-541"


class EventsLost(PenstockError):
    """Events that were published but not delivered cannot be found: the ledger was emptied, restored, or lost its oldest records."""

    code = "PST-510"


class CallbackFailed(PenstockError):
    """The function of `onPublish` failed. The events that it got are published; the next start calls it with them again."""

    code = "PST-511"


class CallFailed(PenstockError):
    """A call of an `async_map` failed for good, or its function could not be run at all; its task has failed."""

    code = "PST-600"


class DatabaseError(PenstockError):
    """The database refused a statement; it holds nothing of the batch in flight."""

    code = "PST-700"


class DatabaseAway(DatabaseError):
    """The database could not be reached, or a lock could not be taken, in any of the tries; the message quotes the last try's error."""

    code = "PST-701"


class TableMismatch(DatabaseError):
    """The table does not exist, lacks a column or a unique key, or has a column of another type."""

    code = "PST-702"


class RowRefused(DatabaseError):
    """A row cannot be stored: it breaks a constraint, does not fit its column, or has no key."""

    code = "PST-703"


class CatalogError(PenstockError):
    """A catalogue's table refused to take files in, or cannot hold a finished file; the table is unchanged."""

    code = "PST-910"


class BrokerError(PenstockError):
    """A Kafka broker refused a request; nothing of the batch in flight is committed.

    `topic`, `partition` and `offset` say where, if the error is about one place of a partition.
    """

    code = "PST-900"

    def __init__(
        self, message: str, *, topic: str | None = None, partition: int | None = None, offset: int | None = None
    ) -> None:
        super().__init__(message)
        self.topic = topic
        self.partition = partition
        self.offset = offset


class BrokerAway(BrokerError):
    """No broker could be reached, or the leader of a partition sent nothing, within `timeout`."""

    code = "PST-901"


class TopicNotThere(BrokerError):
    """A topic, or a partition of it, that the query subscribes to or has read does not exist."""

    code = "PST-902"


class TopicReplaced(BrokerError):
    """A topic has another id than when it was planned: it was deleted and created again, and its offsets now mean other records."""

    code = "PST-903"


class RecordsLost(BrokerError):
    """The next records are no longer in the topic: `offset` was the next one to read, and `first` is the first one that is left."""

    code = "PST-904"

    def __init__(self, message: str, *, first: int | None = None, **place: Any) -> None:  # noqa: ANN401 - as `BrokerError` takes them
        super().__init__(message, **place)
        self.first = first


class RecordsReplaced(BrokerError):
    """A partition was truncated: the records before `offset` are not the planned ones, which leaders of up to `epoch` wrote."""

    code = "PST-905"

    def __init__(self, message: str, *, epoch: int | None = None, **place: Any) -> None:  # noqa: ANN401 - as `BrokerError` takes them
        super().__init__(message, **place)
        self.epoch = epoch


class TransactionOpen(BrokerError):
    """From `offset` on, records that a batch has to read belong to a transaction that stays open."""

    code = "PST-906"


def without_credentials(text: str) -> str:
    """Return the text with `***` for whatever stands before the `@` of its URLs: a user, a password, an access key."""
    return _CREDENTIALS.sub("***", text)


def debugging() -> bool:
    """Tell whether the user wants to see the causes of an error, too."""
    return os.environ.get(DEBUG, "0") not in {"", "0"}


def unforeseen(error: Exception) -> PenstockError:
    """Return an error as users see it: ours unchanged; an error of a library, or a bug of ours, with its own message."""
    if isinstance(error, PenstockError):
        return error
    advice = ""
    if isinstance(error, RuntimeError) and "can't start new thread" in str(
        error
    ):  # as Python says it, with no class of its own
        advice = (
            "; this user may start no more threads, or this process has no memory for another: raise the limit (ulimit -u, ulimit -v, "
            "or what the container allows), and run the same again"
        )
    return PenstockError(f"{type(error).__name__}: {error}{advice}")


def leave(error: PenstockError) -> PenstockError:
    """Return an error that is about to become text for Spark's JVM, with the note by which `of` finds it in that text.

    Its causes are dropped unless `debugging`, because Spark logs and wraps each line many times; the message tells
    them.
    """
    error.message = error.message.encode(errors="backslashreplace").decode()  # PySpark can only send UTF-8
    notes = [note for note in getattr(error, "__notes__", ()) if not _NOTE.fullmatch(note)]
    error.__notes__ = [*notes, _note(error)]  # type: ignore[attr-defined]  # Python has it since 3.11, and Spark needs that
    if not debugging():
        error.__cause__, error.__suppress_context__, error.__traceback__ = None, True, None
    return error


def of(error: BaseException | str | None) -> PenstockError | None:
    """Return the error of Penstock in `error`, whatever Spark has wrapped it in; `None` if it contains none.

    `error` is what a query raised, what `query.exception()` returns, or text, such as the `exception` of a listener's
    event. The returned error has its type, its message and its fields (`path`, `offset`), so it can be raised again
    unchanged.
    """
    if not isinstance(error, BaseException):
        return _of_texts([error or ""])
    led, handled = _chain(error)
    return _of_errors(led) or _of_errors(handled)


_NOTE = re.compile(r"^[ \t]*\(penstock (\{.*\})\)[ \t\r]*$", re.MULTILINE)
_NAMED = re.compile(
    r"(?:^[ \t]*|Python worker: |terminated with exception: )(?:error: |penstock\.errors\.(\w+): )?\[(PST-\d{3})\] (.*)$",
    re.MULTILINE,
)

# What Spark 4.3 refuses before it asks us: a pattern of its message (`{0}` is the format), and our message for it.
_SPARK_REFUSES = {
    r"requirement failed: (penstock) does not support Update mode": (
        "outputMode('update') would have rows of finished files replaced; expected append, Spark's default; for the newest "
        "row of each key use format penstock-db with mode=upsert"
    ),
    r"requirement failed: (penstock-db) does not support Update mode": (
        "outputMode('update') is not how format {0} updates rows; expected append, with mode=upsert and keyColumns"
    ),
    r"The data source \"(penstock)\" cannot be written in the \"\w+\" mode": (
        "an output is only ever added to: expected df.write.format('penstock').mode('append'), with a batchKey, by which the same "
        "batch is written once however often it is tried; a stream is written by df.writeStream"
    ),
    r"The data source \"(penstock-[\w-]*)\" cannot be written in the \"\w+\" mode": (
        "format {0} is a stream: expected df.writeStream; a batch is written by Spark's own text, json, csv or parquet"
    ),
    r"Unsupported data source type for direct query on files: (penstock|penstock-kafka)(?![\w-])": (
        "Spark cannot select from a path of {0}: expected spark.read.format('{0}').load(path), whose rows become a table of SQL "
        "by createOrReplaceTempView(name); a stream is read by spark.readStream"
    ),
    r"Unsupported data source type for direct query on files: (penstock-[\w-]+)": (
        "format {0} is not a table to select from: a stream is read by spark.readStream, and written by df.writeStream"
    ),
    r"Data source (penstock[\w-]*) does not support continuous processing": (
        "format {0} works in batches: expected trigger(processingTime=...) or trigger(availableNow=True)"
    ),
    r"(?:Data source '|Failed to find the data source: )(penstock(?:-db|-kafka|-wal)?)(?![\w-])": (
        "Spark has not found format {0}: it looks only for what is installed in the Python of its workers; call "
        "penstock.register(spark) before"
    ),
}


def _note(error: PenstockError) -> str:
    public = {name: value for name, value in vars(error).items() if name != "message" and name[0] != "_"}
    fields = {name: value for name, value in public.items() if isinstance(value, (str, int, float, bool, type(None)))}
    return f"(penstock {json.dumps({'code': error.code, 'length': len(error.message), 'fields': fields})})"


def _chain(error: BaseException) -> tuple[list[BaseException], list[BaseException]]:
    """Return an error with its causes, for Python and (`_cause`) as PySpark keeps Java's; and the errors that were being handled."""
    led = [error]
    for link in led:
        led += [cause for cause in _causes(link) if not _is_among(cause, led)]
    handled = [link.__context__ for link in led if not link.__suppress_context__]
    return led, [link for link in handled if link is not None and not _is_among(link, led)]


def _causes(error: BaseException) -> list[BaseException]:
    causes = (error.__cause__, getattr(error, "_cause", None), *getattr(error, "exceptions", ()))
    return [cause for cause in causes if isinstance(cause, BaseException)]


def _is_among(error: BaseException, errors: list[BaseException]) -> bool:
    return any(error is other for other in errors)


def _of_errors(errors: list[BaseException]) -> PenstockError | None:
    ours = (error for error in errors if isinstance(error, PenstockError))
    return next(ours, None) or _of_texts([_text(error) for error in errors])


def _of_texts(texts: list[str]) -> PenstockError | None:
    searches = (find(text) for find in (_noted, _named, _refused_by_spark) for text in texts)
    return next((error for error in searches if error is not None), None)


def _text(error: BaseException) -> str:
    """Return an error's text. If PySpark would have to ask a JVM that is gone, return what PySpark knows without it."""
    try:
        words = str(error)
    except Exception:  # noqa: BLE001 - py4j may raise anything then
        words = ""
    return "\n".join([words, *(str(getattr(error, name, "") or "") for name in ("_desc", "_stackTrace"))])


def _noted(text: str) -> PenstockError | None:
    """Return the last error whose note is in the text, exactly as it was."""
    for match in reversed(list(_NOTE.finditer(text))):
        try:
            form = json.loads(match[1])
            code, length, fields = form["code"], form["length"], form["fields"]
        except (ValueError, KeyError, TypeError):
            continue
        end = match.start() - 1
        head = f"[{code}] "
        begin = end - length if isinstance(length, int) and 0 <= length <= end else 0
        if begin >= len(head) and text[begin - len(head) : begin] == head and isinstance(fields, dict):
            return _rebuilt(_kind_of(code), text[begin:end], fields)
    return None


def _named(text: str) -> PenstockError | None:
    """Return the last error that a line names as a traceback would, with the rest of the line as its message."""
    for name, code, message in reversed(_NAMED.findall(text)):
        kind = _kind_of(code)
        if name in {"", kind.__name__}:
            return _rebuilt(kind, message.strip(), {})
    return None


def _refused_by_spark(text: str) -> PenstockError | None:
    for pattern, message in _SPARK_REFUSES.items():
        if match := re.search(pattern, text):
            return OptionError(message.format(match[1]))
    return None


def _kind_of(code: str) -> type[PenstockError]:
    kinds = [PenstockError]
    for kind in kinds:
        if kind.code == code:
            return kind
        kinds += kind.__subclasses__()
    return PenstockError


def _rebuilt(kind: type[PenstockError], message: str, fields: dict[str, Any]) -> PenstockError:
    error = kind(message)
    error.__dict__.update(fields)
    return error
