"""Front end for darknet: NAME.cfg describes the layers, NAME.weights holds the weights.

cfg.py      text -> sections with line numbers
layers.py   sections -> a CfgNetwork: the layers, checked, with their shapes
weights.py  the convolutions' weights: from a .weights file, or random
build.py    layers and weights -> ONNX
"""

from __future__ import annotations

import hashlib
from functools import partial
from typing import TYPE_CHECKING

from detector.core.errors import ModelError
from detector.core.models.base import (
    FrontEnd,
    InputRules,
    ModelRequest,
    Network,
    random_weights_warning,
    with_graph,
)
from detector.core.models.formats.darknet.cfg import read_cfg
from detector.core.models.formats.darknet.layers import CfgNetwork, read_architecture
from detector.core.models.formats.darknet.weights import Filter, random_weights, read_weights
from detector.core.models.names import find_names
from detector.core.stages.heads import YoloLayer, darknet_yolo, darknet_yolo_dense

if TYPE_CHECKING:
    import onnx

SUFFIXES = (".cfg",)
FAMILY = "darknet"


def read(request: ModelRequest) -> Network:
    path, batch = request.path, request.batch
    sections, warnings, cfg_bytes = read_cfg(path)
    architecture = read_architecture(sections, size=request.size, batch=batch)
    class_names, names_warnings = find_names(path, architecture.yolos[0].classes, request.names)
    filters, weights_digest = _load_weights(request, architecture)

    def build() -> onnx.ModelProto:
        from detector.core.models.formats.darknet.build import DarknetGraph

        return DarknetGraph(architecture, filters, path.stem, batch).model()

    layers = head_layers(architecture)
    geometry, pad_value = input_geometry(architecture)
    network = Network(
        name=path.stem,
        family=FAMILY,
        graph=build,
        input=InputRules(
            architecture.height, architecture.width, geometry, architecture.stride, pad_value
        ),
        batch=batch,
        output_shapes=[],
        head=partial(darknet_yolo, layers=layers),
        dense=partial(darknet_yolo_dense, layers=layers),
        names=class_names,
        parameters=architecture.floats,
        parameters_fused=architecture.floats_fused,
        sha256=hashlib.sha256(hashlib.sha256(cfg_bytes).digest() + weights_digest).hexdigest(),
        random_seed=request.random_seed,
        warnings=[
            *warnings,
            *architecture.warnings,
            *names_warnings,
            *random_weights_warning(request.random_seed),
        ],
    )
    return with_graph(network, request, build)


FRONT_END = FrontEnd(read, takes_weights=True, takes_random_weights=True)


def input_geometry(architecture: CfgNetwork) -> tuple[str, int]:
    """Return (geometry, pad value): darknet stretches, or pads with 0.5 if [net] letter_box=1."""
    return ("centre", 128) if architecture.letter_box else ("stretch", 114)


def head_layers(architecture: CfgNetwork) -> list[YoloLayer]:
    """Return what the head needs to know about each [yolo] layer."""
    return [
        YoloLayer(
            anchors=layer.anchors,
            classes=layer.classes,
            cell_width=architecture.width / layer.width,
            cell_height=architecture.height / layer.height,
            scale_x_y=layer.scale_x_y,
            new_coords=layer.new_coords,
        )
        for layer in architecture.yolos
    ]


def _load_weights(request: ModelRequest, architecture: CfgNetwork) -> tuple[list[Filter], bytes]:
    if request.random_seed is not None:
        filters = random_weights(architecture, request.random_seed)
        return filters, f"random {request.random_seed}".encode()
    weights = request.weights or request.path.with_suffix(".weights")
    if request.weights is None and not weights.is_file():
        raise ModelError(
            f"{request.path}: no {weights.name} next to it; give --weights FILE or "
            "--random-weights SEED"
        )
    filters, data = read_weights(weights, architecture)
    return filters, hashlib.sha256(data).digest()
