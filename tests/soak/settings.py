"""The settings of a round and the options of each of its starts, drawn from the round's seed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from tests.soak.records import BUCKETS, TABLES, Records

_FORMS = ("text", "json", "csv", *TABLES)


@dataclass(frozen=True)
class Settings:
    """The settings of a round that all its starts share: the options that define the output."""

    engine: str
    records: Records
    sink: dict[str, str]

    @property
    def growing(self) -> bool:
        """Tell whether the output is files that grow."""
        return "growing" in self.sink

    def __str__(self) -> str:
        given = " ".join(f"{name}={value}" for name, value in self.sink.items() if name != "format")
        packed = " (.gz)" if self.records.packed else ""
        return f"{self.engine} {self.records.form}{packed} to {self.records.to} {given}".rstrip()


def settings(seed: int) -> Settings:
    """Return the settings of the round with this seed."""
    chance = random.Random(f"{seed} settings")  # noqa: S311 - repeatable
    form = chance.choice(_FORMS)
    to = chance.choice(_FORMS if form == "text" else _FORMS[1:])
    sink = {"format": to}
    if to in {"text", "json"} and chance.random() < 0.4:
        sink |= {"growing": "true", "fileName": f"all.{to}"}
    else:
        packers = ("none", "gzip", "zstd", *(("snappy",) if to in TABLES else ()))
        sink |= _some(chance, 0.4, compression=packers)
        sink |= _some(chance, 0.2, fileName=("{time}-{writer}-{seq:05}", "{sink}-{host}-{batch}-{writer}-{seq}"))
    if form == "text":
        sink |= _some(chance, 0.2, bucketBy=("at={time:%H-%M}",))
    elif chance.random() < 0.4:
        sink |= {"bucketBy": "k={k}"} | _some(chance, 0.3, dropBucketColumns=("true",))
    records = Records(seed, form, to, chance.random() < 0.2, "dropBucketColumns" in sink)
    return Settings(chance.choice(("ingest", "query")), records, sink)


def start_of(drawn: Settings, number: int) -> dict[str, Any]:
    """Return the options of start `number` of a round; they may differ at each start."""
    chance = random.Random(f"{drawn.records.seed} start {number}")  # noqa: S311 - repeatable
    source = _some(
        chance,
        0.5,
        maxFilesPerTrigger=("1", "3", "10", "100"),
        maxBytesPerTrigger=("5k", "50k", "1m"),
        splitSize=("3k", "20k", "1m"),
    )
    source |= _some(chance, 0.1, batchBoundary=("file",)) | {"settle": chance.choice(("0", "200ms", "1s"))}
    sink = {} if drawn.growing else _some(
        chance,
        0.4,
        rollSize=("4k", "50k", "400k"),
        rollRows=("7", "500", "5000"),
        rollInterval=("1s", "5s"),
        rollInactivity=("500ms", "3s"),
        rollBatches=("1", "2", "5"),
        mergeBelow=("1", "20k", "1m"),
    )  # fmt: skip
    return {
        "master": chance.choice(("local[1]", "local[2]", "local[4]", "local[2,4]", "local-cluster[2,1,512]")),
        "trigger": chance.choice(("available", "0 seconds", "500 milliseconds")),
        "repartition": chance.choice((0, 0, 1, 7)),
        "source": source,
        "sink": sink,
    }


def last_start() -> dict[str, Any]:
    """Return the options of a round's last start: it takes all available input and ends."""
    return {"master": "local[2]", "trigger": "last", "repartition": 0, "source": {"settle": "0"}, "sink": {}}


def _some(chance: random.Random, share: float, **values: tuple[str, ...]) -> dict[str, str]:
    """Return each option with some probability, with one of its values."""
    return {name: chance.choice(given) for name, given in values.items() if chance.random() < share}


assert BUCKETS < 10
