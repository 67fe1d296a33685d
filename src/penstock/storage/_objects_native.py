"""The store that `_objects` calls, by way of obstore: addresses, keys, time limits, and errors with numbers.

obstore speaks the protocols of S3, Azure and Google's store itself, and repeats what a server has refused for a while (503). It finds
keys as their own tools do, in the environment, in files of tokens, and from the machine it runs on. Profiles (`~/.aws`, single
sign-on, a program that tells them) are read by boto3, which is asked only where there are some and the environment has no keys.
Which address, region and style a store has comes from the same places: nothing of that is in an address, a plan or a pickle, so
each process makes its own client, when it first needs it, and never one that it was given.

*A fork.* obstore's threads do not live on in a child, where a call would wait for them for ever, if the parent has called it.
So a child of a process that has used a store is refused. No process of ours that forks uses one (`session.forkserver`).

*First contact.* Left alone, obstore tries a server that refuses connections for three minutes, which is right in mid batch and wrong for
a mistyped address. And a bucket that is not there looks like an object that is not. So the first call of a process is a listing
with little patience, whose errors are told by what is to be done about them.

*Time* is what the store says in the `Date` of any answer, also of one that refuses a caller without keys.
"""

from __future__ import annotations

import email.utils
import errno
import os
import re
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

from penstock import clock
from penstock.clock import SECOND_NS
from penstock.errors import AccessRefused, DependencyError, OptionError, StorageError
from penstock.storage._objects_calls import ObjectStatus

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from penstock.storage._objects_calls import Objects, Upload

_REQUEST = {"timeout": "120s", "connect_timeout": "5s"}
_IMPATIENT = {"max_retries": 2, "retry_timeout": timedelta(seconds=10)}
_PATIENT = {"max_retries": 20, "retry_timeout": timedelta(seconds=180)}
_CLOCK_NS = 60 * SECOND_NS  # how long the difference of two clocks is believed
_CLOCK_SECONDS = 5.0
_TOKEN = "penstockput"  # noqa: S105 - a name without punctuation, as Azure wants them
_UPLOAD_BYTES = 8 << 20
_SIDE_BY_SIDE = 4  # pieces of one upload
_COPIED_BYTES = 5 << 30  # what S3 copies in one request; longer objects in parts
_COPIED_PART_BYTES = 512 << 20
_TAKEN = {"PreconditionFailed", "ConditionalRequestConflict"}
_NO_BUCKET = re.compile("NoSuchBucket|ContainerNotFound|The specified bucket does not exist")
_REFUSED = re.compile("<Code>([A-Za-z]+)</Code>(?:<Message>([^<]*)</Message>)?")
# Of a list of keys, which as a whole is 200.
_NOT_DELETED = re.compile(r"request failed for key .*?: (.*) \(code: ([A-Za-z]+)\)")
_NOT_LET = re.compile("status code: 40[13]")
# Some say so by 400.
_OVER = {
    "ExpiredToken",
    "InvalidToken",
    "TokenRefreshRequired",
    "RequestExpired",
    "RequestTimeTooSkewed",
}
_DENIED = {"AccessDenied", "AllAccessDisabled", "InvalidAccessKeyId", "SignatureDoesNotMatch", *_OVER}
# The keys are known, and may not do this.
_NO_RIGHT = re.compile(r"\((AccessDenied|AuthorizationPermissionMismatch)\)$")
_SKEWED = re.compile(r"\((RequestTimeTooSkewed|RequestExpired)\)$")
_BAD_REQUEST = re.compile("status code: 400|400 Bad Request")
_BUSY = re.compile("status code: (429|5[0-9][0-9])")
_FULL = {"QuotaExceeded", "XMinioStorageFull", "InsufficientStorage"}
_QUERY = re.compile(r"\?[^\s\"')]*")  # of a URL: Azure has keys there
_OWN_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_SKIP_SIGNATURE")
_CONTAINER_KEYS = ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI")
_clients: dict[str, Objects] = {}
_used_by: set[int] = set()  # this process, once it has used a store, and those that it was forked from


def connect(bucket: str) -> Objects:
    """Return this process's store of that bucket (`s3://name`).

    `DependencyError` without obstore, `OptionError` if there is no such bucket, `AccessRefused` if the keys are wrong or not enough,
    `StorageError` if no store answers, or in a process whose parent has used one.
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
            "processes anew (multiprocessing: spawn), or fork before anything is read or written"
        )
        raise StorageError(msg)


@dataclass
class _Place:
    """What is known of a store before it is called: how its client is made, and where it answers anybody."""

    make: Any
    settings: dict[str, Any]
    endpoint: str
    s3: dict[str, Any] = field(default_factory=dict)  # for boto3; empty for other stores


def _client(bucket: str) -> _Bucket:
    try:
        import obstore
    except ImportError as error:
        scheme = bucket.partition(":")[0]
        msg = f"{scheme}:// needs the library obstore; install it: pip install 'penstock[s3]'"
        raise DependencyError(msg) from error
    scheme, _, name = bucket.partition("://")
    place = {"s3": _s3, "az": _azure, "gs": _google}[scheme](name)
    options = _REQUEST | ({"allow_http": True} if place.endpoint.startswith("http://") else {})
    try:
        trial, store = (
            place.make(name, client_options=options, retry_config=patience, **place.settings)
            for patience in (_IMPATIENT, _PATIENT)
        )
    except (obstore.exceptions.BaseError, ValueError) as error:
        msg = f"{bucket}: {_words(error)}; check the environment that says where the store is, and its keys"
        raise OptionError(msg) from error
    _check_answer(bucket, place, trial)
    return _Bucket(store, place)


def _s3(name: str) -> _Place:
    from obstore.store import S3Store

    profile = _profile()
    endpoint = _first("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    region = _first("AWS_REGION", "AWS_DEFAULT_REGION")
    if profile is not None:
        region = region or profile.region_name or ""
        endpoint = endpoint or (profile.get_scoped_config() or {}).get("endpoint_url", "")
    region = region or "us-east-1"
    settings: dict[str, Any] = {"region": region, "copy_if_not_exists": "multipart"}
    if endpoint:
        settings["endpoint"] = endpoint
    if profile is not None and profile.has_keys:
        from obstore.auth.boto3 import Boto3CredentialProvider

        settings["credential_provider"] = Boto3CredentialProvider(profile.session)
    own = {"endpoint_url": endpoint or None, "region_name": region}
    return _Place(S3Store, settings, endpoint or f"https://s3.{region}.amazonaws.com", {**own, "bucket": name})


class _Profile:
    """What boto3 finds in the files of profiles."""

    def __init__(self, boto3: Any) -> None:  # noqa: ANN401 - the library may not be installed
        self.session = boto3.Session()
        self.region_name: str | None = self.session.region_name
        self.has_keys = self.session.get_credentials() is not None

    def get_scoped_config(self) -> dict[str, str]:
        return cast("dict[str, str]", self.session._session.get_scoped_config())  # noqa: SLF001 - boto3 shows it nowhere else


def _profile() -> _Profile | None:
    """Return what profiles say, `None` where there are none, or the environment has keys."""
    if any(os.environ.get(name) for name in (*_OWN_KEYS, *_CONTAINER_KEYS)):
        return None
    files = [
        os.path.expanduser(os.environ.get(name) or default)
        for name, default in (
            ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
            ("AWS_CONFIG_FILE", "~/.aws/config"),
        )
    ]
    if not os.environ.get("AWS_PROFILE") and not any(map(os.path.exists, files)):
        return None
    try:
        import boto3
        import botocore.exceptions
    except ImportError as error:
        msg = "the keys of a profile (~/.aws, AWS_PROFILE) are read by boto3; install it: pip install 'penstock[s3]'"
        raise DependencyError(msg) from error
    try:
        return _Profile(boto3)
    except botocore.exceptions.BotoCoreError as error:
        msg = f"the profile that AWS_PROFILE names cannot be used: {error}"
        raise OptionError(msg) from error


def _azure(name: str) -> _Place:  # noqa: ARG001 - its account says where it is
    from obstore.store import AzureStore

    account = _first("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT")
    endpoint = _first("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
    settings: dict[str, Any] = {"endpoint": endpoint} if endpoint else {}
    if account:
        settings["account_name"] = account
    return _Place(AzureStore, settings, endpoint or f"https://{account}.blob.core.windows.net")


def _google(name: str) -> _Place:  # noqa: ARG001 - all are in one place
    from obstore.store import GCSStore

    return _Place(GCSStore, {}, "https://storage.googleapis.com")


def _first(*names: str) -> str:
    return next((os.environ[name] for name in names if os.environ.get(name)), "")


def _check_answer(bucket: str, place: _Place, trial: Any) -> None:  # noqa: ANN401 - a store of obstore
    """Raise what is wrong if there is no such bucket, or the store does not know us; what we may do there shows when we do it.

    To list the bucket need not be allowed: a policy may allow it below some paths alone (`s3:prefix`), and ours may be among these.
    """
    import obstore

    try:
        with _numbered():
            next(iter(obstore.list(trial, ".penstock-none", chunk_size=1)), None)
    except FileNotFoundError as error:
        msg = f"{bucket}: there is no such bucket at {place.endpoint}; make it, or check its name and the address of the store"
        raise OptionError(msg) from error
    except PermissionError as error:
        if _NO_RIGHT.search(error.strerror or ""):
            return
        msg = f"{bucket}: the store at {place.endpoint} refuses to list it: {error.strerror}; {way_in(error.strerror)}"
        raise AccessRefused(msg) from error
    except OSError as error:
        if _BUSY.search(str(error.__cause__)):
            return  # it is there, and those who are patient are let in
        msg = (
            f"{bucket}: no store at {place.endpoint}, or it does not answer: {error.strerror}; check the address (AWS_ENDPOINT_URL), "
            "the region and the network"
        )
        raise StorageError(msg) from error


@contextmanager
def _numbered() -> Iterator[None]:
    """Raise what obstore raises as an `OSError` with a number."""
    import obstore.exceptions as says

    try:
        yield
    except (UnicodeEncodeError, says.InvalidPathError) as error:
        raise OSError(errno.EILSEQ, f"no key of an object store: {_words(error)}") from error
    except FileNotFoundError as error:
        number = errno.ENOENT
        words = "the bucket is not there" if _NO_BUCKET.search(str(error)) else os.strerror(errno.ENOENT)
        raise OSError(number, words) from error
    except says.AlreadyExistsError as error:
        raise OSError(errno.EEXIST, os.strerror(errno.EEXIST)) from error
    except says.PreconditionError as error:
        raise OSError(errno.ESTALE, "another object has the key") from error
    except (says.PermissionDeniedError, says.UnauthenticatedError) as error:
        raise OSError(errno.EACCES, _words(error)) from error
    except says.BaseError as error:
        raise OSError(_number_of(error), _words(error)) from error
    except ValueError as error:
        raise OSError(errno.EILSEQ, f"no key of an object store: {_words(error)}") from error


def _number_of(error: Exception) -> int:
    text = str(error)
    if _NO_BUCKET.search(text):
        return errno.ENOENT
    if _NOT_LET.search(text):  # listings come as generic errors
        return errno.EACCES
    code, _ = _refusal(text)
    if code in _DENIED:
        return errno.EACCES
    return errno.ENOSPC if code in _FULL else errno.EIO


def _refusal(text: str) -> tuple[str, str]:
    """Return the code with which a store refuses, and its words; both empty where it has none."""
    if refusal := _REFUSED.search(text):
        return refusal[1], refusal[2] or "refused"
    refusal = _NOT_DELETED.search(text)
    return (refusal[2], refusal[1]) if refusal else ("", "")


def _number_of_boto3(status: int, code: str) -> int:
    if code in _TAKEN:
        return errno.EEXIST
    return errno.EACCES if status in {401, 403} or code in _DENIED else errno.EIO


def way_in(words: str | None) -> str:
    """Return what is to be done about a store that does not let us, by what it says."""
    if _SKEWED.search(words or ""):
        return "set this machine's clock, by which requests are signed"
    return "check the keys that this process finds, and what they may do there (get, put, delete, list)"


def _words(error: Exception) -> str:
    """Return what the store says, or else the first line of what obstore does, without what may be secret."""
    text = str(error)
    code, words = _refusal(text)
    if code:
        return f"{words} ({code})"
    lines = text.strip().splitlines() or [type(error).__name__]
    first = lines[0] if len(lines[0]) > len("Generic error") else " ".join(lines[:2])
    return _QUERY.sub("?...", first).strip()


def _stored(meta: Any, attributes: Any = None) -> ObjectStatus:  # noqa: ANN401 - obstore's
    modified: datetime = meta["last_modified"]
    token = str((attributes or {}).get(_TOKEN, ""))
    tag = (meta["e_tag"] or "").strip('"')  # Azurite has quotes around it in answers, and none in listings
    return ObjectStatus(meta["path"], meta["size"], int(modified.timestamp()) * SECOND_NS, tag, token)


class _Bucket:
    """`Objects` by obstore; see there."""

    def __init__(self, store: Any, place: _Place) -> None:  # noqa: ANN401 - a store of obstore
        self._store = store
        self._place = place
        self._clock: tuple[int, int] | None = None  # when it was asked, what to add to this machine's

    def put(self, key: str, data: bytes, token: str) -> None:
        import obstore

        with _numbered():
            obstore.put(self._store, key, bytes(data), mode="create", attributes={_TOKEN: token}, use_multipart=False)

    def upload(self, key: str, token: str) -> Upload:
        import obstore

        with _numbered():
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
            with _numbered():
                obstore.copy(self._store, source, target, overwrite=False)
        except OSError as error:
            # A store refuses what is too long for one request; only then it is asked how long the source is.
            if error.errno != errno.EIO or not self._place.s3 or (stored := self.head(source)).size <= _COPIED_BYTES:
                raise
            self._copy_in_parts(stored, target)

    def _copy_in_parts(self, source: ObjectStatus, target: str) -> None:
        """Have the store copy ranges, and put them together if the key is free. An upload that is refused is dropped at once."""
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
            except BaseException:  # also where somebody interrupts it
                with suppress(Exception):
                    client.abort_multipart_upload(**upload)
                raise

    def head(self, key: str) -> ObjectStatus:
        import obstore

        try:
            with self._telling_what_is_missing(key), _numbered():
                answer = obstore.get(self._store, key, options={"head": True})
                return _stored(answer.meta, answer.attributes)
        except OSError as error:
            if error.errno == errno.EIO and _BAD_REQUEST.search(str(error.__cause__)):
                with _numbered():  # the answer to a look has no words in it
                    obstore.get(self._store, key, options={"range": (0, 1)})
            raise

    def begin(self, key: str, length: int) -> tuple[ObjectStatus, bytes]:
        import obstore

        try:
            with self._telling_what_is_missing(key), _numbered():
                answer = obstore.get(self._store, key, options={"range": (0, length)})
                return _stored(answer.meta, answer.attributes), bytes(answer.bytes())
        except OSError as error:
            if "InvalidRange" in str(error.__cause__) or "416" in str(error.__cause__):  # it is empty
                return self.head(key), b""
            raise

    @contextmanager
    def _telling_what_is_missing(self, key: str) -> Iterator[None]:
        """Raise `FileNotFoundError` for a refusal behind which there is no object.

        Whom S3 does not let list the whole bucket is told of each key that is not there that he may not read it.
        """
        try:
            yield
        except PermissionError as refused:
            if not self._is_missing(key):
                raise
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)) from refused

    def _is_missing(self, key: str) -> bool:
        """Tell whether a listing says that there is no such object; `False` where none may be made."""
        try:
            for stored in self.behind(key.rpartition("/")[0], key[:-1]):
                if stored.key >= key:
                    return stored.key != key
        except PermissionError:
            try:
                self.has_below(key)  # the uppermost directory that a policy lets us list
            except PermissionError:
                return False
        return True

    def get(self, key: str, tag: str, start: int, end: int) -> bytes:
        import obstore

        with _numbered():
            answer = obstore.get(self._store, key, options={"range": (start, end), "if_match": f'"{tag}"'})
            return bytes(answer.bytes())

    def objects(self, prefix: str) -> Iterator[tuple[str, ObjectStatus | None]]:
        import obstore

        with _numbered():
            listing = obstore.list_with_delimiter(self._store, prefix or None)
        prefixes = {path.rpartition("/")[2] for path in listing["common_prefixes"]}
        for meta in listing["objects"]:
            stored = _stored(meta)
            name = stored.key.rpartition("/")[2]
            if name in prefixes and stored.size:
                words = (
                    f"{name!r} is an object, and there are others below it: it can be no file and a directory at once"
                )
                raise OSError(errno.EILSEQ, words)
            if stored.key != prefix and name not in prefixes:  # other programs put empty objects for directories
                yield name, stored
        yield from ((name, None) for name in prefixes)

    def behind(self, prefix: str, after: str) -> Iterator[ObjectStatus]:
        import obstore

        with _numbered():
            for metas in obstore.list(self._store, prefix or None, offset=after):
                # Azurite begins at the beginning whatever it is asked for.
                yield from (stored for stored in map(_stored, metas) if stored.key > after)

    def has_below(self, prefix: str) -> bool:
        import obstore

        with _numbered():
            return bool(next(iter(obstore.list(self._store, prefix, chunk_size=1)), None))

    def remove(self, key: str) -> None:
        import obstore

        with _numbered(), suppress(FileNotFoundError):
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
        """Give a client of boto3, which alone can list uploads; its errors are raised with numbers."""
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
            number = _number_of_boto3(
                error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0), details.get("Code", "")
            )
            raise OSError(number, f"{details.get('Message', 'refused')} ({details.get('Code', 'no code')})") from error
        except botocore.exceptions.BotoCoreError as error:
            raise OSError(errno.EIO, _words(error)) from error

    def now_ns(self) -> int:
        now = clock.now_ns()
        if self._clock is None or not self._clock[0] <= now < self._clock[0] + _CLOCK_NS:
            self._clock = now, _ahead_ns(self._place.endpoint)
        return now + self._clock[1]


class _NativeUpload:
    """`Upload` by obstore."""

    def __init__(self, writer: Any) -> None:  # noqa: ANN401 - obstore's
        self._writer = writer

    def write(self, data: Any) -> None:  # noqa: ANN401 - a buffer
        with _numbered():
            self._writer.write(bytes(data))

    def finish(self) -> None:
        with _numbered():
            self._writer.close()


def _ahead_ns(endpoint: str) -> int:
    """Return by how much the store's clock is ahead of this machine's; 0 where they differ by less than such an answer can tell."""
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
    if before - SECOND_NS <= stamp <= after:  # it shows whole seconds
        return 0
    return stamp - before
