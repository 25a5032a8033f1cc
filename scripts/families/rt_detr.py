"""RT-DETR, by transformers: exported with its two raw outputs, and in the form its authors deploy."""

from __future__ import annotations

from functools import partial

import torch
from from_transformers import (
    DEPLOYED,
    RAW,
    Deployed,
    Family,
    export_by_optimum,
    export_deployed,
    export_pair,
    variant,
)
from result import arguments, at_size, enliven, save

REQUIREMENTS = ["-r transformers.txt"]
LICENCE = "Apache-2.0"
SIDE = 320


def family(version: int, classes: int) -> Family:
    """Make a model of ``version`` 1 or 2, with 200 queries at 2100 positions."""
    import transformers
    from transformers import RTDetrImageProcessor, RTDetrResNetConfig

    kind = "RTDetr" if version == 1 else "RTDetrV2"
    torch.manual_seed(8)
    config = getattr(transformers, f"{kind}Config")(
        backbone_config=RTDetrResNetConfig(
            embedding_size=32,
            hidden_sizes=[32, 64, 128, 256],
            depths=[2, 2, 2, 2],
            layer_type="basic",
            out_features=["stage2", "stage3", "stage4"],
        ),
        encoder_in_channels=[64, 128, 256],
        encoder_hidden_dim=64,
        encoder_ffn_dim=128,
        d_model=64,
        decoder_in_channels=[64, 64, 64],
        decoder_layers=2,
        decoder_ffn_dim=128,
        num_queries=200,
        num_labels=classes,
    )
    model = getattr(transformers, f"{kind}ForObjectDetection")(config).eval()
    enliven(model)
    torch.nn.init.normal_(model.model.enc_score_head.weight)
    processor = RTDetrImageProcessor(size={"height": SIDE, "width": SIDE})
    name = "rtdetr" if version == 1 else "rtdetrv2"
    return Family(name, model, processor, (SIDE, SIDE), list(model.class_embed[-1:]), [])


def run(version: int) -> None:
    out, pictures = arguments()
    net = family(version, 80)
    net.scale_outputs([at_size(out, picture, SIDE, SIDE) for picture in pictures])
    few = family(version, 4)
    few.scale_outputs([at_size(out, picture, SIDE, SIDE) for picture in pictures])
    by_optimum = partial(export_by_optimum, net)
    deployed = partial(export_deployed, Deployed(net.model, 200), net.size)
    four = partial(export_pair, few)
    text = INPUT.replace("NAME", net.name)
    variants = [
        variant(net, "optimum", out, pictures, by_optimum, text + RAW),
        variant(net, "deployed", out, pictures, deployed, text + DEPLOYED),
        variant(few, "torch-4", out, pictures, four, text + RAW.replace("coco-80", "[a, b, c, d]")),
    ]
    save(out, f"transformers 4.57.6, {type(net.model).__name__}, random weights", variants)


INPUT = """\
version: 1
family: NAME
about: RT-DETR by Baidu; licence Apache-2.0; source transformers (PyPI), github.com/lyuwenyu/RT-DETR
input: {colour: rgb, scale: 1/255, fit: stretch}
"""

if __name__ == "__main__":
    run(1)
