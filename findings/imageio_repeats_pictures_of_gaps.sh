#!/usr/bin/env bash
# imageio's FFmpeg reader: a video of 60 pictures at variable rate is read as 178, with a rate that fits neither.
#
# One would guess: the reader gives the pictures of the file, as imageio's own PyAV plugin does, and count_frames() and
# `fps` of its metadata describe what it gives.
#
# True (imageio 2.38.1): it runs ffmpeg, which fills gaps with repeated pictures at the rate of the header (30). The
# reader gives 178 pictures; count_frames() says 60 and `fps` says 10.11, the average of the file. So picture i is shown
# neither at i / fps nor is it picture i of the file: by i / fps the video of 5.9 s would last 17.6 s.
#
# Why it matters: many training and evaluation scripts read this way. Detection runs three times as often as needed,
# labels by number of picture are off after the first gap, and speeds and times that are computed with `fps` are wrong
# by a factor of three. Use plugin="pyav".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q av==18.1.0 imageio==2.38.1 imageio-ffmpeg==0.8.1 numpy
cd "$folder"
"$folder/venv/bin/python" - <<'PY'
from fractions import Fraction
from importlib.metadata import version

import av
import imageio.v2
import imageio.v3
import numpy as np

print(*(f"{one} {version(one)}" for one in ("av", "imageio", "imageio-ffmpeg")), sep=", ")
TIMES = [33 * number for number in range(30)] + [3000 + 100 * number for number in range(30)]  # milliseconds
with av.open("x.mp4", "w") as container:
    stream = container.add_stream("libx264", 30, options={"g": "30", "bf": "0", "qp": "0"})
    stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
    stream.codec_context.time_base = Fraction(1, 1000)
    for number, time in enumerate(TIMES):  # a grey for each picture: 10, 13, 16 ...
        frame = av.VideoFrame.from_ndarray(np.full((64, 64, 3), 10 + 3 * number, np.uint8), "rgb24")
        frame.pts, frame.time_base = time, Fraction(1, 1000)
        container.mux(stream.encode(frame))
    container.mux(stream.encode())


def number_of(picture):
    return round((float(np.mean(picture)) - 10) / 3)


reader = imageio.v2.get_reader("x.mp4", "ffmpeg")
counted, rate = reader.count_frames(), reader.get_meta_data()["fps"]
by_ffmpeg = [number_of(picture) for picture in reader]
by_pyav = [number_of(picture) for picture in imageio.v3.imiter("x.mp4", plugin="pyav")]
print(f"plugin pyav: {len(by_pyav)} pictures; picture 45 is {by_pyav[45]}")
print(f"plugin ffmpeg: count_frames() {counted}, fps {rate}; {len(by_ffmpeg)} pictures; picture 45 is {by_ffmpeg[45]}")
assert by_pyav == list(range(60)) and counted == 60 and round(rate, 1) == 10.1
assert len(by_ffmpeg) == 178 and by_ffmpeg[45] == 29, "the reader has changed"
PY
