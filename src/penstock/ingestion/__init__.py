"""The ingest: one stage from the splits of a source to the rows of a sink, and the job around it.

*What lives here.* The stage (`stage`), the job and its run (`job`), what it looks at before (`places`, `earlier`), what an
error of Spark means to it (`failures`), and a batch planned anew (`replan`).

*What may be touched.* DST and the checkpoint, through the sink and `query`; SRC is read.

*What it may know.* Every room below the bindings to Spark, and of Spark's library what starts, follows and stops a query.
"""
