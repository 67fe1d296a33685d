"""The sink: rows in, finished files out, each exactly once.

*What lives here.* `sink` runs a batch; `ledger` has what is decided and `decide` decides it; `publish` makes that visible;
`parts` is what a task writes, in `segments`, closed by `rolling`; `buckets`, `values` and `names` say where a row goes and
what a file is called; `keeper` closes what a query leaves open, `existing` has the options that a sink was given.

*What may be touched.* The output's directory and the sink's own one in it, through `storage`. Every decision is a record of
the ledger, put under a number that nobody has; what is finished is never replaced.

*What it may know.* Storage, formats, options, and whose batch it is (`query`): neither a source nor Spark.
"""
