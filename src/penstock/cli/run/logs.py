"""The log of `penstock run`: a line for each batch and for each event of a pipeline, for people or as JSON.

It uses Python's logging: Penstock's loggers and these lines go the same way. In JSON every line has `time`, `level`,
`logger` and `message`, and `pipeline`, `query` and `batch` if they are known, so that the lines of many pipelines can
be told apart.
"""

from __future__ import annotations

import json
import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from penstock.cli.answer import moment, printable
from penstock.cli.progress import Course, line
from penstock.cli.run.status import Phase
from penstock.clock import SECOND_NS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.cli.run.references import Secrets
    from penstock.cli.run.status import PipelineStatus

_log = logging.getLogger("penstock.run")
_FILES = ("input_files", "input_bytes", "left_files")
_OFFSETS = ("input_offsets", "left_offsets")
_FIELDS = ("pipeline", "query", "batch", "rows", *_FILES, *_OFFSETS, "error_code", "next")


class JsonLines(logging.Formatter):
    """A record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        facts: dict[str, Any] = {
            "event": "log",
            "time": moment(round(record.created * SECOND_NS)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        facts |= {name: getattr(record, name) for name in _FIELDS if hasattr(record, name)}
        if record.exc_info:
            facts["exception"] = self.formatException(record.exc_info)
        return json.dumps(facts)


class PlainLines(logging.Formatter):
    """A record as a line for people."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        level = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        pipeline = getattr(record, "pipeline", "")
        message = f"{pipeline}: {record.getMessage()}" if pipeline else record.getMessage()
        time = moment(round(record.created * SECOND_NS))
        return "\n".join(f"{time} {level}{printable(text)}" for text in message.splitlines())


class _LineHandler(logging.Handler):
    """Writes the lines, with no secret in them."""

    def __init__(self, write: Callable[[str], None], secrets: Secrets) -> None:
        super().__init__()
        self._write = write
        self._secrets = secrets
        self._is_broken = False

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record. If the reader has gone (`| head`), pipelines go on, and no error is logged for each line."""
        if self._is_broken:
            return
        try:
            self._write(self._secrets.masked(self.format(record)))
        except BrokenPipeError:
            self._is_broken = True
        except Exception:  # noqa: BLE001 - as every handler of logging: a log never ends what it reports on
            self.handleError(record)


@contextmanager
def logged(write: Callable[[str], None], secrets: Secrets, *, as_json: bool) -> Iterator[None]:
    """Have everything that Penstock logs in the block written, a line at a time."""
    handler = _LineHandler(write, secrets)
    handler.setFormatter(JsonLines() if as_json else PlainLines())
    logger = logging.getLogger("penstock")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


class Journal:
    """Logs what pipelines do."""

    def __init__(self) -> None:
        self._courses: dict[str, Course] = {}

    def changed(self, before: PipelineStatus, status: PipelineStatus) -> None:
        """Log a batch, a failure, a phase that a person may want to know of."""
        if status.state is not None and status.state != before.state:
            course = self._courses.setdefault(status.name, Course())
            course.update(status.state)
            if status.state.batch > (before.state.batch if before.state else -1):
                _log.info("%s", line(course.facts), extra=_extra(status))
            for note in status.state.notes:
                if before.state is None or note not in before.state.notes:
                    _log.warning("%s", note, extra=_extra(status))
        if status.phase != before.phase:
            self._phase(status)

    def gone(self, name: str) -> None:
        """Forget a pipeline."""
        self._courses.pop(name, None)
        _log.info("gone", extra={"pipeline": name})

    def _phase(self, status: PipelineStatus) -> None:
        if status.phase == Phase.BACKING_OFF:
            again = f"failed ({status.failures} in a row), again at {moment(status.next_ns)}: [{status.error_code}] {status.error}"
            _log.warning("%s", again, extra=_extra(status))
        elif status.phase == Phase.FAILED:
            given_up = f"given up: [{status.error_code}] {status.error}"
            _log.error("%s", given_up, extra=_extra(status))
        elif status.phase in {Phase.DONE, Phase.STOPPED, Phase.DRAINING}:
            _log.info("%s", status.phase.value, extra=_extra(status))
        elif status.phase == Phase.WAITING and status.next_ns:
            _log.info("waits for %s", moment(status.next_ns), extra=_extra(status))


def _extra(status: PipelineStatus) -> dict[str, Any]:
    facts: dict[str, Any] = {"pipeline": status.name}
    if status.state is not None:
        known = ("query", "batch", "rows", *(_OFFSETS if status.state.input_offsets else _FILES))
        facts |= {name: getattr(status.state, name) for name in known}
    if status.failures:
        facts["error_code"] = status.error_code
    if status.next_ns:
        facts["next"] = moment(status.next_ns)
    return facts
