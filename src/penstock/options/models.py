"""What replaces options that users know from Flink, from Apex and its library Malhar, and from IBM Streams.

The keys are the words for what is being set up, as in `options.parse`. A name that becomes an option of ours is removed from here.
"""

from __future__ import annotations

_LOOK = "the trigger says how often to look, of an ingest --interval; sleepTime is how long a listing is used"
_STAGED = "there is nothing to set: rows are staged where no reader looks until their file is finished"
_JOINED = "parts live across batches, and those smaller than mergeBelow are joined before they are visible; nothing is rewritten later"
_CHECKED = (
    "there is nothing to set: ages are looked at with each batch, and by a process of its own where there is none"
)
_NAMED = "fileName is the template of names, such as fileName=part-{writer}-{seq}"
_ADDRESS = "path has it: hdfs://namenode/directory"
_OPEN = "there is nothing to set: a task has at most 64 files open, whatever the number of its parts"

_STREAMS_SOURCE = {
    "directory": "here it is path",
    "file": "path may be a file; the files that rows name are read by penstock.read_files, in an ingest by files",
    "hdfsUri": _ADDRESS,
    "initDelay": "here it is initialDelay",
}
_STREAMS_SINK = {
    "file": f"path is the directory; {_NAMED}",
    "fileAttributeName": "fileName may name columns, such as fileName={name}_%FILENUM",
    "hdfsUri": _ADDRESS,
    "bytesPerFile": "rollSize closes a file before it passes that size",
    "tuplesPerFile": "rollRows closes a file at so many rows",
    "timePerFile": "rollInterval closes a file at that age",
    "closeOnPunct": "rollBatches=1 closes a file with each batch, which is what a punctuation was",
    "tempFile": _STAGED,
}
_FLINK_SOURCE = {
    "source.monitor-interval": _LOOK,
    "source.path.regex-pattern": "pattern is a regular expression of the file name",
}
_FLINK_SINK = {
    "sink.rolling-policy.file-size": "here it is rollSize",
    "sink.rolling-policy.rollover-interval": "here it is rollInterval",
    "sink.rolling-policy.inactivity-interval": "here it is rollInactivity",
    "sink.rolling-policy.check-interval": _CHECKED,
    "auto-compaction": _JOINED,
    "compaction.file-size": _JOINED,
    "sink.partition-commit.trigger": "here it is partitionReadyBy: data (partition-time) or cursor",
    "sink.partition-commit.delay": "here it is partitionReadyDelay",
    "sink.partition-commit.policy.kind": "here it is partitionReady: success-file, event, or both",
    "sink.partition-commit.policy.class": "onPublish calls a function with what was published",
    "partition.default-name": "null is in the directory __HIVE_DEFAULT_PARTITION__, whose name is the same for all readers",
    "batchSize": "here it is rollSize",
    "batchRolloverInterval": "here it is rollInterval",
    "inactiveBucketThreshold": "here it is rollInactivity",
    "inactiveBucketCheckInterval": _CHECKED,
    "partPrefix": _NAMED,
    "partSuffix": _NAMED,
}
_APEX_SOURCE = {
    "scanIntervalMillis": _LOOK,
    "filePatternRegexp": "here it is pattern",
    "recursive": "here it is recursiveFileLookup",
    "blocksThreshold": "maxBytesPerTrigger and maxFilesPerTrigger limit a batch, splitSize a task",
    "maxRetryCount": "Spark tries a task again (spark.task.maxFailures); a file that cannot be read is set aside by badFiles=quarantine",
}
_APEX_SINK = {
    "filePath": "here it is path",
    "maxLength": "here it is rollSize",
    "rotationWindows": "rollBatches closes a file after so many batches",
    "maxIdleWindows": "rollInactivity closes a file that was not written for so long",
    "maxOpenFiles": _OPEN,
    "alwaysWriteToTmp": _STAGED,
}

MODELS = {
    "IBM Streams": {"source": _STREAMS_SOURCE, "sink": _STREAMS_SINK},
    "Flink": {"source": _FLINK_SOURCE, "sink": _FLINK_SINK},
    "Apex": {"source": _APEX_SOURCE, "sink": _APEX_SINK},
}
