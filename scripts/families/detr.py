"""DETR, by transformers: exported by optimum, and by torch with pixel_mask as a second input."""

from __future__ import annotations

from functools import partial

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
    """Make a model. ``classes``: number of classes, without the last one, "no object"."""
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
        net = family(classes)
        net.deviation = deviation
        net.scale_outputs([at_size(out, picture, *SIZE) for picture in pictures])
        text, by_optimum = describe(*ABOUT, names), partial(export_by_optimum, net)
        variants.append(variant(net, f"optimum-{classes}", out, pictures, by_optimum, text))
    net = family(91)
    net.scale_outputs([at_size(out, picture, *SIZE) for picture in pictures])
    masked = partial(export_pair, net, masks=(64, 64))
    variants.append(variant(net, "pixel-mask", out, pictures, masked, describe(*ABOUT)))
    save(out, "transformers 4.57.6, DetrForObjectDetection, random weights", variants)


if __name__ == "__main__":
    main()
