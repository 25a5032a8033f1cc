"""Run DAMO-YOLO's own code: export like tools/converter.py, read and decode like tools/demo.py.

It is on no package index. Clone github.com/tinyvision/DAMO-YOLO to $CHECKOUTS/DAMO-YOLO.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

CHECKOUT = Path(os.environ.get("CHECKOUTS", "checkouts")) / "DAMO-YOLO"
if not CHECKOUT.is_dir():
    sys.exit(f"damo_yolo: clone https://github.com/tinyvision/DAMO-YOLO to {CHECKOUT}")
sys.path.insert(0, str(CHECKOUT))

import onnx  # noqa: E402
import torch  # noqa: E402
from damo.base_models.core.end2end import End2End  # noqa: E402
from damo.base_models.core.ops import RepConv, SiLU  # noqa: E402
from damo.config.base import parse_config  # noqa: E402
from damo.detectors.detector import build_local_model  # noqa: E402
from damo.structures.image_list import ImageList  # noqa: E402
from damo.utils import postprocess  # noqa: E402
from damo.utils.demo_utils import transform_img  # noqa: E402
from damo.utils.model_utils import replace_module  # noqa: E402
from PIL import Image  # noqa: E402
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
from tracing import export_onnx  # noqa: E402
from weights import scale_outputs  # noqa: E402

REQUIREMENTS = ["torch torchvision onnx numpy loguru easydict pycocotools opencv-python-headless"]
LICENCE = "Apache-2.0"
SIDE = 416


def read(picture: Path, config: Any) -> tuple[Any, tuple[int, int]]:
    """Read a picture as Infer.preprocess of demo.py does."""
    import numpy as np

    image = np.asarray(Image.open(picture).convert("RGB"))
    images = transform_img(image, 0, **config.test.augment.transform, infer_size=(SIDE, SIDE))
    tensor = images.tensors
    padded = torch.zeros(1, 3, SIDE, SIDE)
    padded[:, :, : tensor.shape[2], : tensor.shape[3]] = tensor
    return ImageList(padded, [tensor.shape[-2:]], [padded.shape[-2:]]), image.shape[1::-1]


def find(network: Any, picture: Path, config: Any) -> list[Row]:
    """Detect, and decode as Infer.postprocess of demo.py decodes the outputs of ONNX files."""
    images, shape = read(picture, config)
    head = config.model.head
    with torch.no_grad():
        scores, boxes = network(images.tensors)
    detections = postprocess(
        scores, boxes, head.num_classes, head.nms_conf_thre, head.nms_iou_thre, images
    )
    detections = detections[0].resize(shape)
    labels = detections.get_field("labels")
    return rows_of(detections.bbox, detections.get_field("scores"), labels)


def main() -> None:
    out, pictures = arguments()
    os.chdir(CHECKOUT)  # its configurations read files by relative paths
    torch.manual_seed(7)
    config = parse_config(str(CHECKOUT / "configs/damoyolo_tinynasL20_N.py"))
    network = build_local_model(config, "cpu")
    network.head.nms = False
    sized = [at_size(out, picture, SIDE, SIDE) for picture in pictures]
    x = torch.cat([read(picture, config)[0].tensors for picture in sized])
    run = partial(network, x)
    network.eval()
    set_norms(network, run)
    for layer in network.head.gfl_cls:
        scale_outputs([layer], run, mean=-5.0, deviation=1.0)
    for layer in network.head.gfl_reg:
        scale_outputs([layer], run, mean=0.0, deviation=1.0)
    network = replace_module(network, torch.nn.SiLU, SiLU)
    for layer in network.modules():
        if isinstance(layer, RepConv):
            layer.switch_to_deploy()
    rows = {picture.name: find(network, picture, config) for picture in sized}
    threshold = threshold_of_all(rows)
    iou = config.model.head.nms_iou_thre
    finished = End2End(
        network, max_obj=100, iou_thres=iou, score_thres=0.05, device=torch.device("cpu"), ort=True
    )
    for name, module, outputs in (
        ("damoyolo-raw", network, ["output"]),
        ("damoyolo-end2end", finished, ["num_dets", "det_boxes", "det_scores", "det_classes"]),
    ):
        export_onnx(module, torch.randn(1, 3, SIDE, SIDE), out / f"{name}.onnx", outputs, 11)
    boxes = onnx.load(out / "damoyolo-raw.onnx").graph.output[1].name  # numbered by torch
    (out / "damoyolo-raw.yaml").write_text(DESCRIPTION + RAW.replace("BOXES", f'"{boxes}"'))
    (out / "damoyolo-end2end.yaml").write_text(DESCRIPTION + FINISHED)
    kept_rows = above(rows, threshold)
    variants = [
        Variant("raw", "damoyolo-raw.onnx", threshold, kept_rows, "damoyolo-raw.yaml", iou),
        Variant("end2end", "damoyolo-end2end.onnx", threshold, kept_rows, "damoyolo-end2end.yaml"),
    ]
    save(out, "DAMO-YOLO, repository of March 2024, tinynasL20_N, random weights", variants)


DESCRIPTION = """\
version: 1
family: damo-yolo
about: DAMO-YOLO; licence Apache-2.0; source https://github.com/tinyvision/DAMO-YOLO
input: {colour: rgb, scale: 1, fit: stretch}
"""
RAW = """\
outputs:
  boxes: {tensor: BOXES, form: xyxy, unit: pixels}
  scores: {tensor: output, several: true}
  nms: needed
names: coco-80
"""
FINISHED = """\
outputs:
  boxes: {tensor: det_boxes, form: xyxy, unit: pixels}
  scores: {tensor: det_scores}
  classes: {tensor: det_classes, first: 0}
  count: {tensor: num_dets}
  nms: inside
names: coco-80
"""

if __name__ == "__main__":
    main()
