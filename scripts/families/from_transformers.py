"""Shared parts of the scripts for models of transformers: a small network with random weights, its
export, and detection with the library's own image processor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import torch
from result import (
    Row,
    Variant,
    at_size,
    rows_of,
    scale_logits,
    set_norms,
    threshold_of_each,
    write_variant,
)
from tracing import export_onnx

ALL = 1e-6  # a threshold that keeps all results of post_process_object_detection
# Parts of --describe files for RT-DETR and similar models: RAW for exports with their two raw
# outputs, DEPLOYED for exports that include the post-processor.
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
# The whole --describe file of DETR and similar models.
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
    """Return a description. ``scores``: the keys that say what the tensor ``logits`` contains."""
    return DESCRIPTION.format(family=family, about=about, scores=scores, names=names)


def small_resnet(*stages: str) -> dict[str, Any]:
    """Return options of a small DETR. ``stages``: the ResNet's stages that the encoder reads."""
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
    whose random weights are scaled to spread scores and boxes. ``rate`` and ``deviation``: see
    ``scale_logits``, which scales the class logits."""

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
        result = self.processor.post_process_object_detection(
            self.outputs(picture), threshold=ALL, target_sizes=torch.tensor([[height, width]])
        )[0]
        rows = rows_of(result["boxes"], result["scores"], result["labels"])
        for detection in rows:  # the processor does not clip at the picture's edge
            detection["box"] = [
                min(max(side, 0.0), float(limit))
                for side, limit in zip(detection["box"], (width, height) * 2, strict=True)
            ]
        return rows

    def scale_outputs(self, pictures: list[Path]) -> None:
        def all_of(values: Callable[[Any], torch.Tensor]) -> torch.Tensor:
            return torch.cat([values(self.outputs(picture)) for picture in pictures], 1)

        set_norms(self.model, lambda: all_of(lambda outputs: outputs.logits))
        if self.boxes:
            scale_logits(
                self.boxes,
                lambda: all_of(lambda outputs: torch.logit(outputs.pred_boxes, 1e-6)),
                0.35,
                0.8,
            )
        scale_logits(
            self.classes, lambda: all_of(lambda outputs: outputs.logits), self.rate, self.deviation
        )


class Pair(torch.nn.Module):
    """A wrapper that returns only the two tensors to export."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: torch.Tensor, pixel_mask: torch.Tensor | None = None) -> Any:
        masked = {} if pixel_mask is None else {"pixel_mask": pixel_mask}
        outputs = self.model(pixel_values=pixel_values, **masked)
        return outputs.logits, outputs.pred_boxes


class Deployed(torch.nn.Module):
    """A model with its post-processor, as tools/export_onnx.py of RT-DETR and of its descendants
    exports it. The second input is the picture's (width, height); boxes are in its pixels."""

    def __init__(self, model: Any, queries: int) -> None:
        super().__init__()
        self.model = model
        self.queries = queries

    def forward(self, images: torch.Tensor, orig_target_sizes: torch.Tensor) -> Any:
        outputs = self.model(pixel_values=images)
        centres, sides = outputs.pred_boxes.split(2, -1)
        boxes = torch.cat([centres - sides / 2, centres + sides / 2], -1)
        boxes = boxes * orig_target_sizes.repeat(1, 2).unsqueeze(1)
        columns = outputs.logits.shape[-1]
        scores, index = torch.topk(outputs.logits.sigmoid().flatten(1), self.queries, dim=-1)
        chosen = (index // columns).unsqueeze(-1).repeat(1, 1, 4)
        return index - index // columns * columns, boxes.gather(1, chosen), scores


def export_pair(family: Family, path: Path, masks: tuple[int, int] | None = None) -> None:
    """Export without optimum. ``masks``: (height, width) of a second input, pixel_mask."""
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
    options = {"input_names": list(inputs), "dynamic_axes": axes, "do_constant_folding": True}
    export_onnx(module.eval(), tuple(inputs.values()), path, outputs, 16, **options)


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
    """Detect with the library and export the file. ``family.scale_outputs`` must have been called."""
    sized = [at_size(out, picture, *family.size) for picture in pictures]
    rows = {picture.name: family.detect(picture) for picture in sized}
    threshold = threshold_of_each(rows)
    path = out / f"{family.name}-{name}.onnx"
    export(path)
    return write_variant(name, path, rows, threshold, describe, size=family.size)
