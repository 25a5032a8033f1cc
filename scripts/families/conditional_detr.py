"""Conditional DETR, by transformers: optimum has no configuration for it, so torch exports it."""

from __future__ import annotations

from pathlib import Path

import torch
from from_transformers import Family, export_pair, variant
from result import arguments, at_size, enliven, save

REQUIREMENTS = ["-r transformers.txt"]
LICENCE = "Apache-2.0"
SIZE = (640, 480)


def family() -> Family:
    from transformers import (
        ConditionalDetrConfig,
        ConditionalDetrForObjectDetection,
        ConditionalDetrImageProcessor,
        ResNetConfig,
    )

    torch.manual_seed(11)
    config = ConditionalDetrConfig(
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        backbone_config=ResNetConfig(
            embedding_size=16,
            hidden_sizes=[32, 64, 96, 128],
            depths=[1, 1, 1, 1],
            layer_type="basic",
            out_features=["stage4"],
        ),
        encoder_layers=2,
        decoder_layers=2,
        num_labels=91,
    )
    model = ConditionalDetrForObjectDetection(config).eval()
    enliven(model.model.encoder)
    enliven(model.model.decoder)
    torch.nn.init.normal_(model.model.query_position_embeddings.weight)
    processor = ConditionalDetrImageProcessor(size={"height": SIZE[1], "width": SIZE[0]})
    heads = [model.class_labels_classifier], [model.bbox_predictor.layers[-1]]
    return Family("conditional-detr", model, processor, SIZE, *heads)


def main() -> None:
    out, pictures = arguments()
    made = family()
    made.spread([at_size(out, picture, *SIZE) for picture in pictures])

    def plain(path: Path) -> None:
        export_pair(made, path)

    def with_mask(path: Path) -> None:
        export_pair(made, path, masks=(SIZE[1], SIZE[0]))

    variants = [
        variant(made, "torch", out, pictures, plain, DESCRIPTION),
        variant(made, "pixel-mask", out, pictures, with_mask, DESCRIPTION),
    ]
    save(out, "transformers 4.57.6, ConditionalDetrForObjectDetection, random weights", variants)


DESCRIPTION = """\
version: 1
family: conditional-detr
about: Conditional DETR; licence Apache-2.0; source transformers (PyPI)
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
