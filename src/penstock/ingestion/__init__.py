"""The ingest: one stage from the splits of a source to the rows of a sink, and the job around it."""
