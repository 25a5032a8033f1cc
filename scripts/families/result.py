"""Shared parts of the families' scripts, which write ``OUT/result.json`` and the exported ONNX files.

Neither this module nor the scripts import detect-video: all detections in result.json come from the
family's own library.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np

Row = dict[str, Any]  # box: x1, y1, x2, y2 in pixels of the picture; score; class (its number)


@dataclass
class Variant:
    """One exported file, and what the library detects with the same weights.

    ``onnx``: the file's name in OUT. ``describe``: the name in OUT of its description in YAML, if it
    has one. ``nms_iou``: the IoU threshold if NMS is not part of the file. ``pictures``: picture's
    path, absolute or in OUT -> detections. ``size``: (width, height) if the file accepts several.
    """

    variant: str
    onnx: str
    threshold: float
    pictures: dict[str, list[Row]]
    describe: str | None = None
    nms_iou: float | None = None
    names: list[str] | None = None
    size: tuple[int, int] | None = None


def arguments() -> tuple[Path, list[Path]]:
    """Create the folder OUT; return it and the pictures."""
    if len(sys.argv) < 3:
        sys.exit(f"usage: {sys.argv[0]} OUT PICTURE...")
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    return out, [Path(name).resolve() for name in sys.argv[2:]]


def at_size(out: Path, picture: Path, width: int, height: int) -> Path:
    """Write the picture at the network's size, so that no library resizes it."""
    resized = out / f"{picture.stem}-{width}x{height}.png"
    cv2.imwrite(str(resized), cv2.resize(cv2.imread(str(picture)), (width, height)))
    return resized


def row(box: Iterable[float], score: float, class_id: int) -> Row:
    return {"box": [float(side) for side in box], "score": float(score), "class": int(class_id)}


def rows_of(boxes: Any, scores: Any, class_ids: Any) -> list[Row]:
    """Convert arrays or tensors with one entry per detection."""
    return [row(*values) for values in zip(boxes, scores, class_ids, strict=True)]


def threshold_in_gap(scores: Iterable[float], few: int = 10, many: int = 60) -> float:
    """Return a threshold that more than ``few`` and at most ``many`` scores exceed: the middle of the
    widest gap between neighbouring scores. If the threshold were close to a score, the comparison
    would depend on that score's last digit."""
    best = np.sort(np.asarray(list(scores), float))[::-1][few : many + 1]
    if len(best) < 2:
        raise ValueError(f"only {len(best) + few} scores; a threshold needs {few + 2}")
    at = int(np.argmax(best[:-1] - best[1:]))
    return round(float(best[at] + best[at + 1]) / 2, 6)


def threshold_of_all(rows: dict[str, list[Row]], few: int = 8, many: int = 30) -> float:
    """Return a threshold in a gap that keeps ``few`` to ``many`` rows per picture on average."""
    scores = [detection["score"] for detections in rows.values() for detection in detections]
    return threshold_in_gap(scores, few * len(rows), many * len(rows))


def threshold_of_each(rows: dict[str, list[Row]], few: int = 6, more: int = 20) -> float:
    """Return a threshold that keeps at least ``few`` rows of each picture: the highest such threshold,
    lowered to the widest gap between scores that adds on average at most ``more`` per picture."""
    scores_by_picture = [
        np.sort([detection["score"] for detection in detections])[::-1]
        for detections in rows.values()
    ]
    if min(len(scores) for scores in scores_by_picture) <= few:
        raise ValueError(
            f"a picture has at most {few} detections: {[len(scores) for scores in scores_by_picture]}"
        )
    highest = min(scores[few - 1] for scores in scores_by_picture)
    rest = [score for scores in scores_by_picture for score in scores if score <= highest]
    return threshold_in_gap(rest, 0, more * len(rows))


def above(rows: dict[str, list[Row]], threshold: float) -> dict[str, list[Row]]:
    """Return the detections with a score of at least ``threshold``."""
    return {
        name: [detection for detection in detections if detection["score"] >= threshold]
        for name, detections in rows.items()
    }


def write_variant(
    name: str,
    path: Path,
    rows: dict[str, list[Row]],
    threshold: float,
    description: str | None,
    **more: Any,
) -> Variant:
    """Write the description next to the exported file ``path``; return that file's variant."""
    described = path.with_suffix(".yaml") if description is not None else None
    if described is not None:
        described.write_text(description, encoding="utf-8")
    describe = described and described.name
    return Variant(name, path.name, threshold, above(rows, threshold), describe, **more)


def caught(module: Any, run: Callable[[], Any]) -> Any:
    """Return the last output of the torch module ``module`` during ``run()``."""
    outputs: list[Any] = []
    hook = module.register_forward_hook(lambda _m, _i, out: outputs.append(out))
    run()
    hook.remove()
    return outputs[-1]


def scale_logits(
    layers: list[Any], logits: Callable[[], Any], rate: float, deviation: float
) -> None:
    """Scale the last torch layers of a random network so that their outputs differ between rows.

    ``logits`` runs the network and returns the outputs of ``layers``, [..., rows, columns].
    Afterwards each column has the mean logit(``rate``) and the standard deviation ``deviation``.
    """
    import torch

    with torch.no_grad():
        values = logits().flatten(0, -2)  # [rows, columns]
        factor = deviation / values.std(0).clamp_min(1e-6)
        shift = math.log(rate / (1 - rate)) - values.mean(0) * factor
        for layer in layers:
            layer.weight.mul_(factor.reshape(-1, *[1] * (layer.weight.dim() - 1)))
            layer.bias.mul_(factor).add_(shift)


def enliven(module: Any, gain: float = 1.0, focus: float = 4.0, boxes: float = 0.1) -> None:
    """Set random weights so that the outputs differ between queries: Xavier for linear layers, Kaiming
    for convolutions, and a high gain (``focus``) for attention. Layers that output the four sides of
    a box, which libraries initialise with zeros, get a standard deviation of ``boxes``."""
    import torch

    for name, layer in module.named_modules():
        if isinstance(layer, torch.nn.Conv2d):
            torch.nn.init.kaiming_normal_(layer.weight)
        if not isinstance(layer, torch.nn.Linear):
            continue
        is_attention = name.endswith(("q_proj", "k_proj"))
        torch.nn.init.xavier_uniform_(layer.weight, focus if is_attention else gain)
        if layer.out_features == 4:
            torch.nn.init.normal_(layer.weight, 0, boxes)


def set_norms(model: Any, run: Callable[[], Any]) -> None:
    """Set the statistics of torch's batch norms from the inferences that ``run`` makes."""
    import torch

    norms = [layer for layer in model.modules() if isinstance(layer, torch.nn.BatchNorm2d)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the mean of all runs
        norm.train()
    with torch.no_grad():
        run()
    model.eval()


def save(out: Path, about: str, variants: list[Variant]) -> None:
    document = {"about": about, "variants": [asdict(variant) for variant in variants]}
    (out / "result.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    for variant in variants:
        counts = ", ".join(f"{Path(k).name} {len(v)}" for k, v in variant.pictures.items())
        print(f"{variant.variant}: threshold {variant.threshold}: {counts}")
