"""The metrics of a running Penstock: one table of names, one place for the values, one exporter for each kind of monitor.

*What lives here.* `names` is the table. `meter` holds the newest values of each query in memory. `prometheus`, `telemetry` and
`server` export them. The values are measured elsewhere: by `spark.measuring` for any query, and by `cli.run` for pipelines.

*What may be touched.* A listening socket, and no file. A scrape reads memory, so no scrape waits for a disk, and no commit waits
for a scrape.

*What it may know.* Errors and clocks; neither Spark nor sinks.
"""
