"""Binary: a whole file as one value, or blocks of a fixed size. It is only read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.formats.binary import binary_batches, whole_blocks
from penstock.formats.families import TableFormat

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from penstock.formats.account import Account
    from penstock.formats.begins import Begins
    from penstock.formats.families import Read
    from penstock.formats.format import ReadFormat
    from penstock.storage import ReadableFile


class _Binary(TableFormat):
    name = "binary"
    read_options = frozenset({"blockSize"})
    as_it_is = True

    def divisible(self, fmt: ReadFormat, path: str) -> bool:  # noqa: ARG002 - bytes can be cut anywhere
        return fmt.block_size is not None

    def reach(self, fmt: ReadFormat, read: Read, size: int, at: int) -> int | None:  # noqa: ARG002 - it is computed
        return min(whole_blocks(at, fmt.block_size), size) if fmt.block_size else None

    def rows(
        self,
        fmt: ReadFormat,
        file: ReadableFile,
        size: int,
        span: tuple[int, int],
        account: Account | None = None,
        begins: Begins | None = None,
    ) -> Iterator[pa.RecordBatch]:
        del account  # there is only one column
        return binary_batches(file.read, size, *span, fmt.block_size, fmt.schema, begins)


FORMAT = _Binary()
