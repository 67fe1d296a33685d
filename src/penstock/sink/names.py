"""What a finished file is called: the `fileName` template.

Fields: `{sink}`, `{writer}` (the partition that wrote it), `{seq}` (the writer's file number), `{batch}` (the batch that
opened it), `{host}`, `{pid}` (of the process that opened it), `{time:%Y%m%d_%H%M%S}` (when it was opened, in `timeZone`).
Everything is fixed when the part is opened, except `{seq}`, which the committing driver counts on while the name is taken.
The format's extension is added unless the template brings one of its own.
"""

from __future__ import annotations

import re
import string
from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from penstock.clock import SECOND_NS
from penstock.errors import TemplateError

FIELDS = ("sink", "writer", "seq", "batch", "host", "pid", "time")
_NAME_BYTES_MAX = 255


@dataclass(frozen=True)
class NameTemplate:
    """A checked `fileName` template."""

    template: str
    zone: str

    @staticmethod
    def of(template: str, *, zone: str, growing: bool) -> NameTemplate:
        """Check the template; `TemplateError` if it cannot name files."""
        if not _is_visible_name(template):
            msg = f"fileName={template!r} must be the name of a visible file, without '/' and not beginning with '.' or '_'"
            raise TemplateError(msg)
        fields = [name for name, _ in _fields(template)]
        unknown = [name for name in fields if name not in FIELDS]
        if unknown:
            known = ", ".join(f"{{{name}}}" for name in FIELDS)
            msg = f"fileName={template!r}: unknown field {{{unknown[0]}}}; known are {known}"
            raise TemplateError(msg)
        if growing == bool(set(fields) & {"seq", "writer", "pid", "host", "time", "batch"}):
            msg = (
                f"fileName={template!r}: a growing file needs a fixed name, such as events.log"
                if growing
                else f"fileName={template!r} names all files alike; add {{seq}}, such as part-{{writer}}-{{seq}}"
            )
            raise TemplateError(msg)
        if not growing and "seq" not in fields:
            msg = f"fileName={template!r} would name several files alike; add {{seq}}, such as part-{{writer}}-{{seq}}"
            raise TemplateError(msg)
        return NameTemplate(template, zone)

    def render(self, extension: str, **values: object) -> str:
        """Return the name; `values` are the fields, `time` in nanoseconds since the epoch."""
        moment = datetime.fromtimestamp(int(str(values.pop("time", 0))) / SECOND_NS, ZoneInfo(self.zone))
        name = "".join(_rendered(*item, values, moment) for item in string.Formatter().parse(self.template))
        name = name if _has_extension(self.template) else name + extension
        if not _is_visible_name(name):  # what a host is called nobody has checked
            msg = f"fileName={self.template!r} makes the name {name!r}, which is not that of a visible file; leave {{host}} out"
            raise TemplateError(msg)
        if len(name.encode()) > _NAME_BYTES_MAX:
            msg = f"fileName={self.template!r} makes names of {len(name.encode())} bytes, at most {_NAME_BYTES_MAX} are possible"
            raise TemplateError(msg)
        return name


def _is_visible_name(name: str) -> bool:
    return not (name.startswith((".", "_")) or "/" in name or "\0" in name)


def _rendered(
    literal: str, field: str | None, spec: str | None, _: str | None, values: dict[str, object], moment: datetime
) -> str:
    if field is None:
        return literal
    if field == "time":
        return literal + moment.strftime(spec or "%Y%m%d_%H%M%S")
    return literal + format(values[field], spec or "")


def _fields(template: str) -> list[tuple[str, str]]:
    try:
        return [(name, spec or "") for _, name, spec, _ in string.Formatter().parse(template) if name is not None]
    except ValueError as error:
        msg = f"template {template!r} is not well formed: {error}; expected fields in braces, such as part-{{seq}}"
        raise TemplateError(msg) from error


def _has_extension(template: str) -> bool:
    tail = template.rpartition("}")[2]
    return re.search(r"\.[A-Za-z0-9]+$", tail) is not None


def template_fields(template: str) -> list[tuple[str, str]]:
    """Return the (field, format) pairs of a template; `TemplateError` if it is not well formed."""
    return _fields(template)
