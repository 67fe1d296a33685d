"""Finds the address of a store of objects, and the keys to call it with, before anything is sent.

obstore finds keys as the tools of each store do: in the environment, in token files, and from the machine that it runs on. boto3
reads profiles (`~/.aws`, single sign-on, a program that gives keys); it is used only if there are profiles and the environment
has no keys. The address, region and style of a store come from the same places: none of that is in a user's path, a plan or a
pickle.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import DependencyError, OptionError

_OWN_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_SKIP_SIGNATURE")
_CONTAINER_KEYS = ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI")


@dataclass
class StorePlace:
    """What is known of a store before it is called: how to make its client, and the endpoint that answers anybody."""

    make: Any
    settings: dict[str, Any]
    endpoint: str
    s3: dict[str, Any] = field(default_factory=dict)  # arguments for boto3; empty for other stores


def _s3(name: str) -> StorePlace:
    from obstore.store import S3Store

    profile = _profile()
    endpoint = _first("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT") or profile.endpoint
    region = _first("AWS_REGION", "AWS_DEFAULT_REGION") or profile.region or "us-east-1"
    settings: dict[str, Any] = {"region": region, "copy_if_not_exists": "multipart"}
    if endpoint:
        settings["endpoint"] = endpoint
    if profile.session is not None:
        from obstore.auth.boto3 import Boto3CredentialProvider

        settings["credential_provider"] = Boto3CredentialProvider(profile.session)
    own = {"endpoint_url": endpoint or None, "region_name": region}
    return StorePlace(S3Store, settings, endpoint or f"https://s3.{region}.amazonaws.com", {**own, "bucket": name})


@dataclass(frozen=True)
class _Profile:
    """What boto3 finds in the profile files; `session` is boto3's session if it has keys."""

    session: Any = None
    region: str = ""
    endpoint: str = ""


def _profile() -> _Profile:
    """Return the profile's settings; empty if there is no profile, or the environment has keys."""
    if any(os.environ.get(name) for name in (*_OWN_KEYS, *_CONTAINER_KEYS)):
        return _Profile()
    files = [
        os.path.expanduser(os.environ.get(name) or default)
        for name, default in (
            ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
            ("AWS_CONFIG_FILE", "~/.aws/config"),
        )
    ]
    if not os.environ.get("AWS_PROFILE") and not any(map(os.path.exists, files)):
        return _Profile()
    try:
        import boto3
        import botocore.exceptions
    except ImportError as error:
        msg = "the keys of a profile (~/.aws, AWS_PROFILE) are read by boto3; install it: pip install 'penstock[s3]'"
        raise DependencyError(msg) from error
    try:
        session = boto3.Session()
        keys = session.get_credentials()
        written = session._session.get_scoped_config() or {}  # noqa: SLF001 - boto3 has no public access to it
    except botocore.exceptions.BotoCoreError as error:
        msg = f"the profile that AWS_PROFILE names cannot be used: {error}"
        raise OptionError(msg) from error
    return _Profile(session if keys else None, session.region_name or "", written.get("endpoint_url", ""))


def _azure(name: str) -> StorePlace:  # noqa: ARG001 - its address depends on the account
    from obstore.store import AzureStore

    account = _first("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT")
    endpoint = _first("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
    settings: dict[str, Any] = {"endpoint": endpoint} if endpoint else {}
    if account:
        settings["account_name"] = account
    return StorePlace(AzureStore, settings, endpoint or f"https://{account}.blob.core.windows.net")


def _google(name: str) -> StorePlace:  # noqa: ARG001 - all buckets have one address
    from obstore.store import GCSStore

    return StorePlace(GCSStore, {}, "https://storage.googleapis.com")


def _first(*names: str) -> str:
    return next((os.environ[name] for name in names if os.environ.get(name)), "")


def place_of(scheme: str, name: str) -> StorePlace:
    """Return the place of the bucket `name`.

    `OptionError` if a profile cannot be used, `DependencyError` if it needs boto3, which is missing.
    """
    return {"s3": _s3, "az": _azure, "gs": _google}[scheme](name)
