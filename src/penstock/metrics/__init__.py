"""What a running Penstock tells monitors: one table of names, one place for the values, and a way out for each kind of monitor.

*What lives here.* `names`, the table; `meter`, the newest values of each query, in memory; `prometheus`, `telemetry` and `server`, which
give them away. Who measures is elsewhere: `spark.measuring` for any query of Penstock, `cli.run` for pipelines. *What may be touched.*
A socket that listens. No file: a scrape reads what is in memory, so none of them waits for a disk, and no commit waits for one of them.
*What it may know.* Errors and clocks; neither Spark nor what a sink is.
"""
