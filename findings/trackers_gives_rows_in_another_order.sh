#!/usr/bin/env bash
# trackers: ByteTrack, OC-SORT and BoT-SORT give the detections back in another order than they were given.
#
# One would guess: update(detections) returns the detections with ids: row i of what comes back is row i of what went
# in, as SORTTracker of the same package has it.
#
# True (trackers 2.6.1): the detections with a high confidence come first, then the others, each in their old order.
# Nothing is lost, so the number of rows is right and a zip() over both sides works.
#
# Why it matters: what one keeps beside the detections (crops, plates, features, rows of the network's output) is joined
# by row, and then belongs to another object as soon as one detection is weak. Put it into detections.data, which moves
# along.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q trackers==2.6.1 supervision==0.31.2 numpy opencv-python-headless==4.14.0.94
cd "$folder"
"$folder/venv/bin/python" - <<'PY'
from importlib.metadata import version

import numpy as np
import supervision
import trackers

print(*(f"{one} {version(one)}" for one in ("trackers", "supervision", "numpy")), sep=", ")
LEFT = 100.0 * np.arange(5)
BOXES = np.stack([LEFT, np.full(5, 100.0), LEFT + 50, np.full(5, 200.0)], axis=1)
SCORES = np.array([0.5, 0.9, 0.3, 0.8, 0.95])
orders = {}
for name in ("SORTTracker", "ByteTrackTracker", "OCSORTTracker", "BoTSORTTracker"):
    tracker = getattr(trackers, name)()
    for _ in range(5):
        given = supervision.Detections(xyxy=BOXES.copy(), confidence=SCORES.copy(), class_id=np.zeros(5, int))
        given.data["row"] = np.arange(5)
        made = tracker.update(given)
    orders[name] = made.data["row"].tolist()
    print(f"{name:16} rows {orders[name]}, confidence {made.confidence.tolist()}, ids {made.tracker_id.tolist()}")
    assert np.array_equal(made.xyxy, BOXES[orders[name]])
assert orders.pop("SORTTracker") == [0, 1, 2, 3, 4]
assert all(order == [1, 3, 4, 0, 2] for order in orders.values()), "trackers has changed"
PY
