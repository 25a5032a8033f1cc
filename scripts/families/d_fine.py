"""D-FINE in two forms: with the two raw outputs, exported by transformers and optimum; and with the
post-processor inside, exported by the authors' own code (d-fine-project on PyPI).
"""

from __future__ import annotations

import sys
import types
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import torch
from from_transformers import (
    DEPLOYED,
    RAW,
    Family,
    export_by_optimum,
    export_deployed,
    small_hgnet,
    variant,
)
from result import (
    Row,
    Variant,
    arguments,
    at_size,
    caught,
    enliven,
    rows_of,
    save,
    scale_logits,
    set_norms,
    threshold_of_each,
    write_variant,
)

REQUIREMENTS = ["-r transformers.txt", "d-fine-project==1.0.0"]
LICENCE = "Apache-2.0"
SIDE = 640


def family(classes: int) -> Family:
    from transformers import DFineConfig, DFineForObjectDetection, RTDetrImageProcessor

    torch.manual_seed(5)
    config = DFineConfig(**small_hgnet(), num_labels=classes)
    model = DFineForObjectDetection(config).eval()
    enliven(model)
    torch.nn.init.normal_(model.model.enc_score_head.weight)
    processor = RTDetrImageProcessor(size={"height": SIDE, "width": SIDE})
    return Family("dfine", model, processor, (SIDE, SIDE), list(model.class_embed[-1:]), [])


def authors() -> tuple[Any, Any]:
    """Load the authors' D-FINE-N and its post-processor. Their code imports its modules as src.X."""
    source = types.ModuleType("src")
    source.__path__ = [str(Path(sys.prefix) / f"lib/python{sys.version[:4]}/site-packages")]
    sys.modules["src"] = source
    from src.nn.backbone.hgnetv2 import HGNetv2
    from src.zoo.dfine import DFINE, DFINEPostProcessor, DFINETransformer, HybridEncoder

    torch.manual_seed(6)
    size = [SIDE, SIDE]
    sides = {"feat_strides": [16, 32], "eval_spatial_size": size, "hidden_dim": 128}
    model = DFINE(
        HGNetv2("B0", use_lab=True, return_idx=[2, 3], freeze_at=-1, pretrained=False),
        HybridEncoder(
            in_channels=[512, 1024],
            use_encoder_idx=[1],
            dim_feedforward=512,
            expansion=0.34,
            depth_mult=0.5,
            **sides,
        ),
        DFINETransformer(
            feat_channels=[128, 128],
            num_levels=2,
            num_points=[6, 6],
            num_layers=3,
            dim_feedforward=512,
            **sides,
        ),
    ).eval()
    enliven(model)
    torch.nn.init.normal_(model.decoder.enc_score_head.weight)
    return model, DFINEPostProcessor()


class Deployed(torch.nn.Module):
    """A copy of the class Model in the authors' tools/deployment/export_onnx.py."""

    def __init__(self, model: Any, processor: Any) -> None:
        super().__init__()
        self.model = model.deploy()
        self.postprocessor = processor.deploy()

    def forward(self, images: torch.Tensor, orig_target_sizes: torch.Tensor) -> Any:
        return self.postprocessor(self.model(images), orig_target_sizes)


def tensor(picture: Path) -> torch.Tensor:
    """Prepare a picture as the authors' tools/inference does: Resize((640, 640)), ToTensor()."""
    image = cv2.cvtColor(cv2.imread(str(picture)), cv2.COLOR_BGR2RGB)
    from PIL import Image
    from torchvision import transforms

    steps = transforms.Compose([transforms.Resize((SIDE, SIDE)), transforms.ToTensor()])
    return steps(Image.fromarray(image))[None]


def detect(model: Any, processor: Any, picture: Path) -> list[Row]:
    height, width = cv2.imread(str(picture)).shape[:2]
    with torch.no_grad():
        result = processor(model(tensor(picture)), torch.tensor([[width, height]]))[0]
    limits = torch.tensor([width, height, width, height])
    boxes = torch.minimum(result["boxes"].clamp_min(0), limits)
    return rows_of(boxes, result["scores"], result["labels"])


def deployed(out: Path, pictures: list[Path]) -> Variant:
    model, processor = authors()
    sized = [at_size(out, picture, SIDE, SIDE) for picture in pictures]
    head = model.decoder.dec_score_head[-1]

    def logits() -> torch.Tensor:
        return torch.cat([caught(head, lambda p=p: model(tensor(p))) for p in sized], 1)

    set_norms(model, lambda: [model(tensor(picture)) for picture in sized])
    with torch.no_grad():
        scale_logits([head], logits, 0.05, 1.5)
    rows = {picture.name: detect(model, processor, picture) for picture in sized}
    threshold = threshold_of_each(rows)
    path = out / "dfine-deployed.onnx"
    export_deployed(Deployed(model, processor), (SIDE, SIDE), path)
    return write_variant("deployed, by the authors", path, rows, threshold, INPUT + DEPLOYED)


def main() -> None:
    out, pictures = arguments()
    net = family(80)
    net.scale_outputs([at_size(out, picture, SIDE, SIDE) for picture in pictures])
    by_optimum = partial(export_by_optimum, net)
    variants = [
        variant(net, "optimum", out, pictures, by_optimum, INPUT + RAW),
        deployed(out, pictures),
    ]
    save(out, "transformers 4.57.6 and d-fine-project 1.0.0, random weights", variants)


INPUT = """\
version: 1
family: dfine
about: D-FINE; licence Apache-2.0; source transformers, d-fine-project (PyPI)
input: {colour: rgb, scale: 1/255, fit: stretch}
"""

if __name__ == "__main__":
    main()
