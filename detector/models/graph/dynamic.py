"""Dynamic quantisation: weights in int8, activations measured anew in every run. What it does to a network, counted.

It is no precision of the engines. torch's quantises linear and recurrent layers only, so it changes nothing in a
network of convolutions. onnxruntime's does change them, into ConvInteger: the file shrinks, and each run searches
every activation for its range and converts it before a slow kernel multiplies.
"""

from __future__ import annotations

import logging
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx
    from torch import nn


@dataclass(frozen=True, slots=True)
class Dynamic:
    """``graph``: onnxruntime's result. ``changed``: multiplying nodes of the source that are now integer, of
    ``layers``; ``added``: nodes that came with it."""

    graph: onnx.ModelProto
    changed: int
    layers: int
    added: int
    bytes_before: int
    bytes_after: int


def dynamic(model: onnx.ModelProto) -> Dynamic:
    """onnxruntime's dynamic quantisation, of all operators that it knows it for. u8 weights: for s8 its CPU has no
    ConvInteger kernel."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    from detector.models.graph.build import MULTIPLYING

    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "fp32.onnx"), Path(folder, "dynamic.onnx")
        source.write_bytes(model.SerializeToString())
        logging.disable(
            logging.WARNING
        )  # advice to run its preprocessing, which folds what is folded here already
        try:
            quantize_dynamic(source, target, weight_type=QuantType.QUInt8)
        finally:
            logging.disable(logging.NOTSET)
        graph = onnx.load(target)
    before = Counter(node.op_type for node in model.graph.node)
    after = Counter(node.op_type for node in graph.graph.node)
    layers = sum(before[operator] for operator in MULTIPLYING)
    return Dynamic(
        graph=graph,
        changed=after["ConvInteger"] + after["MatMulInteger"],
        layers=layers,
        added=len(graph.graph.node) - len(model.graph.node),
        bytes_before=model.ByteSize(),
        bytes_after=graph.ByteSize(),
    )


def changed_by_torch(module: nn.Module) -> int:
    """Modules that torch's dynamic quantisation replaces, of a network as torch runs it."""
    import warnings

    from torch.ao.quantization import quantize_dynamic

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that torch.ao.quantization moves to torchao
        result = quantize_dynamic(module)
    before = dict(module.named_modules())
    # The whole is left out, since every copy of a GraphModule has a class of its own; so are parts of new modules.
    return sum(
        type(part) is not type(before[name])
        for name, part in result.named_modules()
        if name and name in before
    )
