"""DETR, by transformers: exported by optimum, and with the second input pixel_mask."""

from __future__ import annotations

from pathlib import Path

import torch
from from_transformers import Family, export_by_optimum, export_pair, variant
from result import arguments, at_size, enliven, save

REQUIREMENTS = ["-r transformers.txt"]
LICENCE = "Apache-2.0"
SIZE = (640, 480)


def family(classes: int) -> Family:
    """``classes``: without "no object", which comes last."""
    from transformers import DetrConfig, DetrForObjectDetection, DetrImageProcessor, ResNetConfig

    torch.manual_seed(3)
    backbone = ResNetConfig(
        embedding_size=16,
        hidden_sizes=[32, 64, 96, 128],
        depths=[1, 1, 1, 1],
        layer_type="basic",
        out_features=["stage4"],
    )
    model = DetrForObjectDetection(
        DetrConfig(
            use_timm_backbone=False,
            use_pretrained_backbone=False,
            backbone=None,
            backbone_config=backbone,
            encoder_layers=2,
            decoder_layers=2,
            num_labels=classes,
        )
    ).eval()
    enliven(model.model.encoder)
    enliven(model.model.decoder)
    torch.nn.init.normal_(model.model.query_position_embeddings.weight)
    size = {"height": SIZE[1], "width": SIZE[0]}
    heads = [model.class_labels_classifier], [model.bbox_predictor.layers[-1]]
    return Family("detr", model, DetrImageProcessor(size=size), SIZE, *heads, deviation=3.0)


def main() -> None:
    out, pictures = arguments()
    variants = []
    for classes, deviation, names in ((91, 3.0, "coco-91"), (2, 1.2, "[cat, dog]")):
        made = family(classes)
        made.deviation = deviation
        made.spread([at_size(out, picture, *SIZE) for picture in pictures])
        text = DESCRIPTION.replace("NAMES", names)

        def by_optimum(path: Path, made: Family = made) -> None:
            export_by_optimum(made, path)

        variants.append(variant(made, f"optimum-{classes}", out, pictures, by_optimum, text))
    made = family(91)
    made.spread([at_size(out, picture, *SIZE) for picture in pictures])

    def with_mask(path: Path) -> None:
        export_pair(made, path, masks=(64, 64))

    text = DESCRIPTION.replace("NAMES", "coco-91")
    variants.append(variant(made, "pixel-mask", out, pictures, with_mask, text))
    save(out, "transformers 4.57.6, DetrForObjectDetection, random weights", variants)


DESCRIPTION = """\
version: 1
family: detr
about: DETR by Facebook; licence Apache-2.0; source transformers (PyPI), exported by optimum
input:
  scale: 1/255
  mean: [0.485, 0.456, 0.406]
  deviation: [0.229, 0.224, 0.225]
  fit: stretch
outputs:
  boxes: {tensor: pred_boxes, form: cxcywh, unit: fraction}
  scores: {tensor: logits, values: softmax, background: last}
  nms: none
names: NAMES
"""

if __name__ == "__main__":
    main()
