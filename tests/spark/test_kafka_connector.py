"""Our sink takes any stream, so it also works with Spark's own connector to Kafka."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pyarrow.dataset as ds
import pytest

from tests.support.jars import NoJars, connector
from tests.support.stage import run_python

if TYPE_CHECKING:
    from tests.support.kafka import Kafka
    from tests.support.stage import Stage

pytestmark = [pytest.mark.soak, pytest.mark.spark, pytest.mark.xdist_group("programs"), pytest.mark.timeout(600)]

PROGRAM = """
import sys, penstock
servers, topic, dst, checkpoint, jars = sys.argv[1:]
spark = penstock.local_session("local[2]", config={"spark.jars": jars})
rows = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", topic)
rows = rows.option("startingOffsets", "earliest").option("kafka.isolation.level", "read_committed")
rows = rows.option("maxOffsetsPerTrigger", "30").load()
writer = rows.writeStream.format("penstock").option("format", "parquet").option("checkpointLocation", checkpoint)
writer.trigger(availableNow=True).start(dst).awaitTermination()
print("DONE")
"""


def test_our_sink_under_sparks_connector(kafka: Kafka, stage: Stage) -> None:
    """After a kill in a commit and a restart it has each committed record once, and no record of an aborted transaction."""
    try:
        jars = ",".join(map(str, connector()))
    except NoJars as error:
        pytest.skip(str(error))
    topic = kafka.topic(partitions=2)
    producer = kafka.producer(topic)
    for number in range(8):
        producer.begin_transaction()
        for each in range(10):
            producer.produce(topic, value=b"%d.%d" % (number, each), partition=each % 2)
        producer.flush()
        producer.abort_transaction() if number % 4 == 3 else producer.commit_transaction()
    arguments = kafka.servers, topic, str(stage.dst), str(stage.checkpoint), jars
    killed = run_python(PROGRAM, *arguments, failpoints="sink.ledger.after-put=kill-jvm@2")
    assert "DONE" not in killed.stdout
    last = run_python(PROGRAM, *arguments)
    assert "DONE" in last.stdout, last.stderr[-3000:]
    table = ds.dataset(stage.files()).to_table(columns=["partition", "offset", "value"])
    assert Counter(tuple(row.values()) for row in table.to_pylist()) == Counter(kafka.committed(topic))
