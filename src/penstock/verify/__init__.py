"""Proof that an output is what its ledgers say, and that it holds what was read exactly once.

*What lives here.* `files` compares the output with the ledgers. `taken` says which bytes of a source the committed batches have read.
`records` brings both sides into one form, and `sums` proves in bounded memory that they are the same multiset. `compare` does
that and, where they differ, finds records that show how. `against` puts these together, and `report` everything.

*What may be touched.* Nothing: outputs, sources and checkpoints are read, and a live query may go on meanwhile.

*What it may know.* The rooms of source, sink and ingest, and what is below them; neither Spark nor the command.
"""

from __future__ import annotations

from penstock.verify.proof import Proof, verify

__all__ = ["Proof", "verify"]
