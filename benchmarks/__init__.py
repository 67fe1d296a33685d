"""Penstock against Spark's own file source and sink, in the same run on the same machine: `python -m benchmarks`."""
