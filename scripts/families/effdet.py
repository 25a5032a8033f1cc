"""EfficientDet, by the package effdet: exported alone, and inside effdet's DetBenchPredict."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

sys.path = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).parent]
sys.path.append(str(Path(__file__).parent))  # last, so that `import effdet` finds the package

import numpy as np  # noqa: E402
import torch  # noqa: E402
from effdet import DetBenchPredict, EfficientDet, get_efficientdet_config  # noqa: E402
from effdet.anchors import generate_detections  # noqa: E402
from effdet.bench import _post_process  # noqa: E402
from effdet.data.transforms import ResizePad, resolve_fill_color  # noqa: E402
from PIL import Image  # noqa: E402
from result import Row, Variant, above, arguments, at_size, row, save, set_norms, threshold_of_all  # noqa: E402
from tracing import export_onnx  # noqa: E402
from weights import scale_outputs  # noqa: E402

REQUIREMENTS = ["effdet==0.4.1", "torchvision", "onnx", "opencv-python-headless"]
LICENCE = "Apache-2.0"
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def read(picture: Path, size: tuple[int, int]) -> tuple[torch.Tensor, float, tuple[int, int]]:
    """Return effdet's input, the factor from input to picture, and the size of the picture."""
    image = Image.open(picture).convert("RGB")
    resized, notes = ResizePad(size, fill_color=resolve_fill_color("mean", MEAN))(image, {})
    array = torch.from_numpy(np.array(resized)).permute(2, 0, 1)[None].float()
    mean = torch.tensor([255 * value for value in MEAN]).view(1, 3, 1, 1)
    deviation = torch.tensor([255 * value for value in DEVIATION]).view(1, 3, 1, 1)
    return (array - mean) / deviation, notes["img_scale"], image.size


def find(bench: Any, picture: Path, size: tuple[int, int], clip: bool) -> list[Row]:
    """Detect. If ``clip``, pass the picture's size, as the package's evaluation does. The package
    then clips boxes to the picture before NMS, which changes some results."""
    x, scale, shape = read(picture, size)
    notes = {
        "img_scale": torch.tensor([scale]),
        "img_size": torch.tensor([shape], dtype=torch.float32),
    }
    with torch.no_grad():
        rows = bench(x, notes if clip else None)[0].numpy()
    rows[:, :4] *= 1 if clip else scale
    return [row(values[:4], values[4], values[5] - 1) for values in rows if values[4] > 0]


class Traceable(torch.nn.Module):
    """DetBenchPredict for one picture; torch cannot export its scripted loop over a batch.

    It does not pad the result to 100 rows: the export would fix how many rows are added.
    ``edge``: side of the input; if given, boxes are clipped to it before NMS.
    """

    def __init__(self, bench: Any, edge: int | None = None) -> None:
        super().__init__()
        self.bench = bench
        self.scale = None if edge is None else torch.tensor(1.0)
        self.size = None if edge is None else torch.tensor([edge, edge], dtype=torch.float32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bench = self.bench
        classes, boxes, indices, class_ids = _post_process(
            *bench.model(x), bench.num_levels, bench.num_classes, bench.max_detection_points
        )
        detections = generate_detections(
            classes[0],
            boxes[0],
            bench.anchors.boxes,
            indices[0],
            class_ids[0],
            self.scale,
            self.size,
            bench.max_det_per_image,
        )
        return detections[None]


def network(sized: list[Path]) -> tuple[Any, tuple[int, int]]:
    torch.manual_seed(7)
    config = get_efficientdet_config("efficientdet_d0")
    model = EfficientDet(config, pretrained_backbone=False)
    size = tuple(config.image_size)
    x = torch.cat([read(picture, size)[0] for picture in sized])
    run = partial(model, x)
    set_norms(model, run)
    scale_outputs([model.class_net.predict.conv_pw], run, mean=-5.0, deviation=1.0)
    scale_outputs([model.box_net.predict.conv_pw], run, mean=0.0, deviation=0.3)
    return model.eval(), size


def main() -> None:
    out, pictures = arguments()
    size = (512, 512)
    sized = [at_size(out, picture, *size) for picture in pictures]
    made, size = network(sized)
    bench = DetBenchPredict(made).eval()
    (out / "effdet-bench.yaml").write_text(DESCRIPTION)
    variants = []
    for name, form, description in (
        ("raw levels", "raw", None),
        ("DetBenchPredict", "bench", "effdet-bench.yaml"),
        ("DetBenchPredict with img_info", "clipped", "effdet-bench.yaml"),
    ):
        clip = form == "clipped"
        rows = {picture.name: find(bench, picture, size, clip) for picture in sized}
        threshold = threshold_of_all(rows)
        kept_rows = above(rows, threshold)
        file = f"effdet-{form}.onnx"
        variants.append(Variant(name, file, threshold, kept_rows, description))
    # Export last: an export changes what the package's scripted functions return (PyTorch 2.14).
    x = read(sized[0], size)[0]
    levels = [f"{kind}_{level}" for kind in ("class", "box") for level in range(3, 8)]
    export_onnx(made, x, out / "effdet-raw.onnx", levels, 17)
    export_onnx(Traceable(bench), x, out / "effdet-bench.onnx", ["detections"], 17)
    clipped = Traceable(bench, size[0])
    export_onnx(clipped, x, out / "effdet-clipped.onnx", ["detections"], 17)
    save(out, "effdet 0.4.1, efficientdet_d0, random weights", variants)


# The raw levels have no description, since a description cannot contain the anchors that they need.
DESCRIPTION = """\
version: 1
family: efficientdet
about: EfficientDet with decoding and NMS in the graph; licence Apache-2.0; source effdet (PyPI)
input:
  {mean: [0.485, 0.456, 0.406], deviation: [0.229, 0.224, 0.225], align: top-left, rounding: down,
   pad: [124, 116, 104]}
outputs:
  boxes: {tensor: detections, columns: 0-3}
  scores: {tensor: detections, columns: 4}
  classes: {tensor: detections, column: 5, first: 1}
  nms: inside
names: coco-90
"""

if __name__ == "__main__":
    main()
