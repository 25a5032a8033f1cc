"""YOLOv5 and YOLOv7: a network's description and its numbers -> ONNX.

The description is YAML in the format of the originals. This module is the front end for .yaml
files; those for files that hold numbers, checkpoint/ and safetensors.py, end here too.

description.py     YAML -> rows, checked
architecture.py    what a network is made of: convolutions, pools, joins, with shapes
blocks.py          rows -> architecture: the blocks of both families; parameters and MACs
weights.py         numbers of each convolution: stored ones, folded
random_numbers.py  random ones
network.py         everything together -> ONNX -> Network
"""

from __future__ import annotations

from pathlib import Path

from detector.core.errors import ModelError
from detector.core.models.base import FrontEnd, ModelRequest, Network

SUFFIXES = (".yaml", ".yml")


def read(request: ModelRequest) -> Network:
    from detector.core.models.formats.checkpoint import open_checkpoint
    from detector.core.models.formats.safetensors import read_safetensors
    from detector.core.models.formats.yolo.description import read_description
    from detector.core.models.formats.yolo.network import build_network

    description, digest = read_description(request.path)
    if request.random_seed is not None:
        return build_network(description, None, digest, request)
    weights = request.weights or _weights_beside(request.path)
    if weights.suffix.lower() == ".safetensors":
        contents, weights_digest = read_safetensors(weights)
        return build_network(description, contents, digest + weights_digest, request)
    with open_checkpoint(weights) as (contents, weights_digest):
        return build_network(description, contents, digest + weights_digest, request)


FRONT_END = FrontEnd(read, takes_weights=True, takes_random_weights=True)


def _weights_beside(path: Path) -> Path:
    for suffix in (".pt", ".safetensors"):
        if (weights := path.with_suffix(suffix)).is_file():
            return weights
    raise ModelError(
        f"{path}: no {path.stem}.pt next to it; give --weights FILE or --random-weights SEED"
    )
