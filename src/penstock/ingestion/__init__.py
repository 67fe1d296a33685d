"""Where source and sink meet: the ingest, whose stage turns splits into rows of a sink, and outputs that are read again.

*What lives here.* The calls (`ingest`); the job (`job`), its run (`run`) and what it has done (`ingested`); the stage (`stage`); what the
job looks at before it starts (`places`, `earlier`); what an error of Spark means to it (`failures`); how a batch is planned anew
(`replan`); the finished files of an output as a batch (`finished`); and the refusal of a query that reads what it writes (`loop`).

*What may be touched.* DST and the checkpoint, through the sink and `query`. SRC is only read.

*What it may know.* Every room below `spark`; and of Spark's library, what starts, follows and stops a query.
"""
