"""`penstock retry`: what `penstock.retry` did, for people and as JSON. It needs neither Spark nor Java."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from penstock.cli.answer import Answer, counted
from penstock.cli.process import importable_here
from penstock.verify.retry import retry as take_in

if TYPE_CHECKING:
    from rich.console import Console


def retry(dst: str, *, mended: str | None, sink: str | None, transform: str | None, key: str | None) -> Answer:
    """Take in what was set aside and can be read by now. Raises what `penstock.retry` raises."""
    if transform is not None:
        importable_here()
    done = take_in(dst, mended=mended, sink=sink, transform=transform, key=key)
    facts = {"ok": True} | asdict(done)

    def show(out: Console) -> None:
        out.print(f"took in {counted(done.records, 'record')}, {counted(done.rows, 'row')}")
        if done.left:
            out.print(f"{counted(done.left, 'record')} still cannot be read: {'; '.join(done.reasons)}", soft_wrap=True)
        if done.unknown:
            out.print(f"{counted(done.unknown, 'record')} of the copy: not set aside, or taken in before")

    return Answer(facts, show)
