"""Where a store of objects is, and with which keys it is called, before anything is sent.

obstore finds keys as the tools of each store do, in the environment, in files of tokens, and from the machine it runs on. Profiles
(`~/.aws`, single sign-on, a program that tells them) are read by boto3, which is asked only where there are some and the environment
has no keys. Which address, region and style a store has comes from the same places: nothing of that is in an address, a plan or a
pickle.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, cast

from penstock.errors import DependencyError, OptionError

_OWN_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_SKIP_SIGNATURE")
_CONTAINER_KEYS = ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI")


@dataclass
class StorePlace:
    """What is known of a store before it is called: how its client is made, and where it answers anybody."""

    make: Any
    settings: dict[str, Any]
    endpoint: str
    s3: dict[str, Any] = field(default_factory=dict)  # for boto3; empty for other stores


def _s3(name: str) -> StorePlace:
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
    return StorePlace(S3Store, settings, endpoint or f"https://s3.{region}.amazonaws.com", {**own, "bucket": name})


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


def _azure(name: str) -> StorePlace:  # noqa: ARG001 - its account says where it is
    from obstore.store import AzureStore

    account = _first("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT")
    endpoint = _first("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
    settings: dict[str, Any] = {"endpoint": endpoint} if endpoint else {}
    if account:
        settings["account_name"] = account
    return StorePlace(AzureStore, settings, endpoint or f"https://{account}.blob.core.windows.net")


def _google(name: str) -> StorePlace:  # noqa: ARG001 - all are in one place
    from obstore.store import GCSStore

    return StorePlace(GCSStore, {}, "https://storage.googleapis.com")


def _first(*names: str) -> str:
    return next((os.environ[name] for name in names if os.environ.get(name)), "")


def place_of(scheme: str, name: str) -> StorePlace:
    """Return where the bucket `name` is. `OptionError` for a profile that cannot be used, `DependencyError` without boto3 for one."""
    return {"s3": _s3, "az": _azure, "gs": _google}[scheme](name)
