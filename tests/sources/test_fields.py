"""The first bytes of a packet tell which field of a frame it contains."""

import random

import av
import pytest

from detector.core.sources.video._fields import BitReader, Field, FieldReader
from detector.core.sources.video._packets import PictureRule

from .oddities import FRAMES, ODDITIES, Bits


def fields_of(path):
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        rule = PictureRule(stream.codec_context.name, stream.codec_context.extradata)
        return [rule.fields.read(p) for p in container.demux(stream) if p.size], rule.fields.knows


@pytest.mark.parametrize("suffix", ["mkv", "ts", "mp4"])
def test_fields_of_h264_alternate_and_complete_each_other(tmp_path, suffix):
    ODDITIES[f"h264-fields.{suffix}"](tmp_path / f"x.{suffix}")
    fields, knows = fields_of(tmp_path / f"x.{suffix}")
    assert knows
    assert [field.bottom for field in fields] == [False, True] * FRAMES
    for first, second in zip(fields[::2], fields[1::2], strict=True):
        assert second.completes(first)
        assert not first.completes(first)


@pytest.mark.parametrize("name", ["h264-mbaff.ts", "mpeg2-fields.mpg"])
def test_packet_of_a_whole_frame_has_no_field(tmp_path, name):
    """FFmpeg joins the two fields of MPEG-2 into one packet."""
    ODDITIES[name](tmp_path / name)
    fields, knows = fields_of(tmp_path / name)
    assert knows
    assert fields == [None] * FRAMES


def test_mpeg2_fields_in_separate_packets_are_read(tmp_path):
    path = tmp_path / "x.mpg"
    ODDITIES["mpeg2-fields.mpg"](path)
    pictures = path.with_suffix(".m2v").read_bytes().split(b"\0\0\1\0")[1:]
    reader = FieldReader("mpeg2video", b"", 0)
    fields = [reader.read(b"\0\0\1\0" + picture) for picture in pictures]
    assert [field.bottom for field in fields] == [False, True] * FRAMES
    assert [field.picture for field in fields] == [n for n in range(FRAMES) for _ in (0, 1)]


@pytest.mark.parametrize("number", [0, 1, 2, 7, 8, 255, 65534])
def test_golomb_numbers_are_read(number):
    bits = BitReader(bytes(Bits().ue(number).u(5, 21).align()))
    assert (bits.golomb(), bits.take(5)) == (number, 21)


def test_sps_with_scaling_lists_is_read_completely():
    """An SPS of the High profile may have eight scaling lists. Each list here repeats one value."""
    head = Bits().u(8, 100).u(8, 0).u(8, 40).ue(0, 1, 0, 0).u(1, 0).u(1, 1)
    for _ in range(8):
        head.u(1, 1).ue(0).ue(16)  # the deltas +0 and -8; -8 means: repeat the last value
    head.ue(5, 0, 0, 4).u(1, 0).ue(119, 33).u(1, 0).u(1, 1)
    slice_ = Bits().ue(0, 7, 0).u(9, 300).u(1, 1).u(1, 1)
    reader = FieldReader("h264", b"\0\0\1\x67" + head.close(), 0)
    assert reader.knows
    assert reader.read(b"\0\0\1\x65" + slice_.close()) == Field(True, 300)


def test_field_reader_survives_random_bytes():
    rng = random.Random(0)
    for _ in range(300):
        noise = rng.randbytes(rng.randrange(60))
        for length_bytes in (0, 1, 4):
            reader = FieldReader("h264", b"\1" + noise, length_bytes)
            reader.read(b"\0\0\1\x67" + noise)
            reader.read(b"\0\0\1\x65" + noise)
        FieldReader("mpeg2video", noise, 0).read(b"\0\0\1\0" + noise)
