"""`penstock schema`: infers the columns of files. Needs neither Spark nor Java."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.cli.answer import Answer, console
from penstock.cli.ingest import merged, several
from penstock.errors import OptionError
from penstock.options import SOURCE, parse
from penstock.options.topics import is_topics
from penstock.units import counted, format_size, parse_size

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.source.inferred import Inferred


def schema(
    src: list[str], flags: dict[str, str | None], pairs: list[str], *, sample: str | None, everything: bool
) -> Answer:
    """Return the DDL of what is in SRC, from a sample of this size or from everything, and notes about it."""
    from penstock.source.inferred import SAMPLE_BYTES, format_by_names, infer

    if everything and sample is not None:
        msg = f"--all looks at everything, --sample {sample} at some of it: leave one of them out"
        raise OptionError(msg)
    size = None if everything else SAMPLE_BYTES if sample is None else parse_size(sample, name="--sample")
    if is_topics(src[0]):
        msg = f"SRC={src[0]!r} is a topic, and columns are inferred only from files: name them, such as --schema 'id bigint, name string'"
        raise OptionError(msg)
    given = several(src, merged(flags, pairs, "--source-option")) | {"path": src[0]}
    options = parse(SOURCE, given, what="source")
    if "format" not in options.given:
        options = parse(SOURCE, given | {"format": format_by_names(options)}, what="source")
    inferred = infer(options, size)
    return Answer(_facts(inferred, options["format"]), lambda out: _show(inferred, options["format"], out))


def _facts(inferred: Inferred, name: str) -> dict[str, Any]:
    conflicts = [
        {
            "column": conflict.column,
            "type": conflict.type,
            "kinds": {kind: example._asdict() for kind, example in conflict.kinds.items()},
        }
        for conflict in inferred.conflicts
    ]
    return {
        "ok": True,
        "format": name,
        "ddl": inferred.ddl,
        "schema": {"type": "struct", "fields": inferred.fields},
        "files": inferred.files,
        "bytes": inferred.size,
        "all_files": inferred.all_files,
        "all_bytes": inferred.all_size,
        "rows": inferred.rows,
        "conflicts": conflicts,
        "notes": list(inferred.notes),
    }


def _show(inferred: Inferred, name: str, out: Console) -> None:
    """Print the DDL on stdout, and nothing else: it is meant to be passed on."""
    out.print(inferred.ddl, soft_wrap=True)
    beside = console(stderr=True)
    of = f" of {inferred.all_files:,}, {format_size(inferred.all_size)}" if inferred.is_sample else ""
    beside.print(
        f"from     {counted(inferred.files, f'{name} file')}, {format_size(inferred.size)}{of}", soft_wrap=True
    )
    for note in inferred.told():
        beside.print(f"note     {note}", soft_wrap=True)
