"""The sink: rows in, finished files out, each exactly once.

*What lives here.* `sink` runs a batch; `ledger` has what is decided and `decide` decides it; `committer` puts it and has
`publish` make it visible. `writer` is what a task writes: `parts` of two kinds (`byteparts`, `tableparts`) from two payloads
(`payload`), in `staging` files and their `segments`, closed by `rolling`. `layout`, `buckets`, `values`, `names` and `taken` say where a
row goes and what a file is and is called; `ready` and `timebuckets` when a directory of a span of time is complete; `events`,
`published`, `eventrows` and `telling` say what was published; `keeper` closes what a query leaves open, `existing` has the
options that a sink was given. `keyed` writes batches by their keys (`keys`), and `snapshot` says which files there were with a record.

*What may be touched.* The output's directory and the sink's own one in it, through `storage`. Every decision is a record of
the ledger, put under a number that nobody has; what is finished is never replaced.

*What it may know.* Storage, formats, options, and whose batch it is (`query`): neither a source nor Spark.
"""
