"""detect-video with supervision's annotators, and with the tracker that goes with them.

    pip install supervision
    pip install --no-deps trackers

`trackers` asks for opencv-python, which would overwrite the opencv-python-headless of detect-video;
supervision and detect-video bring the rest of what it needs. This file ran with supervision 0.31.2
and trackers 2.6.1. (supervision had a ByteTrack of its own up to 0.30.)
`Detections.to_supervision()` gives supervision.Detections; everything of both libraries takes it.
"""

# %% Annotators
import cv2
import supervision as sv
from trackers import ByteTrackTracker

from detector import Detector

boxes, labels = sv.RoundBoxAnnotator(), sv.LabelAnnotator()

with Detector("street") as detector:
    for frame, found in detector.stream("videos/street.mp4"):
        detections = found.to_supervision()
        picture = boxes.annotate(frame.image.copy(), detections)
        picture = labels.annotate(picture, detections)  # names come from data["class_name"]
        cv2.imwrite("annotated.png", picture)
        break

# %% A tracker: each object keeps its number from frame to frame
traces = sv.TraceAnnotator()

with Detector("street") as detector:
    tracker = None
    for frame, found in detector.stream("videos/street.mp4"):
        if tracker is None:
            tracker = ByteTrackTracker(
                frame_rate=float(frame.source.fps),
                track_activation_threshold=0.4,
                high_conf_det_threshold=0.4,
            )
        tracked = tracker.update(found.to_supervision())
        tracked = tracked[tracked.tracker_id >= 0]  # -1: not sure yet
        names = [
            f"{name} {number}"
            for name, number in zip(tracked["class_name"], tracked.tracker_id, strict=True)
        ]
        picture = boxes.annotate(frame.image, tracked)
        picture = traces.annotate(picture, tracked)
        picture = labels.annotate(picture, tracked, labels=names)
        if frame.index == 30:
            cv2.imwrite("tracked.png", picture)
            break
