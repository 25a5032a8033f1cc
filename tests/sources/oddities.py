"""Healthy videos in which one packet is not always one frame, made by the ``ffmpeg`` command.

If no available encoder makes an oddity (field pairs, packed B-frames), we write its bits here.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av

FRAMES = 20
PICTURES = ["-f", "lavfi", "-i", f"testsrc2=size=64x48:rate=25:duration={FRAMES / 25}"]


def ffmpeg(*arguments: object) -> None:
    words = [word if isinstance(word, bytes) else str(word) for word in arguments]
    subprocess.run(["ffmpeg", "-v", "error", "-nostdin", "-y", *words], check=True)


def encode(path: Path, *options: str) -> int:
    """Encode the moving test picture with these options. Return the number of frames."""
    ffmpeg(*PICTURES, "-pix_fmt", "yuv420p", *options, path)
    return FRAMES


SOUND = ("-f", "lavfi", "-i", f"sine=duration={FRAMES / 25}")


def write_parts(path: Path, encoder: Sequence[str], *parts: Sequence[str]) -> Path:
    """Encode the test picture and a sound once for each of ``parts``, with the part's options. Join
    the results like ``cat``. By default, the times of a part continue those of the part before."""
    data = b""
    for number, options in enumerate(parts):
        part = path.with_name(f"part-{path.name}")
        later = "-output_ts_offset", f"{number * FRAMES / 25}"
        ffmpeg(*PICTURES, *SOUND, "-pix_fmt", "yuv420p", *encoder, *later, *options, part)
        data += part.read_bytes()
    path.write_bytes(data)
    return path


def cut_front(whole: Path, path: Path, packets: int) -> None:
    """Copy ``whole`` without its first packets, like a recording that begins later."""
    with (
        av.open(str(whole)) as source,
        av.open(str(path), "w", format=source.format.name.split(",")[0]) as target,
    ):
        stream = target.add_stream_from_template(source.streams.video[0])
        for number, packet in enumerate(source.demux(video=0)):
            if packet.size and number >= packets:
                packet.stream = stream
                target.mux(packet)


def open_gop(path: Path, *options: str) -> int:
    """Write a video whose first key frame is followed by pictures that lack their references."""
    whole = path.with_name(f"whole-{path.name}")
    ffmpeg(*PICTURES, "-pix_fmt", "yuv420p", *options, whole)
    with av.open(str(whole)) as container:
        packets = [packet for packet in container.demux(video=0) if packet.size]
    second_key = [n for n, packet in enumerate(packets) if packet.is_keyframe][1]
    cut_front(whole, path, second_key)
    first_shown = packets[second_key].pts
    leading = [p for p in packets[second_key:] if p.pts < first_shown]
    assert leading, f"{path.name} has no open GOP"
    return len(packets) - second_key - len(leading)


def longer_sound(path: Path) -> int:
    """Write a video with longer sound. The duration in the container is that of the sound."""
    sound = ["-f", "lavfi", "-i", "sine=duration=3", "-c:a", "aac"]
    ffmpeg(*PICTURES, *sound, "-pix_fmt", "yuv420p", "-c:v", "libx264", path)
    return FRAMES


def dropped(path: Path, *options: str) -> int:
    encode(path, "-vf", "select=not(mod(n\\,3))", "-fps_mode", "vfr", *options)
    return (FRAMES + 2) // 3


class Bits:
    """A writer of bits; methods are named like the descriptors of video standards."""

    def __init__(self) -> None:
        self.text = ""

    def u(self, width: int, value: int) -> Bits:
        self.text += f"{value:0{width}b}"
        return self

    def ue(self, *values: int) -> Bits:
        for value in values:
            self.text += f"{value + 1:b}".zfill(2 * (value + 1).bit_length() - 1)
        return self

    def align(self, bit: str = "0") -> Bits:
        self.text += bit * (-len(self.text) % 8)
        return self

    def close(self) -> bytes:
        """Add the stop bit."""
        self.text += "1"
        self.align()
        return bytes(self)

    def __bytes__(self) -> bytes:
        return int(self.text, 2).to_bytes(len(self.text) // 8, "big")


def nal(kind: int, payload: bytes) -> bytes:
    for last in range(4):  # emulation prevention
        payload = payload.replace(bytes([0, 0, last]), bytes([0, 0, 3, last]))
    return b"\0\0\0\1" + bytes([0x60 | kind]) + payload


def h264_fields(path: Path) -> int:
    """Write frames of two field pictures, one in each packet: 64x64, raw macroblocks."""
    sps = Bits().u(8, 77).u(8, 0).u(8, 30).ue(0, 0, 2, 1).u(1, 0).ue(3, 1)
    sps.u(1, 0).u(1, 0).u(1, 1).u(1, 0).u(1, 0)  # fields; no MBAFF; direct 8x8; no crop, no VUI
    pps = Bits().ue(0, 0).u(1, 0).u(1, 0).ue(0, 0, 0).u(1, 0).u(2, 0).ue(0, 0, 0).u(3, 0b000)
    stream = nal(7, sps.close()) + nal(8, pps.close())
    for frame in range(FRAMES):
        for bottom in (0, 1):
            slice_ = Bits().ue(0, 7, 0).u(4, 0).u(1, 1).u(1, bottom)
            slice_.ue(frame % 2).u(1, 0).u(1, 0).ue(0)  # idr_pic_id; marking; delta QP
            for number in range(8):
                slice_.ue(25).align()
                shade = (frame * 9 + number * 16) % 200 + 20
                slice_.text += "".join(f"{shade:08b}" * 256 + f"{128:08b}" * 128)
            stream += nal(5, slice_.close())
    raw = path.with_suffix(".h264")
    raw.write_bytes(stream)
    ffmpeg("-r", "25", "-i", raw, "-c", "copy", path)
    return FRAMES


def mpeg2_fields(path: Path) -> int:
    """Write frames of two field pictures: 64x64, grey."""
    start = b"\0\0\1"
    head = Bits().u(12, 64).u(12, 64).u(4, 1).u(4, 3).u(18, 2000).u(1, 1).u(10, 20).u(3, 0)
    extension = Bits().u(4, 1).u(8, 0x48).u(1, 0).u(2, 1).u(4, 0).u(12, 0).u(1, 1).u(8, 0).u(8, 0)
    stream = start + b"\xb3" + bytes(head.align()) + start + b"\xb5" + bytes(extension.align())
    for frame in range(FRAMES):
        for structure in (1, 2):  # top, bottom
            picture = Bits().u(10, frame).u(3, 1).u(16, 0xFFFF).u(1, 0)
            coding = Bits().u(4, 8).u(16, 0xFFFF).u(2, 0).u(2, structure).u(10, 0)
            stream += start + b"\0" + bytes(picture.align())
            stream += start + b"\xb5" + bytes(coding.align())
            for row in (1, 2):
                macroblocks = "1" + "1" + "10010" * 4 + "0010" * 2
                slice_ = Bits().u(5, 8).u(1, 0)
                slice_.text += macroblocks * 4
                stream += start + bytes([row]) + bytes(slice_.align())
    raw = path.with_suffix(".m2v")
    raw.write_bytes(stream + start + b"\xb7")
    ffmpeg("-i", raw, "-c", "copy", path)
    return FRAMES


def n_vop(resolution_bits: int, time: int) -> bytes:
    """Return an MPEG-4 ASP picture without content. It repeats the previous picture."""
    bits = Bits().u(2, 1).u(1, 0).u(1, 1).u(resolution_bits, time).u(1, 1).u(1, 0)
    bits.text += "0"
    bits.align("1")
    return b"\0\0\1\xb6" + bytes(bits)


def write_avi(path: Path, template: Path, chunks: Iterable[bytes], extradata: bytes = b"") -> None:
    """Write an AVI of these chunks, one per frame, with the stream settings of ``template``."""
    with av.open(str(template)) as source, av.open(str(path), "w") as target:
        stream: Any = target.add_stream_from_template(source.streams.video[0])
        if extradata:
            stream.codec_context.extradata = extradata
        for number, chunk in enumerate(chunks):
            packet = av.Packet(chunk)
            packet.stream, packet.time_base = stream, Fraction(1, 25)
            packet.pts = packet.dts = number
            packet.duration = 1
            target.mux(packet)


def packed_b_frames(path: Path) -> int:
    """Write B-frames like DivX: two pictures in one chunk, and later a chunk without content."""
    plain = path.with_name("plain.avi")
    encode(plain, "-c:v", "mpeg4", "-bf", "1", "-g", "50", "-sc_threshold", "1000000000")
    with av.open(str(plain)) as container:
        data = [bytes(packet) for packet in container.demux(video=0) if packet.size]
        extradata = container.streams.video[0].codec_context.extradata or b""
    is_b = [chunk[chunk.index(b"\0\0\1\xb6") + 4] >> 6 == 2 for chunk in data]
    assert any(is_b)
    user = b"\0\0\1\xb2DivX503b1393p"
    chunks = []
    for number, chunk in enumerate(data):
        if is_b[number]:
            chunks.append(n_vop(5, 0))
        elif number + 1 < len(data) and is_b[number + 1]:
            chunks.append((user if number < 2 else b"") + chunk + data[number + 1])
        else:
            chunks.append((user if number < 2 else b"") + chunk)
    write_avi(path, plain, chunks, extradata + user)
    return FRAMES


def no_change(path: Path) -> int:
    """Write a video in which every third picture only repeats the previous one."""
    plain = path.with_name("without.avi")
    encode(plain, "-c:v", "mpeg4", "-g", "50")
    with av.open(str(plain)) as container:
        data = [bytes(packet) for packet in container.demux(video=0) if packet.size]
    chunks = [n_vop(5, n % 25) if n % 3 == 2 else chunk for n, chunk in enumerate(data)]
    write_avi(path, plain, chunks)
    return FRAMES - sum(n % 3 == 2 for n in range(len(data)))


def _encoded(*options: str) -> Callable[[Path], int]:
    return lambda path: encode(path, *options)


def _open_gop(*options: str) -> Callable[[Path], int]:
    return lambda path: open_gop(path, *options)


X264_OPEN = ("-c:v", "libx264", "-x264-params", "open-gop=1:keyint=10:min-keyint=10:bframes=3")
X265_OPEN = ("-c:v", "libx265", "-x265-params", "log-level=0:open-gop=1:keyint=10:bframes=3")
MPEG2_OPEN = ("-c:v", "mpeg2video", "-bf", "2", "-g", "9")
ALT_REF = ("-auto-alt-ref", "1", "-lag-in-frames", "16", "-b:v", "50k")
# File name -> function that writes the file and returns its number of frames.
ODDITIES: dict[str, Callable[[Path], int]] = {
    "vp9-hidden.webm": _encoded("-c:v", "libvpx-vp9", *ALT_REF),
    "vp9-hidden.mp4": _encoded("-c:v", "libvpx-vp9", *ALT_REF),
    "vp8-hidden.webm": _encoded("-c:v", "libvpx", *ALT_REF),
    "av1-aom.mkv": _encoded("-c:v", "libaom-av1", "-cpu-used", "8", "-lag-in-frames", "10"),
    "av1-svt.mp4": _encoded("-c:v", "libsvtav1", "-preset", "12", "-s", "64x64"),
    "h264-fields.mkv": h264_fields,
    "h264-fields.ts": h264_fields,
    "h264-fields.mp4": h264_fields,
    "h264-mbaff.ts": _encoded("-c:v", "libx264", "-flags", "+ilme+ildct"),
    "mpeg2-fields.mpg": mpeg2_fields,
    "longer-sound.mp4": longer_sound,
    "longer-sound.mkv": longer_sound,
    "open-gop-h264.ts": _open_gop(*X264_OPEN),
    "open-gop-h264.mkv": _open_gop(*X264_OPEN),
    "open-gop-hevc.ts": _open_gop(*X265_OPEN),
    "open-gop-hevc.mkv": _open_gop(*X265_OPEN),
    "open-gop-mpeg2.ts": _open_gop(*MPEG2_OPEN),
    "packed-b.avi": packed_b_frames,
    "n-vop.avi": no_change,
    "dropped-mpeg4.avi": lambda path: dropped(path, "-c:v", "mpeg4"),
    "dropped-h264.avi": lambda path: dropped(path, "-c:v", "libx264", "-bf", "0"),
    "dropped-mjpeg.avi": lambda path: dropped(path, "-c:v", "mjpeg", "-pix_fmt", "yuvj420p"),
    "theora.ogv": _encoded("-vf", "noise=alls=40:allf=t", "-c:v", "libtheora", "-q:v", "9"),
    "still.gif": _encoded("-vf", "select=1", "-pix_fmt", "rgb8"),
    "plain.y4m": _encoded(),
    "raw.h264": _encoded("-c:v", "libx264"),
    "raw.hevc": _encoded("-c:v", "libx265", "-x265-params", "log-level=0"),
    "raw.m4v": _encoded("-c:v", "mpeg4"),
    "raw.mjpeg": _encoded("-c:v", "mjpeg", "-pix_fmt", "yuvj420p"),
    "flv1.flv": _encoded("-c:v", "flv"),
    "h264.flv": _encoded("-c:v", "libx264"),
    "wmv2.wmv": _encoded("-c:v", "wmv2"),
    "msmpeg4.avi": _encoded("-c:v", "msmpeg4"),
    "xvid.avi": _encoded("-c:v", "libxvid", "-bf", "0"),
    "fragmented.mov": _encoded(
        "-c:v", "libx264", "-g", "5", "-movflags", "+frag_keyframe+empty_moov"
    ),
    "fragmented.mp4": _encoded("-c:v", "libx264", "-g", "5", "-movflags", "+frag_keyframe"),
    "live.webm": _encoded("-c:v", "libvpx-vp9", "-live", "1", "-f", "webm"),
    "prores.mov": _encoded("-c:v", "prores", "-pix_fmt", "yuv422p10le"),
    "ffv1.mkv": _encoded("-c:v", "ffv1"),
}
