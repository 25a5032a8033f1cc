#!/usr/bin/env bash
# ffmpeg -vf fps=1: the pictures are those of 0.47 s, 1.47 s, 2.47 s, not of the seconds.
#
# One would guess: one picture a second means those of 0, 1, 2 s: picture 0, 30, 60 of a video with 30 a second.
# "-r 1" before the output is the same, written shorter.
#
# True (FFmpeg 9 of imageio-ffmpeg 0.8.1): the filter rounds each picture's time to the nearest second and gives the
# last one of each second: 14, 44, 74. With "-ss 2" before it, too, it begins at 2.47 s. "-r 1" gives 0, 1, 26, 56, 86:
# two at the start, and ten files for eight seconds. fps=1:round=up gives 0, 30, 60, as framestep=30 does.
#
# Why it matters: this is how pictures for labels are taken from videos. Labels that are joined to the video by
# "file number is second" are 14 pictures off, 6.5 m for a car at 50 km/h, so a detector that is right misses.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q av==18.1.0 imageio-ffmpeg==0.8.1 pillow==12.0.0 numpy
cd "$folder"
"$folder/venv/bin/python" - <<'PY'
import subprocess
from importlib.metadata import version
from pathlib import Path

import av
import imageio_ffmpeg
import numpy as np
from PIL import Image

print(*(f"{one} {version(one)}" for one in ("av", "imageio-ffmpeg", "pillow", "numpy")), sep=", ")
ffmpeg = imageio_ffmpeg.get_ffmpeg_exe()
print(subprocess.run([ffmpeg, "-version"], capture_output=True, text=True, check=True).stdout.splitlines()[0])
with av.open("x.mp4", "w") as container:
    stream = container.add_stream("libx264", 30, options={"qp": "0", "g": "30"})
    stream.width, stream.height, stream.pix_fmt = 256, 32, "gray"
    for number in range(240):  # a white bar as long as the number of the picture
        picture = np.full((32, 256), 16, np.uint8)
        picture[:, :number] = 235
        container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, "gray")))
    container.mux(stream.encode())


def extracted(*options):
    for path in Path().glob("*.png"):
        path.unlink()
    command = [ffmpeg, "-v", "error", *options, "-pix_fmt", "gray", "%04d.png"]
    subprocess.run(command, check=True)
    numbers = [int((np.array(Image.open(path))[16] > 128).sum()) for path in sorted(Path().glob("*.png"))]
    print(f"{' '.join(options):36} {numbers}")
    return numbers


SECONDS = list(range(0, 240, 30))
assert extracted("-i", "x.mp4", "-vf", "framestep=30") == SECONDS
assert extracted("-i", "x.mp4", "-vf", "fps=1:round=up") == SECONDS
assert extracted("-i", "x.mp4", "-vf", "fps=1") == [14 + number for number in SECONDS], "ffmpeg has changed"
assert extracted("-ss", "2", "-i", "x.mp4", "-vf", "fps=1")[:2] == [74, 104]
by_rate = extracted("-i", "x.mp4", "-r", "1")
assert by_rate[:4] == [0, 1, 26, 56] and len(by_rate) == 10, "ffmpeg has changed"
PY
