"""`verify`: everything that is known about an output, in one report."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import NotThere, OptionError, PenstockError
from penstock.options.topics import is_topics
from penstock.source.where import where_of
from penstock.storage import locate
from penstock.verify.files import OutputFiles, SinkView, check_files, is_newest
from penstock.verify.opened import keys_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.storage import Storage
    from penstock.verify.against import SourceCheck

    Progress = Callable[[str, int, int], None]

_TRIES = 5


@dataclass(frozen=True)
class Proof:
    """What `verify` found; `source` is `None` if none was given."""

    path: str
    output: OutputFiles
    source: SourceCheck | None = None

    @property
    def ok(self) -> bool:
        """Tell whether there are no problems with the files and, if a source was given, whether they hold each record exactly once."""
        return not self.output.problems and (self.source is None or self.source.proved)

    def to_json(self) -> dict[str, Any]:
        """Return the report in its JSON form."""
        return {"ok": self.ok} | asdict(self)


def verify(
    dst: str,
    source: str | None = None,
    *,
    transform: str | None = None,
    key: str | None = None,
    mended: str | None = None,
    progress: Progress | None = None,
) -> Proof:
    """Compare an output with its ledgers and, if `source` is given, record by record with what was read from it.

    `transform` is the `module:function` of an ingest that had one; it is imported and called, and no other code is. `key` is the
    place of a key for encrypted files, `env:NAME` or `file:PATH`: with it they are decrypted to their ends; without it only their
    bytes are compared. `mended` is the directory of the mended files that `retry` has taken in, if any; the places in its notes
    are not searched. Changes nothing. `progress` is called with what is being compared, bytes done and bytes in all. Raises
    `UsageError` if DST is not an output or SRC is not there, `DamagedState` for a damaged ledger, and what reading the source
    raises.
    """
    report = progress or _silent
    storage, root = locate(dst, name="DST")
    for flag, value in (("--transform", transform), ("--mended", mended)):
        if value is not None and source is None:
            msg = f"{flag} {value!r} is for --source: without SRC no record is read; name SRC, too"
            raise OptionError(msg)
    src = None if source is None else _existing(source)
    files, views = check_files(storage, root, lambda done, total: report("files", done, total), keys_at(key))
    if src is None:
        return Proof(root, files)
    # Imported here, because only a comparison of records needs it.
    from penstock.verify.against import check_source

    copies = None if mended is None else locate(mended, name="--mended")

    def compared(views: list[SinkView]) -> SourceCheck:
        return check_source(files, views, src, transform, lambda done, total: report("records", done, total), copies)

    return Proof(root, files, _beside_a_query(compared, views, root))


def _beside_a_query(compared: Callable[[list[SinkView]], SourceCheck], views: list[SinkView], root: str) -> SourceCheck:
    """Return what a comparison finds; look again where a live query has published, and removed, what was staged."""
    for _ in range(_TRIES):
        try:
            return compared(views)
        except NotThere:
            if all(map(is_newest, views)):
                raise
        views = [SinkView.of(view.sink, view.keys) for view in views]
    msg = (
        f"the query that writes {root!r} publishes faster than its records can be compared; run the same command again when it waits "
        "for input, or has ended; or compare the files alone, without --source"
    )
    raise PenstockError(msg)


def _silent(subject: str, done: int, total: int) -> None:
    """Report nothing."""


def _existing(source: str) -> str:
    if is_topics(source):
        msg = (
            f"SRC={source!r} is a topic, and what was read of it may be gone by now: records are not compared with it; verify DST "
            "alone, and compare it with a consumer of your own, by the offsets of metadataColumn"
        )
        raise OptionError(msg)
    located: tuple[Storage, str] = locate(source, name="SRC")
    storage, path = located
    try:
        storage.stat(where_of((path,)).root)
    except NotThere as error:
        msg = f"SRC={path!r} does not exist; expected the directory or file that was ingested"
        raise OptionError(msg) from error
    return path
