"""Deformable DETR, by transformers: optimum has no configuration for it, so torch exports it."""

from __future__ import annotations

from pathlib import Path

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
    """Make a model. ``two_stage``: queries from the encoder's best places, refined by each
    layer."""
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
    last = model.config.decoder_layers - 1  # two stages have one more head, for the places
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

        variants.append(variant(made, name, out, pictures, plain, describe(*ABOUT)))
    save(out, "transformers 4.57.6, DeformableDetrForObjectDetection, random weights", variants)


if __name__ == "__main__":
    main()
