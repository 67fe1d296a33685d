"""`penstock retry`: what `penstock.retry` did, for people and as JSON. It needs neither Spark nor Java."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from penstock.cli.answer import Answer
from penstock.cli.process import importable_here
from penstock.units import counted
from penstock.verify.retry import retry as take_in

if TYPE_CHECKING:
    from rich.console import Console


def retry(dst: str, *, mended: str | None, sink: str | None, transform: str | None, key: str | None) -> Answer:
    """Take in what was set aside and can be read now. Raises what `penstock.retry` raises."""
    if transform is not None:
        importable_here()
    done = take_in(dst, mended=mended, sink=sink, transform=transform, key=key)
    facts = {"ok": True} | asdict(done)

    def show(out: Console) -> None:
        files = f" and {counted(done.files, 'file')}" if done.files else ""
        out.print(f"took in {counted(done.records, 'record')}{files}, {counted(done.rows, 'row')}")
        if done.left or done.files_left:
            counts = [(done.left, "record"), (done.files_left, "file")]
            words = " and ".join(counted(count, word) for count, word in counts if count)
            out.print(f"{words} still cannot be read: {'; '.join(done.reasons)}", soft_wrap=True)
        if done.files_replaced:
            words = counted(done.files_replaced, "file")
            out.print(
                f"{words} in the source by now in another version, which the next ingest takes in", soft_wrap=True
            )
        if done.unknown:
            out.print(f"{counted(done.unknown, 'record')} of the copy: not set aside, or taken in before")

    return Answer(facts, show)
