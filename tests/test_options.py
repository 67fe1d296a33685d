"""Every option is checked, and unknown options are refused."""

from __future__ import annotations

import re

import pytest

from penstock.errors import OptionError
from penstock.formats.codecs import COMPRESSED_NAMES
from penstock.options import BATCH_SINK, DATABASE, FINISHED, LOG, SINK, SOURCE, parse
from penstock.options.elsewhere import KNOWN_ELSEWHERE
from penstock.options.kafka import KAFKA
from penstock.options.models import MODELS


def test_names_are_taken_in_any_case() -> None:
    """Spark passes options in lower case; they are the same options."""
    options = parse(SOURCE, {"PATH": "/x", "maxfilespertrigger": "7"}, what="source")
    assert (options["path"], options["maxFilesPerTrigger"]) == ("/x", 7)
    assert options.given == {"path": "/x", "maxFilesPerTrigger": "7"}
    assert parse(SOURCE, options.given, what="source") == options


def test_sparks_other_names_are_taken() -> None:
    """`delimiter`, `charset` and `codec` mean what they mean to Spark, in any case; notes use the name in our table."""
    source = parse(SOURCE, {"path": "/x", "DELIMITER": ";", "charset": "latin-1"}, what="source")
    assert (source["sep"], source["encoding"]) == (";", "iso8859-1")
    assert source.given == {"path": "/x", "sep": ";", "encoding": "latin-1"}
    assert parse(SINK, {"path": "/x", "codec": "gzip"}, what="sink")["compression"] == "gzip"


def test_sparks_word_for_no_compression_is_taken() -> None:
    """`uncompressed` is what Spark's writers call `none`, in any case; an unset option would mean snappy for Parquet."""
    assert parse(SINK, {"path": "/x", "codec": "Uncompressed"}, what="sink")["compression"] == "none"
    with pytest.raises(OptionError, match="expected one of none, gzip, .*, brotli; did you mean 'none'"):
        parse(SINK, {"path": "/x", "compression": "no"}, what="sink")


@pytest.mark.parametrize("name", ["lineSep", "nullValue", "emptyValue", "metadataColumn", "rescuedDataColumn"])
def test_bytes_that_are_no_text_are_refused(name: str) -> None:
    r"""What a terminal hands over as the byte 0xa7 is half a character to Python; `\u00a7` is one."""
    with pytest.raises(OptionError, match=rf"{name}='\\udca7' is not text: expected characters in UTF-8"):
        parse(SOURCE, {"path": "/x", name: "\udca7"}, what="source")
    assert parse(SOURCE, {"path": "/x", name: "\u00a7"}, what="source")[name] == "\u00a7"


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("/a%20b", "/a%20b"),
        ("file:/a%20b", "/a%20b"),
        ("FILE:///a%20b/c\nd", "/a%20b/c\nd"),
        ("file:relative", "file:relative"),
        ("file://host/a", "file://host/a"),
        ("hdfs://host/a%20b", "hdfs://host/a%20b"),
    ],
)
def test_a_checkpoint_is_where_spark_puts_it(given: str, path: str) -> None:
    """Hadoop does not unquote what it is given; what it would refuse, or is on another storage, stays as it is."""
    assert parse(SINK, {"path": "/x", "checkpointLocation": given}, what="sink")["checkpointLocation"] == path


def test_an_option_by_two_names_is_refused() -> None:
    """An option given under two names is refused, because choosing one would be a guess."""
    with pytest.raises(
        OptionError, match="source option sep is given twice, as Sep and delimiter; leave one of them out"
    ):
        parse(SOURCE, {"path": "/x", "Sep": ";", "delimiter": ";"}, what="source")


def test_a_tab_can_be_typed() -> None:
    """A backslash and a `t` mean a tab, as in Spark: a tab is hard to type in a shell."""
    assert parse(SOURCE, {"path": "/x", "sep": "\\t"}, what="source")["sep"] == "\t"


def test_separators_that_spark_takes_and_we_do_not_are_told_what_to_do() -> None:
    """Two backslashes mean one, as in Spark; several characters, or one that is not ASCII, are refused with advice."""
    assert parse(SOURCE, {"path": "/x", "sep": "\\\\"}, what="source")["sep"] == "\\"
    for sep in ("||", "\u00a7"):
        with pytest.raises(
            OptionError, match=f"sep='{re.escape(sep)}': .* split the lines of format=text in the query"
        ):
            parse(SOURCE, {"path": "/x", "sep": sep}, what="source")


def test_quotes_may_be_turned_off_for_reading_only() -> None:
    """An empty `quote` is Spark's way to switch quotes off; a writer needs one, and an escape must be a character."""
    assert parse(SOURCE, {"path": "/x", "quote": ""}, what="source")["quote"] == ""
    with pytest.raises(OptionError, match="quote='': expected one ASCII character"):
        parse(SINK, {"path": "/x", "quote": ""}, what="sink")
    with pytest.raises(OptionError, match="escape='': expected .* the quote itself where quotes are doubled"):
        parse(SOURCE, {"path": "/x", "escape": ""}, what="source")


def test_what_is_advised_is_taken() -> None:
    """Messages name no mode that is refused; for columns given as an option the error says where they belong."""
    with pytest.raises(OptionError, match="mode='drop' is not known: expected one of failfast, dropmalformed$"):
        parse(SOURCE, {"path": "/x", "mode": "drop"}, what="source")
    with pytest.raises(OptionError, match="schema='id int': expected infer; columns are given by .schema"):
        parse(SOURCE, {"path": "/x", "schema": "id int"}, what="source")
    assert parse(SOURCE, {"path": "/x", "schema": "Infer"}, what="source")["schema"] == "infer"


def test_defaults_are_those_of_the_contract() -> None:
    """An option that is not given has the documented default."""
    source = parse(SOURCE, {"path": "/x"}, what="source")
    assert (source["format"], source["maxFilesPerTrigger"], source["maxBytesPerTrigger"]) == ("text", 1000, 1 << 30)
    assert (source["splitSize"], source["settle"], source["lateness"]) == (32 << 20, 10**9, 600 * 10**9)
    sink = parse(SINK, {"path": "/x"}, what="sink")
    assert (sink["rollSize"], sink["rollInterval"], sink["rollInactivity"]) == (128 << 20, 900 * 10**9, 60 * 10**9)


@pytest.mark.parametrize(
    ("name", "suggestion"), [("rolsize", "rollSize"), ("bucketby ", "bucketBy"), ("compresion", "compression")]
)
def test_unknown_options_are_refused_with_the_nearest_name(name: str, suggestion: str) -> None:
    """A typing error is refused with the name that was probably meant."""
    with pytest.raises(OptionError, match=f"unknown option '{name}'.*did you mean '{suggestion}'"):
        parse(SINK, {"path": "/x", name: "1"}, what="sink")


TABLES = {
    "source": SOURCE,
    "sink": SINK,
    "database sink": DATABASE,
    "log": LOG,
    "topic source": KAFKA,
    "batch read": FINISHED,
    "batch write": BATCH_SINK,
}


# An option that means nothing by itself, with a value of it, and what it is given with.
_WITH = [
    ("sink", "dropBucketColumns", "true", {"bucketBy": "{a}"}),
    ("sink", "dropBucketColumns", "true", {"fileName": "{a}-{seq}"}),
    ("sink", "timeZone", "Europe/Berlin", {"bucketBy": "{time:%Y}"}),
    ("sink", "timeFormat", "yyyy", {"fileName": "{time}-{seq}"}),
    ("sink", "partitionReadyBy", "cursor", {"partitionReady": "event"}),
    ("sink", "partitionReadyDelay", "1h", {"partitionReady": "success-file"}),
    ("sink", "encryptionKey", "none", {"encryptTo": "file:/x"}),
    ("batch write", "dropBucketColumns", "true", {"bucketBy": "{a}"}),
    ("source", "badRecordColumn", "_bad", {"changedFiles": "quarantine"}),
    ("source", "quarantineLocation", "/x", {"badFiles": "quarantine"}),
    ("source", "maxBadRecords", "7", {"badRecords": "QUARANTINE"}),
    ("source", "maxBadRecords", "7", {"mode": "DROPMALFORMED"}),
    ("source", "maxBadFraction", "0.1", {"encodingErrors": "quarantine"}),
    ("source", "closeAfter", "1m", {"follow": "true"}),
    ("source", "sourceArchiveDir", "/x", {"cleanSource": "archive"}),
    ("source", "retention", "7d", {"cleanSource": "delete"}),
    ("database sink", "keyColumns", "a", {"mode": "merge"}),
]


@pytest.mark.parametrize(("what", "name", "value", "more"), _WITH)
def test_an_option_that_means_nothing_alone_is_refused(what: str, name: str, value: str, more: dict[str, str]) -> None:
    """Who gives it believes that it does something: he is told what it is for. With that it is taken, and so is its default without."""
    table = TABLES[what]
    path = {"url": "sqlite:///x", "table": "t"} if what == "database sink" else {"path": "/x"}
    with pytest.raises(
        OptionError, match=f"{name} is for .*, and has no effect without .*; set .*, too, or leave {name} out$"
    ):
        parse(table, path | {name: value}, what=what)
    assert parse(table, path | {name: value} | more, what=what).given == path | {name: value} | more
    assert parse(table, path | {name: value}, what=what, noted=True)[name] is not None
    default = next(option.default for option in table if option.name == name)
    if default is not None:
        parse(table, path | {name: default}, what=what)


def test_each_option_that_needs_another_is_tried() -> None:
    """Of those that the tables know, and what they need is in the same table."""
    tried = {(what, name) for what, name, _, _ in _WITH}
    for what in ("sink", "source", "database sink"):
        needy = [option for option in TABLES[what] if option.needs]
        assert {(what, option.name) for option in needy} <= tried
        names = {option.name for option in TABLES[what]}
        assert all(need.partition("=")[0] in names for option in needy for need in option.needs)


@pytest.mark.parametrize("what", ["source", "sink", "database sink", "topic source"])
def test_an_option_of_another_connector_is_told_by_its_name(what: str) -> None:
    """An option of another connector is refused with the name of that connector: this one's nearest name would mislead."""
    others = {
        option.name
        for other, table in TABLES.items()
        if not other.startswith("batch") and other != what
        for option in table
    }
    own = [option.name for option in TABLES[what] if option.name not in others]
    assert own
    misplaced, other = own[0], "log"
    with pytest.raises(
        OptionError, match=f"unknown option '{misplaced}' for the penstock {other}: it is one of the .*{what}"
    ):
        parse(TABLES[other], {"path": "/x", misplaced: "1"}, what=other)


@pytest.mark.parametrize(
    ("what", "name", "says"),
    [
        (
            "source",
            "latestfirst",
            "unknown option 'latestFirst' for the penstock source: files are read from the oldest on",
        ),
        ("source", "cloudfiles.maxfilespertrigger", "'cloudFiles.maxFilesPerTrigger' .* here it is maxFilesPerTrigger"),
        ("source", "cloudFiles.rescuedDataColumn", "here it is rescuedDataColumn"),
        ("source", "cloudFiles.pathglobfilter", "here it is pathGlobFilter"),
        ("source", "cloudFiles.region", "'cloudFiles.region' .* Auto Loader, for which there is nothing here"),
        ("source", "ignoreextension", "'ignoreExtension' .* files are read whatever they are called"),
        ("source", "recursivefieldmaxdepth", "'recursiveFieldMaxDepth' .* whose records contain themselves"),
        ("source", "badrecordspath", "'badRecordsPath' .* quarantineLocation"),
        ("source", "ignorenullfields", "'ignoreNullFields' .* it is for writing"),
        ("source", "rollsize", "'rollsize' for the penstock source: it is one of the sink;"),
        ("sink", "maxrecordsperfile", "'maxRecordsPerFile' .* rollRows closes a file"),
        (
            "sink",
            "nanvalue",
            "'nanValue' for the penstock sink: it is for reading, and says nothing of what is written",
        ),
        ("batch write", "allowComments", "'allowComments' .* it is for reading"),
        ("source", "sortkeys", "'sortKeys' for the penstock source: it is for writing"),
        ("sink", "orc.compress", "'orc.compress' .* compression takes none, gzip"),
        ("sink", "lateness", "'lateness' for the penstock sink: it is one of the source;"),
        ("log", "path2", "'path2' for the penstock log; did you mean 'path'"),
        ("database sink", "dbtable", "'dbtable' .* here it is table"),
        ("database sink", "path", r"'path' .*sink: a table has no path: \.start\(\) without one"),
        ("topic source", "path", r"'path' .*source: topics have no path: \.load\(\) without one"),
        ("source", "asof", "'asof' for the penstock source: it is one of the batch read;"),
        ("sink", "batchkey", "'batchkey' for the penstock sink: it is one of the batch write;"),
        ("batch write", "partitionreadyby", "'partitionreadyby' for the penstock batch write: it is one of the sink;"),
        ("batch write", "rollinterval", "'rollinterval' for the penstock batch write: it is one of the sink;"),
        ("batch write", "maxrecordsperfile", "'maxRecordsPerFile' .* rollRows closes a file"),
        ("batch read", "mergeschema", "'mergeSchema' for the penstock batch read: schema=infer"),
        ("batch read", "lateness", "'lateness' for the penstock batch read: it is one of the source;"),
        ("topic source", "minoffsetspertrigger", "'minOffsetsPerTrigger' .* there is nothing to set"),
        ("source", "initdelay", "'initDelay' for the penstock source: here it is initialDelay"),
        ("sink", "tuplesPerFile", "rollRows closes a file at so many rows"),
        ("sink", "sink.rolling-policy.file-size", "here it is rollSize"),
        ("batch write", "maxLength", "here it is rollSize"),
    ],
)
def test_options_known_elsewhere_are_told_what_is_here(what: str, name: str, says: str) -> None:
    """An option of another system, or from another table, is refused with our equivalent, not with the nearest name."""
    with pytest.raises(OptionError, match=says) as caught:
        parse(TABLES[what], {name: "1"}, what=what)
    if "did you mean" not in says:
        assert "did you mean" not in caught.value.message


def test_options_known_elsewhere_are_none_here() -> None:
    """An option that now exists here needs no entry that says it does not."""
    for what, answers in (each for known in (KNOWN_ELSEWHERE, *MODELS.values()) for each in known.items()):
        names = {name for option in TABLES[what] for name in option.names}
        assert not [name for name in answers if name.lower() in names], (
            f"options of the {what} now: take them out of elsewhere.py and models.py"
        )


def test_answers_know_all_compressed_files() -> None:
    """The answer for `compression` of the source names every kind of file that is decompressed."""
    assert KNOWN_ELSEWHERE["source"]["compression"].endswith(f": {COMPRESSED_NAMES}")


@pytest.mark.parametrize("value", ["-1", "10%", "1.5", ""])
def test_numbers_that_may_be_none_are_told_so(value: str) -> None:
    """How many bad records there may be: 0 is a good answer, and the message for a bad one does not ask for 1 at least."""
    given = {"path": "/x", "badRecords": "quarantine", "maxBadRecords": " 00 "}
    assert parse(SOURCE, given, what="source")["maxBadRecords"] == 0
    with pytest.raises(OptionError, match="maxBadRecords=.* is not a number: expected a whole one, 0 or more"):
        parse(SOURCE, {"path": "/x", "maxBadRecords": value}, what="source")


@pytest.mark.parametrize("value", ["not-a-integer", "-1", "0", "10.1", "", pytest.param("9" * 5000, id="5000 digits")])
def test_bad_counts(value: str) -> None:
    """SPK-2: bad values of maxFilesPerTrigger are refused with the option's name."""
    with pytest.raises(OptionError, match="maxFilesPerTrigger"):
        parse(SOURCE, {"path": "/x", "maxFilesPerTrigger": value}, what="source")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("format", "xml"),
        ("pattern", "("),
        ("recursiveFileLookup", "yes"),
        ("startingFrom", "yesterday"),
        ("encoding", "utf-99"),
        ("encoding", "base64"),
        ("encoding", "undefined"),
        ("encoding", "\0"),
        ("pattern", ""),
        pytest.param("splitSize", "9" * 5000, id="5000 digits"),
        ("splitSize", "9999999999999999g"),
        pytest.param("lateness", "9" * 5000 + "d", id="5000 digits of days"),
        ("lateness", "99999999d"),
        ("sep", ",,"),
        ("sep", "é"),
        ("sep", "\0"),
        ("quote", "ab"),
        ("quote", "\n"),
        ("escape", "\\\\"),
        ("comment", "é"),
        ("header", "yes"),
        ("changedFiles", "ignore"),
        ("badRecords", "drop"),
    ],
)
def test_bad_source_values(name: str, value: str) -> None:
    """An invalid value is refused with what was found and what is expected."""
    with pytest.raises(OptionError, match=f"{name}(='?{re.escape(repr(value)[1:2])}| is empty)"):
        parse(SOURCE, {"path": "/x", name: value}, what="source")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("timeZone", "Mars/Olympus"),
        ("timeZone", "localtime"),
        ("timeZone", "/etc/localtime"),
        ("timeZone", "right/UTC"),
        ("timeZone", "+19:00"),
        ("timeZone", "+05:60"),
        ("timeZone", ""),
        ("sinkId", "../x"),
        ("sinkId", "Checkpoint"),
        ("sinkId", ""),
        ("rollSize", "0"),
        ("rollSize", "-1"),
        ("compression", "lz9"),
    ],
)
def test_bad_sink_values(name: str, value: str) -> None:
    """M17, F31: zero and negative limits, unknown zones and codecs, and ids that could leave the path are refused."""
    with pytest.raises(OptionError, match=name):
        parse(SINK, {"path": "/x", name: value}, what="sink")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("rollSize", "at most 4096p, such as 128m"),
        ("mergeBelow", "at most 4096p"),
        ("rollRows", "at most 999999999999999999, such as 1000"),
        ("rollBatches", "at most 999999999999999999"),
    ],
)
@pytest.mark.parametrize("value", [str(2**63 - 1), "0" + "9" * 5000])
def test_no_limit_as_other_systems_write_it_is_told_as_too_large(name: str, expected: str, value: str) -> None:
    """F31: the largest 64-bit number means no limit in other sinks; here it is refused, and the error says that it is too large."""
    with pytest.raises(OptionError, match=f"{name}='[0-9]+' is too large: expected {expected}") as caught:
        parse(SINK, {"path": "/x", name: value}, what="sink")
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", "earliest"),
        ("LATEST", "latest"),
        ("1970-01-01T00:00:01Z", 10**9),
        ("1970-01-01T01:00:01.5+01:00", 1_500_000_000),
        ("1970-01-01", 0),
        ("1970-01-01T00:00:00.123456789Z", 123_456_789),
        ("1970-01-01 01:00:00.1234567+01:00", 123_456_700),
    ],
)
def test_starting_from(text: str, expected: object) -> None:
    """startingFrom takes two words or a time, which is in UTC unless it has a zone."""
    assert parse(SOURCE, {"path": "/x", "startingFrom": text}, what="source")["startingFrom"] == expected


def test_a_path_is_needed() -> None:
    """Source and sink without a path say so, and where a table of SQL was meant, that no `.option` of its query would help."""
    with pytest.raises(OptionError, match=r"the source needs a path: expected \.option.*last argument$"):
        parse(SOURCE, {}, what="source")
    for table, what in ((SINK, "sink"), (FINISHED, "batch read"), (BATCH_SINK, "batch write")):
        with pytest.raises(
            OptionError, match=rf"the {what} needs a path: .*no tables of format penstock, whatever CREATE TABLE"
        ):
            parse(table, {}, what=what)


@pytest.mark.parametrize("given", [{"path": "/x"}, {"url": "sqlite:///x", "table": "t"}])
def test_name_of_a_query_is_taken(given: dict[str, str]) -> None:
    """Spark passes the name of a query on to its sink, in lower case."""
    assert parse(SINK if "path" in given else DATABASE, given | {"queryname": "n"}, what="sink")["queryName"] == "n"


def test_zone_in_other_letters() -> None:
    """Zone names are file names: with other case, or with a blank, a zone does not exist, and the error names the probable one."""
    for value, meant in (("europe/berlin", "Europe/Berlin"), ("America/New York", "America/New_York")):
        with pytest.raises(OptionError, match=f"did you mean '{meant}'"):
            parse(SINK, {"path": "/x", "timeZone": value}, what="sink")
