"""Recognise raw outputs that do not hold boxes, and advise how to export them with boxes."""

from __future__ import annotations

import re

from detector.core.models.formats.onnx.evidence import PAGE, Evidence

ANCHORS = 9  # per cell in EfficientDet and RetinaNet
SIDES = 4 * ANCHORS
BINS = 64  # channels of a YOLOv8 box: 16 for each of four distances
KINDS = {
    "levels": (
        "the raw levels of EfficientDet or RetinaNet: class scores, and boxes relative to anchors "
        "that are not in the file; export its detections (effdet: DetBenchPredict(model), "
        "TensorFlow: the saved model with its detections)"
    ),
    "anchors": (
        "the raw maps of YOLOv3 to YOLOv7, whose boxes are relative to anchors that are not in the "
        "file; export it with its boxes decoded (YOLOv5: export.py in eval mode, YOLOv7: export.py "
        "--grid)"
    ),
    "distances": (
        "the undecoded maps of YOLOv8 or later, as exported for NPUs; export it with its own "
        "exporter (yolo export format=onnx)"
    ),
    "priors": (
        "the raw offsets and scores of an SSD before its prior boxes are applied; export it with "
        "its detections (DetectionOutput) or decoded boxes, or give the priors' sizes and "
        f"variances in a file for --describe ({PAGE})"
    ),
    "turned": (
        "rotated boxes (obb in the file's name), which are not supported; export a model whose "
        "task is detect"
    ),
    "maps": (
        "raw maps, and nothing says what their boxes are relative to; export it with its boxes "
        "decoded"
    ),
}


def raw_kind(evidence: Evidence) -> str | None:
    dims = [evidence.dims(name) for name in evidence.graph.outputs]
    maps = [sides for sides in dims if len(sides) >= 4 and not _is_table(sides)]
    if not maps:
        if re.search(r"(?<![a-z])obb(?![a-z])", evidence.graph.name, re.IGNORECASE):
            return KINDS["turned"]
        names = " ".join(evidence.graph.outputs)
        return KINDS["priors"] if re.search(r"mbox_(loc|conf)", names) else None
    planes = [sides[1] for sides in maps if len(sides) == 4]
    if len(maps) >= 6 and planes.count(SIDES) * 2 == len(maps):
        others = [count for count in planes if count != SIDES]
        if others and all(count is not None and count % ANCHORS == 0 for count in others):
            return KINDS["levels"]
    if all(len(sides) == 5 and sides[1] == 3 and (sides[4] or 0) > 5 for sides in maps):
        return KINDS["anchors"]
    if len(maps) in (2, 3, 4) and len(set(planes)) == 1 and len(planes) == len(maps):
        channels = planes[0] or 0
        name = f"{evidence.graph.name} {evidence.metadata.description}"
        is_newer = re.search(r"yolo-?v?(8|9|1\d|26)(?!\d)", name, re.IGNORECASE)
        if is_newer and channels > BINS:
            return KINDS["distances"]
        if channels > 15 and channels % 3 == 0 and not is_newer:
            return KINDS["anchors"]
    return KINDS["maps"]


def _is_table(sides: tuple[int | None, ...]) -> bool:
    return len(sides) == 4 and 1 in (sides[1], sides[2]) and (sides[3] or 0) <= 7
