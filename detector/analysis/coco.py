"""COCO's table of precisions, computed by faster-coco-eval.

The library treats a box to be ignored as a crowd; ours are of two kinds (see ``LabelledPicture``), so that the plain
kind is marked after it has read the boxes. ``evaluate`` computes the same at IoU 0.5; a test holds them together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.errors import UsageError
from detector.types import Detections, LabelledPicture

AREAS = ("all", "small", "medium", "large")  # below 32 x 32 pixels, below 96 x 96, above
INSTALL = "pip install 'detect-video[eval]'"


def check_installed() -> None:
    """Raises UsageError with the command that installs the library. Asked before hours of inference."""
    try:
        import faster_coco_eval  # noqa: F401
    except ImportError as error:
        raise UsageError(f"eval needs faster-coco-eval, which is not installed: {INSTALL}") from error


def precision_table(
    pictures: Sequence[LabelledPicture], found: Sequence[Detections], classes: int
) -> NDArray[np.float64]:
    """[10, 101, classes, 4]: precision by IoU threshold (.50 to .95), recall (0 to 1), class, area; at most 100
    detections a picture and class. NaN where there is no box to find."""
    from faster_coco_eval import COCO, COCOeval_faster

    class Evaluator(COCOeval_faster):  # type: ignore[misc]
        def _prepare(self) -> None:
            super()._prepare()
            for truth in self.cocoGt.anns.values():  # the same dicts that the evaluation reads
                truth["ignore"] = int(truth["iscrowd"] or truth["neither"])

    evaluator = Evaluator(COCO(_labels(pictures, classes)), COCO(_results(pictures, found, classes)), "bbox")
    evaluator.evaluate()
    evaluator.accumulate()
    table = np.array(evaluator.eval["precision"], np.float64)[..., -1]
    table[table < 0] = np.nan
    return table


def _document(pictures: Sequence[LabelledPicture], classes: int, rows: list[dict[str, Any]]) -> dict[str, Any]:
    images = [{"id": at, "width": one.width, "height": one.height} for at, one in enumerate(pictures, 1)]
    categories = [{"id": class_id + 1, "name": str(class_id)} for class_id in range(classes)]
    return {"images": images, "categories": categories, "annotations": rows}


def _labels(pictures: Sequence[LabelledPicture], classes: int) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    for at, one in enumerate(pictures, 1):
        flags = zip(one.ignored.tolist(), one.crowd.tolist(), one.areas.tolist(), strict=True)
        for box, class_id, (ignored, crowd, area) in zip(_xywh(one.boxes), one.class_ids.tolist(), flags, strict=True):
            rows.append(
                {"id": len(rows) + 1, "image_id": at, "category_id": class_id + 1, "bbox": box, "area": area,
                 "iscrowd": int(crowd), "neither": int(ignored)}
            )  # fmt: skip
    return _document(pictures, classes, rows)


def _results(pictures: Sequence[LabelledPicture], found: Sequence[Detections], classes: int) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    for at, one in enumerate(found, 1):
        parts = zip(_xywh(one.boxes), one.class_ids.tolist(), one.scores.tolist(), strict=True)
        for box, class_id, score in parts:
            rows.append(
                {"id": len(rows) + 1, "image_id": at, "category_id": class_id + 1, "bbox": box, "score": score,
                 "area": box[2] * box[3], "iscrowd": 0}
            )  # fmt: skip
    return _document(pictures, classes, rows)


def _xywh(boxes: NDArray[Any]) -> list[list[float]]:
    wide = boxes.astype(np.float64)
    result: list[list[float]] = np.concatenate([wide[:, :2], wide[:, 2:] - wide[:, :2]], axis=1).tolist()
    return result
