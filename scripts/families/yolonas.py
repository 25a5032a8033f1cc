"""YOLO-NAS, by super-gradients: files with NMS and preprocessing, with one of them, or with neither."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

os.environ["CRASH_HANDLER"] = "FALSE"  # otherwise super-gradients prints advice at exit

import cv2
import torch

# super-gradients was written for PyTorch's older exporter, which is no longer the default.
torch.onnx.export = functools.partial(torch.onnx.export, dynamo=False)

from result import (  # noqa: E402
    Row,
    Variant,
    above,
    arguments,
    at_size,
    rows_of,
    save,
    set_norms,
    threshold_of_all,
)
from super_gradients.conversion import DetectionOutputFormatMode  # noqa: E402
from super_gradients.training import models  # noqa: E402
from super_gradients.training.processing import processing  # noqa: E402
from weights import scale_outputs  # noqa: E402

# --no-deps: Python >= 3.11 cannot install super-gradients' pins (numpy 1.23, onnxruntime 1.15.0).
REQUIREMENTS = [
    "super-gradients==3.7.1 data-gradients==0.3.2 torchmetrics==0.8 albumentations==1.3.1 "
    "--no-deps",
    "torch torchvision numpy onnx onnxruntime onnxsim onnx_graphsurgeon opencv-python-headless "
    "boto3 coverage Deprecated einops==0.3.2 hydra-core imagesize jinja2 json-tricks==3.16.1 "
    "jsonschema matplotlib pandas pip-tools psutil pygments rapidfuzz requests scikit-learn "
    "scipy seaborn setuptools<81 sphinx sphinx-rtd-theme stringcase tensorboard "
    "termcolor==1.1.0 tqdm treelib==1.6.1 xlsxwriter",
]
LICENCE = "Apache-2.0"  # the package's licence; Deci's weights have another one
SIZE = (640, 640)
IOU, CONFIDENCE = 0.7, 0.25  # super-gradients' defaults for its COCO weights
FLAT = DetectionOutputFormatMode.FLAT_FORMAT
FILES: dict[str, dict[str, Any]] = {
    "batch": {},
    "flat": {"output_predictions_format": FLAT},
    "raw": {"postprocessing": False},
    "batch, float": {"preprocessing": False},
    "raw, float": {"postprocessing": False, "preprocessing": False},
}


def network(sized: list[Path]) -> Any:
    """Make yolo_nas_s with the same processing as models.get(..., pretrained_weights="coco")."""
    torch.manual_seed(7)
    model = models.get("yolo_nas_s", num_classes=80, pretrained_weights=None)
    model.set_dataset_processing_params(**processing.default_yolo_nas_coco_processing_params())

    x = torch.stack([torch.from_numpy(cv2.imread(str(picture))) for picture in sized])
    x = x.flip(3).permute(0, 3, 1, 2) / 255
    run = functools.partial(model, x)
    set_norms(model, run)
    heads = [model.heads.head1, model.heads.head2, model.heads.head3]
    scale_outputs([head.cls_pred for head in heads], run, mean=-5.0, deviation=0.5)
    scale_outputs([head.reg_pred for head in heads], run, mean=0.0, deviation=1.0)
    return model.eval()


def find(model: Any, picture: Path, confidence: float) -> list[Row]:
    """Run the package's predict() without resizing, because exported files do not resize either."""
    model._get_pipeline.cache_clear()  # _get_pipeline caches a fused copy of the network
    prediction = model.predict(
        str(picture),
        iou=IOU,
        conf=confidence,
        fuse_model=False,
        skip_image_resizing=True,
        fp16=False,
    ).prediction
    return rows_of(prediction.bboxes_xyxy, prediction.confidence, prediction.labels)


def main() -> None:
    out, pictures = arguments()
    sized = [at_size(out, picture, *SIZE) for picture in pictures]
    model = network(sized)
    rows = {picture.name: find(model, picture, CONFIDENCE) for picture in sized}
    threshold = threshold_of_all(rows)
    kept_rows = above(rows, threshold)
    variants = []
    for name, options in FILES.items():
        file = f"yolo_nas_s-{name.replace(', ', '-')}.onnx"
        model.export(str(out / file), **options)
        iou = IOU if "postprocessing" in options else None
        variants.append(Variant(name, file, threshold, kept_rows, nms_iou=iou))
    save(out, "super-gradients 3.7.1, yolo_nas_s, random weights", variants)


if __name__ == "__main__":
    main()
