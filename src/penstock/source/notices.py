"""Reports about files that are not read: each once in the life of a planner, so that no file is left out silently."""

from __future__ import annotations

import logging
from shlex import quote
from typing import TYPE_CHECKING

from penstock.clock import SECOND_NS
from penstock.errors import FileTooLate
from penstock.units import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.options import Options
    from penstock.source.cursor import FileVersion
    from penstock.source.scan import Scan

_log = logging.getLogger("penstock.source")
_silence = logging.getLogger("penstock.silence")
_silence.disabled = True
_NAMES_SHOWN = 5
LOG_OF_SPARK = "_spark_metadata"
FUTURE_NS = 60 * SECOND_NS  # clocks of a network differ; files further ahead are reported

LATE = (
    "appeared, older than the cursor by more than lateness; `penstock late SRC DST` lists them, and --accept has them read; or touch "
    "them to have them read as new; unless they were read before and were only away"
)
UNSURE = (
    "appeared before the cursor, or were read and were away or touched: nobody can tell which; look for them in the output "
    "(`penstock verify DST --source SRC` for an ingest), have those that are missing read (`penstock late SRC DST --accept`, or "
    "touch them), and run once with tooLate=report"
)


# Not paths: they stand for the reports that nothing is there, and that a file has become a directory.
_NOTHING, _DIRECTORY = "\0", "\0\0"


class Notices:
    """The reports of one planner; `root` is the path of the source as users see it. With `quiet`, nothing is logged."""

    def __init__(self, root: str, options: Options, *, quiet: bool = False) -> None:
        self._root = root
        self._options = options
        self._told: set[str] = set()  # paths that were reported
        self._log = _silence if quiet else _log

    def not_read(self, files: Sequence[FileVersion], why: str) -> None:
        """Report files that count as read and were not, `LATE` or `UNSURE`; `FileTooLate` if the option says so."""
        if not files:
            return
        paths = [file.path or self._root for file in files]
        msg = (
            f"not read: {_shown(paths)} ({len(files)} file{'s' * (len(files) > 1)}): {why}; a larger lateness "
            f"(now {self._options['lateness'] / SECOND_NS:.0f} s) has such files read that come later"
        )
        if len(paths) > _NAMES_SHOWN:
            self._log.info("all that were not read: %s", paths)
        if self._options["tooLate"] == "fail":
            raise FileTooLate(msg)
        self._log.warning(msg)

    def undated(self, files: Sequence[FileVersion]) -> None:
        """Report how many files count as read although nobody can say whether they came while no query ran."""
        if files:
            self._log.warning(
                "%d files are older than the cursor by more than lateness, and nobody can tell whether any of them came while no "
                "query ran: more came or went than the offset can distinguish, and the storage does not say when; all count as read",
                len(files),
            )

    def left_out(self, scan: Scan) -> None:
        """Report directories and links that the last listing did not enter, paths that lead to nothing, and a log of Spark's file sink."""
        self.log_of_spark(scan)
        if scan.selected and not scan.has_files() and self._untold({_NOTHING}):
            self._log.warning(
                "nothing is read of %r: no file there matches path, paths and the times of files", self._root
            )
        inside = self._untold(scan.passed_over)
        if inside:
            self._log.log(
                logging.INFO if scan.has_files() else logging.WARNING,
                "not read: what is in directories of %r (%d): %s; set recursiveFileLookup=true to have them descended into",
                self._root,
                len(inside),
                _shown(inside),
            )
        outside = self._untold(scan.outside)
        if outside:
            self._log.warning(
                "not read: symbolic links that lead out of %r (%d): %s; set followSymlinks=true to have them followed",
                self._root,
                len(outside),
                _shown(outside),
            )

        second = self._untold(scan.second)
        if second:
            self._log.warning(
                "not read: symbolic links in %r to files in it, which cleanSource takes away once they are read by name (%d): %s",
                self._root,
                len(second),
                _shown(second),
            )

    def log_of_spark(self, scan: Scan) -> None:
        """Report that the input is an output of Spark's own file sink, in which not all files need to count."""
        if scan.has_name(LOG_OF_SPARK) and self._untold({LOG_OF_SPARK}):
            self._log.warning(
                "%r has a %s, the log of Spark's own file sink, which is not asked here: files that it does not list, such as those that a "
                "killed batch has left, are read like others; `penstock adopt %s --dry-run` names them",
                self._root,
                LOG_OF_SPARK,
                quote(self._root),
            )

    def not_followed(self, path: str, why: str) -> None:
        """Report a file that does not grow, and is left out of those that are followed."""
        if self._untold({path}):
            self._log.info("%r %s: it is not followed", path or self._root, why)

    def is_directory(self) -> None:
        """Report that the path was a file that is followed, and is a directory by now."""
        if self._untold({_DIRECTORY}):
            self._log.warning(
                "%r was a file, and is a directory now: what is in it is read, too; if that was not meant (a container makes a directory "
                "where a file is missing that it shall be given), remove it, and put the file back",
                self._root,
            )

    def in_the_future(self, held: Mapping[str, FileVersion], now_ns: int) -> None:
        """Report files, by path, whose time has not come yet."""
        ahead = [
            path for path, file in held.items() if file.modified_ns > now_ns + FUTURE_NS and path not in self._told
        ]
        if ahead:
            self._told.update(ahead)
            self._log.warning(
                "not read: %s (%s): in the future, until their time comes", _shown(ahead), counted(len(ahead), "file")
            )

    def _untold(self, paths: set[str]) -> list[str]:
        """Return, sorted, the paths that were not reported before, and mark them as reported."""
        untold = sorted(paths - self._told)
        self._told.update(untold)
        return untold


def _shown(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:_NAMES_SHOWN])
    return shown if len(names) <= _NAMES_SHOWN else f"{shown} and {len(names) - _NAMES_SHOWN} more"
