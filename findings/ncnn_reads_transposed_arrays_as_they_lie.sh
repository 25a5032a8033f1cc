#!/usr/bin/env bash
# ncnn.Mat(array) ignores strides: a transposed picture is read in the order in which its memory lies.
#
# One would guess: ncnn.Mat(picture.transpose(2, 0, 1)) holds the three planes of the picture, for a buffer of Python
# tells its strides; or it is refused.
#
# True (ncnn 1.0.20261020): the shape is that of the view, 3x4x6, and the numbers are those of the memory in their old
# order: blue, green and red of one pixel become neighbours in one plane. A view of every second column holds the
# columns that lie first. No error, no warning; np.array(mat) of it differs from the array it was made of.
#
# Why it matters: transpose(2, 0, 1) is how pictures get from OpenCV to a network, and other runtimes take such views.
# The detector finds nothing or nonsense, and one looks for the fault in the conversion of the weights.
# Write np.ascontiguousarray() around it, or use Mat.from_pixels().
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q ncnn==1.0.20261020 numpy
cd "$folder"
"$folder/venv/bin/python" - <<'PY'
from importlib.metadata import version

import ncnn
import numpy as np

print("ncnn", version("ncnn"), "numpy", np.__version__)
picture = np.arange(4 * 6 * 3, dtype=np.float32).reshape(4, 6, 3)  # rows, columns, channels
planes = picture.transpose(2, 0, 1)
copied = np.ascontiguousarray(planes)
by_view, by_copy = ncnn.Mat(planes), ncnn.Mat(copied)
print("shapes", np.array(by_view).shape, np.array(by_copy).shape)
print("first row of the first plane: array", planes[0, 0], "Mat of the view", np.array(by_view)[0, 0])
assert np.array_equal(np.array(by_copy), planes)
assert np.array(by_view).shape == planes.shape and not np.array_equal(np.array(by_view), planes), "ncnn has changed"
assert np.array_equal(np.array(by_view).ravel(), picture.ravel()), "the memory in its old order"

table = np.arange(12, dtype=np.float32).reshape(3, 4)
print("every second column:", table[:, ::2].tolist(), "Mat:", np.array(ncnn.Mat(table[:, ::2])).tolist())
assert np.array(ncnn.Mat(table[:, ::2])).tolist() == [[0, 1], [2, 3], [4, 5]], "ncnn has changed"
PY
