#!/usr/bin/env bash
# cv2.approxPolyDP(curve, epsilon, closed=False) drops the last point of a curve that returns to its first point.
#
# One would guess: with closed=False the two ends of a curve stay where they are, as in every Douglas-Peucker for open
# lines (shapely's simplify() keeps them). So a ring that is written as GeoJSON and WKT write it, with its first point
# repeated at the end, can be simplified and then drawn with cv2.polylines(..., isClosed=False).
#
# True: if the last point equals the first, the result lacks it; a square of five points comes back as four, the same as
# with closed=True. Drawn as an open line it has three sides. A last point that is one pixel away is kept.
#
# Why it matters: zones, lanes and tracks that come back to their start lose a side when they are simplified before they
# are drawn or measured, and only those: arcLength(closed=False) of the square falls by a quarter.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
cat > simplify.py <<'PY'
import cv2
import numpy as np

ring = np.array([[0, 0], [100, 0], [100, 100], [0, 100], [0, 0]], np.int32)
almost = ring.copy()
almost[-1] = 0, 1
print("OpenCV", cv2.__version__)
for name, curve in (("ring", ring), ("almost", almost)):
    simple = cv2.approxPolyDP(curve, 0.25, False)
    length = cv2.arcLength(simple, False)
    print(f"{name}: {len(curve)} points -> {simple.reshape(-1, 2).tolist()}, open length {length:g}")
    assert len(simple) == (4 if name == "ring" else 5), "changed"
    assert length == (300 if name == "ring" else 399), "changed"
PY
cat > other.py <<'PY'
import shapely

simple = shapely.LineString([(0, 0), (100, 0), (100, 100), (0, 100), (0, 0)]).simplify(0.25)
print("shapely", shapely.__version__, list(simple.coords))
assert len(simple.coords) == 5 and simple.length == 400, "changed"
PY
for release in 4.12.0.88 4.14.0.94; do
  python3 -m venv "venv-$release"
  "venv-$release/bin/pip" install -q "opencv-python-headless==$release" "shapely==2.1.2"
  "venv-$release/bin/python" simplify.py
done
"venv-4.14.0.94/bin/python" other.py
