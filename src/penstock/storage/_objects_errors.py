"""Turns the errors of a store of objects into `OSError` with a number and the store's own words, without what may be secret."""

from __future__ import annotations

import errno
import os
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_TAKEN = {"PreconditionFailed", "ConditionalRequestConflict"}
_NO_BUCKET = re.compile("NoSuchBucket|ContainerNotFound|The specified bucket does not exist")
_REFUSED = re.compile("<Code>([A-Za-z]+)</Code>(?:<Message>([^<]*)</Message>)?")
# An error in the answer to a deletion of several keys, whose status is 200.
_NOT_DELETED = re.compile(r"request failed for key .*?: (.*) \(code: ([A-Za-z]+)\)")
_NOT_LET = re.compile("status code: 40[13]")
# Credentials that are over; some servers say so with status 400.
_OVER = {
    "ExpiredToken",
    "InvalidToken",
    "TokenRefreshRequired",
    "RequestExpired",
    "RequestTimeTooSkewed",
}
_DENIED = {"AccessDenied", "AllAccessDisabled", "InvalidAccessKeyId", "SignatureDoesNotMatch", *_OVER}
# The store knows the keys, and they may not do this.
NO_RIGHT = re.compile(r"\((AccessDenied|AuthorizationPermissionMismatch)\)$")
_SKEWED = re.compile(r"\((RequestTimeTooSkewed|RequestExpired)\)$")
BAD_REQUEST = re.compile("status code: 400|400 Bad Request")
BUSY = re.compile("status code: (429|5[0-9][0-9])")
_FULL = {"QuotaExceeded", "XMinioStorageFull", "InsufficientStorage"}
_QUERY = re.compile(r"\?[^\s\"')]*")  # the query of a URL, where Azure has keys


@contextmanager
def numbered() -> Iterator[None]:
    """Raise the errors of obstore as `OSError` with a number."""
    import obstore.exceptions as says

    try:
        yield
    except (UnicodeEncodeError, says.InvalidPathError) as error:
        raise OSError(errno.EILSEQ, f"no key of an object store: {reason_of(error)}") from error
    except FileNotFoundError as error:
        number = errno.ENOENT
        words = "the bucket is not there" if _NO_BUCKET.search(str(error)) else os.strerror(errno.ENOENT)
        raise OSError(number, words) from error
    except says.AlreadyExistsError as error:
        raise OSError(errno.EEXIST, os.strerror(errno.EEXIST)) from error
    except says.PreconditionError as error:
        raise OSError(errno.ESTALE, "another object has the key") from error
    except (says.PermissionDeniedError, says.UnauthenticatedError) as error:
        raise OSError(errno.EACCES, reason_of(error)) from error
    except says.BaseError as error:
        raise OSError(_number_of(error), reason_of(error)) from error
    except ValueError as error:
        raise OSError(errno.EILSEQ, f"no key of an object store: {reason_of(error)}") from error


def _number_of(error: Exception) -> int:
    text = str(error)
    if _NO_BUCKET.search(text):
        return errno.ENOENT
    if _NOT_LET.search(text):  # errors of listings come as generic errors
        return errno.EACCES
    code, _ = _refusal(text)
    if code in _DENIED:
        return errno.EACCES
    return errno.ENOSPC if code in _FULL else errno.EIO


def _refusal(text: str) -> tuple[str, str]:
    """Return the code of a store's refusal, and its words; both are empty if there is no code."""
    if refusal := _REFUSED.search(text):
        return refusal[1], refusal[2] or "refused"
    refusal = _NOT_DELETED.search(text)
    return (refusal[2], refusal[1]) if refusal else ("", "")


def number_of_boto3(status: int, code: str) -> int:
    """Return the number for an error of boto3, by the status of the answer and the code in it."""
    if code in _TAKEN:
        return errno.EEXIST
    return errno.EACCES if status in {401, 403} or code in _DENIED else errno.EIO


def way_in(words: str | None) -> str:
    """Return advice about a store that refuses us, by its words."""
    if _SKEWED.search(words or ""):
        return "set this machine's clock, by which requests are signed"
    return "check the keys that this process finds, and what they may do there (get, put, delete, list)"


def reason_of(error: Exception) -> str:
    """Return the store's words, or else the first line of obstore's, without what may be secret."""
    text = str(error)
    code, words = _refusal(text)
    if code:
        return f"{words} ({code})"
    lines = text.strip().splitlines() or [type(error).__name__]
    first = lines[0] if len(lines[0]) > len("Generic error") else " ".join(lines[:2])
    return _QUERY.sub("?...", first).strip()
