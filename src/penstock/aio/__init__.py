"""Asynchronous calls: many rows in flight, one outcome a row.

*What lives here.* `function` is what users write; `operator` brings rows to their outcomes by it, with a file for each of its parts;
`stage` leads the Arrow batches of a task through an operator, on the loop that `runtime` keeps in each process; `carry` is the form of
rows that wait for the next batch. *What may be touched.* No file and no table: what the functions of users touch is theirs, and what
is kept for the next batch is given to whoever has a place for it. *What it may know.* Arrow and what a schema says; nothing of Spark.
"""
