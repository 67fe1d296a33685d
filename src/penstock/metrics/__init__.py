"""What a running Penstock tells monitors: one table of names, one place for the values, one way out for each kind of monitor.

*What lives here.* `names` is the table. `meter` holds the newest values of each query in memory. `prometheus`, `telemetry` and `server`
give them away. They are measured elsewhere: by `spark.measuring` for any query, and by `cli.run` for pipelines.

*What may be touched.* A socket that listens, and no file. A scrape reads memory, so no scrape waits for a disk, and no commit waits
for a scrape.

*What it may know.* Errors and clocks; neither Spark nor what a sink is.
"""
