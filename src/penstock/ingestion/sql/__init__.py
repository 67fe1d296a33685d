"""SQL as the transform of an ingest: `select ... from input where ...`, answered as Spark would, without Spark.

The text is Spark's SQL, and the answers are Spark's in its default settings (`spark.sql.ansi.enabled`). A test compares each function
and operator with what Spark itself has answered (`tests/ingestion/spark_sql.json`). Whatever would be answered otherwise, was never
compared, or needs more than one row is refused before anything starts, with what to write instead. So there is a list of what is
accepted, and none of what is not; `refused` only knows better advice.

*What lives here.*

    tree       what a text says
    parser     text -> tree, by Spark's grammar
    expression a typed tree that answers for a batch
    coercion   types side by side
    casts      `cast` and `try_cast`
    times, strings, matching   kernels on columns
    given      the operands of a call
    conditions, choices, numbers, texts, dates   functions and operators: each with its types and its kernel
    functions  all of them by their names
    columns    what the rows have
    refused    what to write instead
    select     a tree over the columns of some rows, ready to answer
    query      `Sql`, a function of record batches like every other transform

*What may be touched.* Arrow that is handed in, and nothing else.

*What it may know.* Arrow, the types of formats, and errors; nothing of an ingest.

Neither the SQL of polars nor that of DuckDB: docs/decisions/017-sql-is-sparks.md says what was measured.
"""
