"""YOLOv5 and YOLOv7: a network's description (YAML of the originals' format) and its numbers -> ONNX.

This module is the front end for .yaml; checkpoint/ and safetensors.py, which hold numbers, end here too.

description.py  YAML -> rows, checked
steps.py        what a network is made of: convolutions, pools, joins, with shapes
blocks.py       rows -> steps: the blocks that both families share; yolov5.py, yolov7.py: their own
plan.py         all rows of a description put together; parameters and MACs without any number
weights.py      numbers of each convolution: stored ones folded, or random ones
build.py        steps and numbers -> ONNX
network.py      everything together -> Network
"""

from __future__ import annotations

from pathlib import Path

from detector.errors import ModelError, UsageError
from detector.models.base import Network

SUFFIXES = (".yaml", ".yml")


def read(
    path: Path,
    *,
    weights: Path | None = None,
    names: Path | None = None,
    random_seed: int | None = None,
    size: tuple[int, int] | None = None,
    batch: int = 1,
) -> Network:
    """The network that a description describes, with weights from a .pt or .safetensors file, or random ones."""
    from detector.models.formats.checkpoint import open_checkpoint
    from detector.models.formats.safetensors import read_safetensors
    from detector.models.formats.yolo.description import read_description
    from detector.models.formats.yolo.network import Ask, described_network

    description, digest = read_description(path)
    ask = Ask(path, names, random_seed, size, batch)
    if random_seed is not None:
        if weights is not None:
            raise UsageError(
                f"--weights {weights} and --random-weights {random_seed} exclude each other; give one"
            )
        return described_network(description, None, digest, ask)
    found = weights or _beside(path)
    if found.suffix.lower() == ".safetensors":
        contents, weights_digest = read_safetensors(found)
        return described_network(description, contents, digest + weights_digest, ask)
    with open_checkpoint(found) as (contents, weights_digest):
        return described_network(description, contents, digest + weights_digest, ask)


def _beside(path: Path) -> Path:
    for suffix in (".pt", ".safetensors"):
        if (found := path.with_suffix(suffix)).is_file():
            return found
    raise ModelError(
        f"{path}: no {path.stem}.pt beside it; give --weights FILE or --random-weights SEED"
    )
