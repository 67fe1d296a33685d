"""Where an S3 store is, and its keys, if profile files say so. No store is contacted."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from penstock.errors import OptionError
from penstock.storage._objects_place import StorePlace, place_of

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = "[profile lake]\nregion = eu-north-1\nendpoint_url = https://lake.example:9000\n[profile bare]\nregion = eu-west-3\n"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Provide profile files, and nothing else that says where a store is."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    (tmp_path / "config").write_text(CONFIG)
    (tmp_path / "credentials").write_text("[lake]\naws_access_key_id = known\naws_secret_access_key = secret\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")  # asks no metadata service of the machine


def test_a_profile_says_address_region_and_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The profile in `AWS_PROFILE` is used: boto3 supplies its keys, for the address and the region in its files."""
    monkeypatch.setenv("AWS_PROFILE", "lake")
    place = place_of("s3", "bucket")
    assert place.endpoint == place.settings["endpoint"] == "https://lake.example:9000"
    assert place.s3 == {"endpoint_url": "https://lake.example:9000", "region_name": "eu-north-1", "bucket": "bucket"}
    assert place.settings["credential_provider"]()["access_key_id"] == "known"


def test_the_environment_goes_before_a_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Address and region of the environment take precedence; if it has keys, no profile is read."""
    monkeypatch.setenv("AWS_PROFILE", "lake")
    monkeypatch.setenv("AWS_REGION", "us-west-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://other.example")
    place = place_of("s3", "bucket")
    assert (place.endpoint, place.settings["region"]) == ("http://other.example", "us-west-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "mine")
    monkeypatch.delenv("AWS_REGION")
    assert "credential_provider" not in place_of("s3", "bucket").settings
    assert place_of("s3", "bucket").settings["region"] == "us-east-1"


def test_a_profile_without_keys_says_where_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The region of the profile is used, the store is Amazon's, and obstore finds keys by itself."""
    monkeypatch.setenv("AWS_PROFILE", "bare")
    place: StorePlace = place_of("s3", "bucket")
    assert place.endpoint == "https://s3.eu-west-3.amazonaws.com"
    assert "credential_provider" not in place.settings


def test_a_profile_that_is_nowhere_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says that AWS_PROFILE names it."""
    monkeypatch.setenv("AWS_PROFILE", "none")
    with pytest.raises(OptionError, match="the profile that AWS_PROFILE names cannot be used"):
        place_of("s3", "bucket")
