#!/usr/bin/env bash
# FFmpeg's FLV reader: a text of 1,024 bytes or more in the metadata is an error, and what follows it is lost.
#
# One would guess: such a text is read, cut or skipped, since the format allows 65,535 bytes (Adobe's FLV specification
# 10.1, SCRIPTDATASTRING has a 16-bit length), and a file whose pictures all decode logs no errors.
#
# True (FFmpeg 8, libavformat 62.12, in PyAV 18.1.0): up to 1,023 bytes the text is read. From 1,024 on FFmpeg logs the
# error "AMF_DATA_TYPE_STRING parsing failed", drops the text and every value after it (here the title), and decodes all
# pictures. The order of the values decides what is lost.
#
# Why it matters: GStreamer's flvmux (1.22) reserves place in the metadata with a filler of 2,272 bytes, so its intact
# recordings log an error. Programs that count FFmpeg's errors to find damaged files (nothing else reveals a concealed
# picture) call all of these damaged.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q av==18.1.0 numpy
cd "$folder"
"$folder/venv/bin/python" - <<'PY'
import struct
from importlib.metadata import version

import av
import av.logging
import numpy as np

print(f"av {version('av')} with FFmpeg's libavformat {'.'.join(map(str, av.library_versions['libavformat']))}")
with av.open("plain.flv", "w") as container:
    stream = container.add_stream("flv", 25)
    stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
    for number in range(10):
        frame = av.VideoFrame.from_ndarray(np.full((64, 64, 3), 20 * number, np.uint8), "rgb24")
        container.mux(stream.encode(frame))
    container.mux(stream.encode())
plain = open("plain.flv", "rb").read()


def text(value):
    return struct.pack(">H", len(value)) + value.encode()


def with_comment(length):
    """Insert a metadata tag: an array of comment, title and duration, in this order."""
    fields = [("comment", b"\x02" + text("x" * length)), ("title", b"\x02" + text("Gate 3"))]
    fields.append(("duration", b"\x00" + struct.pack(">d", 77.0)))
    body = b"\x02" + text("onMetaData") + b"\x08" + struct.pack(">I", len(fields))
    body += b"".join(text(name) + value for name, value in fields) + b"\x00\x00\x09"
    tag = b"\x12" + struct.pack(">I", len(body))[1:] + bytes(7) + body
    return plain[:13] + tag + struct.pack(">I", len(tag)) + plain[13:]


def read(length):
    with open("x.flv", "wb") as file:
        file.write(with_comment(length))
    av.logging.set_level(av.logging.ERROR)
    av.logging.set_skip_repeated(False)
    with av.logging.Capture() as logged, av.open("x.flv") as container:
        pictures = sum(1 for _ in container.decode(video=0))
        tags = {name: value[:20] for name, value in container.metadata.items()}
        errors = [message.strip() for level, _, message in logged if level <= av.logging.ERROR]
    print(f"comment of {length} bytes: {pictures} pictures, metadata {tags}, errors {errors}")
    return pictures, tags, errors


ERROR = ["AMF_DATA_TYPE_STRING parsing failed"]
for length in (1000, 1023):
    pictures, tags, errors = read(length)
    assert (pictures, tags["title"], "comment" in tags, errors) == (10, "Gate 3", True, [])
for length in (1024, 3000):
    pictures, tags, errors = read(length)
    assert (pictures, "title" in tags, "comment" in tags, errors) == (10, False, False, ERROR), "it has changed"
PY
