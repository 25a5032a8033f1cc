#!/usr/bin/env bash
# A clip cut by "ffmpeg -ss 1.5 -c copy" has two lengths; decord fills the difference with copies of its last picture.
#
# One would guess: a player shows it from the cut on, and every library gives the frames that a player shows. Or all
# begin at the key frame before the cut, which the file has to contain.
#
# True: an edit list in the MP4 hides the frames between key frame and cut. OpenCV and PyAV decode the 75 that are
# shown, but their counts (CAP_PROP_FRAME_COUNT, stream.frames) say 90, for those count samples. decord 0.6.0 gives 90:
# the 75, then the last one 15 times more; and its times are those of the samples: -0.5 s for the first picture shown.
#
# Why it matters: a loop to the count ends in failed reads, or evaluates 15 copies of one picture as if they were video,
# and the times of decord are half a second off those of OpenCV, so labels joined by time miss.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q av==18.1.0 opencv-python-headless==4.14.0.94 decord==0.6.0 imageio-ffmpeg==0.8.1 numpy
cd "$folder"
"$folder/venv/bin/python" - <<'PY'
import subprocess
from importlib.metadata import version

import av
import cv2
import decord
import imageio_ffmpeg
import numpy as np

print(*(f"{one} {version(one)}" for one in ("av", "opencv-python-headless", "decord", "imageio-ffmpeg")), sep=", ")
with av.open("whole.mp4", "w") as container:
    stream = container.add_stream("libx264", 30, options={"g": "30", "bf": "2", "qp": "0"})
    stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
    for number in range(120):  # a grey for each picture: 10, 12, 14 ...
        picture = np.full((64, 64, 3), 10 + 2 * number % 240, np.uint8)
        container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, "rgb24")))
    container.mux(stream.encode())
ffmpeg = imageio_ffmpeg.get_ffmpeg_exe()
subprocess.run([ffmpeg, "-v", "error", "-ss", "1.5", "-i", "whole.mp4", "-c", "copy", "cut.mp4"], check=True)


def number_of(picture):
    return round((float(np.mean(picture)) - 10) / 2)


capture, by_opencv = cv2.VideoCapture("cut.mp4"), []
said = round(capture.get(cv2.CAP_PROP_FRAME_COUNT))
while (read := capture.read())[0]:
    by_opencv.append(number_of(read[1]))
with av.open("cut.mp4") as container:
    counted = container.streams.video[0].frames
    by_pyav = [number_of(frame.to_ndarray(format="rgb24")) for frame in container.decode(video=0)]
reader = decord.VideoReader("cut.mp4")
by_decord = [number_of(reader[at].asnumpy()) for at in range(len(reader))]
begins = float(reader.get_frame_timestamp(0)[0])
print(f"OpenCV says {said}, gives {len(by_opencv)}, the first is picture {by_opencv[0]}")
print(f"PyAV   says {counted}, gives {len(by_pyav)}, the first is picture {by_pyav[0]}")
print(f"decord says {len(reader)}, the first is picture {by_decord[0]} at {begins:.2f} s, the end {by_decord[-18:]}")
assert (said, len(by_opencv), by_opencv[0]) == (90, 75, 45)
assert (counted, len(by_pyav), by_pyav[0]) == (90, 75, 45)
assert by_decord == by_opencv + 15 * [119] and begins == -0.5
PY
