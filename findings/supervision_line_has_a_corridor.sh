#!/usr/bin/env bash
# supervision: LineZone counts who walks around the end of the line, and misses who crosses its middle quickly.
#
# One would guess: a line from A to B counts an object whose anchor moves from one side to the other between A and B.
#
# True (supervision 0.31.2): an object is looked at only in the corridor between the perpendiculars at A and B. Outside
# it nothing happens: it is remembered on the side where it was last inside. So an object that leaves the corridor,
# walks around the end, and comes back in on the other side is counted without crossing the line. One whose step leads
# through the middle of the line, from outside the corridor to outside it again, is not counted. A point on the line
# belongs to one side: who comes to the line, touches it and goes back counts once in and once out.
#
# Why it matters: lines are drawn short, over a door or a lane, and people walk around them; few pictures a second
# or slanted ways make steps that begin or end outside. Draw the line well beyond the way, and check with a video.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q supervision==0.31.2 numpy opencv-python-headless==4.14.0.94
cd "$folder"
"$folder/venv/bin/python" - <<'PY'
from importlib.metadata import version

import numpy as np
import supervision

print("supervision", version("supervision"), "numpy", np.__version__)
START, END = supervision.Point(100, 100), supervision.Point(200, 100)


def counted(way):
    """Move one object's anchor along ``way`` and tell how often the line counted it."""
    line = supervision.LineZone(START, END, triggering_anchors=[supervision.Position.BOTTOM_CENTER])
    for x, y in way:
        box = np.array([[x - 10, y - 40, x + 10, y]], float)
        line.trigger(supervision.Detections(xyxy=box, class_id=np.array([0]), tracker_id=np.array([1])))
    return line.in_count, line.out_count


WAYS = {
    "straight through the middle": ([(150, 80), (150, 120)], (0, 1)),
    "around the end": ([(180, 80), (250, 80), (250, 120), (180, 120)], (0, 1)),
    "slanted through the middle, one long step": ([(80, 60), (220, 140)], (0, 0)),
    "to the line and back": ([(150, 80), (150, 100), (150, 80)], (1, 1)),
    "past the end": ([(250, 80), (250, 120)], (0, 0)),
}
for name, (way, expected) in WAYS.items():
    print(f"{name:42} in, out: {counted(way)}   way {way}")
    assert counted(way) == expected, "supervision has changed"
PY
