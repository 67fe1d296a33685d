"""What replaces options that users know from Flink, from Apex and its library Malhar, from IBM Streams, and from Kafka Connect.

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

_DIRECTORIES = "bucketBy makes directories, such as bucketBy=dt={ts:%Y-%m-%d}/country={country}"
_NULL = "null is in the directory __HIVE_DEFAULT_PARTITION__, whose name is the same for all readers"

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
    "objectName": f"path is the directory; {_NAMED}",
    "bytesPerObject": "rollSize closes a file before it passes that size",
    "tuplesPerObject": "rollRows closes a file at so many rows",
    "timePerObject": "rollInterval closes a file at that age",
    "storageFormat": "here it is format, parquet for example",
    "headerRow": "header=true, for csv, begins each file with the names of its columns",
    "parquetCompression": "here it is compression",
    "partitionValueAttributes": _DIRECTORIES,
    "skipPartitionAttributes": "dropBucketColumns=true leaves the columns of bucketBy out of the files",
    "nullPartitionDefaultValue": _NULL,
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
    "partition.default-name": _NULL,
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
_CONNECT_SINK = {
    "flush.size": "rollRows closes a file at so many rows, rollSize at a size",
    "rotate.interval.ms": "rollInterval closes a file at that age by the clock; a directory of one span of time ends by partitionReady",
    "rotate.schedule.interval.ms": "rollInterval closes a file at that age; bucketBy={time:%Y-%m-%d-%H} begins one with each hour",
    "partitioner.class": _DIRECTORIES,
    "partition.field.name": _DIRECTORIES,
    "partition.duration.ms": "the format of a time in bucketBy says how long its directory lasts, such as {ts:%Y-%m-%d-%H}",
    "path.format": "here it is the format of a time in bucketBy, such as dt={ts:%Y-%m-%d}/hour={ts:%H}",
    "timestamp.extractor": "bucketBy names the column, {ts:%Y-%m-%d}, or the time of the batch, {time:%Y-%m-%d}",
    "timestamp.field": "bucketBy names the column, such as {ts:%Y-%m-%d} or, in a struct, {event.ts:%Y-%m-%d}",
    "schema.compatibility": "a query has one schema; files that hold the rows of an earlier one are finished as they are",
    "format.class": "here it is format: text, json, csv, parquet, orc or avro",
    "topics.dir": "here it is path",
    "filename.offset.zero.pad.width": "a number in fileName has its own width, such as part-{writer}-{seq:05}",
    "behavior.on.null.values": "a message without a value is a row with null in its columns; a where leaves it out",
    "s3.compression.type": "here it is compression",
}

MODELS = {
    "IBM Streams": {"source": _STREAMS_SOURCE, "sink": _STREAMS_SINK},
    "Flink": {"source": _FLINK_SOURCE, "sink": _FLINK_SINK},
    "Apex": {"source": _APEX_SOURCE, "sink": _APEX_SINK},
    "Kafka Connect": {"sink": _CONNECT_SINK},
}
