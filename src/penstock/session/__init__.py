"""Local sessions that start fast, and what a machine must have for one.

*What lives here.* What is checked before a start (`machine`, which collects the findings of `pythons`, `java`, `surroundings` and
`host`; `interpreter`; `master`); how a JVM and its Python workers are started (`launch`, `forkserver`, `archive`, `local`); what they
print (`noise`); requirements for a session that the caller made (`connect`, `zone`, `streams`, `ddl`, `functions`), and who listens in it
(`heard`); and what a Python worker of Spark does for a task of ours (`worker`, `executor`, `task`).

*What may be touched.* The environment of this process while a session is made, and the user's cache.

*What it may know.* PySpark, storage and formats; neither source nor sink nor operator.
"""
