"""Adds finished files to tables of Delta and Iceberg, each file to its table exactly once.

*What lives here.* `follower` reads from the ledgers what an output has published since its last look, and adds it to a table; its
docstring has the rules. `footers` reads what a table needs to know about a file, and `statistics` the bounds of its columns.
`table` is the interface of a table; `delta` and `iceberg` are the two kinds.

*What may be touched.* The ledgers and files of an output, which are only read; and the tables, through their own libraries, which
are imported only here.

*What it may know.* Events of the sink and files of formats; neither Spark, nor the writer of the output.
"""
