#!/usr/bin/env bash
# OpenCV: seeking to a time in a video of variable rate lands seconds away, or nowhere.
#
# One would guess: set(CAP_PROP_POS_MSEC, 3000) goes to the picture that is shown at 3 s. OpenCV knows the times: after
# each read() the same property tells that of the picture, rightly, in the same file.
#
# True: OpenCV multiplies the time by the file's average rate and seeks to the frame of that number. In an MP4 with 30
# pictures of the first second, a gap of two and ten a second after it, 1.5 s gives the picture of 0.5 s. In MKV the
# rate is another one (30, that of the header): 1.5 s gives the picture of 4.5 s, and from 3 s on every read() fails.
# Seeking by number is exact in both.
#
# Why it matters: phones, screen recorders and cameras with motion detection write such files. Pictures that are cut out
# for labels by time, and crops of events, show another moment. Read on and compare the time after each read().
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q av==18.1.0 opencv-python-headless==4.14.0.94 numpy
cd "$folder"
"$folder/venv/bin/python" - <<'PY'
from fractions import Fraction
from importlib.metadata import version

import av
import cv2
import numpy as np

print(*(f"{one} {version(one)}" for one in ("av", "opencv-python-headless")), sep=", ")
TIMES = [33 * number for number in range(30)] + [3000 + 100 * number for number in range(30)]  # milliseconds


def write(path):
    with av.open(path, "w") as container:
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


landed = {}
for path in ("x.mp4", "x.mkv"):
    write(path)
    capture, read = cv2.VideoCapture(path), []
    while (picture := capture.read())[0]:
        read.append((number_of(picture[1]), round(capture.get(cv2.CAP_PROP_POS_MSEC))))
    assert read == list(enumerate(TIMES)), "times in order are right"
    for wanted in (1500, 3000, 4000):
        capture = cv2.VideoCapture(path)
        rate = capture.get(cv2.CAP_PROP_FPS)
        capture.set(cv2.CAP_PROP_POS_MSEC, wanted)
        came, picture = capture.read()
        landed[path, wanted] = TIMES[number_of(picture)] if came else None
        print(f"{path} (rate {rate:.2f}): wanted {wanted} ms, got the picture of {landed[path, wanted]} ms")
    for number in (5, 30, 45, 59):
        capture.set(cv2.CAP_PROP_POS_FRAMES, number)
        assert number_of(capture.read()[1]) == number
assert landed["x.mp4", 1500] == 495 and landed["x.mkv", 1500] == 4500 and landed["x.mkv", 3000] is None, landed
PY
