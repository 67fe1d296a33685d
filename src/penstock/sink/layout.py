"""What the files of a sink are, according to its options: their columns and buckets, their format, and what distinguishes their kinds."""

from __future__ import annotations

import string
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa
import xxhash

from penstock.errors import OptionError, TemplateError
from penstock.formats import WriteFormat, file_extension, format_named
from penstock.formats.encryption import EXTENSION
from penstock.formats.families import RecordFormat, TableFormat
from penstock.formats.format import Dialect
from penstock.formats.registry import check_options, enumerated, growing, names
from penstock.formats.trial import check_table
from penstock.options import SINK
from penstock.options.formats import WRITTEN
from penstock.sink.buckets import BucketTemplate
from penstock.sink.ledger import Kind
from penstock.sink.names import NameTemplate
from penstock.sink.places import FileColumns, Places
from penstock.sink.ready import Announced
from penstock.sink.timebuckets import LOCAL_BEHIND_US, TimeBuckets

if TYPE_CHECKING:
    from penstock.formats.families import Format
    from penstock.options import Options
    from penstock.query.batch import Batch

_ROLLING = ("rollSize", "rollRows", "rollInterval", "rollInactivity", "rollBatches")


@dataclass(frozen=True)
class Layout:
    """The options of a sink that say what a row becomes; messages name `root`.

    `goes_on`: the storage can append to files. `takes_colons`: its names may have colons.
    """

    options: Options
    root: str
    goes_on: bool
    takes_colons: bool

    @property
    def form(self) -> Format:
        """The format of the files."""
        return format_named(self.options["format"])

    @cached_property
    def names(self) -> NameTemplate:
        """The checked `fileName`."""
        options = self.options
        zone, growing = options["timeZone"], options["growing"]
        return NameTemplate.of(options["fileName"], zone=zone, growing=growing, time_format=options["timeFormat"])

    def places(self, schema: pa.Schema) -> Places:
        """Return the checked `bucketBy` and columns of `fileName` for data of this schema."""
        return Places(self.bucket_by(schema), FileColumns.of(self.names, schema))

    def bucket_by(self, schema: pa.Schema) -> BucketTemplate | None:
        """Return the checked `bucketBy` for data of this schema."""
        template = self.options["bucketBy"]
        return BucketTemplate.of(template, schema, zone=self.options["timeZone"]) if template else None

    @property
    def announced(self) -> Announced | None:
        """How the sink announces that a bucket of time is complete; `None` if it does not."""
        ways = self.options["partitionReady"]
        if not ways:
            return None
        delay_us = self.options["partitionReadyDelay"] // 1000
        by_cursor = self.options["partitionReadyBy"] == "cursor"
        zone = self.options["timeZone"]
        return Announced(delay_us, file="success-file" in ways, event="event" in ways, by_cursor=by_cursor, zone=zone)

    def check_progress(self, batch: Batch | None) -> None:
        """Raise `OptionError` if completeness depends on the cursor of the source, and the batch does not know it."""
        if (
            self.announced is not None
            and self.announced.by_cursor
            and batch is not None
            and batch.read_until_ns is None
        ):
            msg = (
                "partitionReadyBy=cursor goes by how far the source is, and a source of this query does not say that: expected sources "
                "of format penstock (without follow=true, emit=published or files that rows name), or partitionReadyBy=data"
            )
            raise OptionError(msg)

    def time_buckets(self, schema: pa.Schema) -> TimeBuckets | None:
        """Return the buckets of time whose completeness is announced, `None` if it is not. Raises `OptionError`, `TemplateError`."""
        if self.announced is None:
            return None
        bucket_by = self.bucket_by(schema)
        if bucket_by is None or self.options["growing"]:
            instead = "growing=true" if self.options["growing"] else "no bucketBy"
            msg = f"partitionReady tells when a directory of bucketBy is complete, found {instead}; expected bucketBy=dt={{ts:%Y-%m-%d}}"
            raise OptionError(msg)
        buckets = TimeBuckets.of(bucket_by, schema)
        return replace(buckets, behind_us=LOCAL_BEHIND_US) if self.announced.by_cursor and not buckets.zone else buckets

    def data_schema(self, schema: pa.Schema) -> tuple[pa.Schema, tuple[str, ...]]:
        """Return the schema of the written data, and the columns that are left out (`dropBucketColumns`)."""
        places = self.places(schema)
        if places.is_one or not self.options["dropBucketColumns"]:
            return schema, ()
        dropped = places.droppable
        kept = [field for field in schema if field.name not in dropped]
        if not kept:
            msg = f"dropBucketColumns=true leaves no column of {', '.join(schema.names)}"
            raise OptionError(msg)
        return pa.schema(kept), dropped

    def check(self, schema: pa.Schema) -> None:
        """Raise `UsageError` unless data of this schema can be written as the options say. Touches nothing."""
        self._check_growing()
        self._check_encryption()
        data_schema, _ = self.data_schema(schema)
        self._check_colons()
        self.time_buckets(schema)
        fmt, form = self.format(data_schema), self.form
        form.prepare()
        self.names.check_read(file_extension(fmt) + (EXTENSION if self.options["encryptTo"] else ""))
        if isinstance(form, RecordFormat):
            form.encoder(fmt)
            return
        if self.options["growing"]:
            msg = f"growing=true is for {enumerated(growing())}: a file of format={form.name} cannot grow under its readers"
            raise OptionError(msg)
        if isinstance(form, TableFormat):
            check_table(form, data_schema, fmt.compression)

    def _check_growing(self) -> None:
        """Raise `OptionError` if files cannot grow with these options, or on this storage."""
        rolling = [name for name in _ROLLING if name in self.options.given]
        if not self.options["growing"]:
            return
        if rolling:
            msg = f"growing=true never closes a file, and {rolling[0]} says when to close one; leave one of them out"
            raise OptionError(msg)
        if self.options["onPublish"]:
            msg = "growing=true never finishes a file, and onPublish is called with files that are finished; leave one of them out"
            raise OptionError(msg)
        if not self.goes_on:
            msg = f"growing=true appends to a file, and files in {self.root!r} can only be put whole; leave growing out"
            raise OptionError(msg)

    def _check_colons(self) -> None:
        """Raise `TemplateError` for file names that Spark cannot read, and for directories that HDFS refuses.

        Colons in values are escaped.
        """
        if ":" in self.names.sample:
            msg = (
                f"{self.names.where}: Spark reads no file with ':' in its name, and HDFS takes none; expected a time such as %H%M, or '-' "
                "between parts"
            )
            raise TemplateError(msg)
        bucket = self.options["bucketBy"] or ""
        text = "".join(literal for literal, _, _, _ in string.Formatter().parse(bucket))
        if ":" in text and not self.takes_colons:
            msg = f"bucketBy={bucket!r}: HDFS takes no ':' in names; expected a time such as %H%M, or '-' between parts"
            raise TemplateError(msg)

    def _check_encryption(self) -> None:
        """Raise `OptionError` unless the options say what becomes of rows that wait to be encrypted."""
        to, key = self.options["encryptTo"], self.options["encryptionKey"]
        if to is None:
            return
        if self.options["growing"]:
            msg = "growing=true appends to files, and what is encrypted cannot be appended to; leave growing or encryptTo out"
            raise OptionError(msg)
        if key is None:
            msg = (
                "encryptTo encrypts files when they are complete; say what becomes of rows until then, in staged files that their owner "
                "alone can read: encryptionKey=env:NAME or file:/path of a key of age encrypts them, encryptionKey=none leaves them clear"
            )
            raise OptionError(msg)

    def kind(self, schema: pa.Schema, recipients: tuple[str, ...] = ()) -> Kind:
        """Return the kind of this sink's files, encrypted to the recipients if there are any."""
        fmt, form = self.format(schema), self.form
        described = schema.to_string(show_field_metadata=False)
        # The default dialect adds nothing, so the digest stays as it always was.
        if fmt.csv != Dialect(comment=fmt.csv.comment):
            described += str(fmt.csv)
        digest = xxhash.xxh3_64_hexdigest(described.encode())
        header = form.header(fmt).decode() if isinstance(form, RecordFormat) else ""
        extension = file_extension(fmt) + (EXTENSION if recipients else "")
        return Kind(form.name, fmt.compression, extension, digest, header, fmt.level, recipients)

    def format(self, schema: pa.Schema) -> WriteFormat:
        """Return the format in which data of this schema is written. Raises `OptionError`."""
        form, options = self.form, self.options
        codec = options["compression"] or form.codecs[0]
        if codec not in form.codecs:
            others = enumerated(names(lambda other: codec in other.codecs, WRITTEN))
            msg = f"compression={codec} is for format={others}, found format={form.name}; expected {enumerated(form.codecs)}"
            raise OptionError(msg)
        check_options(options, SINK, lambda other: other.write_options)
        level = options["compressionLevel"]
        if level is not None:
            _check_level(form, codec, level)
        return WriteFormat(form.name, schema, codec, Dialect.of(options) if form.write_options else Dialect(), level)


def _check_level(form: Format, codec: str, level: int) -> None:
    """Raise `OptionError` unless the codec has this level."""
    least, most = form.levels.get(codec, (0, -1))
    if least <= level <= most:
        return
    if least > most:
        others = ", ".join(form.levels) or "none of its codecs"
        msg = f"compressionLevel={level}: compression={codec} of {form.name} has no levels; leave it out, or take one that has: {others}"
    else:
        msg = f"compressionLevel={level}: compression={codec} of {form.name} has levels from {least} to {most}"
    raise OptionError(msg)
