"""Row groups of a finished Parquet file, taken over into another file as they are stored, without decoding a value.

A row group does not say where it is: that is in the footer alone. So its bytes are copied, and what the footer says about them
is copied with other offsets. A footer is a struct of Thrift's compact protocol, of which only what is needed is read here:
fields that move, and how long all others are. A footer with a field that is not known here, such as the place of an index or
of a filter, is not taken over: then its rows are read and written like any others.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    Fields = dict[int, tuple[int, bytes]]  # the type and the bytes of each field of a struct

MAGIC = b"PAR1"
FOOTER_TAIL_BYTES = 8  # the length of the footer, and the magic
_HEAD_READ = 64 << 10

# Types of the compact protocol.
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12
_FIXED = {_TRUE: 0, _FALSE: 0, _BYTE: 1, _DOUBLE: 8}  # bytes of a value; that of a truth is its type
_LONG_LIST = 15

# Fields of a footer's structs, as parquet.thrift numbers them.
_SCHEMA, _ROWS, _GROUPS = 2, 3, 4
_FILE_FIELDS = frozenset({1, 2, 3, 4, 5, 6, 7})
_COLUMNS, _GROUP_BYTES, _GROUP_ROWS, _GROUP_OFFSET = 1, 2, 3, 5
_GROUP_FIELDS = frozenset({1, 2, 3, 5, 6})  # 7 is its number, which only encrypted files need
_CHUNK_OFFSET, _CHUNK_ABOUT = 2, 3
_CHUNK_FIELDS = frozenset({2, 3})
_PAGE_OFFSETS = frozenset({9, 10, 11})  # data, index, dictionary
_ABOUT_FIELDS = frozenset({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 16, 17})  # 14 and 15 are a filter


class NotKnown(Exception):
    """A footer has something that cannot be taken over as it is."""


@dataclass(frozen=True)
class Group:
    """What a footer says about one row group."""

    form: bytes
    rows: int
    size: int  # of its pages, before compression


@dataclass(frozen=True)
class Footer:
    """The footer of a file whose row groups lie between the magic at its beginning and `begin`, where the footer begins."""

    begin: int
    fields: Fields

    @staticmethod
    def of(read: Callable[[int, int], bytes], size: int) -> Footer:
        """Return the footer of a file of `size` bytes. `NotKnown` if it is not one that a writer of ours leaves."""
        tail = read(max(size - _HEAD_READ, 0), min(size, _HEAD_READ))
        length = int.from_bytes(tail[-FOOTER_TAIL_BYTES:-4], "little")
        begin = size - FOOTER_TAIL_BYTES - length
        if tail[-4:] != MAGIC or begin < len(MAGIC):
            raise NotKnown
        return Footer.parsed(
            tail[begin - size : -FOOTER_TAIL_BYTES] if begin >= size - len(tail) else read(begin, length), begin
        )

    @staticmethod
    def parsed(form: bytes, begin: int = 0) -> Footer:
        """Return the footer that these bytes are. `NotKnown` if one of its fields is not known."""
        with _understood():
            return Footer(begin, _checked(_fields(form, 0)[0], _FILE_FIELDS))

    @property
    def schema(self) -> bytes:
        """The columns of the file, as it has them."""
        return self.fields[_SCHEMA][1]

    def groups(self, by: Callable[[int], int] | None = None) -> list[Group]:
        """Return the row groups, or what becomes of them if the nth lies `by(n)` bytes further on. `NotKnown` if they cannot be moved."""
        with _understood():
            groups = _structs(self.fields[_GROUPS])
            return [_moved(group, None if by is None else by(number)) for number, group in enumerate(groups)]

    def with_groups(self, groups: Sequence[Group]) -> bytes:
        """Return the end of a file: this footer with other row groups."""
        rows = _varint(_zigzag(sum(group.rows for group in groups)))
        form = _struct(self.fields | {_ROWS: (_I64, rows), _GROUPS: (_LIST, _list_of(group.form for group in groups))})
        return form + len(form).to_bytes(4, "little") + MAGIC


@contextmanager
def _understood() -> Iterator[None]:
    """Raise `NotKnown` for what is no footer."""
    try:
        yield
    except (IndexError, KeyError) as error:
        raise NotKnown from error


def _moved(form: bytes, by: int | None) -> Group:
    fields = _checked(_fields(form, 0)[0], _GROUP_FIELDS)
    if by is not None:
        fields[_COLUMNS] = _LIST, _list_of(_chunk(chunk, by) for chunk in _structs(fields[_COLUMNS]))
        if _GROUP_OFFSET in fields:
            fields[_GROUP_OFFSET] = _I64, _varint(_zigzag(_number(fields[_GROUP_OFFSET]) + by))
        form = _struct(fields)
    return Group(form, _number(fields[_GROUP_ROWS]), _number(fields[_GROUP_BYTES]))


def _chunk(form: bytes, by: int) -> bytes:
    """Return what a footer says about a column of a row group, `by` bytes further on."""
    fields = _checked(_fields(form, 0)[0], _CHUNK_FIELDS)
    about = _checked(_fields(fields[_CHUNK_ABOUT][1], 0)[0], _ABOUT_FIELDS)
    for field in _PAGE_OFFSETS & about.keys():
        about[field] = _I64, _varint(_zigzag(_number(about[field]) + by))
    fields[_CHUNK_ABOUT] = _STRUCT, _struct(about)
    if offset := _number(fields[_CHUNK_OFFSET]):  # Arrow writes 0, because it means nothing any more
        fields[_CHUNK_OFFSET] = _I64, _varint(_zigzag(offset + by))
    return _struct(fields)


def _checked(fields: Fields, known: frozenset[int]) -> Fields:
    if not fields.keys() <= known:
        raise NotKnown
    return fields


# -- the compact protocol ---------------------------------------------------------------------------------------------


def _fields(data: bytes, at: int) -> tuple[Fields, int]:
    """Return the fields of the struct that begins at a place, and where it ends."""
    fields: Fields = {}
    number = 0
    while head := data[at]:
        kind, delta = head & 15, head >> 4
        at += 1
        if delta:
            number += delta
        else:
            raw, at = _read_varint(data, at)
            number = _from_zigzag(raw)
        end = _end(data, at, kind)
        fields[number] = kind, data[at:end]
        at = end
    return fields, at + 1


def _end(data: bytes, at: int, kind: int) -> int:
    """Return where a value of this type ends."""
    if kind in _FIXED:
        return at + _FIXED[kind]
    if kind in {_I16, _I32, _I64}:
        return _read_varint(data, at)[1]
    if kind == _BINARY:
        size, at = _read_varint(data, at)
        return at + size
    if kind in {_LIST, _SET}:
        count, of, at = _list_head(data, at)
        for _ in range(count):
            at = at + 1 if of in {_TRUE, _FALSE} else _end(data, at, of)
        return at
    if kind == _STRUCT:
        return _struct_end(data, at)
    raise NotKnown


def _struct_end(data: bytes, at: int) -> int:
    while head := data[at]:
        at += 1
        if not head >> 4:
            at = _read_varint(data, at)[1]
        at = _end(data, at, head & 15)
    return at + 1


def _list_head(data: bytes, at: int) -> tuple[int, int, int]:
    """Return how many elements a list has, their type, and where the first one begins."""
    head = data[at]
    if head >> 4 != _LONG_LIST:
        return head >> 4, head & 15, at + 1
    count, begin = _read_varint(data, at + 1)
    return count, head & 15, begin


def _structs(field: tuple[int, bytes]) -> list[bytes]:
    """Return the elements of a list of structs."""
    kind, data = field
    count, of, at = _list_head(data, 0)
    if kind != _LIST or (count and of != _STRUCT):
        raise NotKnown
    elements = []
    for _ in range(count):
        end = _end(data, at, _STRUCT)
        elements.append(data[at:end])
        at = end
    return elements


def _struct(fields: Fields) -> bytes:
    """Return a struct of these fields, in the order of their numbers."""
    parts, before = [], 0
    for number, (kind, data) in sorted(fields.items()):
        delta = number - before
        parts.append(bytes([delta << 4 | kind]) if delta < 16 else bytes([kind]) + _varint(_zigzag(number)))  # noqa: PLR2004 - four bits
        parts.append(data)
        before = number
    return b"".join(parts) + b"\0"


def _list_of(structs: Iterable[bytes]) -> bytes:
    elements = list(structs)
    count = len(elements)
    head = bytes([count << 4 | _STRUCT]) if count < _LONG_LIST else bytes([_LONG_LIST << 4 | _STRUCT]) + _varint(count)
    return head + b"".join(elements)


def _number(field: tuple[int, bytes]) -> int:
    kind, data = field
    if kind not in {_I16, _I32, _I64}:
        raise NotKnown
    return _from_zigzag(_read_varint(data, 0)[0])


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while (byte := data[at]) & 128:
        value |= (byte & 127) << shift
        shift += 7
        at += 1
    return value | byte << shift, at + 1


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 127:  # noqa: PLR2004 - seven bits
        parts.append(value & 127 | 128)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _zigzag(value: int) -> int:
    return value << 1 if value >= 0 else (-value << 1) - 1


def _from_zigzag(value: int) -> int:
    return value >> 1 ^ -(value & 1)
