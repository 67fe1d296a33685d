"""What replaces options that users know from elsewhere: Spark's file source and sink, its formats, Auto Loader, JDBC, and `models`.

An option that is unknown here and known there is refused with what replaces it, or the reason why nothing does. The nearest name among
ours would mislead: `latestFirst` is not a misspelt `lateness`. A name that becomes an option of ours is removed from here.
"""

from __future__ import annotations

from penstock.options.models import MODELS
from penstock.options.source import SOURCE

_INFERRED = "schema=infer infers the columns once, as Spark does; penstock schema prints them, for .schema(...)"
_FAIL = (
    "what cannot be parsed fails the batch (badRecords=fail) or is set aside (badRecords=quarantine, with badRecordColumn in a query "
    "that is not an ingest), and never becomes null or is left out without a word"
)
_CSV = "fields of csv are taken as they are, white space and all"
_QUOTED = "fields are quoted where they have to be"
_JSON = "json has one dialect, that of RFC 8259"
_ODD_NUMBERS = "NaN, Infinity and -Infinity are numbers, and no other words are"
_TIMES_WRITTEN = "times are written as ISO 8601; others are converted to string in the query"
_CALENDAR = "a file says which calendar it counts in: dates of the Julian one are moved, times before 1900 are refused"
_HIDDEN = (
    "names that begin with '.' or '_' are never read; pathGlobFilter and pattern choose among the others, and directories "
    "such as dt=2026-01-31 are columns where the schema has them, partitionColumns=auto"
)
_LISTED = "there is nothing to set: what was read is remembered in constant space"
_CODEC = "the name of a file says how it is compressed: .gz, .zst, .bz2, .xz, .br, .deflate, .snappy, .lz4"
_STORED_SCHEMA = "each file of avro says its own schema; .schema(...), schema=infer or --schema say which of its columns are read, by name"
_UNIONS = "a union of several types is not a column: other columns of the file are read without it"
_MODULAR = "Parquet's own encryption is not read: write such files anew in clear, or as files of age, for decryptionKey"
_WRITING = "it is for writing, and says nothing of what is read: leave it out"
_READING = "it is for reading, and says nothing of what is written: leave it out"
_CODECS = "compression takes none, gzip, zstd, for parquet also snappy, lz4, brotli"
_ROLLED = "what a file holds is limited by rollSize and rollRows"

_READ = {
    "maxRecordsPerTrigger": (
        "how many records a file has is not known before it is read; maxBytesPerTrigger and maxFilesPerTrigger limit a batch"
    ),
    "maxFileAge": "lateness says how old a new file may be, counted from the newest that was read, not from now",
    "latestFirst": "files are read from the oldest on, the newest last; startingFrom=latest or modifiedAfter leaves out older ones",
    "fileNameOnly": "a file is known by its path, its time and its size, so that one that was replaced is not missed",
    "maxCachedFiles": _LISTED,
    "discardCachedInputRatio": _LISTED,
    "ignoreInvalidPartitionPaths": _HIDDEN,
    "ignoredPathSegmentRegex": _HIDDEN,
    "ignoreCorruptFiles": "a file that cannot be read fails the batch, or is set aside with a line about it: badFiles=quarantine",
    "ignoreMissingFiles": "a planned file that is gone fails the batch, or is set aside with a line about it: changedFiles=quarantine",
    "wholetext": "format=binary has each file as one value",
    "mergeSchema": _INFERRED,
    "inferSchema": _INFERRED,
    "samplingRatio": _INFERRED,
    "enforceSchema": "columns of csv are taken by the names in the header, with header=true; else by position",
    "prefersDecimal": _INFERRED,
    "primitivesAsString": _INFERRED,
    "dropFieldIfAllNull": _INFERRED,
    "inferTimestamp": _INFERRED,
    "preferDate": _INFERRED,
    "singleVariantColumn": "files are read into columns with types; format=text has each line as it is",
    "columnNameOfCorruptRecord": _FAIL,
    "enableDateTimeParsingFallback": _FAIL,
    "unescapedQuoteHandling": _FAIL,
    "charToEscapeQuoteEscaping": _CSV,
    "ignoreLeadingWhiteSpace": _CSV,
    "ignoreTrailingWhiteSpace": _CSV,
    "nanValue": _ODD_NUMBERS,
    "positiveInf": _ODD_NUMBERS,
    "negativeInf": _ODD_NUMBERS,
    "maxColumns": "the schema says how many there are",
    "maxCharsPerColumn": "a record has at most 1 GiB",
    "inputBufferSize": "splitSize says how much a task reads",
    "columnPruning": "the schema says which columns are read",
    "allowBackslashEscapingAnyCharacter": _JSON,
    "allowComments": _JSON,
    "allowNonNumericNumbers": _ODD_NUMBERS,
    "allowNumericLeadingZeros": _JSON,
    "allowSingleQuotes": _JSON,
    "allowUnquotedControlChars": _JSON,
    "allowUnquotedFieldNames": _JSON,
    "explodeEmbeddedArray": _JSON,
    "useUnsafeRow": "there is nothing of that kind to set",
    "timeFormat": "times of day are read as string and converted in the query",
    "locale": "names of months are English",
    "datetimeRebaseMode": _CALENDAR,
    "int96RebaseMode": _CALENDAR,
    "compression": _CODEC,
    "codec": _CODEC,
    "extension": "pathGlobFilter chooses by name, such as *.csv",
    "ignoreExtension": "files are read whatever they are called; pathGlobFilter chooses by name, such as *.avro",
    "avroSchema": _STORED_SCHEMA,
    "avroSchemaUrl": _STORED_SCHEMA,
    "positionalFieldMatching": _STORED_SCHEMA,
    "recursiveFieldMaxDepth": "an avro file whose records contain themselves is not read: write it anew without, for example with Spark",
    "enableStableIdentifiersForUnionType": _UNIONS,
    "stableIdentifierPrefixForUnionType": _UNIONS,
    "parquet.crypto.factory.class": _MODULAR,
    "parquet.encryption.footer.key": _MODULAR,
    "parquet.encryption.column.keys": _MODULAR,
    "badRecordsPath": "badRecords=quarantine and badFiles=quarantine set aside, where an ingest has quarantineLocation for a path",
    "readerCaseSensitive": (
        "columns of tables and of csv headers are found by their exact names, or else by their names in another case; keys of json by "
        "their exact names alone"
    ),
    "ignoreNullFields": _WRITING,
    "pretty": _WRITING,
    "writeNonAsciiCharacterAsCodePoint": _WRITING,
    "quoteAll": _WRITING,
    "escapeQuotes": _WRITING,
    "recordName": _WRITING,
    "recordNamespace": _WRITING,
}

_WRITTEN = {
    "maxRecordsPerFile": "rollRows closes a file at so many rows",
    "partitionOverwriteMode": "nothing is ever replaced: files are added",
    "mode": "nothing is ever replaced: files are added",
    "truncate": "nothing is ever replaced: files are added",
    "retention": "finished files are never removed",
    "partitionBy": "bucketBy makes directories, such as bucketBy=dt={ts:%Y-%m-%d}/country={country}",
    **dict.fromkeys(("parquet.compression", "orc.compress"), _CODECS),
    "parquet.block.size": _ROLLED,
    "mergeSchema": "a query has one schema",
    "extension": "fileName is the template of names; the ending follows the format",
    "encoding": "files are written in UTF-8",
    "charset": "files are written in UTF-8",
    "lineSep": "lines end with \\n",
    "sep": "fields are separated by commas",
    "delimiter": "fields are separated by commas",
    "quoteAll": _QUOTED,
    "escapeQuotes": _QUOTED,
    "charToEscapeQuoteEscaping": _QUOTED,
    "ignoreLeadingWhiteSpace": _CSV,
    "ignoreTrailingWhiteSpace": _CSV,
    "pretty": _JSON,
    "sortKeys": "keys are in the order of the columns",
    "ignoreNullFields": "there is nothing to set: readers take a key that is not there for null, and the other way round",
    "writeNonAsciiCharacterAsCodePoint": "json is written in UTF-8",
    "dateFormat": _TIMES_WRITTEN,
    "timestampFormat": _TIMES_WRITTEN,
    "timestampNTZFormat": _TIMES_WRITTEN,
    "locale": _TIMES_WRITTEN,
}

_EVERY_BATCH = "there is nothing to set: every batch lists what may have changed"
_AUTO_LOADER = {
    "format": "here it is format",
    "maxFilesPerTrigger": "here it is maxFilesPerTrigger",
    "maxBytesPerTrigger": "here it is maxBytesPerTrigger",
    "maxFileAge": _READ["maxFileAge"],
    "includeExistingFiles": "startingFrom=latest leaves out what is there",
    "inferColumnTypes": _INFERRED,
    "schemaLocation": _INFERRED,
    "schemaHints": _INFERRED,
    "schemaEvolutionMode": "a query has one schema; an ingest continues with one that has more columns, and says what has changed",
    "partitionColumns": _HIDDEN,
    "allowOverwrites": "a file that has a new time is a new file; one that changes between plan and task fails the batch",
    "backfillInterval": _EVERY_BATCH,
    "useIncrementalListing": "here it is namesRise, for stores of objects whose names rise with time",
    "useNotifications": _EVERY_BATCH,
    "useManagedFileEvents": _EVERY_BATCH,
    "validateOptions": "there is nothing to set: an unknown option is always refused",
}

_ONE_TRANSACTION = "there is nothing to set: a batch is one transaction of the driver's"
_OWN_TABLE = "make the table yourself, and set createTable=false"
_SETTING = "the url says it, of PostgreSQL: ?options=-c%20statement_timeout%3D10min"
_JDBC = {
    "path": "a table has no path: .start() without one, and url and table",
    "dbtable": "here it is table",
    "user": "the url has it: postgresql://user@host/database",
    "driver": "there is nothing to set: the url says which database it is",
    "batchsize": _ONE_TRANSACTION,
    "isolationLevel": _ONE_TRANSACTION,
    "numPartitions": _ONE_TRANSACTION,
    "truncate": "rows are added (mode=append) or brought up to date (mode=upsert, mode=merge), a table is never emptied",
    "createTableOptions": _OWN_TABLE,
    "createTableColumnTypes": _OWN_TABLE,
    "queryTimeout": _SETTING,
    "sessionInitStatement": _SETTING,
}

_AS_SOON = "there is nothing to set: a batch begins as soon as there is something; trigger(processingTime=...) says how often to look"
_CLIENT_ASKS = "here it is timeout: the client repeats its requests for that long"
_KAFKA = {
    "path": "topics have no path: .load() without one, and subscribe, subscribePattern or assign",
    "minOffsetsPerTrigger": _AS_SOON,
    "maxTriggerDelay": _AS_SOON,
    "kafkaConsumer.pollTimeoutMs": _CLIENT_ASKS,
    "fetchOffset.numRetries": _CLIENT_ASKS,
    "fetchOffset.retryIntervalMs": _CLIENT_ASKS,
    "groupIdPrefix": "kafka.group.id names the group, which is asked for nothing",
    "maxRecordsPerPartition": "minPartitions cuts a batch in more tasks",
}

# The keys are the words for what is being set up, as in `options.parse`.
KNOWN_ELSEWHERE = {
    "source": _READ | {f"cloudFiles.{name}": instead for name, instead in _AUTO_LOADER.items()},
    "sink": _WRITTEN,
    "database sink": _JDBC,
    "topic source": _KAFKA,
}
_PREFIX = "cloudfiles."
_OTHER_SIDE = {"source": ("sink", _WRITING), "sink": ("source", _READING)}
_AS = {"batch read": "source", "batch write": "sink"}  # batches get the answers of these


def advice(name: str, what: str) -> tuple[str, str] | None:
    """Return how an option is written elsewhere, and what replaces it here; None if it is not known there either."""
    side = _AS.get(what, what)
    answers = [*(sides.get(side, {}) for sides in MODELS.values()), KNOWN_ELSEWHERE.get(side, {})]
    known = {other.lower(): (other, instead) for each in answers for other, instead in each.items()}
    if what == "source" and name.lower().startswith(_PREFIX) and name.lower() not in known:
        ours = {option.name.lower(): option.name for option in SOURCE}.get(name.lower().removeprefix(_PREFIX))
        return name, f"here it is {ours}" if ours else "it is one of Auto Loader, for which there is nothing here"
    if side in _OTHER_SIDE and name.lower() not in known:
        other, instead = _OTHER_SIDE[side]
        known = {each.lower(): (each, instead) for each in KNOWN_ELSEWHERE[other]}
    return known.get(name.lower())
