"""YOLOX, by its own package: tools/export_onnx.py's call, with and without --decode_in_inference."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).parent]
sys.path.append(str(Path(__file__).parent))  # after the package that has this file's name

import cv2  # noqa: E402
import onnx  # noqa: E402
import onnxsim  # noqa: E402
import torch  # noqa: E402
from result import Row, Variant, above, arguments, at_size, row, save, settle, threshold_of_all  # noqa: E402
from torch import nn  # noqa: E402
from tracing import export_onnx  # noqa: E402
from weights import spread  # noqa: E402
from yolox.data.data_augment import ValTransform  # noqa: E402
from yolox.exp import get_exp  # noqa: E402
from yolox.models.network_blocks import SiLU  # noqa: E402
from yolox.utils import postprocess, replace_module  # noqa: E402

REQUIREMENTS = [
    "torch",
    "torchvision",
    "onnx",
    "onnxruntime",
    "onnxsim",
    "setuptools<81",
    "wheel",
    "ninja",
    "loguru",
    "psutil",
    "pycocotools",
    "scikit-image",
    "tabulate",
    "tensorboard",
    "thop",
    "tqdm",
    "opencv-python-headless",
    "yolox==0.3.0 --no-deps --no-build-isolation",  # compiles an operator of its evaluation
]
LICENCE = "Apache-2.0"
FORMS = (("raw", False, False), ("decoded", True, False), ("raw, any batch", False, True))
NAMES = ("yolox-nano", "yolox-tiny", "yolox-s")
LOW = 0.01


def read(picture: Path, size: tuple[int, int]) -> torch.Tensor:
    image, _ = ValTransform()(cv2.imread(str(picture)), None, size)
    return torch.from_numpy(image)[None].float()


def find(made: Any, experiment: Any, picture: Path) -> list[Row]:
    """Detect like demo.py's Predictor, but with the NMS of its evaluation: one per class, as ours;
    demo.py uses one for all."""
    height, width = cv2.imread(str(picture)).shape[:2]
    size = experiment.test_size
    with torch.no_grad():
        raw = made(read(picture, size))
    found = postprocess(raw, experiment.num_classes, LOW, experiment.nmsthre)[0]
    if found is None:
        return []
    found[:, :4] /= min(size[0] / height, size[1] / width)
    return [row(one[:4], one[4] * one[5], one[6]) for one in found]


def network(experiment: Any, pictures: list[Path]) -> Any:
    torch.manual_seed(7)
    made = experiment.get_model().eval()
    x = torch.cat([read(picture, experiment.test_size) for picture in pictures])

    def run() -> Any:
        return made(x)

    settle(made, run)
    spread(list(made.head.cls_preds), run, mean=-3.0, deviation=1.0)
    spread(list(made.head.obj_preds), run, mean=-2.0, deviation=1.0)
    spread(list(made.head.reg_preds), run, mean=0.5, deviation=0.5)
    return made.eval()


def export(made: Any, path: Path, size: tuple[int, int], decode: bool, batch: bool) -> None:
    """Export like tools/export_onnx.py, whose torch.onnx._export no longer exists."""
    made.head.decode_in_inference = decode
    axes = {"images": {0: "batch"}, "output": {0: "batch"}} if batch else None
    export_onnx(made, torch.randn(1, 3, *size), path, ["output"], 11, dynamic_axes=axes)
    made.head.decode_in_inference = True
    simple, valid = onnxsim.simplify(onnx.load(path))
    assert valid, path
    onnx.save(simple, path)


def variants(out: Path, pictures: list[Path], name: str) -> list[Variant]:
    experiment = get_exp(None, name)
    size = experiment.test_size
    # Pictures of other shapes, too: its letterbox uses the same filter as ours.
    taken = pictures + [at_size(out, picture, size[1], size[0]) for picture in pictures]
    made = network(experiment, taken)
    rows = {
        picture.name if picture.parent == out else str(picture): find(made, experiment, picture)
        for picture in taken
    }
    threshold = threshold_of_all(rows)
    judged = above(rows, threshold)
    made = replace_module(made, nn.SiLU, SiLU)
    written = []
    for form, decode, batch in FORMS:
        file = f"{name}-{form}.onnx".replace(", ", "-").replace(" ", "-")
        export(made, out / file, size, decode, batch)
        written.append(
            Variant(f"{name}, {form}", file, threshold, judged, nms_iou=experiment.nmsthre)
        )
    return written


def main() -> None:
    out, pictures = arguments()
    written = [one for name in NAMES for one in variants(out, pictures, name)]
    save(out, "yolox 0.3.0, random weights", written)


if __name__ == "__main__":
    main()
