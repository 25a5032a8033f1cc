#!/usr/bin/env bash
# motmetrics: boxes that loadtxt() reads lie one pixel further up and left than the file says.
#
# One would guess: loadtxt() of a MOT file gives the numbers of the file; TrackEval's reader does.
#
# True (motmetrics 1.4.0): 1 is taken from X and Y, since the first data sets counted pixels from 1. As long as both
# sides come from files that is no matter. If the truth is read and the tracks come from a running tracker, as in the
# usual loop with MOTAccumulator, one side is moved: boxes that are exactly right have IoU 0.68 at 10x10 pixels.
#
# Why it matters: MOTP is worse than it is, and with an exact tracker objects of 5x5 pixels and below are all misses at
# the usual limit of 0.5, so MOTA is negative. Add 1 to X and Y, or write the tracks to a file first.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q motmetrics==1.4.0 numpy
cd "$folder"
"$folder/venv/bin/python" - <<'PY'
from importlib.metadata import version

import motmetrics
import numpy as np

print("motmetrics", version("motmetrics"), "numpy", np.__version__)


def overlap(one, other):
    """IoU of two boxes as x, y, width, height."""
    (x, y, width, height), (u, v, other_width, other_height) = one, other
    across = min(x + width, u + other_width) - max(x, u)
    down = min(y + height, v + other_height) - max(y, v)
    common = max(across, 0) * max(down, 0)
    return common / (width * height + other_width * other_height - common)


seen = {}
for size in (5, 10, 40):
    with open("gt.txt", "w") as file:
        file.writelines(f"{frame},1,{20 + frame},30,{size},{size},1,1,1\n" for frame in range(1, 11))
    truth = motmetrics.io.loadtxt("gt.txt", fmt="mot15-2D")
    table = motmetrics.MOTAccumulator()
    for frame in range(1, 11):
        read = truth.loc[frame][["X", "Y", "Width", "Height"]].to_numpy(float)[0]
        tracked = [20 + frame, 30, size, size]  # what the tracker gives is what the file says
        distance = 1 - overlap(read, tracked)
        table.update([1], [1], np.array([[distance if distance <= 0.5 else np.nan]]), frameid=frame)
    row = motmetrics.metrics.create().compute(table, metrics=["mota"]).iloc[0]
    seen[size] = float(row["mota"])
    print(
        f"objects of {size:2} pixels: file {tracked[:2]}, read {read[:2]}, IoU {1 - distance:.3f}, MOTA {seen[size]:g}"
    )
    assert read[:2].tolist() == [tracked[0] - 1, tracked[1] - 1], "motmetrics has changed"
assert seen == {5: -1, 10: 1, 40: 1}, seen
PY
