"""The sink: rows in, finished files out, each exactly once.

*What lives here.*

- One batch: `sink` runs it. `decide` makes the decision, `ledger` records it, `committer` puts the record, and `publish` makes
  the files that the record names visible. `folds` keeps what old records have finished.
- One task: `writer` fills `parts`, which hold bytes (`byteparts`) or rows (`tableparts`), each with a `payload`. They go to `staging`
  files as `segments`. `rolling` says when a part is full.
- Names: `layout`, `buckets`, `values`, `names` and `taken` say where a row goes, what a file holds, and what the file is called.
- Time: `ready` and `timebuckets` say when the directory of an hour or a day is complete. `keeper` closes what a query leaves open.
- Readers: `events`, `published`, `eventrows` and `telling` say what was published; `snapshot` lists the files that were published
  up to a record.
- Other writers: `keyed` writes batches by their keys (`keys`). `existing` keeps a note of the options that a sink was given.

*What may be touched.* The output's directory and the sink's own directory in it, through `storage`. Every decision is a record of
the ledger, put under a number that is still free. A finished file is never replaced.

*What it may know.* Storage, formats, options, and which query and driver a batch belongs to (`query`). It knows neither a source
nor Spark.
"""
