"""Finished files in tables of Delta and Iceberg, each file in its table exactly once.

*What lives here.* `follower` reads from the ledgers what an output has published since it last looked, and brings it into a table; its
docstring has the rules. `footers` reads what a table wants to know of a file. `delta` and `iceberg` are a kind of table each.

*What may be touched.* The ledgers and files of an output, which are only read; and the tables, through their own libraries, which are
imported here alone.

*What it may know.* Events of the sink and files of formats; neither Spark, nor the writer of the output.
"""
