"""Detections on real photos against those of another implementation (shared REFERENCE.md)."""

import hashlib
import json

import cv2
import numpy as np
import pytest

from detector import Detector


def iou(a, b):
    width = max(0, min(a[2], b[2]) - max(a[0], b[0]))
    height = max(0, min(a[3], b[3]) - max(a[1], b[1]))
    shared_area = width * height
    return shared_area / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared_area)


def borderline(item, others):
    """Whether rounding may make it appear or vanish: its score lies at the threshold, or an IoU at the NMS limit."""
    if item["score"] < 0.25 + 0.01:
        return True
    same = [other for other in others if other is not item and other["class_id"] == item["class_id"]]
    return any(abs(iou(item["box"], other["box"]) - 0.45) < 0.01 for other in same)


@pytest.mark.parametrize("engine", ["ort", "torch"])
@pytest.mark.parametrize("file", ["yolo-fastest-1.1.cfg", "yolo-fastest-1.1-xl.cfg", "yolox_nano.onnx"])
def test_photos(shared, engine, file):
    model = file.rsplit(".", 1)[0]
    reference = json.loads((shared / "data/reference.json").read_text())
    matched = total = 0
    with Detector(shared / "data/weights" / file, engine=engine, conf=0.24) as detector:
        for name, expected in reference["models"][model]["results"].items():
            image = cv2.imread(str(shared / "data/photos" / name))
            assert hashlib.sha256(image.tobytes()).hexdigest() == reference["photos"][name]["decoded_bgr_sha256"]
            found = detector(image)
            ours = [
                {"class_id": int(c), "score": float(s), "box": box.tolist()}
                for box, s, c in zip(found.boxes, found.scores, found.class_ids, strict=True)
            ]
            theirs = expected["detections"]
            left = list(ours)
            for item in theirs:
                twin = next(
                    (
                        other
                        for other in left
                        if other["class_id"] == item["class_id"]
                        and iou(other["box"], item["box"]) >= 0.95
                        and abs(other["score"] - item["score"]) <= 0.01
                    ),
                    None,
                )
                assert twin is not None or borderline(item, theirs), (name, item)
                matched += twin is not None
                total += 1
                if twin is not None:
                    left.remove(twin)
            extra = [item for item in left if item["score"] > 0.25 + 0.01 and not borderline(item, ours)]
            assert extra == [], (name, "boxes that the reference has not")
    assert total == sum(len(r["detections"]) for r in reference["models"][model]["results"].values())
    assert matched >= total - 1


def test_scores_and_boxes_are_sorted_and_inside(shared):
    image = cv2.imread(str(shared / "data/photos/crossing.jpg"))
    with Detector(shared / "data/weights/yolo-fastest-1.1.cfg", engine="ort") as detector:
        found = detector(image)
    assert (np.diff(found.scores) <= 0).all()
    assert (found.boxes >= 0).all()
    assert (found.boxes[:, [0, 2]] <= 640).all()
    assert (found.boxes[:, [1, 3]] <= 360).all()
