"""The `fileName` template, which gives finished files their names.

`{column}` and `{column:time format}` are columns, so each row says which file it goes to (see `places`). The other fields take
precedence (write a column with the name of one of them in backticks): `{sink}`, `{writer}` (the partition that wrote it), `{seq}`
(the writer's file number), `{batch}` (the batch that opened it), `{host}`, `{pid}` (of the process that opened it),
`{time:%Y%m%d_%H%M%S}` (when it was opened, in `timeZone`), and `{attempt}` (of the task that opened it, from 0). IBM Streams'
variables stand for the same: `%HOST`, `%FILENUM` (seq), `%PROCID` (pid), `%PEID` (writer), `%PELAUNCHNUM` (attempt), `%TIME`;
`timeFormat` says how a time without a format is written. Everything is fixed when the part is opened, except `{seq}`, which the
committing driver increases while the name is taken. The format's extension is added. A template with an extension of its own only
gets the extension of the compression, because other programs depend on that.

Times are written by `strftime`, with the directives that mean the same on every machine. `%s` is not among them, because it uses
the machine's own zone. Years have four digits, also those before 1000.
"""

from __future__ import annotations

import re
import string
import unicodedata
from dataclasses import dataclass, replace
from datetime import date, datetime
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from penstock.clock import SECOND_NS
from penstock.errors import TemplateError
from penstock.formats.codecs import codec_of, unreadable
from penstock.formats.encryption import EXTENSION
from penstock.formats.zones import rules

if TYPE_CHECKING:
    from collections.abc import Iterable

FIELDS = ("sink", "writer", "seq", "batch", "host", "pid", "attempt", "time")
_NUMBERS = ("writer", "seq", "batch", "pid", "attempt")
_VARIABLES = {
    "%HOST": "{host}",
    "%FILENUM": "{seq}",
    "%PROCID": "{pid}",
    "%PEID": "{writer}",
    "%PELAUNCHNUM": "{attempt}",
    "%TIME": "{time}",
}
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_VARIABLE = re.compile(f"(?:{'|'.join(sorted(_VARIABLES, key=len, reverse=True))})(?![A-Z])|%[A-Za-z]{{2,}}")
# A directive outside of braces; `%2F` is an escape.
_TIME_AS_TEXT = re.compile("%(?![0-9A-Fa-f]{2})[A-Za-z](?![A-Za-z])")
# A year in Java's letters outside of braces, with what follows it: `yyyy-MM-dd--HH` is what Flink's buckets are called by default.
_JAVA_TIME_AS_TEXT = re.compile("(?<![A-Za-z])(?:yyyy|YYYY)(?![a-zA-LN-Z])(?:[^A-Za-z/{}]*(?:MM|dd|HH|hh|mm|ss))*")
_NEVER_MEANT = {"Cc": "a control character", "Cs": "half of a surrogate pair"}
UNFINISHED = (".tmp", ".inprogress", "._COPYING_")  # endings of names that our source, and other readers, never read
UNNAMED = "part-{sink}-{writer}-{seq}"  # the template of parts that were opened before `fileName` had columns
_TIME_FORMAT = "yyyyMMdd_HHmmss"
_PATTERN = re.compile(r"'[^']*'|([A-Za-z])\1*|[^A-Za-z']+|'")
_LETTERS = {
    "yyyy": "%Y", "yy": "%y", "MM": "%m", "MMM": "%b", "dd": "%d", "DDD": "%j", "EEE": "%a", "HH": "%H", "hh": "%I", "mm": "%M",
    "ss": "%S", "a": "%p",
}  # fmt: skip
_WIDTH = re.compile(r"0?[0-9]{0,2}d?")
_NAME_BYTES_MAX = 255
_DIRECTIVE = re.compile(r"%[-_0^]?(.?)", re.DOTALL)
_NO_TIME = frozenset("%nt")
_DIRECTIVES = frozenset("aAbBcCdDeFfgGhHIjklmMnpPrRStTuUVwWxXyYzZ%")


@dataclass(frozen=True)
class NameTemplate:
    """A checked `fileName` template. `time_spec` is how a time without a format of its own is written, for `strftime`.

    `given` is the option's template if this one belongs to a part, so that its columns are filled in. `spelt` is the option as
    the user wrote it, for messages.
    """

    template: str
    zone: str
    time_spec: str = "%Y%m%d_%H%M%S"
    given: str = ""
    spelt: str = ""

    @staticmethod
    @lru_cache(maxsize=16)  # a template is checked by rendering a name, for each sink that is made of the same options
    def of(template: str, *, zone: str, growing: bool, time_format: str = _TIME_FORMAT) -> NameTemplate:
        """Check the template and the format of its times; `TemplateError` if they cannot name files.

        Whether the columns exist is checked where the schema is known.
        """
        where, spelt, template = f"fileName={template!r}", template, _with_fields(template)
        fields = template_fields(template)
        _check_fields(where, fields)
        for name, spec in fields:
            if name == "time" or name not in FIELDS:
                check_tells(where, spec)
        check_literals(where, template, [template])
        names = NameTemplate(template, zone, time_spec(time_format), spelt=spelt)
        _check_characters(where, names.sample)
        _check_difference(where, {name for name, _ in fields if name in FIELDS}, growing=growing)
        return names

    @property
    def sample(self) -> str:
        """A sample name made by the template, without extension. `TemplateError` if it is not a file's name."""
        part = self.of_part(self.filled("x" for _ in self.columns))
        return part.render("", sink="sink", host="host", **dict.fromkeys(_NUMBERS, 0))

    @property
    def where(self) -> str:
        """What messages call the template: the option, as the user wrote it."""
        return f"fileName={self.spelt or self.given or self.template!r}"

    @cached_property
    def columns(self) -> tuple[tuple[str, str], ...]:
        """The fields of the template that are columns, each with its format, in order."""
        return tuple((name, spec) for name, spec in template_fields(self.template) if name not in FIELDS)

    def tells(self, field: str) -> bool:
        """Tell whether the names contain this field: with `sink`, no two sinks can make the same name."""
        return field in _fields_in(self.template)

    @property
    def begins_with_column(self) -> bool:
        """Whether a name begins with the value of a column."""
        literal, field, _, _ = next(iter(string.Formatter().parse(self.template)))
        return not literal and field not in FIELDS

    def filled(self, texts: Iterable[str]) -> str:
        """Return the template of one part's names: its columns are replaced by these texts, which are escaped already."""
        columns, filled = iter(texts), ""
        for literal, field, spec, _ in string.Formatter().parse(self.template):
            filled += _literal(literal)
            if field in FIELDS:
                filled += f"{{{field}:{spec}}}" if spec else f"{{{field}}}"
            elif field is not None:
                filled += _literal(next(columns))
        return filled

    def fits(self, filled: str) -> bool:
        """Tell whether `filled` is this template with some texts in place of its columns; `""` fits a template without columns."""
        if not self.columns:
            return not filled
        pattern = ".*".join(map(re.escape, self.filled("\0" for _ in self.columns).split("\0")))
        return re.fullmatch(pattern, filled, re.DOTALL) is not None

    def of_part(self, filled: str) -> NameTemplate:
        """Return the template of a part that was opened with these columns; `""`: the part was opened under a template without columns."""
        if filled:
            return NameTemplate(filled, self.zone, self.time_spec, self.given or self.template, self.spelt)
        return replace(self, template=UNNAMED) if self.columns else self

    def check_read(self, extension: str) -> None:
        """Raise `TemplateError` if readers would take finished files for unfinished ones, or unpack them by a wrong codec."""
        codec = _codec(extension)
        if self.template.endswith(UNFINISHED) and not codec:
            msg = f"{self.where}: readers pass over names that end in {', '.join(UNFINISHED)}; choose another ending"
            raise TemplateError(msg)
        tail = self.template.rpartition("}")[2]
        if (codec_of(tail) or unreadable(tail) or tail.lower().endswith(EXTENSION)) and not (
            codec and tail.endswith(codec)
        ):
            ending = f".{tail.rpartition('.')[2]}"
            added = f"end in {codec}" if codec else "are not packed as a whole"
            msg = f"{self.where}: readers unpack names that end in {ending}, and these files {added}; leave the ending out, or have them so"
            raise TemplateError(msg)

    def render(self, extension: str, **values: object) -> str:
        """Return the name; `values` are the fields, `time` in nanoseconds since the epoch."""
        moment = datetime.fromtimestamp(int(str(values.pop("time", 0))) / SECOND_NS, rules(self.zone))
        values["time"] = written(moment, self.time_spec)
        name = "".join(_rendered(*item, values, moment) for item in string.Formatter().parse(self.template))
        if _has_extension(self.given or self.template):
            codec = _codec(extension)
            extension = "" if name.endswith(codec) else codec
        name += extension
        if not _is_visible_name(name):  # because of the template, or of the host's name
            msg = (
                f"{self.where} makes the name {name!r}; it must be the name of a visible file, without '/' "
                "and control characters, and not beginning with '.' or '_'"
            )
            raise TemplateError(msg)
        if len(name.encode()) > _NAME_BYTES_MAX:
            msg = (
                f"{self.where} makes names of {len(name.encode())} bytes ({name[:40]!r}...), at most "
                f"{_NAME_BYTES_MAX} are possible; name files by something shorter"
            )
            raise TemplateError(msg)
        return name


def has_columns(template: str) -> bool:
    """Tell whether a `fileName` template names columns."""
    return any(name not in FIELDS for name, _ in template_fields(_with_fields(template)))


def check_filled(filled: str) -> None:
    """Raise `TemplateError` unless `filled` could come from `NameTemplate.filled`: it makes file names and has no column."""
    NameTemplate(filled, "UTC").render("", sink="sink", host="host", **dict.fromkeys(_NUMBERS, 0))
    fields = template_fields(filled)
    _check_fields(f"fileName={filled!r}", fields)
    columns = [name for name, _ in fields if name not in FIELDS]
    if columns:
        msg = f"the name {filled!r} has the field {columns[0]!r}"
        raise TemplateError(msg)


def _literal(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _codec(extension: str) -> str:
    """Return the compression's part of an extension."""
    return "".join(re.findall(r"\.\w+", extension)[1:])


def _is_visible_name(name: str) -> bool:
    return not (name.startswith((".", "_")) or "/" in name or _CONTROL.search(name))


def _rendered(
    literal: str, field: str | None, spec: str | None, _: str | None, values: dict[str, object], moment: datetime
) -> str:
    if field is None:
        return literal
    if field == "time" and spec:
        return literal + written(moment, spec)
    return literal + format(values[field], f"0{spec}" if spec else "")  # zeros, never blanks, fill up a width


def _check_fields(where: str, fields: list[tuple[str, str]]) -> None:
    """Raise `TemplateError` unless each field has a name and a valid format."""
    for name, spec in fields:
        if not name:
            msg = f"{where} has a field without a name; expected a column, or one of {known_fields()}"
            raise TemplateError(msg)
        if name in FIELDS:
            _check_spec(where, name, spec)
        else:
            check_time(where, spec)


def check_literals(where: str, template: str, names: Iterable[str]) -> None:
    """Raise `TemplateError` for text around the fields that is probably a mistake; `names` are the template's file or directory names."""
    for literal, _, spec, _ in string.Formatter().parse(template):
        _check_characters(where, literal + (spec or ""))
        if text := _TIME_AS_TEXT.search(literal) or _JAVA_TIME_AS_TEXT.search(literal):
            meant = "%Y-%m-%d" if text[0][0] == "%" else _in_directives(text[0].replace("Y", "y"))
            msg = (
                f"{where}: {text[0]} is not in braces, so it would be text, the same for all rows; expected a time in braces, such as "
                f"{{time:{meant}}}"
            )
            raise TemplateError(msg)
    _check_blanks(where, names)


def _check_characters(where: str, text: str) -> None:
    """Raise `TemplateError` for invisible characters, such as the line break at the end of a file that an option was read from."""
    odd = next((character for character in text if unicodedata.category(character) in _NEVER_MEANT), None)
    if odd is not None:
        kind = _NEVER_MEANT[unicodedata.category(odd)]
        msg = f"{where} holds {odd!a}, which is {kind}; expected characters that can be seen"
        raise TemplateError(msg)


def _check_blanks(where: str, names: Iterable[str]) -> None:
    """Raise `TemplateError` for names that begin or end with a blank."""
    blank = next((name for name in names if name != name.strip()), None)
    if blank is not None:
        msg = f"{where}: {blank!r} begins or ends with a blank, which readers may cut off; expected none there"
        raise TemplateError(msg)


def known_fields() -> str:
    """Return the fields that are not columns, in the form for messages."""
    return ", ".join(f"{{{name}}}" for name in FIELDS)


def _with_fields(template: str) -> str:
    """Return the template with fields in place of IBM Streams' variables; `TemplateError` for an unknown variable.

    A variable in other than capital letters is unknown. Small letters after a variable are text, and so are other words in small
    letters after a `%`.
    """

    def field(match: re.Match[str]) -> str:
        known = match[0] in _VARIABLES
        if not known and (match[0].isupper() or match[0].upper() in _VARIABLES):
            msg = f"fileName={template!r}: unknown variable {match[0]}; known are {', '.join(_VARIABLES)}"
            raise TemplateError(msg)
        return _VARIABLES[match[0]] if known else match[0]

    literals = re.split(r"(\{[^{}]*\})", template)  # inside braces, as in `{time:%H%M}`, a `%` begins a directive
    return "".join(part if part[:1] == "{" else _VARIABLE.sub(field, part) for part in literals)


def time_spec(time_format: str) -> str:
    """Return the `strftime` format for `timeFormat`, which has Java's letters, as in Spark, or directives."""
    where = f"timeFormat={time_format!r}"
    _check_characters(where, time_format)
    _check_blanks(where, [time_format])
    if "%" in time_format:
        check_tells(where, time_format)
        return time_format
    spec = ""
    for match in _PATTERN.finditer(time_format):
        text = match[0]
        if match[1] and text not in _LETTERS:
            msg = f"{where}: {text} cannot be written; expected {', '.join(_LETTERS)}, or directives such as %Y%m%d_%H%M%S"
            raise TemplateError(msg)
        if text == "'":
            msg = f"{where}: a quote is not closed; expected letters in quotes, such as yyyyMMdd'T'HHmmss"
            raise TemplateError(msg)
        spec += _LETTERS[text] if match[1] else text.strip("'") or "'"
    if "/" in spec or not directives(spec) - _NO_TIME:
        msg = f"{where}: a name can have no '/', and must have a time; expected one such as {_TIME_FORMAT}"
        raise TemplateError(msg)
    return spec


def _check_difference(where: str, fields: set[str], *, growing: bool) -> None:
    """Raise `TemplateError` unless finished files get different names, and growing files a fixed one."""
    differing = fields - {"sink"}
    if growing and differing:
        msg = f"{where}: a growing file needs a fixed name, such as events.log"
        raise TemplateError(msg)
    if not growing and not differing:
        msg = f"{where} names all files alike; add {{seq}}, such as part-{{writer}}-{{seq}}"
        raise TemplateError(msg)
    if not growing and "seq" not in fields:
        msg = f"{where} would name several files alike; add {{seq}}, such as part-{{writer}}-{{seq}}"
        raise TemplateError(msg)


def _check_spec(where: str, name: str, spec: str) -> None:
    """Raise `TemplateError` unless the field can be written in this format, and different values of `{seq}` differ."""
    if name == "time":
        check_time(where, spec)
    elif not (_WIDTH.fullmatch(spec) if name in _NUMBERS else spec == ""):
        msg = f"{where}: {{{name}:{spec}}} cannot be written; numbers take a width, such as {{seq:05}}"
        raise TemplateError(msg)


def check_time(where: str, spec: str) -> None:
    """Raise `TemplateError` with `where` at its beginning unless the time format means the same on every machine."""
    if _CONTROL.search(spec):  # strftime would write nothing after a zero byte
        msg = f"{where}: the time format {spec!r} has a control character; expected one such as %Y-%m-%d or %H%M%S"
        raise TemplateError(msg)
    unknown = [match[0] for match in _DIRECTIVE.finditer(spec) if match[1] not in _DIRECTIVES]
    if unknown:
        msg = f"{where}: {unknown[0]} in the time format {spec!r} is not portable; expected one such as %Y-%m-%d or %H%M%S"
        raise TemplateError(msg)


def check_tells(where: str, spec: str) -> None:
    """Raise `TemplateError` unless the time format, if there is one, is portable and shows something of the time."""
    check_time(where, spec)
    if spec and not directives(spec) - _NO_TIME:
        msg = f"{where}: the time format {spec!r} is the same text for every time; expected {_in_directives(spec)}"
        raise TemplateError(msg)


def _in_directives(spec: str) -> str:
    """Return for a message the directives for a format in Java's letters, as Spark's functions take them; else a description of formats."""
    try:
        return time_spec(spec.replace("%", ""))
    except TemplateError:
        return "directives, such as %Y-%m-%d or %H%M%S"


def directives(spec: str) -> set[str]:
    """Return the letters of the time format's directives."""
    return {match[1] for match in _DIRECTIVE.finditer(spec)}


def written(moment: date, spec: str) -> str:
    """Return the moment in a time format that `check_time` has passed."""
    year = f"{moment.year:04d}"  # strftime of the C library does not pad it
    whole = {"%Y": year, "%F": f"{year}-%m-%d"}
    return moment.strftime(re.sub("%.", lambda match: whole.get(match[0], match[0]), spec, flags=re.DOTALL))


def _has_extension(template: str) -> bool:
    tail = template.rpartition("}")[2]
    return re.search(r"\.[A-Za-z0-9]+$", tail) is not None


@lru_cache(maxsize=64)  # asked for each file of a decision
def _fields_in(template: str) -> frozenset[str]:
    return frozenset(name for name, _ in template_fields(template))


def template_fields(template: str) -> list[tuple[str, str]]:
    """Return the (field, format) pairs of a template; `TemplateError` if it is not well formed."""
    try:
        parsed = list(string.Formatter().parse(template))
    except ValueError as error:
        msg = f"template {template!r} is not well formed: {error}; expected fields in braces, such as part-{{seq}}"
        raise TemplateError(msg) from error
    converted = [f"{{{name}!{conversion}}}" for _, name, _, conversion in parsed if conversion]
    if converted:
        msg = f"template {template!r} is not well formed: {converted[0]}; expected a field without '!', such as {{seq}}"
        raise TemplateError(msg)
    return [(name, spec or "") for _, name, spec, _ in parsed if name is not None]
