"""The ingest: one stage that turns the splits of a source into the rows of a sink, and the job around it.

*What lives here.* The calls (`ingest`); the job (`job`), its run (`run`) and what it has done (`ingested`); the stage (`stage`); what the
job looks at before it starts (`places`, `earlier`); what an error of Spark means to it (`failures`); and how a batch is planned anew
(`replan`).

*What may be touched.* DST and the checkpoint, through the sink and `query`. SRC is only read.

*What it may know.* Every room below `spark`; and of Spark's library, what starts, follows and stops a query.
"""
