"""Local sessions that start fast, and what a machine must have for one.

*What lives here.* What is checked before a start (`machine`, which asks `pythons`, `java`, `surroundings` and `host` for their
findings; `interpreter`; `master`); how a JVM and its Python workers are started (`launch`, `forkserver`, `archive`, `local`); what
they print (`noise`); and what a session that somebody else made must be (`connect`, `zone`, `ddl`, `functions`).

*What may be touched.* The environment of this process while a session is made, and the user's cache.

*What it may know.* PySpark, storage and formats; nothing that runs in a session: neither source nor sink nor operator.
"""
