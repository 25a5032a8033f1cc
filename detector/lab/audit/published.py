"""Published parameter counts in millions and GFLOPs (2 x MACs) at ``side`` x ``side`` pixels, from
the model zoos of YOLOv5 v6 and v7, YOLOv7, YOLOv8, YOLOX and darknet (yolov4-tiny)."""

from __future__ import annotations

import re
from typing import NamedTuple


class Published(NamedTuple):
    params_m: float
    gflops: float
    side: int = 640


MODELS: dict[str, Published] = {
    "yolov5n": Published(1.87, 4.5),
    "yolov5s": Published(7.23, 16.5),
    "yolov5m": Published(21.17, 49.0),
    "yolov5l": Published(46.53, 109.1),
    "yolov5x": Published(86.71, 205.7),
    "yolov7-tiny": Published(6.2, 13.8),
    "yolov7": Published(36.9, 104.7),
    "yolov7x": Published(71.3, 189.9),
    "yolov8n": Published(3.2, 8.7),
    "yolov8s": Published(11.2, 28.6),
    "yolov8m": Published(25.9, 78.9),
    "yolov8l": Published(43.7, 165.2),
    "yolov8x": Published(68.2, 257.8),
    "yolox-s": Published(8.97, 26.8),
    "yolox-m": Published(25.3, 73.8),
    "yolox-l": Published(54.2, 155.6),
    "yolox-x": Published(99.1, 281.9),
    "yolov4-tiny": Published(6.06, 6.9, 416),
}
SAME_PARAMS = 0.03  # relative difference; another number of classes changes a small model by more


def find_published(text: str, params: float | None) -> Published | None:
    name = re.sub(r"[ _]", "-", text.strip().lower())
    name = re.sub(r"\.(pt|onnx|engine|weights)$", "", name).replace("yolo-v", "yolov")
    published = MODELS.get(name)
    if published and params and abs(params / 1e6 / published.params_m - 1) > SAME_PARAMS:
        return None
    return published
