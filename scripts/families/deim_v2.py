"""DEIMv2, by transformers 5, the only package that has a DEIM. One file has the two raw outputs.
The other has the deployed form, with a second input, the picture's size."""

from __future__ import annotations

from functools import partial

import torch
from from_transformers import (
    DEPLOYED,
    RAW,
    Deployed,
    Family,
    export_deployed,
    export_pair,
    small_hgnet,
    variant,
)
from result import arguments, at_size, enliven, save

REQUIREMENTS = ["transformers==5.24.0 torch torchvision onnx scipy opencv-python-headless"]
LICENCE = "Apache-2.0"
SIDE = 320


def family() -> Family:
    """Make a model of 80 classes, with 200 queries at 2100 positions."""
    from transformers import Deimv2Config, Deimv2ForObjectDetection, RTDetrImageProcessor

    torch.manual_seed(14)
    config = Deimv2Config(**small_hgnet(), num_queries=200, num_labels=80)
    model = Deimv2ForObjectDetection(config).eval()
    enliven(model)
    torch.nn.init.normal_(model.model.enc_score_head.weight)
    processor = RTDetrImageProcessor(size={"height": SIDE, "width": SIDE})
    classes = list(model.model.decoder.class_embed[-1:])
    return Family("deimv2", model, processor, (SIDE, SIDE), classes, [])


def main() -> None:
    out, pictures = arguments()
    net = family()
    net.scale_outputs([at_size(out, picture, SIDE, SIDE) for picture in pictures])
    pair = partial(export_pair, net)
    deployed = partial(export_deployed, Deployed(net.model, 200), net.size)
    variants = [
        variant(net, "torch", out, pictures, pair, INPUT + RAW),
        variant(net, "deployed", out, pictures, deployed, INPUT + DEPLOYED),
    ]
    save(out, "transformers 5.24.0, Deimv2ForObjectDetection, random weights", variants)


INPUT = """\
version: 1
family: deimv2
about: DEIMv2 with HGNetV2; licence Apache-2.0; source transformers (PyPI)
input: {scale: 1/255, fit: stretch}
"""

if __name__ == "__main__":
    main()
