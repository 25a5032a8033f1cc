"""YOLOS, by transformers, exported by optimum."""

from __future__ import annotations

from functools import partial

import torch
from from_transformers import Family, describe, export_by_optimum, variant
from result import arguments, at_size, enliven, save

REQUIREMENTS = ["-r transformers.txt"]
LICENCE = "Apache-2.0"
ABOUT = (
    "yolos",
    "YOLOS; licence Apache-2.0; source transformers (PyPI), exported by optimum",
    "values: softmax, background: last",
)
SIZE = (512, 384)


def family(classes: int, deviation: float) -> Family:
    """Make a model. ``classes``: number of classes, without the last one, "no object"."""
    from transformers import YolosConfig, YolosForObjectDetection, YolosImageProcessor

    torch.manual_seed(13)
    config = YolosConfig(
        hidden_size=96,
        num_hidden_layers=3,
        num_attention_heads=3,
        intermediate_size=192,
        image_size=[SIZE[1], SIZE[0]],
        use_mid_position_embeddings=False,
        num_labels=classes,
    )
    model = YolosForObjectDetection(config).eval()
    enliven(model)
    torch.nn.init.normal_(model.vit.embeddings.detection_tokens)
    processor = YolosImageProcessor(size={"height": SIZE[1], "width": SIZE[0]}, do_pad=False)
    heads = [model.class_labels_classifier.layers[-1]], [model.bbox_predictor.layers[-1]]
    return Family("yolos", model, processor, SIZE, *heads, deviation=deviation)


def main() -> None:
    out, pictures = arguments()
    variants = []
    for classes, deviation, names in ((91, 3.0, "coco-91"), (2, 1.2, "[cat, dog]")):
        net = family(classes, deviation)
        net.scale_outputs([at_size(out, picture, *SIZE) for picture in pictures])
        text, by_optimum = describe(*ABOUT, names), partial(export_by_optimum, net)
        variants.append(variant(net, f"optimum-{classes}", out, pictures, by_optimum, text))
    save(out, "transformers 4.57.6, YolosForObjectDetection, random weights", variants)


if __name__ == "__main__":
    main()
