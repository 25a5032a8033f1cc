"""Files that preprocess pixels: all scale the values, and some also take bytes, NHWC or BGR.

Each file has the same network, with YOLOv8's outputs, behind layers that exporters or users add.
"""

from __future__ import annotations

from pathlib import Path

import cv2
import torch
from result import Row, Variant, arguments, at_size, rows_of, save, threshold_of_all, write_variant
from small_network import Branch, best_of, inside, scale_branch
from tracing import export_onnx
from yolov9 import Dual

REQUIREMENTS = ["torch", "torchvision", "onnx", "opencv-python-headless"]
LICENCE = "Apache-2.0"
SIDE, CLASSES, IOU = 320, 80, 0.45
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# Name -> type of the input, whether it is [1, H, W, 3], and the preprocessing in the graph.
FORMS = {
    "uint8-nhwc-mul": (torch.uint8, True, "mul"),
    "uint8-nchw-div": (torch.uint8, False, "div"),
    "float-nchw-mul": (torch.float32, False, "mul"),
    "float-nchw-div": (torch.float32, False, "div"),
    "float-nhwc-div": (torch.float32, True, "div"),
    "uint8-nhwc-imagenet": (torch.uint8, True, "imagenet"),
    "uint8-nchw-minus-one": (torch.uint8, False, "minus one"),
    "uint8-nhwc-bgr": (torch.uint8, True, "bgr"),
}


class Baked(torch.nn.Module):
    """A network whose graph starts with ``front``, the preprocessing of pixels 0 to 255."""

    def __init__(self, branch: Branch, nhwc: bool, front: str) -> None:
        super().__init__()
        self.branch, self.nhwc, self.front = branch, nhwc, front

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.float() if x.dtype == torch.uint8 else x
        x = x.permute(0, 3, 1, 2) if self.nhwc else x
        return Dual.rows(*self.branch(prepare(x, self.front)))


def prepare(x: torch.Tensor, front: str) -> torch.Tensor:
    """Apply ``front`` to ``x``: [N, 3, H, W], 0..255, RGB. If ``front`` is "bgr", ``x`` is BGR."""
    if front == "mul":
        return x * (1 / 255)
    if front == "div":
        return x / 255
    if front == "minus one":
        return x / 127.5 - 1
    if front == "bgr":
        return x[:, [2, 1, 0]] / 255
    mean, deviation = (torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN, DEVIATION))
    return (x / 255 - mean) / deviation


def read(picture: Path, front: str) -> torch.Tensor:
    """Return bytes [1, 3, H, W]: BGR if ``front`` is "bgr", otherwise RGB."""
    image = cv2.imread(str(picture))
    image = image if front == "bgr" else cv2.cvtColor(image, cv2.COLOR_BGR2RGB)
    return torch.tensor(image.transpose(2, 0, 1)[None].copy())


def find(branch: Branch, picture: Path, front: str) -> list[Row]:
    with torch.no_grad():
        boxes, logits = branch(prepare(read(picture, front).float(), front))
    parts = best_of(boxes[0], logits[0].sigmoid(), IOU, 300, several=False)
    return rows_of(inside(parts[0], SIDE, SIDE), *parts[1:])


def variant(out: Path, sized: list[Path], name: str) -> Variant:
    kind, nhwc, front = FORMS[name]
    branch = Branch(CLASSES, 32, seed=7)
    pixels = torch.cat([read(picture, front) for picture in sized])
    scale_branch(branch, prepare(pixels.float(), front), 0.007)
    rows = {picture.name: find(branch, picture, front) for picture in sized}
    threshold = threshold_of_all(rows)
    example = pixels[:1].to(kind)
    example_input = example.permute(0, 2, 3, 1) if nhwc else example
    baked = Baked(branch, nhwc, front).eval()
    export_onnx(baked, (example_input,), out / f"{name}.onnx", ["output0"], 17)
    text = DESCRIPTION % ("bgr" if front == "bgr" else "rgb")
    return write_variant(name, out / f"{name}.onnx", rows, threshold, text, nms_iou=IOU)


def main() -> None:
    out, pictures = arguments()
    sized = [at_size(out, picture, SIDE, SIDE) for picture in pictures]
    save(
        out,
        "a small network in the layout of YOLOv8, with its normalisation inside",
        [variant(out, sized, name) for name in FORMS],
    )


DESCRIPTION = """\
version: 1
family: pixels-inside
about: a network that scales pixels itself; licence Apache-2.0; source scripts/families
input: {colour: %s, scale: 1}
outputs:
  boxes: {tensor: output0, columns: 0-3, form: cxcywh, axis: first}
  scores: {tensor: output0, columns: 4-, axis: first}
  nms: needed
names: coco-80
"""

if __name__ == "__main__":
    main()
