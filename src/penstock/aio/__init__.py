"""Asynchronous calls: many rows in flight, and one outcome for each row.

*What lives here.* `function` is the class that users write. `operator` uses it to bring each row to its outcome, and
has a file for each of its parts. `stage` is one task: it feeds the task's Arrow batches to an operator, on the event
loop that `runtime` keeps in each process. `carry` is the form in which rows wait for the next batch.

*What may be touched.* No file and no table. What users' functions touch is their business. Rows that wait are handed to
the caller, who has a place for them.

*What it may know.* Arrow and schemas; nothing of Spark.
"""
