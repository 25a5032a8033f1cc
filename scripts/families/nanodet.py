"""NanoDet and NanoDet-Plus, exported and run by their own code, as tools/export_onnx.py and demo.py do.

No package index has them, so $CHECKOUTS must contain github.com/RangiLyu/nanodet.
"""

from __future__ import annotations

import os
import sys
import types
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
CHECKOUT = Path(os.environ.get("CHECKOUTS", "checkouts")) / "nanodet"
# The checkout comes first, so that `import nanodet` does not find this file.
sys.path = [str(CHECKOUT), *(e for e in sys.path if Path(e or ".").resolve() != HERE), str(HERE)]
if not CHECKOUT.is_dir():
    sys.exit(f"nanodet: {CHECKOUT} is missing: clone https://github.com/RangiLyu/nanodet there")

# The repository imports torch._six, which PyTorch 2 no longer has.
six = types.ModuleType("torch._six")
six.string_classes = (str, bytes)  # type: ignore[attr-defined]
sys.modules["torch._six"] = six

import cv2  # noqa: E402
import torch  # noqa: E402
from nanodet.data.batch_process import stack_batch_img  # noqa: E402
from nanodet.data.collate import naive_collate  # noqa: E402
from nanodet.data.transform import Pipeline  # noqa: E402
from nanodet.model.arch import build_model  # noqa: E402
from nanodet.util import cfg as DEFAULTS  # noqa: E402, N812
from nanodet.util import load_config  # noqa: E402
from result import Row, Variant, above, arguments, at_size, row, save, set_norms, threshold_of_all  # noqa: E402
from tracing import export_onnx  # noqa: E402
from weights import scale_outputs  # noqa: E402

REQUIREMENTS = [
    "torch torchvision onnx pytorch-lightning pycocotools pyyaml termcolor matplotlib tabulate "
    "opencv-python-headless"
]
LICENCE = "Apache-2.0"


class Levels(torch.nn.Module):
    """Splits the output by level, as tools/export_onnx.py did up to v0.4."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network, self.head = network, network.head

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        cells = [x.shape[2] // stride * (x.shape[3] // stride) for stride in self.head.strides]
        levels = self.network(x).split(cells, dim=1)
        classes = self.head.num_classes
        parts = slice(classes), slice(classes, None)
        return [level[..., part] for part in parts for level in levels]

    def names(self) -> list[str]:
        return [f"{part}_pred_stride_{at}" for part in ("cls", "dis") for at in self.head.strides]


def read(picture: Path, config: Any) -> dict[str, Any]:
    """Prepare a picture as Predictor.inference in demo.py does."""
    image = cv2.imread(str(picture))
    info = {"id": 0, "file_name": picture.name, "height": image.shape[0], "width": image.shape[1]}
    pipeline = Pipeline(config.data.val.pipeline, config.data.val.keep_ratio)
    meta = pipeline(
        None, {"img_info": info, "raw_img": image, "img": image}, config.data.val.input_size
    )
    meta["img"] = torch.from_numpy(meta["img"].transpose(2, 0, 1))
    meta = naive_collate([meta])
    meta["img"] = stack_batch_img(meta["img"], divisible=32)
    return meta


def find(network: Any, picture: Path, config: Any) -> list[Row]:
    meta = read(picture, config)
    with torch.no_grad():
        rows_of_class = network.inference(meta)[0]
    return [
        row(values[:4], values[4], class_id)
        for class_id, rows in rows_of_class.items()
        for values in rows
    ]


def variant(out: Path, pictures: list[Path], name: str, file: str, levels: bool) -> Variant:
    config = DEFAULTS.clone()
    load_config(config, str(CHECKOUT / "config" / file))
    config.defrost()
    config.model.arch.backbone.pretrain = False
    torch.manual_seed(7)
    network = build_model(config.model)
    size = tuple(config.data.val.input_size)
    sized = [at_size(out, picture, *size) for picture in pictures]
    x = torch.cat([read(picture, config)["img"] for picture in sized])
    run = partial(network, x)
    set_norms(network, run)
    classes = network.head.num_classes
    for layer in network.head.gfl_cls:  # outputs: class scores, then bins of four distances
        scale_outputs([layer], run, mean=-5.0, deviation=1.0)
        with torch.no_grad():
            layer.bias[classes:] += 5
    rows = {picture.name: find(network, picture, config) for picture in sized}
    threshold = threshold_of_all(rows, 2, 12)  # low limits: NanoDet's NMS keeps only 100 boxes
    exported = Levels(network) if levels else network
    outputs = exported.names() if levels else ["output"]
    example = torch.randn(1, 3, size[1], size[0])
    options = {"input_names": ["data"], "keep_initializers_as_inputs": True}
    # as in tools/export_onnx.py, except that onnxsim does not simplify the file
    export_onnx(exported, example, out / f"{name}.onnx", outputs, 11, **options)
    (out / f"{name}.yaml").write_text(
        DESCRIPTION.format(
            name=name, strides=list(network.head.strides), centre=0.0 if "plus" in name else 0.5
        )
    )
    return Variant(
        name,
        f"{name}.onnx",
        threshold,
        above(rows, threshold),
        None if levels else f"{name}.yaml",
        0.6,
    )


def main() -> None:
    out, pictures = arguments()
    variants = [
        variant(out, pictures, "nanodet-plus-m_320", "nanodet-plus-m_320.yml", False),
        variant(out, pictures, "nanodet-m", "legacy_v0.x_configs/nanodet-m.yml", False),
        variant(out, pictures, "nanodet-m-levels", "legacy_v0.x_configs/nanodet-m.yml", True),
    ]
    save(out, "nanodet, repository of January 2024, random weights", variants)


DESCRIPTION = """\
version: 1
family: nanodet
about: {name}; licence Apache-2.0; source https://github.com/RangiLyu/nanodet
input:
  {{colour: bgr, scale: 1, mean: [103.53, 116.28, 123.675], deviation: [57.375, 57.12, 58.395],
   fit: stretch}}
outputs:
  boxes: {{tensor: output, columns: last 32}}
  scores: {{tensor: output, columns: but last 32, several: true}}
  cells: {{kind: distances, strides: {strides}, bins: 8, centre: {centre}}}
  nms: needed
names: coco-80
"""

if __name__ == "__main__":
    main()
