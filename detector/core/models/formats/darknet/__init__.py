"""Front end for darknet: NAME.cfg describes the layers, NAME.weights holds the weights.

cfg.py      text -> sections with line numbers
layers.py   sections -> a CfgNetwork: the layers, checked, with their shapes
weights.py  the convolutions' weights: from a .weights file, or random
build.py    layers and weights -> ONNX

A run that finds its graph in ``request.graphs`` imports none of these modules. A ``CfgDescription``
is stored with the graph, and has everything else that the run needs from the cfg.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from detector.core.errors import ModelError
from detector.core.models.base import (
    FrontEnd,
    InputRules,
    ModelRequest,
    Network,
    random_weights_warning,
    with_graph,
)
from detector.core.models.formats import raised
from detector.core.models.names import find_names
from detector.core.stages.heads import YoloLayer, darknet_yolo, darknet_yolo_dense

if TYPE_CHECKING:
    import onnx

    from detector.core.models.formats.darknet.layers import CfgNetwork
    from detector.core.models.formats.darknet.weights import Filter

SUFFIXES = (".cfg",)
HASHED_BYTES = 4 << 20  # most bytes hashed of a cfg, and of a file after the needed weights


@dataclass(frozen=True, slots=True)
class CfgDescription:
    """All that a run needs from a cfg besides the graph. It does not depend on the weights."""

    input: InputRules
    layers: list[YoloLayer]
    parameters: int
    parameters_fused: int


def read(request: ModelRequest) -> Network:
    path, batch, seed = request.path, request.batch, request.random_seed

    @cache
    def parse() -> CfgNetwork:
        from detector.core.models.formats.darknet.cfg import read_cfg
        from detector.core.models.formats.darknet.layers import read_architecture

        sections, warnings = read_cfg(path)
        architecture = read_architecture(sections, size=request.size, batch=batch)
        architecture.warnings[:0] = warnings
        return architecture

    def build() -> onnx.ModelProto:
        from detector.core.models.formats.darknet.build import DarknetGraph

        return DarknetGraph(parse(), _load_weights(request, parse()), path.stem, batch).model()

    cfg_digest = _digest(path, HASHED_BYTES)
    key = [cfg_digest.hex(), request.size, batch, raised(1)]  # raised(1): the limits' factor
    stored = None if request.graphs is None else request.graphs.find_description(path.stem, key)
    warnings: list[str] = []
    try:
        about = msgspec.convert(stored, CfgDescription)
    except msgspec.ValidationError:  # no description is stored, or another version stored it
        about, warnings = describe(parse()), parse().warnings
    names, names_warnings = find_names(path, about.layers[0].classes, request.names)
    weights = request.weights or path.with_suffix(".weights")
    random_digest = None if seed is None else f"random {seed}".encode()
    weights_digest = random_digest or _digest(weights, 4 * about.parameters + HASHED_BYTES)
    network = Network(
        name=path.stem,
        family="darknet",
        graph=build,
        input=about.input,
        batch=batch,
        output_shapes=[],
        head=partial(darknet_yolo, layers=about.layers),
        dense=partial(darknet_yolo_dense, layers=about.layers),
        names=names,
        parameters=about.parameters,
        parameters_fused=about.parameters_fused,
        sha256=hashlib.sha256(cfg_digest + weights_digest).hexdigest(),
        random_seed=seed,
        warnings=[*warnings, *names_warnings, *random_weights_warning(seed)],
        # A cfg with warnings is parsed in each run, because the warnings name its path and lines.
        description=None if warnings else (key, msgspec.to_builtins(about)),
    )
    return with_graph(network, request)


FRONT_END = FrontEnd(read, takes_weights=True, takes_random_weights=True)


def describe(architecture: CfgNetwork) -> CfgDescription:
    """Return what a run needs. Darknet stretches pictures; with letter_box=1, it pads with grey."""
    geometry, pad_value = ("centre", 128) if architecture.letter_box else ("stretch", 114)
    height, width = architecture.height, architecture.width
    layers = [
        YoloLayer(
            anchors=layer.anchors,
            classes=layer.classes,
            cell_width=width / layer.width,
            cell_height=height / layer.height,
            scale_x_y=layer.scale_x_y,
            new_coords=layer.new_coords,
        )
        for layer in architecture.yolos
    ]
    return CfgDescription(
        InputRules(height, width, geometry, architecture.stride, pad_value),
        layers,
        architecture.floats,
        architecture.floats_fused,
    )


def _digest(path: Path, longest: int) -> bytes:
    """Digest at most ``longest`` + 1 bytes. (A longer file is refused later, when it is read.)"""
    with suppress(OSError):
        if path.is_file():  # opening a pipe would wait for its writer
            with path.open("rb") as file:
                return hashlib.sha256(file.read(longest + 1)).digest()
    return b""


def _load_weights(request: ModelRequest, architecture: CfgNetwork) -> list[Filter]:
    from detector.core.models.formats.darknet.weights import random_weights, read_weights

    if request.random_seed is not None:
        return random_weights(architecture, request.random_seed)
    weights = request.weights or request.path.with_suffix(".weights")
    if request.weights is None and not weights.is_file():
        raise ModelError(
            f"{request.path}: no {weights.name} next to it; give --weights FILE or "
            "--random-weights SEED"
        )
    return read_weights(weights, architecture)
