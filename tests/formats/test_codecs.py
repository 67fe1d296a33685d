"""Compressed files: whole, truncated, garbage, and decompression bombs."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import random
import zlib
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadFile, NotThere, OptionError
from penstock.formats.codecs import codec_of, compress, decompressed, expansion, extension, unreadable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

CODECS = ["gzip", "zstd", "bzip2"]
NOISE = random.Random(1).randbytes(200_000)  # noqa: S311 - the same in every run, and does not compress
TEXT = b"a line of text\n" * 20_000
SKIPPABLE_FRAME = b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd"


def unpacked(
    data: bytes, codec: str, *, width: int = 1 << 16, limit_bytes: int = 1 << 40, ratio_max: int = 10**9
) -> bytes:
    """Return what the members in `data` hold, read in chunks of `width`."""
    chunks = (data[at : at + width] for at in range(0, len(data), width))
    return b"".join(decompressed(chunks, codec, limit_bytes=limit_bytes, ratio_max=ratio_max))


@pytest.mark.parametrize(
    ("name", "codec"),
    [
        ("a.gz", "gzip"),
        ("dir.x/a.json.GZ", "gzip"),
        ("a.csv.zst", "zstd"),
        ("a.bz2", "bzip2"),
        ("a.json.xz", "xz"),
        ("a.br", "brotli"),
        ("part-0.txt.deflate", "deflate"),
        ("part-0.txt.snappy", "snappy"),
        ("part-0.txt.lz4", "lz4"),
        ("a.Gzip", "gzip"),
        ("a.txt", None),
        ("gz", None),
        (".gz", "gzip"),
        ("a.gz.txt", None),
        ("", None),
    ],
)
def test_codec_of_a_name(name: str, codec: str | None) -> None:
    """The end of a file's name says how it is compressed, in any case."""
    assert codec_of(name) == codec


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("logs.zip", "a ZIP archive"),
        ("logs.tar", "a tar archive"),
        ("logs.tar.GZ", "a tar archive"),
        ("logs.tgz", "a tar archive"),
        ("logs.tar.zst", "a tar archive"),
        ("a.7z", "a 7-Zip archive"),
        ("a.Z", "a file of compress (.Z)"),
        ("a.json.lzo", "an LZO file"),
        ("a.sz", "a file in Snappy's framing format"),
        ("a.gz", None),
        ("a.zip.txt", None),
        ("zip", None),
        ("tar", None),
        ("", None),
    ],
)
def test_names_of_what_cannot_be_read(name: str, found: str | None) -> None:
    """Archives and codecs that we cannot decompress are recognised by name, also inside a codec that we can."""
    assert unreadable(name) == found


def test_extensions_name_their_codec() -> None:
    """Each codec is recognised by the extension that it adds; no compression adds none, and an unknown codec is refused."""
    assert [codec_of("a" + extension(codec)) for codec in [*CODECS, "none"]] == [*CODECS, None]
    with pytest.raises(OptionError, match="compression='lzo' is unknown: expected one of none, gzip"):
        extension("lzo")


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("data", [b"", b"x", TEXT, NOISE], ids=["empty", "byte", "text", "noise"])
def test_members_hold_what_was_put_in(codec: str, data: bytes) -> None:
    """Compressed data decompresses to the same data, from bytes, views and Arrow buffers; equal data gives equal bytes."""
    packed = compress(data, codec)
    assert unpacked(packed, codec) == data
    assert compress(memoryview(data), codec) == compress(pa.py_buffer(data), codec) == packed


@pytest.mark.parametrize("codec", CODECS)
@given(parts=st.lists(st.binary(max_size=50), max_size=5), width=st.integers(1, 40))
def test_members_concatenate(codec: str, parts: list[bytes], width: int) -> None:
    """Concatenated members hold their concatenated contents, whatever chunks the file is read in."""
    assert unpacked(b"".join(compress(part, codec) for part in parts), codec, width=width) == b"".join(parts)


def test_other_programs_read_the_members() -> None:
    """Each format's own library reads what we wrote: one member each, with a checksum, and gzip without a timestamp."""
    assert gzip.decompress(compress(TEXT, "gzip")) == TEXT
    assert compress(TEXT, "gzip")[4:8] == bytes(4)
    assert bz2.decompress(compress(TEXT, "bzip2")) == TEXT
    assert zstandard.decompress(compress(TEXT, "zstd")) == TEXT
    assert zstandard.get_frame_parameters(compress(TEXT, "zstd")).has_checksum


def test_frames_to_be_skipped_are_skipped() -> None:
    """Zstandard's skippable frames, which seekable files have, contain no data."""
    frame = compress(TEXT, "zstd")
    assert unpacked(SKIPPABLE_FRAME + frame + SKIPPABLE_FRAME + frame + SKIPPABLE_FRAME, "zstd") == TEXT + TEXT


@pytest.mark.parametrize("codec", CODECS)
def test_every_cut_shows(codec: str) -> None:
    """A file truncated anywhere, in its first or second member, is an error; never a shorter file."""
    member = compress(b"some lines\nof text\n" * 3, codec)
    whole = member + member
    for length in range(1, len(whole)):
        if length != len(member):
            with pytest.raises(BadFile, match=f"not a whole {codec} file"):
                unpacked(whole[:length], codec, width=7)


def test_a_cut_names_the_compressed_byte() -> None:
    """The error for a truncated file names the compressed byte up to which it was read."""
    packed = compress(NOISE, "gzip")[:-5]
    with pytest.raises(BadFile, match=f"compressed byte {len(packed)}"):
        unpacked(packed, "gzip")


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("data", [b"plain text, no member", bytes(100), b"\x1f\x8b\x08garbage", b"BZh9garbage!"])
def test_garbage_is_an_error(codec: str, data: bytes) -> None:
    """Bytes that are not a member, alone or after a whole one, are an error."""
    for before in (b"", compress(TEXT, codec)):
        with pytest.raises(BadFile, match="not a whole"):
            unpacked(before + data, codec)


@pytest.mark.parametrize("codec", CODECS)
def test_flipped_bits_show(codec: str) -> None:
    """The checksum detects a flipped bit in the data of a member that we wrote."""
    packed = bytearray(compress(NOISE, codec))
    packed[len(packed) // 2] ^= 1
    with pytest.raises(BadFile):
        unpacked(bytes(packed), codec)


@pytest.mark.parametrize("codec", CODECS)
def test_nothing_is_no_members(codec: str) -> None:
    """An empty file has no members."""
    assert unpacked(b"", codec) == b""


def bomb(codec: str) -> bytes:
    """Return a small file that unpacks to 64 MiB of zeros."""
    return compress(bytes(64 << 20), codec)


@pytest.mark.slow
@pytest.mark.parametrize("codec", CODECS)
def test_the_limit_of_bytes_stops_a_bomb(codec: str) -> None:
    """A file that decompresses to more than the limit is refused early, with the size found and the size expected."""
    taken = 0
    with pytest.raises(BadFile, match=r"more than 20\.0 MiB: found .* expected at most 20971520"):  # noqa: PT012 - counts
        for piece in decompressed([bomb(codec)], codec, limit_bytes=20 << 20, ratio_max=10**9):
            taken += len(piece)
    assert taken <= 20 << 20


@pytest.mark.slow
@pytest.mark.parametrize("codec", CODECS)
def test_the_limit_of_the_ratio_stops_a_bomb(codec: str) -> None:
    """A file that expands too many times is refused, but not before 16 MiB, which are harmless at any ratio."""
    taken = 0
    with pytest.raises(BadFile, match=r"times its size: found .* expected a ratio of at most 100"):  # noqa: PT012 - counts
        for piece in decompressed([bomb(codec)], codec, limit_bytes=1 << 40, ratio_max=100):
            taken += len(piece)
    assert 15 << 20 <= taken <= 17 << 20
    small = compress(bytes(8 << 20), codec)
    assert unpacked(small, codec, ratio_max=100) == bytes(8 << 20)


def test_pieces_are_small() -> None:
    """Output comes in pieces of at most 1 MiB whatever the file holds, so memory is bounded."""
    sizes = [len(piece) for piece in decompressed([bomb("zstd")], "zstd", limit_bytes=1 << 30, ratio_max=10**9)]
    assert sum(sizes) == 64 << 20
    assert max(sizes) <= 1 << 20


@pytest.mark.parametrize("error", [NotThere("gone"), OSError(5, "Input/output error"), zlib.error("ours")])
def test_errors_of_the_file_come_through(error: Exception) -> None:
    """Errors raised while the compressed bytes are read are not mistaken for a damaged file."""

    def chunks() -> Iterator[bytes]:
        yield compress(NOISE, "gzip")[:70_000]
        raise error

    with pytest.raises(type(error)) as caught:
        list(decompressed(chunks(), "gzip", limit_bytes=1 << 30, ratio_max=1_000))
    assert caught.value is error


def test_unknown_codecs_are_refused() -> None:
    """A codec that we do not write is refused by name."""
    with pytest.raises(OptionError, match="compression='snappy' is unknown"):
        compress(b"", "snappy")


def hadoop(data: bytes, codec: str, *, block: int = 5000, chunk: int = 2000) -> bytes:
    """Return data in Hadoop's block format, made of Snappy or LZ4 chunks."""
    pack = pa.Codec("lz4_raw" if codec == "lz4" else codec)
    out = io.BytesIO()
    for at in range(0, len(data), block):
        part = data[at : at + block]
        out.write(len(part).to_bytes(4, "big"))
        for begin in range(0, len(part), chunk):
            packed = pack.compress(part[begin : begin + chunk], asbytes=True)
            out.write(len(packed).to_bytes(4, "big") + packed)
    return out.getvalue()


def by_arrow(data: bytes, codec: str) -> bytes:
    """Return data as Arrow compresses a stream."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(data)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


MAKERS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "xz": ("xz", lzma.compress),
    "deflate": ("deflate", zlib.compress),
    "brotli": ("brotli", lambda data: by_arrow(data, "brotli")),
    "frames of lz4": ("lz4", lambda data: by_arrow(data, "lz4")),
    "blocks of lz4": ("lz4", lambda data: hadoop(data, "lz4")),
    "blocks of snappy": ("snappy", lambda data: hadoop(data, "snappy")),
}


@pytest.mark.parametrize("made", MAKERS)
@pytest.mark.parametrize("data", [b"", b"x", TEXT, NOISE], ids=["empty", "byte", "text", "noise"])
def test_files_of_other_programs(made: str, data: bytes) -> None:
    """Files compressed by other programs are read, in chunks of any width, also when they are concatenated."""
    codec, pack = MAKERS[made]
    packed = pack(data)
    for width in (13, 1 << 16):
        assert unpacked(packed, codec, width=width) == data
    assert unpacked(packed + packed, codec) == data + data
    assert unpacked(b"", codec) == b""


@pytest.mark.parametrize("made", MAKERS)
def test_every_cut_of_files_of_other_programs_shows(made: str) -> None:
    """A truncated file is an error, never a shorter file; except between whole blocks, because their number is not recorded."""
    codec, pack = MAKERS[made]
    data = TEXT[:12_000] + NOISE[:300]
    whole = pack(data)
    for length in range(1, len(whole), 1 if len(whole) < 2000 else 17):
        try:
            found = unpacked(whole[:length], codec, width=1000)
        except BadFile:
            continue
        assert made.startswith("blocks")
        assert len(found) in {5000, 10_000}
        assert data.startswith(found)


@pytest.mark.parametrize("made", MAKERS)
@pytest.mark.parametrize(
    "data",
    [b"plain text, and no member", b"{}", bytes(100), b"\xff\x06\x00\x00sNaPpY", b"\x02\x21\x4c\x18abcd"],
    ids=["text", "json", "zeros", "framed snappy", "legacy lz4"],
)
def test_garbage_in_the_name_of_other_codecs(made: str, data: bytes) -> None:
    """Text, zeros, and other framings of the same codec are errors, alone and after a whole file."""
    codec, pack = MAKERS[made]
    for before in (b"", pack(TEXT)):
        if before and codec == "xz" and not data.strip(b"\0"):
            continue  # xz allows zeros after a stream
        if not data.strip(b"\0") and (made.startswith("blocks") or (codec == "lz4" and not before)):
            assert unpacked(before + data, codec) == unpacked(
                before, codec
            )  # empty blocks, with which Hadoop ends an empty file
            continue
        with pytest.raises(BadFile, match="not a whole"):
            unpacked(before + data, codec)


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_frames_for_other_programs_are_passed_over(codec: str) -> None:
    """A skippable frame may stand before, between and after others; one that is cut is an error. LZ4's was taken for a block."""
    skipped, frame = b"\x5a\x2a\x4d\x18\x07\x00\x00\x00skipped", by_arrow(TEXT, codec)
    for width in (3, 1 << 16):
        assert unpacked(skipped + frame + skipped + frame + skipped, codec, width=width) == TEXT + TEXT
    for length in (5, 8, 14):
        with pytest.raises(BadFile, match="not a whole"):
            unpacked(skipped[:length], codec)


def test_the_legacy_form_of_lz4_is_named() -> None:
    """`lz4 -l` writes a form that is not read: the error says so, and not that a chunk is too long."""
    with pytest.raises(BadFile, match=r"legacy form of LZ4 .* pack it anew"):
        unpacked(b"\x02\x21\x4c\x18\x02\x00\x00\x00\x10x", "lz4")


@pytest.mark.parametrize("codec", ["snappy", "lz4"])
def test_blocks_that_claim_what_they_do_not_hold(codec: str) -> None:
    """Wrong lengths are errors, and no memory is allocated for a length that a file only claims."""
    chunk = hadoop(b"x" * 100, codec)[4:]
    huge = (1 << 31).to_bytes(4, "big")
    for data in ((99).to_bytes(4, "big") + chunk, huge + huge, huge + chunk, (100).to_bytes(4, "big") + bytes(4)):
        with pytest.raises(BadFile, match="not a whole"):
            unpacked(data, codec)
    claim = b"\xff\xff\xff\xff\x0f" if codec == "snappy" else b"\xff" * 200
    with pytest.raises(BadFile):
        unpacked(huge + len(claim).to_bytes(4, "big") + claim, codec)


@pytest.mark.slow
def test_xz_that_asks_for_much_memory_is_refused() -> None:
    """A dictionary of more than 256 MiB is more memory than a task allows for one file."""
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 29}]
    with pytest.raises(BadFile, match="[Mm]emory"):
        unpacked(_with_dictionary(filters), "xz")


def _with_dictionary(filters: list[dict[str, int]]) -> bytes:
    packer = lzma.LZMACompressor(filters=filters)
    return packer.compress(b"x") + packer.flush()


@pytest.mark.slow
@pytest.mark.parametrize("made", ["xz", "deflate", "brotli"])
def test_bombs_in_other_codecs(made: str) -> None:
    """The limits apply to every codec."""
    codec, pack = MAKERS[made]
    with pytest.raises(BadFile, match="unpacks to"):
        unpacked(pack(bytes(1 << 26)), codec, ratio_max=100)


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_what_does_not_compress_grows_by_so_much(codec: str) -> None:
    """A part is closed before the record that could exceed its limit: incompressible data grows by no more than the stated bound."""
    for size in (0, 1, 7, 40, 99, 1000, 4096, 70_000, 200_000):
        assert len(compress(NOISE[:size], codec)) <= size + expansion(size)


@pytest.mark.slow
@pytest.mark.parametrize(("codec", "levels"), [("gzip", range(1, 10)), ("zstd", (1, 3, 9, 19, 22))])
def test_levels(codec: str, levels: Iterable[int]) -> None:
    """Every level gives a member that others read, and the same bytes for the same data; a high level is smaller than the lowest."""
    chance = random.Random(7)  # noqa: S311 - repeatable
    words = [chance.randbytes(chance.randrange(2, 9)).hex() for _ in range(2000)]
    data = "".join(f"{' '.join(chance.choices(words, k=6))}\n" for _ in range(4_000)).encode()
    sizes = []
    for level in levels:
        packed = compress(data, codec, level)
        assert compress(data, codec, level) == packed
        with pa.input_stream(pa.BufferReader(packed + packed), compression=codec) as stream:
            assert stream.read() == data * 2
        sizes.append(len(packed))
    assert sizes[-1] < sizes[0]
