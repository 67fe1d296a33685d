"""Local sessions that start fast, and what a machine must have for one.

*What lives here.* What is checked before a start (`machine`, which collects the findings of `pythons`, `java`, `surroundings` and
`host`; `interpreter`; `master`); how a JVM and its Python workers are started (`launch`, `forkserver`, `archive`, `local`); what they
print (`noise`); and requirements for a session that the caller made (`connect`, `zone`, `ddl`, `functions`).

*What may be touched.* The environment of this process while a session is made, and the user's cache.

*What it may know.* PySpark, storage and formats; nothing that runs in a session: neither source nor sink nor operator.
"""
