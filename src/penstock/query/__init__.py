"""Who may commit which batch: decided in one place, for the sink of files, the sink of tables, and every sink to come.

*What lives here.* What a query is to its sink: its batches and tasks (`batch`), what Spark's checkpoint says of it (`checkpoint`,
`offset`), which process is its driver (`driver`), which batch may follow the last one of a sink (`order`), which driver may commit it
(`fence`), records that show when they were altered (`records`), and the calls in their order (`writing`).

*What may be touched.* The checkpoint of the query, through `storage`: it is read, and made durable. A sink keeps its own state. It
provides four verbs and a check (`writing.BatchSink`). With its last batch it keeps the three values of `order.Last`, and who may commit
(`fence.Claim`). It calls `order.place` and `fence.check` at the moment of its commit: under the lock, or before the conditional put.

*What it may know.* Storage, and what is below; rows pass through here as Arrow and are not looked at. It knows neither a sink, nor a
source, nor a format, nor Spark's library: only what Spark writes into its checkpoint.

How a batch goes, from top to bottom, and what travels:

    spark.writer.StreamWriter     writing.QueryWriting                the sink, a BatchSink
    begin                      -> bound: checkpoint read once
                                  persist                          -> check(), begin(driver, batch)
      | Started: bound, sink, what begin returned
    write, in tasks            -> Started.write                    -> write(begun, task, rows)
      | TaskReport: query, bound, what write returned
    commit                     -> commit                           -> commit(driver, batch, results)
    abort                      -> abort                            -> abort(query, results)

A new sink is a `BatchSink`, a function that opens it by name, and one `StreamWriter` in a data source of Spark. Every sink passes
`tests/query/suite.py`; `tests/query/toy.py`, a sink over plain sqlite3, shows how little that takes.
"""
