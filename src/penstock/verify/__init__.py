"""The proof that an output is what its ledgers say, and that it holds what was read exactly once.

*What lives here.* `files` compares the output with the ledgers. `taken` says which bytes of a source the committed batches have
read. `records` brings both sides into one form, and `sums` proves in bounded memory that they are the same multiset. `compare`
does that and, if they differ, finds records that show how. `against` combines these, and `proof` makes one report of everything.
`retry` takes in what was set aside, and `opened` decrypts.

*What may be touched.* Nothing by a proof: it only reads outputs, sources and checkpoints, and a live query may run meanwhile.
`retry` writes through the sink.

*What it may know.* The rooms of source, sink and ingest, and what is below them; neither Spark nor the command.
"""

from __future__ import annotations

from penstock.verify.proof import Proof, verify

__all__ = ["Proof", "verify"]
