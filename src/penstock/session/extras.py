"""Which extras of Penstock are installed, by the notes that their packages left; nothing of them is loaded.

`penstock --version` and `penstock doctor` say the same, from here. `tests/test_packages.py` holds the tables against `pyproject.toml`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

PYTHON_AT_LEAST = (3, 11)  # PySpark's
PACKAGES = {
    "spark": ("pyspark", "pandas"),
    "hdfs": ("hdfs-native",),
    "s3": ("obstore", "boto3"),
    "db": ("adbc-driver-manager", "adbc-driver-postgresql", "adbc-driver-sqlite"),
    "avro": ("polars-avro",),
    "age": ("pyrage",),
    "connect": ("grpcio", "grpcio-status"),
    "kafka": ("confluent-kafka",),
    "iceberg": ("pyiceberg", "sqlalchemy"),
    "delta": ("deltalake",),
    "run": ("cronsim", "prometheus-client"),
    "otel": ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http"),
}
# On a Python before PYTHON_AT_LEAST pip installs nothing of these, or not all.
NEWER_PYTHON = ("spark", "s3", "avro", "connect")


@dataclass(frozen=True)
class Extra:
    """An extra, and the versions of its packages; `None` for one that is not installed."""

    name: str
    versions: dict[str, str | None]

    @property
    def installed(self) -> bool:
        """Tell whether all of it is there."""
        return None not in self.versions.values()

    def __str__(self) -> str:
        """Return its versions, or what to do to have it."""
        if self.installed:
            if len(set(self.versions.values())) == 1:
                return str(next(iter(self.versions.values())))
            return ", ".join(f"{package} {number}" for package, number in self.versions.items())
        if self.name in NEWER_PYTHON and sys.version_info[:2] < PYTHON_AT_LEAST:
            return f"none; it needs Python {'.'.join(map(str, PYTHON_AT_LEAST))}"
        lacking = [package for package, number in self.versions.items() if number is None]
        without = "none" if len(lacking) == len(self.versions) else f"without {', '.join(lacking)}"
        return f"{without}; pip install 'penstock[{self.name}]'"


def extras() -> list[Extra]:
    """Return every extra, with what of it is installed."""
    return [Extra(name, {package: _version(package) for package in packages}) for name, packages in PACKAGES.items()]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
