"""The ingest, which joins source and sink: its stage turns splits into rows of a sink. Also batch reads of outputs.

*What lives here.* The calls (`ingest`); the job (`job`), its run (`run`) and its report (`ingested`); the stage (`stage`); the
checks before a job starts (`places`, `earlier`); the meaning of Spark's errors (`failures`); planning a batch again (`replan`);
the finished files of an output as a batch (`finished`); and the refusal of a query that reads what it writes (`loop`).

*What may be touched.* DST and the checkpoint, through the sink and `query`. SRC is only read.

*What it may know.* Every room below `spark`; and those parts of Spark's library that start, follow and stop a query.
"""
