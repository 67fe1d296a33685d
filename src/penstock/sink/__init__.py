"""The sink: rows in, finished files out, each exactly once.

`buckets` says where a row goes, `names` what a file is called, `rolling` when a part is closed, `parts` what a task
writes, `ledger` what is decided, `publish` how it becomes visible, `sink` how one batch runs. None of them knows Spark.
"""
