"""Print the ids that roboflow's ``trackers`` gives. Run by a Python that lacks detect-video.

Arguments: tracker, threshold, frames per second. Standard input: JSON, a list of frames, each a
list of [x1, y1, x2, y2, score]. Standard output: JSON, for each frame a list with the id of each
box, or -1 for a box without id.
"""

import json
import sys

import numpy as np
import supervision
from trackers import ByteTrackTracker, OCSORTTracker, SORTTracker


def make(name, conf, fps):
    if name == "sort":
        return SORTTracker(frame_rate=fps, track_activation_threshold=conf)
    if name == "ocsort":
        return OCSORTTracker(frame_rate=fps, high_conf_det_threshold=conf)
    return ByteTrackTracker(
        frame_rate=fps, track_activation_threshold=conf, high_conf_det_threshold=conf
    )


def main():
    name, conf, fps = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
    tracker, all_ids = make(name, conf, fps), []
    for i, rows in enumerate(json.load(sys.stdin)):
        table = np.array(rows, np.float32).reshape(-1, 5)
        detections = supervision.Detections(
            table[:, :4], confidence=table[:, 4], class_id=np.zeros(len(table), int)
        )
        detections.data["at"] = np.arange(len(table))
        moment = {} if name == "ocsort" else {"timestamp": i / fps}
        tracked = tracker.update(detections, **moment)
        ids = [-1] * len(table)
        if tracked.tracker_id is not None and len(tracked):
            for at, track_id in zip(
                tracked.data["at"].tolist(), tracked.tracker_id.tolist(), strict=True
            ):
                ids[at] = track_id
        all_ids.append(ids)
    json.dump(all_ids, sys.stdout)


main()
