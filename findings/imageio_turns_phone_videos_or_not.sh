#!/usr/bin/env bash
# imageio: of its two readers of videos one turns the picture as the file asks for, the other one does not.
#
# One would guess: the plugin is a matter of speed. imageio.v3.imread("x.mp4") gives the picture that a player shows,
# whichever of the two is named or installed.
#
# True (imageio 2.38.1): the plugin FFMPEG turns a video that was recorded upright (display matrix of 90 degrees), as
# OpenCV does, and gives 64x32 for it. The plugin pyav gives the stored 32x64, lying on its side; neither immeta() nor
# improps() of it says that there is something to turn. FFMPEG is taken first if its package (imageio-ffmpeg) is there.
#
# Why it matters: nearly every phone records upright like this. Networks find far fewer people who lie on their side,
# and labels that were drawn in one reader's pictures do not fit the other's.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q av==18.1.0 imageio==2.38.1 imageio-ffmpeg==0.8.1 opencv-python-headless==4.14.0.94
cd "$folder"
"$folder/venv/bin/python" - <<'PY'
import subprocess
from importlib.metadata import version

import av
import cv2
import imageio.v3
import imageio_ffmpeg
import numpy as np

print(*(f"{one} {version(one)}" for one in ("imageio", "imageio-ffmpeg", "av", "opencv-python-headless")), sep=", ")
stored = np.zeros((32, 64, 3), np.uint8)
stored[:16, :32] = 255  # the quarter at the top left is white
with av.open("flat.mp4", "w") as container:
    stream = container.add_stream("libx264", 30)
    stream.width, stream.height, stream.pix_fmt = 64, 32, "yuv420p"
    for _ in range(10):
        container.mux(stream.encode(av.VideoFrame.from_ndarray(stored, "rgb24")))
    container.mux(stream.encode())
ffmpeg = imageio_ffmpeg.get_ffmpeg_exe()
command = [ffmpeg, "-v", "error", "-display_rotation", "90", "-i", "flat.mp4", "-c", "copy", "x.mp4"]
subprocess.run(command, check=True)


def describe(picture):
    """The shape, and which quarter is white."""
    height, width = picture.shape[:2]
    for name, y, x in (("top left", 4, 4), ("top right", 4, -4), ("bottom left", -4, 4), ("bottom right", -4, -4)):
        if picture[y, x, 0] > 128:
            return height, width, name


seen = {
    "OpenCV": describe(cv2.VideoCapture("x.mp4").read()[1]),
    "imageio FFMPEG": describe(imageio.v3.imread("x.mp4", plugin="FFMPEG", index=0)),
    "imageio pyav": describe(imageio.v3.imread("x.mp4", plugin="pyav", index=0)),
}
by_default = describe(imageio.v3.imread("x.mp4", index=0))
for name, what in (*seen.items(), ("imageio without plugin=", by_default)):
    print(f"{name:24} height, width, white quarter: {what}")
told = imageio.v3.immeta("x.mp4", plugin="pyav", exclude_applied=False)
print("metadata of pyav:", *told)
assert not [key for key in told if "rot" in key or "matrix" in key]
assert seen["OpenCV"] == seen["imageio FFMPEG"] == (64, 32, "bottom left")
assert seen["imageio pyav"] == (32, 64, "top left"), "imageio has changed"
PY
