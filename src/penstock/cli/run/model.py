"""The types of a file of pipelines, and its JSON schema for editors.

The tables of `penstock.options` say what a source and a sink accept. The models here let any option pass; `plan` checks
it against the tables, and the schema takes names, meanings and defaults from them.
"""

from __future__ import annotations

import difflib
import re
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from penstock.errors import OptionError
from penstock.options import SINK, SOURCE, Option
from penstock.options.parsers import zone
from penstock.units import parse_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.cli.run.toml import Key

Scalar = str | int | float | bool
_FOUND, _SHOWN = ", found ", 200
_OR_MODEL = re.compile(r" or instance of \w+")
_CRON_FIELDS = 5
_LONGEST = "3650d"  # Python and Spark cannot count further than that
_NOT_GIVEN = {"path", "schema"}  # options that have their own field in the models


def _duration(text: str) -> str:
    try:
        seconds = parse_duration(text, name="")
    except OptionError as error:
        raise ValueError(error.message.removeprefix("=")) from error
    if seconds > parse_duration(_LONGEST, name=""):
        msg = f"{text!r} is too long: expected at most {_LONGEST}"
        raise ValueError(msg)
    return text


def _positive(text: str) -> str:
    if parse_duration(text, name="") <= 0:
        msg = f"expected a time above 0, found {text!r}"
        raise ValueError(msg)
    return text


def _cron(text: str) -> str:
    try:
        from cronsim import CronSim, CronSimError
    except ImportError as error:
        msg = "schedules by cron need cronsim: pip install 'penstock[run]'"
        raise ValueError(msg) from error
    if (
        fields := len(text.split())
    ) > _CRON_FIELDS:  # cronsim accepts a sixth field before these, for seconds; others one after them, for years
        msg = f"{text!r}: expected minute, hour, day, month and weekday, found {fields} fields; a schedule of seconds is watch = '10s'"
        raise ValueError(msg)
    try:
        next(CronSim(text, datetime(2026, 1, 1, tzinfo=timezone.utc)))
    except (CronSimError, StopIteration) as error:
        msg = f"{text!r} is not a cron schedule ({error}): expected minute, hour, day, month and weekday, such as '5 * * * *'"
        raise ValueError(msg) from error
    return " ".join(text.split())


def _zone(text: str) -> str:
    try:
        return zone(text, "timeZone")
    except OptionError as error:
        raise ValueError(error.message) from error


def _as_table(value: Any) -> Any:  # noqa: ANN401 - whatever TOML has
    """Return a schedule that is one word as the table that it stands for; other values unchanged."""
    if isinstance(value, (dict, ScheduleTable)):
        return value
    if value in ("once", "watch"):
        return {value: True}
    msg = (
        f"expected 'once', 'watch' or a table such as {{ watch = '10s' }} or {{ cron = '5 * * * *' }}, found {value!r}"
    )
    raise ValueError(msg)


def _settings(value: Any) -> Any:  # noqa: ANN401 - whatever TOML has
    """Return settings by their full names: to TOML a dotted key without quotes is a table in a table. Numbers and booleans become text."""
    return dict(_flat(value, "")) if isinstance(value, dict) else value


def _flat(table: dict[str, Any], around: str) -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{around}{name}.")
        else:
            yield f"{around}{name}", as_text(value) if isinstance(value, Scalar) else value


def as_text(value: Scalar) -> str:
    """Return a value as text, the form of options and settings."""
    return str(value).lower() if isinstance(value, bool) else str(value)


Duration = Annotated[str, AfterValidator(_duration), Field(examples=["10s", "5m"])]


Wait = Annotated[Duration, AfterValidator(_positive)]


class Strict(BaseModel):
    """A table that accepts only its own keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def _options(table: tuple[Option, ...]) -> Callable[[dict[str, Any]], None]:
    """Return a function that adds the options of a table to the schema of a model."""

    def add(schema: dict[str, Any]) -> None:
        scalar = ["string", "number", "boolean"]
        for option in table:
            if option.name not in _NOT_GIVEN:
                described = {"type": scalar, "description": option.meaning}
                schema["properties"][option.name] = described | (
                    {} if option.default is None else {"default": option.default}
                )
        schema["additionalProperties"] = False

    return add


class SourceTable(BaseModel):
    """What is read: a path or several, and the options of the source."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True, json_schema_extra=_options(SOURCE))
    __pydantic_extra__: dict[str, Scalar] = Field(init=False)

    path: str | list[str] = Field(description="A directory, a file or a glob, or several of them.")
    schema_: str | None = Field(default=None, alias="schema", description="Columns as DDL, or infer.")


class SinkTable(BaseModel):
    """Where it goes: a directory, and the options of the sink."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True, json_schema_extra=_options(SINK))
    __pydantic_extra__: dict[str, Scalar] = Field(init=False)

    path: str = Field(description="The output directory.")


class ScheduleTable(Strict):
    """When a pipeline takes what is there: once, whenever something is new, or at times."""

    once: Literal[True] | None = Field(default=None, description="At the start, and then it is done.")
    watch: Literal[True] | Duration | None = Field(
        default=None, description="For ever: true, or how often to look for new files."
    )
    cron: Annotated[str, AfterValidator(_cron)] | None = Field(default=None, description="At times in cron's syntax.")
    timeZone: Annotated[str, AfterValidator(_zone)] = Field(default="UTC", description="Time zone of cron.")  # noqa: N815 - as options are written

    @model_validator(mode="after")
    def _one(self) -> ScheduleTable:
        given = [name for name in ("once", "watch", "cron") if getattr(self, name) is not None]
        if len(given) != 1:
            msg = f"expected one of once, watch and cron, found {', '.join(given) or 'none'}"
            raise ValueError(msg)
        if self.cron is None and "timeZone" in self.model_fields_set:
            msg = f"timeZone is only for cron, and has no meaning with {given[0]}; leave it out"
            raise ValueError(msg)
        return self


class RetryTable(Strict):
    """How a pipeline that failed is tried again: after `first`, then twice as long each time, up to `most`."""

    first: Wait = Field(default="1s", description="How long to wait after the first failure.")
    most: Wait = Field(default="5m", description="The longest wait.")
    attempts: Annotated[int, Field(ge=1)] | None = Field(
        default=None,
        description="Failures in a row that it takes; 5 for a pipeline that runs once, without end for the others.",
    )

    @model_validator(mode="after")
    def _grows(self) -> RetryTable:
        if parse_duration(self.first, name="first") > parse_duration(self.most, name="most"):
            msg = f"first={self.first!r} is longer than most={self.most!r}: waits grow from the one to the other"
            raise ValueError(msg)
        return self


class PipelineTable(Strict):
    """One ingest."""

    source: SourceTable
    sink: SinkTable
    transform: str | None = Field(
        default=None, description="MODULE:FUNCTION; the module may be in the working directory."
    )
    sql: str | None = Field(default=None, description="Instead of transform: select ... from input where ...")
    checkpoint: str | None = Field(default=None, description="What was read; <sink.path>/_penstock/checkpoint.")
    schedule: Annotated[ScheduleTable, BeforeValidator(_as_table)] = Field(
        default=ScheduleTable(once=True), description="once, watch, or a table.", validate_default=False
    )
    retry: RetryTable = RetryTable()


class SparkTable(Strict):
    """The session in which all pipelines run. Changes here take effect only at the next start."""

    master: str | None = Field(default=None, description="Where Spark runs.")
    config: Annotated[dict[str, str], BeforeValidator(_settings)] = Field(
        default_factory=dict,
        description="Configuration of Spark.",
        json_schema_extra={"additionalProperties": {"type": ["string", "number", "boolean", "object"]}},
    )


Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]


class PipelinesFile(Strict):
    """A file of pipelines."""

    pipelines: dict[Name, PipelineTable] = Field(default_factory=dict)
    spark: SparkTable = SparkTable()
    drain: Duration = Field(default="30s", description="How long a stop waits for batches under way.")
    hungAfter: Wait = Field(  # noqa: N815 - as options are written
        default="15m", description="A pipeline without progress for so long counts as hung for /health."
    )


def checked(values: dict[str, Any]) -> tuple[PipelinesFile | None, list[tuple[Key, str]]]:
    """Return the values as a file, or all that is wrong with them, by key."""
    try:
        return PipelinesFile.model_validate(values), []
    except ValidationError as error:
        return None, _merged([(_key(problem), _message(problem)) for problem in error.errors(include_url=False)])


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of a file of pipelines."""
    schema = PipelinesFile.model_json_schema(by_alias=True)
    schedule = schema["$defs"]["PipelineTable"]["properties"]["schedule"]
    word = {"enum": ["once", "watch"], "type": "string"}
    schema["$defs"]["PipelineTable"]["properties"]["schedule"] = {
        "anyOf": [{"$ref": "#/$defs/ScheduleTable"}, word],
        "description": schedule["description"],
        "default": "once",
    }
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "Pipelines of penstock run"}


_MODELS: dict[str, type[BaseModel]] = {"schedule": ScheduleTable, "retry": RetryTable, "spark": SparkTable}
_OF_TYPES = {"str", "literal[True]", "list[str]", "int", "float", "bool", "constrained-str", "[key]"}


def _key(problem: Any) -> Key:  # noqa: ANN401 - pydantic's own type is not one that can be named here
    """Return the key that a problem is about, without the parts that name a type; the first two parts never do."""
    named, rest = problem["loc"][:2], problem["loc"][2:]
    return (*named, *(part for part in rest if part not in _OF_TYPES and not str(part).startswith("function-after[")))


def _message(problem: Any) -> str:  # noqa: ANN401 - pydantic's own type is not one that can be named here
    kind, key = problem["type"], _key(problem)
    name = str(key[-1]) if key else ""
    if kind == "missing":
        return "missing: it is needed"
    if kind == "extra_forbidden":
        known = _known(key[:-1])
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
        return f"unknown key {name!r}; {hint}"
    if kind == "string_pattern_mismatch":
        return f"{problem['input']!r} is not a name: expected letters, digits, '_', '.' and '-'"
    if kind == "value_error":
        return str(problem["ctx"]["error"])
    text = _OR_MODEL.sub("", problem["msg"].replace("Input should be", "expected").replace("dictionary", "table"))
    return f"{text}{_FOUND}{_short(problem['input'])}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _known(key: Key) -> list[str]:
    """Return the keys that the table at a key accepts."""
    model = _MODELS.get(str(key[-1]), PipelineTable) if key else PipelinesFile
    return list(model.model_fields)


def _merged(problems: list[tuple[Key, str]]) -> list[tuple[Key, str]]:
    """Return the problems; those of one key, which may be of several types, are merged."""
    by_key: dict[Key, list[str]] = {}
    for key, message in problems:
        by_key.setdefault(key, []).append(message)
    around = {key[:-1] for key in by_key if isinstance(key[-1], int)}  # lists, also reported as not being text
    return [(key, _joined(messages)) for key, messages in by_key.items() if key not in around]


def _joined(messages: list[str]) -> str:
    """Return the messages of one key as one; the found value is mentioned once."""
    texts = [message.rpartition(_FOUND) for message in dict.fromkeys(messages)]
    same = len({found for _, _, found in texts}) == 1 and all(mark for _, mark, _ in texts)
    if not same:
        return " or ".join(dict.fromkeys(messages))
    expected = [text for text, _, _ in texts]
    return " or ".join([expected[0], *(text.removeprefix("expected ") for text in expected[1:])]) + _FOUND + texts[0][2]
