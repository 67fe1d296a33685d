"""A broker that requires TLS and passwords: a client with the right ones reads, and any other gets an error at once."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pytest

from penstock.errors import BrokerError, OptionError
from tests.kafka.topics import Stream
from tests.support import kafka as server
from tests.support.jars import NoJars, java
from tests.support.required import missing

pytestmark = [pytest.mark.soak, pytest.mark.timeout(300)]
QUICKLY_SECONDS = 20


def certificate(directory: Path, name: str) -> tuple[Path, Path]:
    """Return a key store with a key of this machine, and its self-signed certificate as PEM."""
    tool = shutil.which("keytool") or str(Path(java()).parent / "keytool")
    store, pem = directory / f"{name}.p12", directory / f"{name}.pem"
    common = ["-storetype", "PKCS12", "-keystore", str(store), "-storepass", "secret", "-alias", "key"]
    made = [
        "-genkeypair",
        "-keyalg",
        "RSA",
        "-dname",
        f"CN={name}",
        "-ext",
        "SAN=ip:127.0.0.1",
        "-ext",
        "bc:c",
        "-validity",
        "2",
    ]
    subprocess.run([tool, *made, *common], check=True, capture_output=True)
    shown = subprocess.run([tool, "-exportcert", "-rfc", *common], check=True, capture_output=True)
    pem.write_bytes(shown.stdout)
    return store, pem


def test_broker_that_wants_tls_and_passwords(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the right authority and password, records are read; a wrong password or authority quickly raises `BrokerError`."""
    try:
        (store, pem), (_, other) = certificate(tmp_path, "broker"), certificate(tmp_path, "other")
        (tmp_path / "kafka").mkdir()
        running = server.running(tmp_path / "kafka", store, {"alice": "right"})
        with running as kafka:
            topic = kafka.topic()
            kafka.send(topic, b"1", b"2")
            monkeypatch.setenv("RIGHT", "right")
            monkeypatch.setenv("WRONG", "wrong")
            given = {
                "kafka.security.protocol": "SASL_SSL",
                "kafka.sasl.mechanism": "PLAIN",
                "kafka.sasl.username": "alice",
                "kafka.sasl.password": "env:RIGHT",
                "kafka.ssl.ca.location": str(pem),
            }
            secure = f"127.0.0.1:{kafka.secure_port}"
            stream = Stream(secure, subscribe=topic, **given)
            assert stream.rest(stream.initial())[0] == [b"1", b"2"]
            for wrong, word in (
                ({"kafka.sasl.password": "env:WRONG"}, "[Aa]uthentication"),
                ({"kafka.ssl.ca.location": str(other)}, "SSL|certificate"),
            ):
                begun = time.monotonic()
                with pytest.raises(BrokerError, match=word) as raised:
                    Stream(secure, subscribe=topic, **{**given, **wrong}).initial()
                assert type(raised.value) is BrokerError, "a wrong password is no broker that is away"
                assert time.monotonic() - begun < QUICKLY_SECONDS
                assert "wrong" not in str(raised.value)
            with pytest.raises(OptionError, match=r"ssl\.ca\.location|no\.pem"):
                Stream(secure, subscribe=topic, **{**given, "kafka.ssl.ca.location": "/no.pem"}).initial()
    except NoJars as error:
        missing("KAFKA", error)
