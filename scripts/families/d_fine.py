"""D-FINE: the pair of raw outputs by transformers and optimum; the deployed form by the authors'
own code (d-fine-project on PyPI), with the post-processor inside.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import cv2
import torch
from from_transformers import (
    DEPLOYED,
    RAW,
    Family,
    caught,
    export_by_optimum,
    export_deployed,
    small_hgnet,
    variant,
)
from result import (
    Row,
    Variant,
    above,
    arguments,
    at_size,
    enliven,
    row,
    save,
    scale_logits,
    settle,
    threshold_of_each,
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
    """Load the authors' D-FINE-N with its post-processor; its package is called src in their
    tree."""
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
    """The class Model of their tools/deployment/export_onnx.py."""

    def __init__(self, model: Any, processor: Any) -> None:
        super().__init__()
        self.model = model.deploy()
        self.postprocessor = processor.deploy()

    def forward(self, images: torch.Tensor, orig_target_sizes: torch.Tensor) -> Any:
        return self.postprocessor(self.model(images), orig_target_sizes)


def tensor(picture: Path) -> torch.Tensor:
    """Prepare a picture as their tools/inference do: Resize((640, 640)) and ToTensor()."""
    image = cv2.cvtColor(cv2.imread(str(picture)), cv2.COLOR_BGR2RGB)
    from PIL import Image
    from torchvision import transforms

    steps = transforms.Compose([transforms.Resize((SIDE, SIDE)), transforms.ToTensor()])
    return steps(Image.fromarray(image))[None]


def detect(model: Any, processor: Any, picture: Path) -> list[Row]:
    height, width = cv2.imread(str(picture)).shape[:2]
    with torch.no_grad():
        found = processor(model(tensor(picture)), torch.tensor([[width, height]]))[0]
    limits = torch.tensor([width, height, width, height])
    boxes = torch.minimum(found["boxes"].clamp_min(0), limits)
    parts = boxes.tolist(), found["scores"].tolist(), found["labels"].tolist()
    return [row(*one) for one in zip(*parts, strict=True)]


def deployed(out: Path, pictures: list[Path]) -> Variant:
    model, processor = authors()
    sized = [at_size(out, picture, SIDE, SIDE) for picture in pictures]
    head = model.decoder.dec_score_head[-1]

    def logits() -> torch.Tensor:
        return torch.cat([caught(head, lambda p=p: model(tensor(p))) for p in sized], 1)

    settle(model, lambda: [model(tensor(picture)) for picture in sized])
    with torch.no_grad():
        scale_logits([head], logits, 0.05, 1.5)
    rows = {picture.name: detect(model, processor, picture) for picture in sized}
    threshold = threshold_of_each(rows)
    path = out / "dfine-deployed.onnx"
    export_deployed(Deployed(model, processor), (SIDE, SIDE), path)
    path.with_suffix(".yaml").write_text(INPUT + DEPLOYED, encoding="utf-8")
    return Variant(
        "deployed, by the authors",
        path.name,
        threshold,
        above(rows, threshold),
        describe="dfine-deployed.yaml",
    )


def main() -> None:
    out, pictures = arguments()
    made = family(80)
    made.spread([at_size(out, picture, SIDE, SIDE) for picture in pictures])

    def by_optimum(path: Path) -> None:
        export_by_optimum(made, path)

    variants = [
        variant(made, "optimum", out, pictures, by_optimum, INPUT + RAW),
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
