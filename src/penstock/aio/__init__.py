"""Asynchronous calls: an operator that knows nothing of Spark."""
