"""Deformable DETR, by transformers: optimum has no configuration for it, so torch exports it."""

from __future__ import annotations

from functools import partial

import torch
from from_transformers import Family, describe, export_pair, small_resnet, variant
from result import arguments, at_size, enliven, save

REQUIREMENTS = ["-r transformers.txt"]
LICENCE = "Apache-2.0"
ABOUT = (
    "deformable-detr",
    "Deformable DETR; licence Apache-2.0; source transformers (PyPI)",
    "values: logits, several: true",
)
SIZE = (640, 480)


def family(two_stage: bool) -> Family:
    """Make a model. If ``two_stage``, the encoder proposes queries, and each layer refines boxes."""
    from transformers import (
        DeformableDetrConfig,
        DeformableDetrForObjectDetection,
        DeformableDetrImageProcessor,
    )

    torch.manual_seed(12)
    config = DeformableDetrConfig(
        **small_resnet("stage2", "stage3", "stage4"),
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
    last = model.config.decoder_layers - 1  # a two-stage model has one more head, for the encoder
    return Family(
        "deformable-detr", model, processor, SIZE, [model.class_embed[last]], [], rate=0.05
    )


def main() -> None:
    out, pictures = arguments()
    variants = []
    for name, two_stage in (("one-stage", False), ("two-stage", True)):
        net = family(two_stage)
        net.scale_outputs([at_size(out, picture, *SIZE) for picture in pictures])
        export = partial(export_pair, net)
        variants.append(variant(net, name, out, pictures, export, describe(*ABOUT)))
    save(out, "transformers 4.57.6, DeformableDetrForObjectDetection, random weights", variants)


if __name__ == "__main__":
    main()
