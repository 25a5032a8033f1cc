"""Deformable DETR, by transformers: optimum has no configuration for it, so torch exports it."""

from __future__ import annotations

from pathlib import Path

import torch
from from_transformers import Family, export_pair, variant
from result import arguments, at_size, enliven, save

REQUIREMENTS = ["-r transformers.txt"]
LICENCE = "Apache-2.0"
SIZE = (640, 480)


def family(two_stage: bool) -> Family:
    """``two_stage``: queries from the encoder's best places, boxes refined by each layer."""
    from transformers import (
        DeformableDetrConfig,
        DeformableDetrForObjectDetection,
        DeformableDetrImageProcessor,
        ResNetConfig,
    )

    torch.manual_seed(12)
    config = DeformableDetrConfig(
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        backbone_config=ResNetConfig(
            embedding_size=16,
            hidden_sizes=[32, 64, 96, 128],
            depths=[1, 1, 1, 1],
            layer_type="basic",
            out_features=["stage2", "stage3", "stage4"],
        ),
        encoder_layers=2,
        decoder_layers=2,
        num_queries=200,
        num_labels=91,
        two_stage=two_stage,
        with_box_refine=two_stage,
        disable_custom_kernels=True,
    )
    model = DeformableDetrForObjectDetection(config).eval()
    enliven(model.model)
    if not two_stage:
        torch.nn.init.normal_(model.model.query_position_embeddings.weight)
    processor = DeformableDetrImageProcessor(size={"height": SIZE[1], "width": SIZE[0]})
    last = model.config.decoder_layers - 1  # two stages: one head more, which finds the places
    return Family(
        "deformable-detr", model, processor, SIZE, [model.class_embed[last]], [], rate=0.05
    )


def main() -> None:
    out, pictures = arguments()
    variants = []
    for name, two_stage in (("one-stage", False), ("two-stage", True)):
        made = family(two_stage)
        made.spread([at_size(out, picture, *SIZE) for picture in pictures])

        def plain(path: Path, made: Family = made) -> None:
            export_pair(made, path)

        variants.append(variant(made, name, out, pictures, plain, DESCRIPTION))
    save(out, "transformers 4.57.6, DeformableDetrForObjectDetection, random weights", variants)


DESCRIPTION = """\
version: 1
family: deformable-detr
about: Deformable DETR; licence Apache-2.0; source transformers (PyPI)
input:
  scale: 1/255
  mean: [0.485, 0.456, 0.406]
  deviation: [0.229, 0.224, 0.225]
  fit: stretch
outputs:
  boxes: {tensor: pred_boxes, form: cxcywh, unit: fraction}
  scores: {tensor: logits, values: logits, several: true}
  nms: none
names: coco-91
"""

if __name__ == "__main__":
    main()
