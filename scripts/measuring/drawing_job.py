"""Annotate the pictures of one clip and print the cost; runs in a separate Python.

    PYTHON scripts/measuring/drawing_job.py planes|bgr|supervision CLIP SCENE

``SCENE``: a pickle with the objects of the clip's last pictures (``drawing.py`` makes it).
``planes`` and ``bgr`` are drawn by the version of detect-video on ``PYTHONPATH``. Prints JSON: CPU
milliseconds per picture, once without tracks and once with tracks and their trails.
"""

from __future__ import annotations

import json
import pickle
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2

WARM_UP = 10  # pictures drawn before the measurement
LINE, TEXT_SCALE, POINTS = 4, 0.9, 50  # supervision's options, to match ours at 1080p
Draw = Callable[[Any, dict[str, Any]], None]


def ours() -> Draw:
    from detector.core.stages.annotate import annotate
    from detector.core.types import Detections

    return lambda picture, objects: annotate(picture, Detections(**objects))


def supervision() -> Draw:
    import supervision as sv

    boxes = sv.BoxAnnotator(thickness=LINE)
    labels = sv.LabelAnnotator(text_scale=TEXT_SCALE)
    traces = sv.TraceAnnotator(thickness=LINE, trace_length=POINTS)

    def draw(picture: Any, objects: dict[str, Any]) -> None:
        ids, scores = objects["track_ids"], objects["scores"]
        detections = sv.Detections(objects["boxes"], None, scores, objects["class_ids"], ids)
        texts = [objects["names"][class_id] for class_id in objects["class_ids"]]
        if ids is not None:
            texts = [f"{text} {track}" for text, track in zip(texts, ids, strict=True)]
        texts = [f"{text} {score:.2f}" for text, score in zip(texts, scores, strict=True)]
        boxes.annotate(picture, detections)
        labels.annotate(picture, detections, texts)
        if ids is not None:
            traces.annotate(picture, detections)

    return draw


def cost(who: str, clip: str, scene: list[dict[str, Any]]) -> float:
    draw, reader, seconds = (
        supervision() if who == "supervision" else ours(),
        cv2.VideoCapture(clip),
        [],
    )
    reader.set(cv2.CAP_PROP_POS_FRAMES, reader.get(cv2.CAP_PROP_FRAME_COUNT) - len(scene))
    for objects in scene:
        picture = reader.read()[1]
        if who == "planes":
            from detector.core.stages.planes import planes_of
            from detector.core.types import Colours

            picture = planes_of(picture, Colours(1, 1, 1, False, (0.2126, 0.0722)))
        start = time.thread_time()
        draw(picture, objects)
        seconds.append(time.thread_time() - start)
    return sum(seconds[WARM_UP:]) * 1e3 / len(seconds[WARM_UP:])


if __name__ == "__main__":
    who, clip, path = sys.argv[1:]
    tracks = pickle.loads(Path(path).read_bytes())
    plain = [found | {"track_ids": None, "trails": ()} for found in tracks]
    cost(who, clip, plain)  # warm-up: libraries load parts at first use
    scenes = {"boxes and labels": plain, "boxes, labels and trails": tracks}
    print(json.dumps({name: cost(who, clip, scene) for name, scene in scenes.items()}))
