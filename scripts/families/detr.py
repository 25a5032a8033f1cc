"""DETR, by transformers: exported by optimum, and with the second input pixel_mask."""

from __future__ import annotations

from pathlib import Path

import torch
from from_transformers import (
    Family,
    describe,
    export_by_optimum,
    export_pair,
    small_resnet,
    variant,
)
from result import arguments, at_size, enliven, save

REQUIREMENTS = ["-r transformers.txt"]
LICENCE = "Apache-2.0"
ABOUT = (
    "detr",
    "DETR by Facebook; licence Apache-2.0; source transformers (PyPI), exported by optimum",
    "values: softmax, background: last",
)
SIZE = (640, 480)


def family(classes: int) -> Family:
    """Make a model. ``classes``: without "no object", which comes last."""
    from transformers import DetrConfig, DetrForObjectDetection, DetrImageProcessor

    torch.manual_seed(3)
    config = DetrConfig(**small_resnet("stage4"), num_labels=classes)
    model = DetrForObjectDetection(config).eval()
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
        text = describe(*ABOUT, names)

        def by_optimum(path: Path, made: Family = made) -> None:
            export_by_optimum(made, path)

        variants.append(variant(made, f"optimum-{classes}", out, pictures, by_optimum, text))
    made = family(91)
    made.spread([at_size(out, picture, *SIZE) for picture in pictures])

    def with_mask(path: Path) -> None:
        export_pair(made, path, masks=(64, 64))

    text = describe(*ABOUT)
    variants.append(variant(made, "pixel-mask", out, pictures, with_mask, text))
    save(out, "transformers 4.57.6, DetrForObjectDetection, random weights", variants)


if __name__ == "__main__":
    main()
