"""The bytes of a key frame tell what it promises about later frames."""

import av
import pytest

from detector.core.sources.video._keys import KeyReader, Promise
from detector.core.sources.video._packets import PictureRule

CLEAN, OPEN, NONE = Promise.CLEAN, Promise.OPEN, Promise.NONE
START = b"\0\0\1"
IDR, SLICE, SPS = START + b"\x65\x88", START + b"\x41\x9a", START + b"\x67\x64"
USER_DATA = b"\5\3abc"  # an SEI message with three bytes


def sei(*messages: bytes) -> bytes:
    return START + b"\6" + b"".join(messages) + b"\x80"


def nal(kind: int) -> bytes:
    return START + bytes([kind << 1, 1, 0x80])


def reader(codec: str, extradata: bytes = b"") -> KeyReader:
    return KeyReader(codec, PictureRule(codec, extradata), extradata)


@pytest.mark.parametrize(
    ("codec", "data", "promise"),
    [
        ("h264", SPS + IDR, CLEAN),
        # Bits of a recovery point: frame count (Exp-Golomb), exact, broken link, 2 more, stop bit.
        ("h264", sei(b"\6\1\xc4") + SLICE, OPEN),  # 0 frames, exact
        ("h264", sei(USER_DATA, b"\6\1\xc4") + SLICE, OPEN),
        ("h264", sei(b"\5\xff\1" + b"a" * 256, b"\6\1\xc4") + SLICE, OPEN),  # after 256 other bytes
        ("h264", sei(b"\6\1\x84") + SLICE, NONE),  # not exact
        ("h264", sei(b"\6\1\xe4") + SLICE, NONE),  # broken link
        ("h264", sei(b"\6\2\x11\x10") + SLICE, NONE),  # 7 frames: a gradual refresh
        ("h264", sei(b"\6\x09\xc4") + SLICE, OPEN),  # a wrong size, but the bits are there
        ("h264", sei(b"\6\1") + SLICE, NONE),  # cut off
        ("h264", SLICE, NONE),
        ("h264", SLICE + sei(b"\6\1\xc4"), NONE),  # the SEI belongs to the next picture
        ("h264", b"", NONE),
        ("hevc", nal(33) + nal(19), CLEAN),
        ("hevc", nal(20), CLEAN),
        ("hevc", nal(21), OPEN),
        ("hevc", nal(1), NONE),
        ("vp9", b"\x82\x49", CLEAN),
        ("vp9", b"\x86\x00", NONE),  # not a key frame
        ("vp9", b"\x8a\x00", NONE),  # shows an already decoded picture
        ("av1", b"\x12\0\x0a\1\0\x32\1\x10", CLEAN),  # delimiter, sequence, frame
        ("av1", b"\x12\0\x1a\1\x10", CLEAN),  # only a frame's header
        ("av1", b"\x12\0\x36\0\1\x10", CLEAN),  # with an extension
        ("av1", b"\x12\0\x30\x10", CLEAN),  # without a size
        ("av1", b"\x12\0\x32\1\x30", NONE),  # not a key frame
        ("av1", b"\x12\0\x32\1\0", NONE),  # a key frame that is shown later
        ("av1", b"\x12\0\x32\1\x90", NONE),  # shows an already decoded picture
        ("av1", b"\x12\0\x32" + b"\xff" * 40, NONE),  # an endless size
        ("av1", b"\x12\0", NONE),
        ("mpeg4", b"\0\0\1\xb6", CLEAN),
    ],
)
def test_bytes_of_a_key_frame_decide_its_promise(codec: str, data: bytes, promise: Promise) -> None:
    assert reader(codec).promise(av.Packet(data)) is promise


@pytest.mark.parametrize(
    ("codec", "first", "second"),
    [
        ("h264", SPS, START + b"\x67\x65"),
        ("hevc", nal(33) + b"\1", nal(33) + b"\2"),
        ("av1", b"\x0a\1\1", b"\x0a\1\2"),
    ],
)
def test_changed_parameters_are_detected(codec: str, first: bytes, second: bytes) -> None:
    keys, known = reader(codec), reader(codec, second if codec == "av1" else b"")
    changes = [
        keys.changes_parameters(av.Packet(data)) for data in (first, first, b"\x12\0", second)
    ]
    assert changes == [False, False, False, True]
    assert not known.changes_parameters(av.Packet(first))  # the first packet cannot change anything


def test_parameters_of_the_header_are_known() -> None:
    unit = b"\x0a\1\2"
    keys = reader("av1", b"\x81\0\0\0" + unit)
    assert not keys.changes_parameters(av.Packet(b"\x12\0"))
    assert not keys.changes_parameters(av.Packet(unit))
