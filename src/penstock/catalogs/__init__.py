"""Finished files in tables of Delta and Iceberg: a follower of what an output publishes, each file in its table exactly once.

*What lives here.* `follower`, which brings what is new from the ledgers into a table, and the rules that it keeps; `footers`, what a
table wants to know of a file; `delta` and `iceberg`, a kind of table each. *What may be touched.* The ledgers and the files of an
output, to be read; and the tables, by their own libraries, which are loaded here alone. *What it may know.* Events of the sink, files of
formats; neither Spark, nor who writes the output.
"""
