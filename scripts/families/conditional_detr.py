"""Conditional DETR, by transformers: optimum has no configuration for it, so torch exports it."""

from __future__ import annotations

from functools import partial

import torch
from from_transformers import Family, describe, export_pair, small_resnet, variant
from result import arguments, at_size, enliven, save

REQUIREMENTS = ["-r transformers.txt"]
LICENCE = "Apache-2.0"
ABOUT = (
    "conditional-detr",
    "Conditional DETR; licence Apache-2.0; source transformers (PyPI)",
    "values: logits, several: true",
)
SIZE = (640, 480)


def family() -> Family:
    from transformers import (
        ConditionalDetrConfig,
        ConditionalDetrForObjectDetection,
        ConditionalDetrImageProcessor,
    )

    torch.manual_seed(11)
    config = ConditionalDetrConfig(**small_resnet("stage4"), num_labels=91)
    model = ConditionalDetrForObjectDetection(config).eval()
    enliven(model.model.encoder)
    enliven(model.model.decoder)
    torch.nn.init.normal_(model.model.query_position_embeddings.weight)
    processor = ConditionalDetrImageProcessor(size={"height": SIZE[1], "width": SIZE[0]})
    heads = [model.class_labels_classifier], [model.bbox_predictor.layers[-1]]
    return Family("conditional-detr", model, processor, SIZE, *heads)


def main() -> None:
    out, pictures = arguments()
    net = family()
    net.scale_outputs([at_size(out, picture, *SIZE) for picture in pictures])

    plain = partial(export_pair, net)
    masked = partial(export_pair, net, masks=(SIZE[1], SIZE[0]))
    variants = [
        variant(net, "torch", out, pictures, plain, describe(*ABOUT)),
        variant(net, "pixel-mask", out, pictures, masked, describe(*ABOUT)),
    ]
    save(out, "transformers 4.57.6, ConditionalDetrForObjectDetection, random weights", variants)


if __name__ == "__main__":
    main()
