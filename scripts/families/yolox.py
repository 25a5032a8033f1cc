"""YOLOX, by its own package: exported as in tools/export_onnx.py, with and without --decode_in_inference."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

sys.path = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).parent]
sys.path.append(str(Path(__file__).parent))  # last, so that `import yolox` finds the package

import cv2  # noqa: E402
import onnx  # noqa: E402
import onnxsim  # noqa: E402
import torch  # noqa: E402
from result import Row, Variant, above, arguments, at_size, row, save, set_norms, threshold_of_all  # noqa: E402
from torch import nn  # noqa: E402
from tracing import export_onnx  # noqa: E402
from weights import scale_outputs  # noqa: E402
from yolox.data.data_augment import ValTransform  # noqa: E402
from yolox.exp import get_exp  # noqa: E402
from yolox.models.network_blocks import SiLU  # noqa: E402
from yolox.utils import postprocess, replace_module  # noqa: E402

REQUIREMENTS = [
    "torch torchvision onnx onnxruntime onnxsim setuptools<81 wheel ninja loguru psutil "
    "pycocotools scikit-image tabulate tensorboard thop tqdm opencv-python-headless",
    "yolox==0.3.0 --no-deps --no-build-isolation",  # compiles C++ for YOLOX's evaluation
]
LICENCE = "Apache-2.0"
FORMS = (("raw", False, False), ("decoded", True, False), ("raw, any batch", False, True))
NAMES = ("yolox-nano", "yolox-tiny", "yolox-s")
LOW = 0.01


def read(picture: Path, size: tuple[int, int]) -> torch.Tensor:
    image, _ = ValTransform()(cv2.imread(str(picture)), None, size)
    return torch.from_numpy(image)[None].float()


def find(model: Any, experiment: Any, picture: Path) -> list[Row]:
    """Detect like demo.py's Predictor, but with NMS per class, as YOLOX's evaluation and detect-video
    do. (In demo.py, a box also suppresses boxes of other classes.)"""
    height, width = cv2.imread(str(picture)).shape[:2]
    size = experiment.test_size
    with torch.no_grad():
        raw = model(read(picture, size))
    rows = postprocess(raw, experiment.num_classes, LOW, experiment.nmsthre)[0]
    if rows is None:
        return []
    rows[:, :4] /= min(size[0] / height, size[1] / width)
    return [row(values[:4], values[4] * values[5], values[6]) for values in rows]


def network(experiment: Any, pictures: list[Path]) -> Any:
    torch.manual_seed(7)
    model = experiment.get_model().eval()
    x = torch.cat([read(picture, experiment.test_size) for picture in pictures])
    run = partial(model, x)
    set_norms(model, run)
    scale_outputs(list(model.head.cls_preds), run, mean=-3.0, deviation=1.0)
    scale_outputs(list(model.head.obj_preds), run, mean=-2.0, deviation=1.0)
    scale_outputs(list(model.head.reg_preds), run, mean=0.5, deviation=0.5)
    return model.eval()


def export(model: Any, path: Path, size: tuple[int, int], decode: bool, batch: bool) -> None:
    """Export like tools/export_onnx.py, which itself fails: torch.onnx._export no longer exists."""
    model.head.decode_in_inference = decode
    axes = {"images": {0: "batch"}, "output": {0: "batch"}} if batch else None
    export_onnx(model, torch.randn(1, 3, *size), path, ["output"], 11, dynamic_axes=axes)
    model.head.decode_in_inference = True
    simple, valid = onnxsim.simplify(onnx.load(path))
    assert valid, path
    onnx.save(simple, path)


def variants(out: Path, pictures: list[Path], name: str) -> list[Variant]:
    experiment = get_exp(None, name)
    size = experiment.test_size
    # Detect in the original pictures as well as in the resized copies. The results are comparable
    # because YOLOX's letterbox resizes with the same filter as ours.
    all_pictures = pictures + [at_size(out, picture, size[1], size[0]) for picture in pictures]
    model = network(experiment, all_pictures)
    rows = {
        picture.name if picture.parent == out else str(picture): find(model, experiment, picture)
        for picture in all_pictures
    }
    threshold = threshold_of_all(rows)
    kept_rows = above(rows, threshold)
    model = replace_module(model, nn.SiLU, SiLU)
    exported = []
    for form, decode, batch in FORMS:
        file = f"{name}-{form}.onnx".replace(", ", "-").replace(" ", "-")
        export(model, out / file, size, decode, batch)
        exported.append(
            Variant(f"{name}, {form}", file, threshold, kept_rows, nms_iou=experiment.nmsthre)
        )
    return exported


def main() -> None:
    out, pictures = arguments()
    exported = [variant for name in NAMES for variant in variants(out, pictures, name)]
    save(out, "yolox 0.3.0, random weights", exported)


if __name__ == "__main__":
    main()
