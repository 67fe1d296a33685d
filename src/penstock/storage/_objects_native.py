"""The real store for `_objects`, by the library obstore, with its time limits.

obstore speaks the protocols of S3, Azure and Google's store itself, and repeats calls that a server refuses for a while (503).
Each process finds the address and keys of a store by itself (`_objects_place`), when it first needs them: it makes its own
client, and never uses one that it was given. Errors of a store become numbers (`_objects_errors`).

*A fork.* obstore's threads do not survive in a child process. If the parent has called obstore, a call in the child would wait
for them for ever. So a child of a process that has used a store is refused. None of our processes that fork uses a store
(`session.forkserver`).

*First contact.* By default, obstore tries a server that refuses connections for three minutes, which is right in mid batch and
wrong for a mistyped address. And a missing bucket looks like a missing object. So the first call of a process is a listing with
little patience, whose errors say what to do about them.

*Time* comes from the `Date` of any answer of the store, even an answer that refuses a caller without keys.
"""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

from penstock import clock
from penstock.clock import SECOND_NS
from penstock.errors import AccessRefused, DependencyError, OptionError, StorageError
from penstock.storage._far_clock import FarClock
from penstock.storage._objects_calls import ObjectStatus
from penstock.storage._objects_errors import BAD_REQUEST, BUSY, NO_RIGHT, number_of_boto3, numbered, reason_of, way_in
from penstock.storage._objects_place import place_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from penstock.storage._objects_calls import Objects, Upload
    from penstock.storage._objects_place import StorePlace

_REQUEST = {"timeout": "120s", "connect_timeout": "5s"}
_IMPATIENT = {"max_retries": 2, "retry_timeout": timedelta(seconds=10)}
_PATIENT = {"max_retries": 20, "retry_timeout": timedelta(seconds=180)}
_CLOCK_SECONDS = 5.0
_TOKEN = "penstockput"  # noqa: S105 - a name without punctuation, as Azure requires
_UPLOAD_BYTES = 8 << 20
_SIDE_BY_SIDE = 4  # pieces of one upload that are sent at the same time
_COPIED_BYTES = 5 << 30  # the longest object that S3 copies in one request; longer objects are copied in parts
_COPIED_PART_BYTES = 512 << 20
_clients: dict[str, Objects] = {}
_used_by: set[int] = set()  # the processes that have used a store: this one, and those that it was forked from


def connect(bucket: str) -> Objects:
    """Return this process's connection to a bucket (`s3://name`).

    `DependencyError` without obstore, `OptionError` if there is no such bucket, `AccessRefused` if the keys are wrong or not
    sufficient, `StorageError` if no store answers, or in a process whose parent has used one.
    """
    if bucket not in _clients or os.getpid() not in _used_by:
        _check_not_forked(bucket)
        client = _client(bucket)
        _used_by.add(os.getpid())
        _clients.setdefault(bucket, cast("Objects", client))
    return _clients[bucket]


def _check_not_forked(bucket: str) -> None:
    if _used_by - {os.getpid()}:
        msg = (
            f"{bucket}: this process was forked from one that had used a store, and would wait for its threads for ever; start "
            "new processes (multiprocessing: spawn), or fork before anything is read or written"
        )
        raise StorageError(msg)


def _client(bucket: str) -> _Bucket:
    try:
        import obstore
    except ImportError as error:
        scheme = bucket.partition(":")[0]
        msg = f"{scheme}:// needs the library obstore; install it: pip install 'penstock[s3]'"
        raise DependencyError(msg) from error
    scheme, _, name = bucket.partition("://")
    place = place_of(scheme, name)
    options = _REQUEST | ({"allow_http": True} if place.endpoint.startswith("http://") else {})
    try:
        trial, store = (
            place.make(name, client_options=options, retry_config=patience, **place.settings)
            for patience in (_IMPATIENT, _PATIENT)
        )
    except (obstore.exceptions.BaseError, ValueError) as error:
        msg = f"{bucket}: {reason_of(error)}; check the environment that says where the store is, and its keys"
        raise OptionError(msg) from error
    _check_answer(bucket, place, trial)
    return _Bucket(store, place)


def _check_answer(bucket: str, place: StorePlace, trial: Any) -> None:  # noqa: ANN401 - a store of obstore
    """Raise an error if there is no such bucket, or the store does not know our keys. What the keys may do shows in later calls.

    We may lack the right to list the whole bucket: a policy may allow it only below some paths (`s3:prefix`), and ours may be
    among these.
    """
    import obstore

    try:
        with numbered():
            next(iter(obstore.list(trial, ".penstock-none", chunk_size=1)), None)
    except FileNotFoundError as error:
        msg = f"{bucket}: there is no such bucket at {place.endpoint}; make it, or check its name and the address of the store"
        raise OptionError(msg) from error
    except PermissionError as error:
        if NO_RIGHT.search(error.strerror or ""):
            return
        msg = f"{bucket}: the store at {place.endpoint} refuses to list it: {error.strerror}; {way_in(error.strerror)}"
        raise AccessRefused(msg) from error
    except OSError as error:
        if BUSY.search(str(error.__cause__)):
            return  # the store is there, and will answer a patient client
        msg = (
            f"{bucket}: no store at {place.endpoint}, or it does not answer: {error.strerror}; check the address (AWS_ENDPOINT_URL), "
            "the region and the network"
        )
        raise StorageError(msg) from error


def _stored(meta: Any, attributes: Any = None) -> ObjectStatus:  # noqa: ANN401 - obstore's
    modified: datetime = meta["last_modified"]
    token = str((attributes or {}).get(_TOKEN, ""))
    tag = (meta["e_tag"] or "").strip('"')  # Azurite puts quotes around it in answers, but not in listings
    return ObjectStatus(meta["path"], meta["size"], int(modified.timestamp()) * SECOND_NS, tag, token)


class _Bucket:
    """`Objects` by obstore; see there."""

    def __init__(self, store: Any, place: StorePlace) -> None:  # noqa: ANN401 - a store of obstore
        self._store = store
        self._place = place
        self._clock = FarClock()

    def put(self, key: str, data: bytes, token: str) -> None:
        import obstore

        with numbered():
            obstore.put(self._store, key, bytes(data), mode="create", attributes={_TOKEN: token}, use_multipart=False)

    def upload(self, key: str, token: str) -> Upload:
        import obstore

        with numbered():
            writer = obstore.open_writer(
                self._store,
                key,
                attributes={_TOKEN: token},
                buffer_size=_UPLOAD_BYTES,
                max_concurrency=_SIDE_BY_SIDE,
            )
        return cast("Upload", _NativeUpload(writer))

    def copy(self, source: str, target: str) -> None:
        import obstore

        try:
            with numbered():
                obstore.copy(self._store, source, target, overwrite=False)
        except OSError as error:
            # A store refuses an object that is too long for one request. Only after such an error the size of the
            # source is asked for.
            if error.errno != errno.EIO or not self._place.s3 or (stored := self.head(source)).size <= _COPIED_BYTES:
                raise
            self._copy_in_parts(stored, target)

    def _copy_in_parts(self, source: ObjectStatus, target: str) -> None:
        """Have the store copy ranges, and put them together if the key is free. Drops the upload at once if that fails."""
        bucket = self._place.s3["bucket"]
        with self._boto3() as client:
            upload = {"Bucket": bucket, "Key": target}
            upload["UploadId"] = client.create_multipart_upload(**upload)["UploadId"]

            def copied(start: int) -> dict[str, Any]:
                end = min(start + _COPIED_PART_BYTES, source.size) - 1
                number = start // _COPIED_PART_BYTES + 1
                answer = client.upload_part_copy(
                    **upload,
                    PartNumber=number,
                    CopySource={"Bucket": bucket, "Key": source.key},
                    CopySourceIfMatch=f'"{source.tag}"',
                    CopySourceRange=f"bytes={start}-{end}",
                )
                return {"PartNumber": number, "ETag": answer["CopyPartResult"]["ETag"]}

            try:
                with ThreadPoolExecutor(_SIDE_BY_SIDE, "penstock-copy") as pool:
                    parts = list(pool.map(copied, range(0, source.size, _COPIED_PART_BYTES)))
                client.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts}, IfNoneMatch="*")
            except BaseException:  # also for an interrupt
                with suppress(Exception):
                    client.abort_multipart_upload(**upload)
                raise

    def head(self, key: str) -> ObjectStatus:
        import obstore

        try:
            with self._telling_what_is_missing(key), numbered():
                answer = obstore.get(self._store, key, options={"head": True})
                return _stored(answer.meta, answer.attributes)
        except OSError as error:
            if error.errno == errno.EIO and BAD_REQUEST.search(str(error.__cause__)):
                with numbered():  # the answer to a HEAD has no words in it
                    obstore.get(self._store, key, options={"range": (0, 1)})
            raise

    def begin(self, key: str, length: int) -> tuple[ObjectStatus, bytes]:
        import obstore

        try:
            with self._telling_what_is_missing(key), numbered():
                answer = obstore.get(self._store, key, options={"range": (0, length)})
                return _stored(answer.meta, answer.attributes), bytes(answer.bytes())
        except OSError as error:
            if "InvalidRange" in str(error.__cause__) or "416" in str(error.__cause__):  # it is empty
                return self.head(key), b""
            raise

    @contextmanager
    def _telling_what_is_missing(self, key: str) -> Iterator[None]:
        """Raise `FileNotFoundError` if a read was refused because there is no object.

        If S3 does not allow a caller to list the whole bucket, it answers for each missing key that the caller may not read it.
        """
        try:
            yield
        except PermissionError as refused:
            if not self._is_missing(key):
                raise
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)) from refused

    def _is_missing(self, key: str) -> bool:
        """Tell whether a listing shows that there is no such object; `False` if no listing is allowed."""
        try:
            for stored in self.listed_after(key.rpartition("/")[0], key[:-1]):
                if stored.key >= key:
                    return stored.key != key
        except PermissionError:
            try:
                self.has_below(key)  # the path may be the uppermost directory that a policy lets us list
            except PermissionError:
                return False
        return True

    def get(self, key: str, tag: str, start: int, end: int) -> bytes:
        import obstore

        with numbered():
            answer = obstore.get(self._store, key, options={"range": (start, end), "if_match": f'"{tag}"'})
            return bytes(answer.bytes())

    def objects(self, prefix: str) -> Iterator[tuple[str, ObjectStatus | None]]:
        import obstore

        with numbered():
            listing = obstore.list_with_delimiter(self._store, prefix or None)
        prefixes = {path.rpartition("/")[2] for path in listing["common_prefixes"]}
        for meta in listing["objects"]:
            stored = _stored(meta)
            name = stored.key.rpartition("/")[2]
            if name in prefixes and stored.size:
                words = (
                    f"{name!r} is an object, and there are others below it: it cannot be a file and a directory at once"
                )
                raise OSError(errno.EILSEQ, words)
            # Other programs put empty objects for directories: skip these.
            if stored.key != prefix and name not in prefixes:
                yield name, stored
        yield from ((name, None) for name in prefixes)

    def listed_after(self, prefix: str, after: str) -> Iterator[ObjectStatus]:
        import obstore

        with numbered():
            for metas in obstore.list(self._store, prefix or None, offset=after):
                # Azurite ignores the offset and begins at the first object.
                yield from (stored for stored in map(_stored, metas) if stored.key > after)

    def has_below(self, prefix: str) -> bool:
        import obstore

        with numbered():
            return bool(next(iter(obstore.list(self._store, prefix, chunk_size=1)), None))

    def remove(self, key: str) -> None:
        import obstore

        with numbered(), suppress(FileNotFoundError):
            obstore.delete(self._store, key)

    def uploads(self, prefix: str) -> Iterator[tuple[str, str, int]]:
        if not self._place.s3:
            return
        with self._boto3() as client:
            pages = client.get_paginator("list_multipart_uploads")
            for page in pages.paginate(Bucket=self._place.s3["bucket"], Prefix=f"{prefix}/" if prefix else ""):
                for upload in page.get("Uploads", ()):
                    yield upload["Key"], upload["UploadId"], int(upload["Initiated"].timestamp()) * SECOND_NS

    def drop(self, key: str, number: str) -> None:
        with self._boto3() as client, suppress(client.exceptions.NoSuchUpload):
            client.abort_multipart_upload(Bucket=self._place.s3["bucket"], Key=key, UploadId=number)

    @contextmanager
    def _boto3(self) -> Iterator[Any]:
        """Yield a client of boto3, which alone can list uploads; raises its errors with numbers."""
        try:
            import boto3
            import botocore.exceptions
        except ImportError as error:
            msg = "what crashes left of uploads is found by boto3; install it: pip install 'penstock[s3]'"
            raise DependencyError(msg) from error
        own = self._place.s3
        try:
            client = boto3.client("s3", endpoint_url=own["endpoint_url"], region_name=own["region_name"])
            with closing(client):
                yield client
        except botocore.exceptions.ClientError as error:
            details = error.response.get("Error", {})
            number = number_of_boto3(
                error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0), details.get("Code", "")
            )
            raise OSError(number, f"{details.get('Message', 'refused')} ({details.get('Code', 'no code')})") from error
        except botocore.exceptions.BotoCoreError as error:
            raise OSError(errno.EIO, reason_of(error)) from error

    def now_ns(self) -> int:
        return self._clock.now_ns(lambda: _ahead_ns(self._place.endpoint))


class _NativeUpload:
    """`Upload` by obstore."""

    def __init__(self, writer: Any) -> None:  # noqa: ANN401 - obstore's
        self._writer = writer

    def write(self, data: Any) -> None:  # noqa: ANN401 - a buffer
        with numbered():
            self._writer.write(bytes(data))

    def finish(self) -> None:
        with numbered():
            self._writer.close()


def _ahead_ns(endpoint: str) -> int:
    """Return how far the store's clock is ahead of this machine's; 0 if the difference is too small to show in such an answer."""
    # Imported here because they take a fifth of the time of importing `penstock.storage`, which every process does; few
    # use a store.
    import email.utils
    import urllib.error
    import urllib.request

    before = clock.now_ns()
    request = urllib.request.Request(endpoint, method="HEAD")  # noqa: S310 - the user's own address of a store
    try:
        try:
            with urllib.request.urlopen(request, timeout=_CLOCK_SECONDS) as answer:  # noqa: S310 - the address of the request above is the user's
                date = answer.headers["Date"]
        except urllib.error.HTTPError as refused:
            with refused:
                date = refused.headers["Date"]
        then = email.utils.parsedate_to_datetime(date)
    except (OSError, ValueError, TypeError):
        return 0
    after = clock.now_ns()
    stamp = int(then.timestamp()) * SECOND_NS
    if before - SECOND_NS <= stamp <= after:  # the date has whole seconds
        return 0
    return stamp - before
