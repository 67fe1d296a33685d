"""Every error Penstock raises, grouped by what a handler would do.

::

    PenstockError
    +-- UsageError                  the call is wrong: change it (exit status 2)
    |   +-- OptionError             an option is unknown, missing or has a bad value
    |   |   +-- SqlError            the SQL of an ingest cannot be answered row by row as Spark would
    |   +-- TemplateError           a bucketBy or fileName template cannot be used
    |   +-- DependencyError         a library, or what else of the machine is needed, is not there
    |   +-- PositionError           a position is not one of this log
    |   +-- SchemaChanged           a stream is started with a schema that it does not go on with
    |   +-- PipelinesError          a file of pipelines has mistakes: mend each line that is named
    |   +-- WrongKey                what is encrypted is for other keys than the given one
    +-- InputError                  the input is wrong: mend the file, run again
    |   +-- BadRecord               a record cannot be parsed
    |   +-- BadFile                 a file cannot be read at all
    |   +-- FileChanged             a planned file shrank, changed or vanished
    |   +-- FileTooLate             a file appeared further behind the cursor than `lateness`
    |   +-- TooMuchSetAside         more was set aside than `maxBadRecords` or `maxBadFraction` allow
    +-- CommitError                 a batch was not committed: look at why, run again
    |   +-- Fenced                  a newer driver owns the sink: stop this one
    |   +-- CheckpointMismatch      checkpoint and ledger (or store) tell different stories
    |   +-- PublishConflict         a finished file cannot be made visible
    |   +-- Unwritable              rows that an earlier version took cannot be in their files
    +-- DamagedState                a state file is cut, altered or missing (exit status 3)
    +-- StorageError                the file system refused: look at the cause, run again
    |   +-- AlreadyThere            an exclusive create found the name taken
    |   +-- NotThere                the named file does not exist
    |   +-- NoSpace                 disk or quota is full
    |   +-- Locked                  another process holds what only one may hold
    |   +-- NotSupported            this storage cannot do that
    |   +-- AccessRefused           the store does not let this process do what it must
    |   +-- UnfitStore              the store does not keep a promise that exactly-once needs
    +-- EventsLost                  the ledger has not the events that a reader of them is to get next: begin anew
    +-- CallbackFailed              `onPublish` failed: mend it, start again
    +-- DatabaseError               the database refused: look at its words, run again
    |   +-- DatabaseAway            it cannot be reached, or what is needed stays locked
    |   +-- TableMismatch           the table is not there, or is not one for these rows
    |   +-- RowRefused              a row cannot be stored: mend it, or take `badRows=quarantine`
    +-- CallFailed                  an asynchronous call failed for good: mend the service, or take `on_error`
    +-- BrokerError                 a broker of Kafka refused: look at its words, run again
    |   +-- BrokerAway              no broker answers, or the one of a partition does not
    |   +-- TopicNotThere           a topic, or a partition of one, does not exist (any more)
    |   +-- TopicReplaced           a topic was deleted and made anew under its name
    |   +-- RecordsLost             retention took records that the query has not read
    |   +-- RecordsReplaced         other records stand where those were that were planned or read
    |   +-- TransactionOpen         a transaction of a producer is open, in front of the end of a batch
    +-- CatalogError                a table refused, or a file cannot be in it: look at why, run again

Every class has a stable, append-only `code`; messages may change, codes do not. Messages say what,
where, found against expected, and what to do next; they never hold a secret.

How an error travels. Between Python processes it is pickled. Through Spark's JVM it goes as the text of a traceback, in
which anything may stand: what a record holds, other errors, Java, the names of files. So an error that leaves for the JVM
takes a note along (`leave`), which Python prints on a line of its own behind the message:

::

    penstock.errors.BadRecord: [PST-201] '/data/a.json', byte 8: found 'not json', expected a record that is one JSON object
    (penstock {"code": "PST-201", "length": 83, "fields": {"path": "/data/a.json", "offset": 8}})

`of` looks for the last such line that is right: the `length` characters in front of it are the message, whatever they are,
and in front of them stands the code. A message cannot forge the note of its own error, which is behind it. Where there is
no note (an error that a user's function raised, a text from elsewhere) the last line that begins as a traceback names
an error of ours does, to its end. Where Spark itself refuses what concerns us, and asks us nothing before, `of` says it in
our words.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any, ClassVar

DEBUG = "PENSTOCK_DEBUG"

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


class SqlError(OptionError):
    """The SQL of an ingest cannot be answered row by row as Spark would, or is none. Told before anything starts."""

    code = "PST-106"


class TemplateError(UsageError):
    """A `bucketBy` or `fileName` template cannot be used with this data."""

    code = "PST-102"


class DependencyError(UsageError):
    """What this use needs of the machine is missing or not fit: a library, Java, a directory; the message says what to do."""

    code = "PST-103"


class PositionError(UsageError):
    """A position of a log lies inside a record, before the first one that is kept, or behind the end."""

    code = "PST-104"


class SchemaChanged(UsageError):
    """A stream was started again with a schema that has a column less than before, or one of another type."""

    code = "PST-105"


class PipelinesError(UsageError):
    """A file of pipelines has mistakes, a line each with file, line and key; nothing was started, or all that runs goes on."""

    code = "PST-800"


class WrongKey(UsageError):
    """What is encrypted is for none of the keys that were given, or its header is damaged: nothing of it was read."""

    code = "PST-520"


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


class BadFile(InputError):
    """A file cannot be read as the format it should have."""

    code = "PST-202"


class FileChanged(InputError):
    """A planned file shrank, changed or vanished before or while it was read."""

    code = "PST-203"


class FileTooLate(InputError):
    """A new file appeared further behind the cursor than `lateness` allows, and `tooLate=fail`."""

    code = "PST-204"


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
    """Rows that an earlier version took have a column that their files cannot hold; they are staged, and none is lost."""

    code = "PST-304"


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


class AccessRefused(StorageError):
    """A store of objects does not let this process do what it must: its keys are wrong, or may not do that."""

    code = "PST-540"


class UnfitStore(StorageError):
    """A store of objects does not keep a promise that exactly-once needs: of two that put one key at one time, both were told yes."""

    code = "PST-541"


class EventsLost(PenstockError):
    """What was published and not given yet cannot be told: the ledger was emptied, put back from a copy, or its oldest part removed."""

    code = "PST-510"


class CallbackFailed(PenstockError):
    """The function of `onPublish` failed. What it was told of is published; the next start tells it again."""

    code = "PST-511"


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


class CatalogError(PenstockError):
    """A table of a catalogue refused what was to be brought into it, or a finished file cannot be in one; the table is as it was."""

    code = "PST-910"


class BrokerError(PenstockError):
    """A broker of Kafka refused what was asked; nothing of the batch in flight is committed.

    `topic`, `partition` and `offset` say where, if it is about one place of a partition.
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
    """No broker could be reached, or the one that leads a partition gave nothing, for as long as `timeout` allows."""

    code = "PST-901"


class TopicNotThere(BrokerError):
    """A topic that is subscribed to or was read, or a partition of it, does not exist."""

    code = "PST-902"


class TopicReplaced(BrokerError):
    """A topic has another id than when it was planned: it was deleted and made anew, and its offsets mean other records."""

    code = "PST-903"


class RecordsLost(BrokerError):
    """The next records are no longer in the topic: `offset` was to be read next, and the first one that is there is `first`."""

    code = "PST-904"

    def __init__(self, message: str, *, first: int | None = None, **place: Any) -> None:  # noqa: ANN401 - as `BrokerError` takes them
        super().__init__(message, **place)
        self.first = first


class RecordsReplaced(BrokerError):
    """A partition was cut: the records before `offset` are not those that were planned, of leaders up to `epoch`."""

    code = "PST-905"

    def __init__(self, message: str, *, epoch: int | None = None, **place: Any) -> None:  # noqa: ANN401 - as `BrokerError` takes them
        super().__init__(message, **place)
        self.epoch = epoch


class TransactionOpen(BrokerError):
    """What a batch has to read lies in a transaction that stays open, from `offset` on."""

    code = "PST-906"


def without_credentials(text: str) -> str:
    """Return text with `***` for what stands before the `@` of URLs in it: a user, a password, an access key."""
    return _CREDENTIALS.sub("***", text)


def debugging() -> bool:
    """Tell whether who runs this wants to see what led to an error, too."""
    return os.environ.get(DEBUG, "0") not in {"", "0"}


def unforeseen(error: Exception) -> PenstockError:
    """Return an error as users are told of it: one of ours as it is, and one of a library, or a fault of ours, with its own words."""
    return error if isinstance(error, PenstockError) else PenstockError(f"{type(error).__name__}: {error}")


def leave(error: PenstockError) -> PenstockError:
    """Return an error that is about to become text for Spark's JVM, with the note by which `of` finds it in there.

    Without what led to it, which its message tells, unless `debugging`: Spark logs and wraps each line many times.
    """
    error.message = error.message.encode(errors="backslashreplace").decode()  # PySpark sends UTF-8 or nothing
    notes = [note for note in getattr(error, "__notes__", ()) if not _NOTE.fullmatch(note)]
    error.__notes__ = [*notes, _note(error)]  # type: ignore[attr-defined]  # Python's since 3.11, without which is no Spark
    if not debugging():
        error.__cause__, error.__suppress_context__, error.__traceback__ = None, True, None
    return error


def of(error: BaseException | str | None) -> PenstockError | None:
    """Return the error of Penstock in `error`, whatever Spark has wrapped it in; `None` if there is none in it.

    `error` is what a query raised, what `query.exception()` returns, or text, such as the `exception` of a listener's event.
    The error that is returned has its type, its message and its fields (`path`, `offset`), and raised anew it is as it was.
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

# What Spark 4.3 refuses before it asks us (a pattern of its words; `{0}` is the format), and what we say of it.
_SPARK_REFUSES = {
    r"requirement failed: (penstock) does not support Update mode": (
        "outputMode('update') would have rows of finished files replaced; expected append, Spark's default; for the newest "
        "row of each key take format penstock-db with mode=upsert"
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
        "Spark selects from no path of a format of Python's: expected spark.read.format('{0}').load(path), whose rows are a table of SQL "
        "by createOrReplaceTempView(name); a stream is read by spark.readStream"
    ),
    r"Unsupported data source type for direct query on files: (penstock-[\w-]+)": (
        "format {0} is no table to select from: a stream is read by spark.readStream, and written by df.writeStream"
    ),
    r"Data source (penstock[\w-]*) does not support continuous processing": (
        "format {0} works in batches: expected trigger(processingTime=...) or trigger(availableNow=True)"
    ),
}


def _note(error: PenstockError) -> str:
    public = {name: value for name, value in vars(error).items() if name != "message" and name[0] != "_"}
    fields = {name: value for name, value in public.items() if isinstance(value, (str, int, float, bool, type(None)))}
    return f"(penstock {json.dumps({'code': error.code, 'length': len(error.message), 'fields': fields})})"


def _chain(error: BaseException) -> tuple[list[BaseException], list[BaseException]]:
    """Return an error with what led to it, for Python and (`_cause`) as PySpark keeps it of Java; and what was being handled."""
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
    """Return what an error says; where PySpark has to ask a JVM that is gone, what it knows by itself."""
    try:
        words = str(error)
    except Exception:  # noqa: BLE001 - whatever py4j raises then
        words = ""
    return "\n".join([words, *(str(getattr(error, name, "") or "") for name in ("_desc", "_stackTrace"))])


def _noted(text: str) -> PenstockError | None:
    """Return the last error of which text has the note, exactly."""
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
    """Return the last error that a line names as a traceback does, with the rest of the line as its message."""
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
