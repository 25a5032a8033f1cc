"""torchvision's detectors: SSD300, SSDLite, RetinaNet, FCOS and Faster R-CNN, exported as
torchvision's documentation says. The graphs include resize, normalisation and NMS."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import torch
from result import (
    Row,
    Variant,
    arguments,
    at_size,
    rows_of,
    save,
    scale_logits,
    set_norms,
    threshold_of_each,
    write_variant,
)
from tracing import export_onnx

REQUIREMENTS = ["torch", "torchvision", "onnx", "onnxruntime", "opencv-python-headless"]
LICENCE = "BSD-3-Clause"
SIZE = (640, 480)


def tensor(picture: Path) -> torch.Tensor:
    """Return [3, H, W] in 0..1, as torchvision's models take it."""
    from torchvision.transforms.functional import to_tensor

    return to_tensor(cv2.cvtColor(cv2.imread(str(picture)), cv2.COLOR_BGR2RGB))


def detect(model: Any, picture: Path) -> list[Row]:
    with torch.no_grad():
        result = model([tensor(picture)])[0]
    class_ids = result["labels"] - 1  # 0 is the background
    return rows_of(result["boxes"], result["scores"], class_ids)


def scale_outputs(
    model: Any, layers: list[Any], pictures: list[Path], rate: float, deviation: float
) -> None:
    """Scale the outputs of ``layers``, the last layers before the class scores."""

    def values(layer: Any) -> torch.Tensor:
        outputs: list[torch.Tensor] = []
        hook = layer.register_forward_hook(lambda _m, _i, out: outputs.append(out))
        for picture in pictures:
            detect(model, picture)
        hook.remove()
        rows = [
            out.flatten(2).movedim(1, 2).flatten(0, 1) if out.dim() == 4 else out for out in outputs
        ]
        return torch.cat(rows)

    for layer in layers:
        scale_logits([layer], partial(values, layer), rate, deviation)


def set_norms_on(model: Any, pictures: list[Path]) -> None:
    """Set the batch norms' statistics from one batch of all pictures, because the smallest feature
    maps of a single picture have no variance."""
    set_norms(model, lambda: model([tensor(picture) for picture in pictures]))


def randomise_boxes(layers: list[Any]) -> None:
    for layer in layers:
        torch.nn.init.normal_(layer.weight, 0, 0.02)


def convolutions(module: Any) -> list[Any]:
    return [part for part in module.modules() if isinstance(part, torch.nn.Conv2d)]


def ssd(name: str) -> tuple[Any, list[Any], list[Any]]:
    from torchvision.models import detection

    model = getattr(detection, name)(weights=None, weights_backbone=None, num_classes=91)
    heads = model.head.classification_head, model.head.regression_head
    scores, sides = ([c for c in convolutions(head) if c.bias is not None] for head in heads)
    return model, scores, sides


def dense(name: str) -> tuple[Any, list[Any], list[Any]]:
    """Make RetinaNet or FCOS, at a size below their default of 800."""
    from torchvision.models import detection

    model = getattr(detection, name)(
        weights=None, weights_backbone=None, num_classes=91, min_size=256, max_size=416
    )
    return model, [model.head.classification_head.cls_logits], [model.head.regression_head.bbox_reg]


def two_stages(name: str) -> tuple[Any, list[Any], list[Any]]:
    from torchvision.models import detection

    model = getattr(detection, name)(
        weights=None,
        weights_backbone=None,
        num_classes=91,
        rpn_score_thresh=0.0,
        box_score_thresh=0.01,
    )
    predictor = model.roi_heads.box_predictor
    return model, [model.rpn.head.cls_logits, predictor.cls_score], [predictor.bbox_pred]


Maker = Callable[[str], tuple[Any, list[Any], list[Any]]]
# name, maker, order of the outputs, number of input axes, rate and deviation for ``scale_logits``
MODELS: list[tuple[str, Maker, list[str], int, float, float]] = [
    ("ssdlite320_mobilenet_v3_large", ssd, ["boxes", "scores", "labels"], 4, 0.5, 2.5),
    ("ssd300_vgg16", ssd, ["boxes", "scores", "labels"], 3, 0.5, 2.5),
    ("retinanet_resnet50_fpn", dense, ["boxes", "scores", "labels"], 3, 0.01, 1.0),
    ("fcos_resnet50_fpn", dense, ["boxes", "scores", "labels"], 4, 0.01, 1.5),
    (
        "fasterrcnn_mobilenet_v3_large_320_fpn",
        two_stages,
        ["boxes", "labels", "scores"],
        3,
        0.5,
        2.5,
    ),
]


class OnePicture(torch.nn.Module):
    """Takes one picture [1, 3, H, W] instead of the documentation's list of [3, H, W]."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: torch.Tensor) -> Any:
        return self.model([images[0]])[0]


def export(model: Any, path: Path, picture: Path, axes: int, outputs: list[str]) -> None:
    image = tensor(picture)
    sides = {axes - 2: "height", axes - 1: "width"}
    open_sides = {"images": sides} | {name: {0: "detections"} for name in outputs}
    network, example = (model, [image]) if axes == 3 else (OnePicture(model).eval(), image[None])
    export_onnx(network, (example,), path, outputs, 17, dynamic_axes=open_sides)


def variant(
    out: Path, pictures: list[Path], model: tuple[str, Maker, list[str], int, float, float]
) -> Variant:
    name, make, outputs, axes, rate, deviation = model
    torch.manual_seed(9)
    network, scores, sides = make(name)
    network.eval()
    sized = [at_size(out, picture, *SIZE) for picture in pictures]
    if make is not dense:  # RetinaNet and FCOS give enough detections without this
        set_norms_on(network, sized)
    randomise_boxes(sides)
    scale_outputs(network, scores, sized, rate, deviation)
    rows = {picture.name: detect(network, picture) for picture in sized}
    threshold = threshold_of_each(rows)
    path = out / f"{name}.onnx"
    export(network, path, sized[0], axes, outputs)
    return write_variant(name, path, rows, threshold, DESCRIPTION, size=SIZE)


def main() -> None:
    import torchvision

    out, pictures = arguments()
    variants = [variant(out, pictures, model) for model in MODELS]
    save(out, f"torchvision {torchvision.__version__}, random weights", variants)


DESCRIPTION = """\
version: 1
family: torchvision
about: torchvision's detectors; licence BSD-3-Clause; source torchvision (PyPI)
input: {colour: rgb, scale: 1/255, fit: stretch}
outputs:
  boxes: {tensor: boxes, form: xyxy, unit: pixels}
  scores: {tensor: scores, values: probabilities}
  classes: {tensor: labels, first: 1}
  nms: inside
names: coco-90
"""

if __name__ == "__main__":
    main()
