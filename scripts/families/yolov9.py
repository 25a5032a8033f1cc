"""A network with an auxiliary and a main branch, exported as in YOLOv9's own repository.

Its author writes: "the output of yolov9 models are aux prediction and main prediction respectively"
(WongKinYiu/yolov9, issue 21). YOLOv9 is GPL, so we export a small network of our own instead.
"""

from __future__ import annotations

from pathlib import Path

import cv2
import onnx
import torch
from result import Row, arguments, at_size, rows_of, save, threshold_of_all, write_variant
from small_network import Branch, best_of, inside, scale_branch
from tracing import export_onnx

REQUIREMENTS = ["torch", "torchvision", "onnx", "opencv-python-headless"]
LICENCE = "Apache-2.0 (this form); GPL-3.0 (YOLOv9 of WongKinYiu)"
SIDE, CLASSES, IOU = 320, 80, 0.45


class Dual(torch.nn.Module):
    """Returns [1, 4 + classes, cells] of each branch: boxes (centre, size), then probabilities."""

    def __init__(self, aux: Branch, main: Branch) -> None:
        super().__init__()
        self.aux, self.main = aux, main

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(self.rows(*branch(x)) for branch in (self.aux, self.main))

    @staticmethod
    def rows(boxes: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        first, last = boxes[..., :2], boxes[..., 2:]
        return torch.cat([(first + last) / 2, last - first, logits.sigmoid()], -1).transpose(1, 2)


def read(picture: Path) -> torch.Tensor:
    image = cv2.cvtColor(cv2.imread(str(picture)), cv2.COLOR_BGR2RGB)
    return torch.tensor(image.transpose(2, 0, 1)[None] / 255.0, dtype=torch.float32)


def find(main: Branch, x: torch.Tensor) -> list[Row]:
    with torch.no_grad():
        boxes, logits = main(x)
    parts = best_of(boxes[0], logits[0].sigmoid(), IOU, 300, several=False)
    return rows_of(inside(parts[0], SIDE, SIDE), *parts[1:])


def main() -> None:
    out, pictures = arguments()
    sized = [at_size(out, picture, SIDE, SIDE) for picture in pictures]
    x = torch.cat([read(picture) for picture in sized])
    branches = Branch(CLASSES, 32, seed=8), Branch(CLASSES, 32, seed=7)
    for branch in branches:
        scale_branch(branch, x, 0.007)
    network = Dual(*branches).eval()
    rows = {picture.name: find(branches[1], read(picture)) for picture in sized}
    threshold = threshold_of_all(rows)

    variants = []
    for name, names in (("yolov9-c-dual", ["output0"]), ("two-outputs", ["output0", "output1"])):
        export_onnx(network, (x[:1],), out / f"{name}.onnx", names, 12)
        # "output1", or the number by which torch named this output
        second = onnx.load(out / f"{name}.onnx").graph.output[1].name
        path, text = out / f"{name}.onnx", DESCRIPTION.replace("MAIN", f"'{second}'")
        variants.append(write_variant(name, path, rows, threshold, text, nms_iou=IOU))
    save(out, "a small network with two branches, in the form of WongKinYiu/yolov9", variants)


DESCRIPTION = """\
version: 1
family: yolov9-main-branch
about: YOLOv9 with an auxiliary branch; licence GPL-3.0; source WongKinYiu/yolov9
outputs:
  boxes: {tensor: MAIN, columns: 0-3, form: cxcywh, axis: first}
  scores: {tensor: MAIN, columns: 4-, axis: first}
  nms: needed
names: coco-80
"""

if __name__ == "__main__":
    main()
