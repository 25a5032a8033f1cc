"""The parts shared by families of transformers: a small network with random weights, its export,
and its own image processor before and after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import torch
from result import Row, Variant, above, at_size, row, scale_logits, settle, threshold_of_each
from tracing import export_onnx

ALL = 1e-6  # a threshold that keeps all results of post_process_object_detection
# Parts of a --describe file. The raw pair of RT-DETR and similar models, and their deployed form:
RAW = """\
outputs:
  boxes: {tensor: pred_boxes, form: cxcywh, unit: fraction}
  scores: {tensor: logits, values: logits, several: true}
  nms: none
names: coco-80
"""
DEPLOYED = """\
outputs:
  boxes: {tensor: boxes, form: xyxy, unit: pixels}
  scores: {tensor: scores, values: probabilities}
  classes: {tensor: labels, first: 0}
  nms: none
names: coco-80
"""
# The whole file of DETR and similar models:
DESCRIPTION = """\
version: 1
family: {family}
about: {about}
input:
  scale: 1/255
  mean: [0.485, 0.456, 0.406]
  deviation: [0.229, 0.224, 0.225]
  fit: stretch
outputs:
  boxes: {{tensor: pred_boxes, form: cxcywh, unit: fraction}}
  scores: {{tensor: logits, {scores}}}
  nms: none
names: {names}
"""


def describe(family: str, about: str, scores: str, names: str = "coco-91") -> str:
    """Return a description. ``scores``: the content of the logits tensor."""
    return DESCRIPTION.format(family=family, about=about, scores=scores, names=names)


def small_resnet(*stages: str) -> dict[str, Any]:
    """Return options of a DETR with two layers of each kind, on a ResNet with ``stages``."""
    from transformers import ResNetConfig

    backbone = ResNetConfig(
        embedding_size=16,
        hidden_sizes=[32, 64, 96, 128],
        depths=[1, 1, 1, 1],
        layer_type="basic",
        out_features=list(stages),
    )
    own = {"use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None}
    return own | {"backbone_config": backbone, "encoder_layers": 2, "decoder_layers": 2}


def small_hgnet() -> dict[str, Any]:
    """Return options of a small D-FINE or DEIM."""
    from transformers import HGNetV2Config

    backbone = HGNetV2Config(
        out_features=["stage2", "stage3", "stage4"],
        stem_channels=[3, 16, 16],
        stage_in_channels=[16, 64, 256, 512],
        stage_mid_channels=[16, 32, 64, 128],
        stage_out_channels=[64, 256, 512, 1024],
        stage_num_blocks=[1, 1, 2, 1],
        stage_numb_of_layers=[3, 3, 3, 3],
        hidden_sizes=[64, 256, 512, 1024],
    )
    return {
        "backbone_config": backbone,
        "encoder_in_channels": [256, 512, 1024],
        "encoder_hidden_dim": 128,
        "encoder_ffn_dim": 256,
        "d_model": 128,
        "decoder_in_channels": [128, 128, 128],
        "decoder_layers": 3,
        "decoder_ffn_dim": 256,
        "hidden_expansion": 0.34,
        "depth_mult": 0.5,
    }


@dataclass
class Family:
    """A model with its processor. ``classes`` and ``boxes``: the last layers of the two heads,
    whose random weights are scaled to spread scores and boxes. ``deviation``: of the logits."""

    name: str
    model: Any
    processor: Any
    size: tuple[int, int]  # width, height
    classes: list[Any]
    boxes: list[Any]
    deviation: float = 1.5
    rate: float = 0.05

    def outputs(self, picture: Path) -> Any:
        image = cv2.cvtColor(cv2.imread(str(picture)), cv2.COLOR_BGR2RGB)
        with torch.no_grad():
            return self.model(**self.processor(images=image, return_tensors="pt"))

    def detect(self, picture: Path) -> list[Row]:
        height, width = cv2.imread(str(picture)).shape[:2]
        found = self.processor.post_process_object_detection(
            self.outputs(picture), threshold=ALL, target_sizes=torch.tensor([[height, width]])
        )[0]
        parts = (found["boxes"].tolist(), found["scores"].tolist(), found["labels"].tolist())
        rows = [row(*one) for one in zip(*parts, strict=True)]
        for one in rows:  # the processor does not clip at the picture's edge
            one["box"] = [
                min(max(side, 0.0), float(limit))
                for side, limit in zip(one["box"], (width, height) * 2, strict=True)
            ]
        return rows

    def spread(self, pictures: list[Path]) -> None:
        def all_of(values: Callable[[Any], torch.Tensor]) -> torch.Tensor:
            return torch.cat([values(self.outputs(picture)) for picture in pictures], 1)

        settle(self.model, lambda: all_of(lambda found: found.logits))
        if self.boxes:
            scale_logits(
                self.boxes,
                lambda: all_of(lambda found: torch.logit(found.pred_boxes, 1e-6)),
                0.35,
                0.8,
            )
        scale_logits(
            self.classes, lambda: all_of(lambda found: found.logits), self.rate, self.deviation
        )


def caught(module: Any, run: Callable[[], Any]) -> torch.Tensor:
    """Return the last output of ``module`` while ``run`` ran."""
    seen: list[torch.Tensor] = []
    hook = module.register_forward_hook(lambda _m, _i, out: seen.append(out))
    run()
    hook.remove()
    return seen[-1]


class Pair(torch.nn.Module):
    """Returns only the two tensors that are exported."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: torch.Tensor, pixel_mask: torch.Tensor | None = None) -> Any:
        masked = {} if pixel_mask is None else {"pixel_mask": pixel_mask}
        found = self.model(pixel_values=pixel_values, **masked)
        return found.logits, found.pred_boxes


class Deployed(torch.nn.Module):
    """The export of RT-DETR's tools/export_onnx.py and its descendants: the post-processor is
    inside, boxes are in pixels of the picture, whose width and height are the second input."""

    def __init__(self, model: Any, queries: int) -> None:
        super().__init__()
        self.model = model
        self.queries = queries

    def forward(self, images: torch.Tensor, orig_target_sizes: torch.Tensor) -> Any:
        found = self.model(pixel_values=images)
        centres, sides = found.pred_boxes.split(2, -1)
        boxes = torch.cat([centres - sides / 2, centres + sides / 2], -1)
        boxes = boxes * orig_target_sizes.repeat(1, 2).unsqueeze(1)
        columns = found.logits.shape[-1]
        scores, index = torch.topk(found.logits.sigmoid().flatten(1), self.queries, dim=-1)
        chosen = (index // columns).unsqueeze(-1).repeat(1, 1, 4)
        return index - index // columns * columns, boxes.gather(1, chosen), scores


def export_pair(family: Family, path: Path, masks: tuple[int, int] | None = None) -> None:
    """Export as users do without an optimum configuration. ``masks``: height and width of a second
    input pixel_mask."""
    width, height = family.size
    inputs = {"pixel_values": torch.zeros(1, 3, height, width)}
    axes = {"pixel_values": {0: "batch_size", 2: "height", 3: "width"}}
    if masks is not None:
        inputs["pixel_mask"] = torch.ones(1, *masks, dtype=torch.int64)
        axes["pixel_mask"] = {0: "batch_size"}
    outputs = ["logits", "pred_boxes"]
    export_by_torch(Pair(family.model), path, inputs, outputs, axes)


def export_deployed(module: torch.nn.Module, size: tuple[int, int], path: Path) -> None:
    inputs = {
        "images": torch.rand(1, 3, size[1], size[0]),
        "orig_target_sizes": torch.tensor([[size[0], size[1]]]),
    }
    axes = {"images": {0: "N"}, "orig_target_sizes": {0: "N"}}
    export_by_torch(module, path, inputs, ["labels", "boxes", "scores"], axes)


def export_by_torch(
    module: Any,
    path: Path,
    inputs: dict[str, torch.Tensor],
    outputs: list[str],
    axes: dict[str, dict[int, str]],
) -> None:
    own = {"input_names": list(inputs), "dynamic_axes": axes, "do_constant_folding": True}
    export_onnx(module.eval(), tuple(inputs.values()), path, outputs, 16, **own)


def export_by_optimum(family: Family, path: Path) -> None:
    """Run `optimum-cli export onnx --task object-detection` on a model in memory."""
    from optimum.exporters.onnx import onnx_export_from_model

    width, height = family.size
    folder = path.parent / f"{path.stem}-optimum"
    onnx_export_from_model(
        family.model,
        str(folder),
        task="object-detection",
        do_validation=False,
        height=height,
        width=width,
    )
    (folder / "model.onnx").replace(path)
    (path.parent / f"{path.stem}-config.json").write_bytes((folder / "config.json").read_bytes())


def variant(
    family: Family,
    name: str,
    out: Path,
    pictures: list[Path],
    export: Callable[[Path], None],
    describe: str | None = None,
) -> Variant:
    """Return detections of the library and the file; ``family`` has its weights spread already."""
    sized = [at_size(out, picture, *family.size) for picture in pictures]
    rows = {picture.name: family.detect(picture) for picture in sized}
    threshold = threshold_of_each(rows)
    path = out / f"{family.name}-{name}.onnx"
    export(path)
    if describe is not None:
        path.with_suffix(".yaml").write_text(describe, encoding="utf-8")
    return Variant(
        name,
        path.name,
        threshold,
        above(rows, threshold),
        describe=path.with_suffix(".yaml").name if describe is not None else None,
        size=family.size,
    )
