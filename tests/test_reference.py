"""Detections on real photos match another implementation's (REFERENCE.md in the shared folder)."""

import hashlib
import json

import cv2
import pytest

from detector import Detector
from detector.core import engines
from tests.networks import need_engine


def iou(a, b):
    width = max(0, min(a[2], b[2]) - max(a[0], b[0]))
    height = max(0, min(a[3], b[3]) - max(a[1], b[1]))
    shared_area = width * height
    return shared_area / (
        (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared_area
    )


def borderline(item, others):
    """Return whether rounding may make a box appear or vanish, because its score is near the
    threshold, or its IoU with another box is near the NMS limit."""
    if item["score"] < 0.25 + 0.01:
        return True
    same_class = [
        other for other in others if other is not item and other["class_id"] == item["class_id"]
    ]
    return any(abs(iou(item["box"], other["box"]) - 0.45) < 0.01 for other in same_class)


def count_matches(name, result, theirs):
    """Return how many of ``theirs`` we detect. Only borderline boxes may be missing or extra."""
    ours = [
        {"class_id": int(c), "score": float(s), "box": box.tolist()}
        for box, s, c in zip(result.boxes, result.scores, result.class_ids, strict=True)
    ]
    unmatched, matched = list(ours), 0
    for item in theirs:
        match = next((other for other in unmatched if alike(other, item)), None)
        assert match is not None or borderline(item, theirs), (name, item)
        if match is not None:
            matched += 1
            unmatched.remove(match)
    extra = [
        item for item in unmatched if item["score"] > 0.25 + 0.01 and not borderline(item, ours)
    ]
    assert extra == [], (name, "boxes that the reference lacks")
    return matched


def alike(one, other):
    return (
        one["class_id"] == other["class_id"]
        and iou(one["box"], other["box"]) >= 0.95
        and abs(one["score"] - other["score"]) <= 0.01
    )


def by_size(results):
    """Group the reference's photos by their --size. Only yolov5n has several sizes."""
    groups = {}
    for name, expected in results.items():
        _, _, height, width = expected["input_shape"]
        groups.setdefault(f"{width}x{height}", {})[name] = expected
    return groups


FILES = {
    "yolo-fastest-1.1": ".cfg",
    "yolo-fastest-1.1-xl": ".cfg",
    "yolov5n": ".pt",
    "yolox_nano": ".onnx",
}


@pytest.mark.slow
@pytest.mark.parametrize("engine", [name for name in engines.names() if name != "null"])
@pytest.mark.parametrize("model", FILES)
def test_detections_on_photos_match_the_reference(shared, engine, model):
    need_engine(engine)
    reference = json.loads((shared / "data/reference.json").read_text())
    path = shared / "data/weights" / f"{model}{FILES[model]}"
    matched = total = 0
    for size, photos in by_size(reference["models"][model]["results"]).items():
        with Detector(path, engine=engine, conf=0.24, size=size, threads=1) as detector:
            for name, expected in photos.items():
                image = cv2.imread(str(shared / "data/photos" / name))
                assert (
                    hashlib.sha256(image.tobytes()).hexdigest()
                    == reference["photos"][name]["decoded_bgr_sha256"]
                )
                matched += count_matches(name, detector(image), expected["detections"])
                total += len(expected["detections"])
    assert total == sum(
        len(r["detections"]) for r in reference["models"][model]["results"].values()
    )
    assert matched >= total - 1
