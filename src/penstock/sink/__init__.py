"""The sink: rows in, finished files out, each exactly once.

*What lives here.*

- One batch: `sink` runs it. `decide` decides what becomes of it, `ledger` is the record of that, `committer` puts the record, and
  `publish` makes visible what it names.
- One task: `writer` fills `parts`, which hold bytes (`byteparts`) or rows (`tableparts`), each with a `payload`. They go to `staging`
  files as `segments`. `rolling` says when a part is full.
- Names: `layout`, `buckets`, `values`, `names` and `taken` say where a row goes, and what a file holds and is called.
- Time: `ready` and `timebuckets` say when the directory of an hour or a day is complete. `keeper` closes what a query leaves open.
- Readers: `events`, `published`, `eventrows` and `telling` say what was published; `snapshot` says which files a record had.
- Other writers: `keyed` writes batches by their keys (`keys`). `existing` has the options that a sink was given.

*What may be touched.* The output's directory and the sink's own directory in it, through `storage`. Every decision is a record of
the ledger, put under a number that nobody has. A finished file is never replaced.

*What it may know.* Storage, formats, options, and whose batch it is (`query`): neither a source nor Spark.
"""
