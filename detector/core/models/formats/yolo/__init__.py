"""Build YOLOv5 and YOLOv7 as ONNX from a network's description and its weights.

The description is YAML in the format of the original projects. This module is the front end for
.yaml files. The front ends checkpoint/ and safetensors.py, for files with weights, use network.py.

description.py     YAML -> rows, checked
architecture.py    the parts of a network: convolutions, pools, joins, with shapes
blocks.py          rows -> architecture: the blocks of both families
weights.py         the weights of each convolution, from a file
random_numbers.py  random weights
network.py         description, weights and request -> ONNX -> Network
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
    weights = request.weights or _find_weights(request.path)
    if weights.suffix.lower() == ".safetensors":
        contents, weights_digest = read_safetensors(weights)
        return build_network(description, contents, digest + weights_digest, request)
    with open_checkpoint(weights) as (contents, weights_digest):
        return build_network(description, contents, digest + weights_digest, request)


FRONT_END = FrontEnd(read, takes_weights=True, takes_random_weights=True)


def _find_weights(path: Path) -> Path:
    for suffix in (".pt", ".safetensors"):
        if (weights := path.with_suffix(suffix)).is_file():
            return weights
    raise ModelError(
        f"{path}: no {path.stem}.pt next to it; give --weights FILE or --random-weights SEED"
    )
