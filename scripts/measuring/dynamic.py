"""The effect of dynamic quantisation: int8 weights, and activations quantised in every run.

Our engines do not offer it. torch quantises only linear and recurrent layers, so it does nothing to
a network of convolutions. ONNX Runtime turns convolutions into ConvInteger. The file shrinks, but
each run must measure the range of every activation and convert the activation to 8 bits, and the
kernel of ConvInteger is slow. ``scripts/bench dynamic`` measures this; see docs/quantisation.md.
"""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from detector.core.models.graph.operators import MULTIPLYING

if TYPE_CHECKING:
    import onnx
    from torch import nn


@dataclass(frozen=True, slots=True)
class Dynamic:
    """The result of ONNX Runtime's dynamic quantisation."""

    graph: onnx.ModelProto
    changed: int  # how many of the multiplying ``layers`` became integer nodes
    layers: int
    added: int  # nodes that the quantisation added
    bytes_before: int
    bytes_after: int


def quantise_dynamically(model: onnx.ModelProto) -> Dynamic:
    """Quantise all operators that ONNX Runtime can quantise dynamically.

    Weights become u8: ONNX Runtime's CPU provider has no ConvInteger kernel for s8.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "fp32.onnx"), Path(folder, "dynamic.onnx")
        source.write_bytes(model.SerializeToString())
        # Hide ONNX Runtime's advice to preprocess the graph: the graph is folded already.
        logging.disable(logging.WARNING)
        try:
            quantize_dynamic(source, target, weight_type=QuantType.QUInt8)
        finally:
            logging.disable(logging.NOTSET)
        graph = onnx.load(target)
    before = Counter(node.op_type for node in model.graph.node)
    after = Counter(node.op_type for node in graph.graph.node)
    return Dynamic(
        graph=graph,
        changed=after["ConvInteger"] + after["MatMulInteger"],
        layers=sum(before[operator] for operator in MULTIPLYING),
        added=len(graph.graph.node) - len(model.graph.node),
        bytes_before=model.ByteSize(),
        bytes_after=graph.ByteSize(),
    )


def count_changed_by_torch(module: nn.Module) -> int:
    """Return the number of modules that torch's dynamic quantisation replaces."""
    from torch.ao.quantization import quantize_dynamic

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the notice that torch.ao.quantization moves to torchao
        result = quantize_dynamic(module)
    before = dict(module.named_modules())
    # Skip the module itself (every copy of a GraphModule has its own class), and modules that exist
    # only in the quantised copy.
    return sum(
        type(part) is not type(before[name])
        for name, part in result.named_modules()
        if name and name in before
    )
