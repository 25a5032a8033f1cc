"""Front end for darknet: NAME.cfg describes the layers, NAME.weights holds their numbers.

cfg.py     text -> sections with line numbers
readers.py one function a section kind -> layers.py, checked and with shapes; plan.py puts them together
weights.py a .weights file, or random numbers, for the convolutions
build.py   layers and numbers -> ONNX
"""

from __future__ import annotations

import hashlib
from functools import partial

from detector.errors import ModelError
from detector.models.base import FrontEnd, InputRules, ModelRequest, Network, random_weights_warning
from detector.models.formats.darknet.cfg import read_cfg
from detector.models.formats.darknet.layers import Plan, make_plan
from detector.models.formats.darknet.weights import Filter, random_weights, read_weights
from detector.models.names import find_names
from detector.stages.heads import YoloLayer, darknet_yolo, darknet_yolo_dense

SUFFIXES = (".cfg",)
FAMILY = "darknet"


def read(request: ModelRequest) -> Network:
    """The network of a cfg and its weights."""
    from detector.models.formats.darknet.build import DarknetGraph
    from detector.models.graph.build import count_macs, output_shapes

    path, batch = request.path, request.batch
    sections, warnings, cfg_bytes = read_cfg(path)
    plan = make_plan(sections, size=request.size, batch=batch)
    class_names, names_warnings = find_names(path, plan.yolos[0].classes, request.names)
    filters, weights_digest = _numbers(request, plan)
    graph = DarknetGraph(plan, filters, path.stem, batch).model()
    layers = head_layers(plan)
    geometry, pad_value = letter_boxed(plan)
    return Network(
        name=path.stem,
        family=FAMILY,
        graph=graph,
        input=InputRules(plan.height, plan.width, geometry, plan.stride, pad_value),
        batch=batch,
        output_shapes=output_shapes(graph),
        head=partial(darknet_yolo, layers=layers),
        dense=partial(darknet_yolo_dense, layers=layers),
        names=class_names,
        parameters=plan.floats,
        parameters_fused=plan.floats_fused,
        macs=count_macs(graph),
        sha256=hashlib.sha256(hashlib.sha256(cfg_bytes).digest() + weights_digest).hexdigest(),
        random_seed=request.random_seed,
        warnings=[
            *warnings,
            *plan.warnings,
            *names_warnings,
            *random_weights_warning(request.random_seed),
        ],
    )


FRONT_END = FrontEnd(read, takes_weights=True, takes_random_weights=True)


def letter_boxed(plan: Plan) -> tuple[str, int]:
    """(geometry, pad): darknet stretches, unless [net] says letter_box=1: then grey of 0.5 lies around the picture."""
    return ("centre", 128) if plan.letter_box else ("stretch", 114)


def head_layers(plan: Plan) -> list[YoloLayer]:
    """What the head must know of each [yolo] layer."""
    return [_head_layer(plan, index) for index in range(len(plan.yolos))]


def _numbers(request: ModelRequest, plan: Plan) -> tuple[list[Filter], bytes]:
    """The filters, and a digest of where they come from."""
    if request.random_seed is not None:
        filters = random_weights(plan, request.random_seed)
        return filters, f"random {request.random_seed}".encode()
    weights = request.weights or request.path.with_suffix(".weights")
    if request.weights is None and not weights.is_file():
        raise ModelError(
            f"{request.path}: no {weights.name} beside it; "
            "give --weights FILE or --random-weights SEED"
        )
    filters, data = read_weights(weights, plan)
    return filters, hashlib.sha256(data).digest()


def _head_layer(plan: Plan, index: int) -> YoloLayer:
    layer = plan.yolos[index]
    return YoloLayer(
        anchors=layer.anchors,
        classes=layer.classes,
        cell_width=plan.width / layer.width,
        cell_height=plan.height / layer.height,
        scale_x_y=layer.scale_x_y,
        new_coords=layer.new_coords,
    )
