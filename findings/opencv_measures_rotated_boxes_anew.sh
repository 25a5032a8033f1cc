#!/usr/bin/env bash
# cv2.minAreaRect: from 4.12 to 4.14 the angle of the same rectangle changes its range, and width and height swap.
#
# One would guess: the angle lies in (0, 90], as OpenCV has it since 4.5.1, and a release with the same first number
# keeps it: code that turns it into a convention of its own ("long edge", 0 to 180) works on.
#
# True: 4.12.0 gives a rectangle of 40x20 that is turned by 10 degrees as (40, 20) at 10. 4.14.0 and 5.0.0 give it as
# (20, 40) at -80: angles in [-90, 0), as before 4.5.1. The corners are the same, and boxPoints() gives them back.
#
# Why it matters: labels of rotated objects (aerial pictures, text) are made from polygons with this function. Networks
# learn the angle itself: a dataset converted with two releases has two meanings of angle, and a check such as
# "if angle < 0" takes the other branch. Derive the angle from the corners, or order the sides yourself.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
cat > measure.py <<'PY'
import json

import cv2
import numpy as np

rows = []
for angle in range(0, 180, 5):
    corners = cv2.boxPoints(((50, 50), (40, 20), angle))
    (_, _), (width, height), measured = box = cv2.minAreaRect(corners)
    again = cv2.boxPoints(box)
    same = max(min(np.abs(again - corner).max(1)) for corner in corners) < 1e-3
    rows.append([angle, round(width), round(height), round(measured, 2), bool(same)])
print(json.dumps({"version": cv2.__version__, "rows": rows}))
PY
for release in 4.12.0.88 4.14.0.94; do
  python3 -m venv "venv-$release"
  "venv-$release/bin/pip" install -q "opencv-python-headless==$release"
  "venv-$release/bin/python" measure.py > "$release.json"
done
python3 - <<'PY'
import json

old, new = (json.load(open(f"{release}.json")) for release in ("4.12.0.88", "4.14.0.94"))
for found in (old, new):
    angles = [row[3] for row in found["rows"]]
    print(
        "OpenCV", found["version"], "angles from", min(angles), "to", max(angles), "- the first:", *found["rows"][1:4]
    )
    assert all(row[4] for row in found["rows"]), "the corners are not the same"
assert all(0 < row[3] <= 90 for row in old["rows"]) and all(-90 <= row[3] < 0 for row in new["rows"]), "changed"
swapped = sum(one[1:3] != other[1:3] for one, other in zip(old["rows"], new["rows"], strict=True))
print(f"width and height swapped in {swapped} of {len(old['rows'])}")
assert swapped > len(old["rows"]) / 2
PY
