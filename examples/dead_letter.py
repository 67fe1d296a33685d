"""Call an API that allows 100 calls a second, and set aside the rows that it refuses: a dead letter.

Run it with `python examples/dead_letter.py`. It needs no input.
"""
# ruff: noqa: INP001, T201
# An example is a standalone script, and it prints what it did.

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import penstock

if TYPE_CHECKING:
    from pyspark.sql import Row

    from penstock.aio.rows import Row as Payment


async def convert(row: Payment) -> dict[str, float]:
    """Stand in for a call of the API: it takes a while, and refuses an unknown currency."""
    await asyncio.sleep(0.01)
    rates = {"EUR": 1.0, "USD": 0.9, "GBP": 1.2}
    if row.currency not in rates:
        msg = f"422: unknown currency {row.currency}"
        raise LookupError(msg)
    return {"euros": row.amount * rates[row.currency]}


def show(row: Row) -> str:
    """Return a failed row as a line of text."""
    error = row["_error"]
    return f"payment {row['id']}: {error.message} (attempts: {error.attempts})"


def main() -> None:
    """Convert 40 payments, four of them in a currency that nobody knows."""
    spark = penstock.local_session("local[2]")
    payments = spark.range(40).selectExpr(
        "id", "cast(id as double) as amount", "case when id % 10 = 7 then 'XXX' else 'USD' end as currency"
    )
    converted = penstock.async_map(
        payments,
        convert,
        schema="euros double",
        rate="100/s",
        retry=penstock.Retry(max_attempts=3, delay=0.05, on=(TimeoutError, OSError)),
        on_error="column",
    ).cache()  # two frames use it; without this, each would make the calls
    good, failed = penstock.split_errors(converted)
    print(f"{good.count()} converted, {failed.count()} set aside:")
    for line in sorted(map(show, failed.collect())):
        print(f"  {line}")
    spark.stop()


if __name__ == "__main__":
    main()
