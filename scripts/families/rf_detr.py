"""RF-DETR, by the package rfdetr: its own export and its own predict(), with random weights."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from result import (
    Variant,
    above,
    arguments,
    at_size,
    caught,
    rows_of,
    save,
    scale_logits,
    threshold_of_each,
)

REQUIREMENTS = ["rfdetr[onnx]==1.11.2", "opencv-python-headless"]
LICENCE = "Apache-2.0"
ALL = 0.0001  # a threshold that keeps all 300 detections of predict()


def model(classes: int | None) -> Any:
    """Make a model with ``classes`` + 1 class columns, or with COCO's 91 if ``classes`` is None."""
    from rfdetr import RFDETRNano

    torch.manual_seed(7)
    chosen = {} if classes is None else {"num_classes": classes}
    return RFDETRNano(pretrain_weights=None, device="cpu", **chosen)


def scale_outputs(detector: Any, picture: Path) -> None:
    """Make the outputs differ: in a new model, all scores are 0.01, and boxes are the anchors."""
    network = detector.model.model
    with torch.no_grad():
        for layer in network.transformer.enc_out_class_embed:
            layer.weight.normal_(0, 0.5)
        network.bbox_embed.layers[-1].weight.normal_(0, 0.15)
    run = partial(detector.predict, str(picture), threshold=0.5)
    layer = network.class_embed
    scale_logits([layer], partial(caught, layer, run), rate=0.05, deviation=1.2)


def predict(detector: Any, picture: Path) -> list[dict[str, Any]]:
    detections = detector.predict(str(picture), threshold=ALL)
    return rows_of(detections.xyxy, detections.confidence, detections.class_id)


def variant(out: Path, pictures: list[Path], name: str, classes: int | None) -> Variant:
    detector = model(classes)
    side = detector.model.resolution
    sized = [at_size(out, picture, side, side) for picture in pictures]
    scale_outputs(detector, sized[0])
    rows = {picture.name: predict(detector, picture) for picture in sized}
    background = classes if classes is not None else -1  # predict() calls this class __background__
    for detections in rows.values():
        detections[:] = [detection for detection in detections if detection["class"] != background]
    threshold = threshold_of_each(rows)
    path = detector.export(output_dir=str(out), verbose=False, output_name=f"rfdetr-{name}.onnx")
    (out / f"rfdetr-{name}.yaml").write_text(
        DESCRIPTION.format(
            background="last" if classes is not None else "none",
            names="coco-91" if classes is None else [f"class{k}" for k in range(classes)],
        )
    )
    return Variant(name, Path(path).name, threshold, above(rows, threshold))


def main() -> None:
    out, pictures = arguments()
    save(
        out,
        "rfdetr 1.11.2, RFDETRNano, random weights",
        [variant(out, pictures, "91", None), variant(out, pictures, "3", 3)],
    )


DESCRIPTION = """\
version: 1
family: rfdetr
about: RF-DETR by Roboflow; licence Apache-2.0; source rfdetr (PyPI)
input:
  scale: 1/255
  mean: [0.485, 0.456, 0.406]
  deviation: [0.229, 0.224, 0.225]
  fit: stretch
outputs:
  boxes: {{tensor: dets, form: cxcywh, unit: fraction}}
  scores: {{tensor: labels, values: logits, background: {background}, several: true}}
  nms: none
names: {names}
"""

if __name__ == "__main__":
    main()
