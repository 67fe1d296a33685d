"""SQL as the transform of an ingest: `select ... from input where ...`, answered as Spark would, without Spark.

The text is Spark's SQL, and the answers are Spark's with its default settings (`spark.sql.ansi.enabled`). A test compares each
function and operator with Spark's own answers (`tests/ingestion/spark_sql.json`). Anything that would be answered differently,
was never compared, or needs more than one row is refused before anything starts, with advice what to write instead. So there is a
list of what is accepted, and no list of what is not; `refused` only knows better advice.

*What lives here.*

    tree       the syntax tree of a text
    parser     text -> tree, by Spark's grammar
    expression a typed tree that can be evaluated for a batch
    coercion   the common type of several operands
    casts      `cast` and `try_cast`
    times, strings, matching   kernels on columns
    given      the operands of a call
    conditions, choices, numbers, texts, dates   functions and operators: each with its types and its kernel
    functions  all functions and operators by their names
    columns    the columns of the rows
    refused    advice what to write instead
    select     a tree over the columns of some rows, ready to be evaluated
    query      `Sql`, a function of record batches like every other transform

*What may be touched.* The Arrow data that is passed in, and nothing else.

*What it may know.* Arrow, the types of formats, and errors; nothing about an ingest.

Why this is neither the SQL of polars nor that of DuckDB: docs/decisions/017-sql-is-sparks.md has the measurements.
"""
