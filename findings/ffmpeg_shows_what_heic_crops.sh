#!/usr/bin/env bash
# FFmpeg ignores the clean aperture (clap) of a HEIC: it gives columns that no viewer shows.
#
# One would guess: FFmpeg puts out a HEIC picture at the size that viewers show, as it does for the cropping of H.264, or
# says in the stream or the frame how much to cut.
#
# True (PyAV 18.1.0, FFmpeg 8): libheif's encoder stores a picture of 29x100 pixels as 64x100 with a clap of 29x100.
# libheif cuts it; the stream and the frame of FFmpeg are 64x100, with no side data. What lies beyond the 29 columns
# repeats the last one.
#
# Why it matters: boxes, histograms and sizes that are computed from such a frame are of another picture than the user
# sees, and small pictures (icons, crops of faces) get a broad smear at the right. Read the boxes ispe and clap yourself.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q av==18.1.0 pillow-heif==1.1.1 pillow==12.0.0 numpy==2.4.6
cd "$folder"
"$folder/venv/bin/python" - <<'PY'
from importlib.metadata import version

import av
import numpy as np
import pillow_heif
from PIL import Image

print(*(f"{one} {version(one)}" for one in ("av", "pillow-heif")), "libheif", pillow_heif.libheif_version())
pillow_heif.register_heif_opener()
ramp = np.tile(np.linspace(0, 255, 29).astype(np.uint8), (100, 1))
Image.fromarray(ramp, "L").save("small.heic", quality=100)
stored = open("small.heic", "rb").read()
with Image.open("small.heic") as shown, av.open("small.heic") as container:
    stream = container.streams.video[0]
    frame = next(container.decode(video=0))
    sizes = shown.size, (stream.width, stream.height), (frame.width, frame.height)
    grey = frame.to_ndarray(format="gray").astype(int)
    kinds = [one.type.name for one in frame.side_data.values()] if frame.side_data else []
print("libheif, stream, frame:", *sizes, "clap:", stored.count(b"clap"), "side data:", kinds)
print("columns 26 to 33 of row 50:", grey[50, 26:34].tolist())
assert stored.count(b"clap") == 1, "the encoder stores no clap now"
assert sizes == ((29, 100), (64, 100), (64, 100)), "the sizes have changed"
assert not any("CROP" in kind.upper() for kind in kinds), "the frame says how to crop now"
assert abs(grey[50, 29:] - grey[50, 28]).max() <= 4, "the rest is no repetition"
print("as described: FFmpeg shows what libheif cuts off")
PY
