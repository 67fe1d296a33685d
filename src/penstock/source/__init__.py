"""The source: a directory as an exactly repeatable stream of records.

`cursor` says how far the scan has got and what an offset looks like; `recent` remembers, in constant space, which
files behind the cursor were read; `scan` turns listings into new files; `plan` turns new files into the splits of one
batch; `read` turns a split into Arrow. None of them knows Spark.
"""
