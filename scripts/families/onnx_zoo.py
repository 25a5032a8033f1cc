"""SSD and Faster R-CNN in the form of the ONNX model zoo (ssd-12, FasterRCNN-12).

No package has these models or their exporters, so we use a small network with the same interface:
the preparation of the picture, and the names, order and units of the outputs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import torch
from result import Row, Variant, arguments, at_size, rows_of, save, threshold_of_all, write_variant
from small_network import Branch, best_of, inside, scale_branch
from tracing import export_onnx

REQUIREMENTS = ["torch", "torchvision", "onnx", "opencv-python-headless"]
LICENCE = "Apache-2.0 (SSD), MIT (Faster R-CNN)"
SIZE = (320, 256)


def ssd_input(picture: Path) -> tuple[torch.Tensor, float]:
    """Prepare a picture as the zoo's SSD page says: RGB in 0..1, normalised by ImageNet's figures."""
    image = cv2.cvtColor(cv2.imread(str(picture)), cv2.COLOR_BGR2RGB)
    values = (image / 255.0 - (0.485, 0.456, 0.406)) / (0.229, 0.224, 0.225)
    return torch.tensor(values.transpose(2, 0, 1)[None], dtype=torch.float32), 1.0


def rcnn_input(picture: Path) -> tuple[torch.Tensor, float]:
    """Prepare a picture as the zoo's Faster R-CNN page says: BGR minus a mean, padded, [3, H, W]."""
    image = cv2.imread(str(picture)).astype(np.float32) - (102.9801, 115.9465, 122.7717)
    height, width = (-(-side // 32) * 32 for side in image.shape[:2])
    padded = np.zeros((3, height, width), np.float32)
    padded[:, : image.shape[0], : image.shape[1]] = image.transpose(2, 0, 1)
    return torch.tensor(padded), 1.0


class Ssd(torch.nn.Module):
    def __init__(self, branch: Branch) -> None:
        super().__init__()
        self.branch = branch

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return boxes in 0..1, labels from 1, and scores (softmax over background and classes)."""
        boxes, logits = self.branch(image)
        sides = torch.tensor([image.shape[3], image.shape[2]] * 2)
        scores = logits[0].softmax(-1)[:, 1:]
        kept, values, classes = best_of(boxes[0] / sides, scores, 0.5, 200, least=0.05)
        return kept[None], classes[None] + 1, values[None]


class FasterRcnn(torch.nn.Module):
    def __init__(self, branch: Branch) -> None:
        super().__init__()
        self.branch = branch

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return boxes in pixels, labels from 1, and scores, without a batch axis."""
        boxes, logits = self.branch(image[None] / 57.0)
        kept, values, classes = best_of(
            boxes[0], logits[0].softmax(-1)[:, 1:], 0.5, 100, least=0.05
        )
        return kept, classes + 1, values


def rename(path: Path, names: dict[str, str]) -> None:
    """Give the outputs the zoo's names: numbers, which torch's exporter does not accept as names."""
    model = onnx.load(path)
    for part in (*model.graph.node, *model.graph.output):
        if isinstance(part, onnx.ValueInfoProto):
            part.name = names[part.name]
        else:
            part.output[:] = [names.get(output, output) for output in part.output]
            part.input[:] = [names.get(tensor, tensor) for tensor in part.input]
    onnx.save(model, path)


def variant(out: Path, pictures: list[Path], name: str) -> Variant:
    ssd = name == "ssd"
    read = ssd_input if ssd else rcnn_input
    sized = [at_size(out, picture, *SIZE) for picture in pictures]
    inputs = [read(picture)[0] for picture in sized]
    branch = Branch(81, 32, seed=7)
    scale_branch(branch, torch.cat(inputs) if ssd else torch.stack(inputs) / 57.0, 0.5, 1.6)
    network = (Ssd if ssd else FasterRcnn)(branch).eval()

    def find(x: torch.Tensor) -> list[Row]:
        with torch.no_grad():
            parts: list[Any] = [part.squeeze(0) if ssd else part for part in network(x)]
        scale = torch.tensor([SIZE[0], SIZE[1]] * 2) if ssd else 1
        boxes = inside(parts[0] * scale, *SIZE)
        return rows_of(boxes, parts[2], parts[1] - 1)

    rows = {picture.name: find(x) for picture, x in zip(sized, inputs, strict=True)}
    threshold = threshold_of_all(rows)
    names = ["bboxes", "labels", "scores"]
    axes = {} if ssd else {"image": {1: "height", 2: "width"}}
    axes |= {output: {1 if ssd else 0: "nbox"} for output in names}
    options = {"input_names": ["image"], "dynamic_axes": axes}
    export_onnx(network, (inputs[0],), out / f"zoo-{name}.onnx", names, 12, **options)
    if not ssd:
        rename(out / f"zoo-{name}.onnx", dict(zip(names, ("6379", "6381", "6383"), strict=True)))
    size = None if ssd else SIZE
    path = out / f"zoo-{name}.onnx"
    return write_variant(name, path, rows, threshold, DESCRIPTION[name], size=size)


def main() -> None:
    out, pictures = arguments()
    variants = [variant(out, pictures, name) for name in ("ssd", "faster-rcnn")]
    save(out, "a small network in the form of the ONNX model zoo", variants)


DESCRIPTION = {
    "ssd": """\
version: 1
family: ssd-of-the-zoo
about: SSD of the ONNX zoo; licence Apache-2.0; source onnx/models
input: {mean: [0.485, 0.456, 0.406], deviation: [0.229, 0.224, 0.225], fit: stretch}
outputs:
  boxes: {tensor: bboxes, unit: fraction}
  scores: {tensor: scores}
  classes: {tensor: labels, first: 1}
  nms: inside
names: coco-80
""",
    "faster-rcnn": """\
version: 1
family: faster-rcnn-of-the-zoo
about: Faster R-CNN of the ONNX zoo; licence MIT; source onnx/models
input:
  {colour: bgr, scale: 1, mean: [102.9801, 115.9465, 122.7717], align: top-left, pad: [123, 116, 103]}
outputs:
  boxes: {tensor: 0}
  scores: {tensor: 2}
  classes: {tensor: 1, first: 1}
  nms: inside
names: coco-80
""",
}

if __name__ == "__main__":
    main()
