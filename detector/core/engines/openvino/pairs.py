"""Remove Q/DQ pairs that OpenVINO does not need.

A pair is a QuantizeLinear and its DequantizeLinear. The graph has one after every node for which
ONNX Runtime has an integer kernel. OpenVINO runs a convolution and the elementwise nodes after it
in one kernel, but a pair in between makes it round the result to u8 and store it. We remove pairs

1. after a node that only moves or chooses values, if each pair in front of the node has the same
   scale and zero point as the pair after it (then no value changes);
2. after a convolution or elementwise node, if only elementwise nodes read the pair's output.

This saved 11 to 33 % of the time with two requests in flight on 2 cores (docs/settings.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from detector.core.models.graph.operators import MOVING, MULTIPLYING

if TYPE_CHECKING:
    import onnx

ELEMENTWISE = (
    "Add",
    "Sum",
    "Sub",
    "Mul",
    "Div",
    "Relu",
    "LeakyRelu",
    "PRelu",
    "Clip",
    "Sigmoid",
    "HardSigmoid",
    "HardSwish",
    "Elu",
    "Softplus",
    "Tanh",
    "Mish",
)


def remove_needless_pairs(model: onnx.ModelProto) -> onnx.ModelProto:
    import onnx

    replacements = _Pairs(model.graph).find_needless()
    removed = set(replacements)
    for node in model.graph.node:
        if node.op_type == "DequantizeLinear" and node.output[0] in replacements:
            removed.add(node.input[0])
    nodes = []
    for node in model.graph.node:
        if removed.intersection(node.output):
            continue
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        for at, name in enumerate(node.input):
            copy.input[at] = _resolve(replacements, name)
        nodes.append(copy)
    result = onnx.ModelProto()
    result.CopyFrom(model)
    del result.graph.node[:]
    result.graph.node.extend(nodes)
    return result


def _resolve(replacements: dict[str, str], name: str) -> str:
    while name in replacements:
        name = replacements[name]
    return name


class _Pairs:
    def __init__(self, graph: onnx.GraphProto) -> None:
        from onnx import numpy_helper

        self._graph = graph
        self._outputs = {info.name for info in graph.output}
        self._makers = {name: node for node in graph.node for name in node.output}
        self._readers: dict[str, list[onnx.NodeProto]] = {}
        for node in graph.node:
            for name in node.input:
                self._readers.setdefault(name, []).append(node)
        self._single = {
            tensor.name: numpy_helper.to_array(tensor).item()
            for tensor in graph.initializer
            if all(side == 1 for side in tensor.dims)
        }

    def find_needless(self) -> dict[str, str]:
        """Return a map from the output of each needless pair to the input of the pair."""
        replaced = {}
        for quantize in self._graph.node:
            if quantize.op_type != "QuantizeLinear":
                continue
            readers = self._readers.get(quantize.output[0], [])
            if (
                len(readers) == 1
                and readers[0].op_type == "DequantizeLinear"
                and self._is_needless(readers[0])
            ):
                replaced[readers[0].output[0]] = quantize.input[0]
        return replaced

    def _is_needless(self, dequantize: onnx.NodeProto) -> bool:
        maker = self._makers.get(self._makers[dequantize.input[0]].input[0])
        if maker is None or dequantize.output[0] in self._outputs:
            return False
        if maker.op_type in (*MOVING, "Concat"):
            return self._only_moves(maker) and self._inputs_have(maker, self._scale(dequantize))
        readers = self._readers.get(dequantize.output[0], [])
        return maker.op_type in (*MULTIPLYING, *ELEMENTWISE) and all(
            node.op_type in ELEMENTWISE for node in readers
        )

    def _only_moves(self, node: onnx.NodeProto) -> bool:
        """Return whether the node computes no new values. A Resize must be "nearest" for that."""
        modes = [entry.s for entry in node.attribute if entry.name == "mode"]
        return node.op_type != "Resize" or modes in ([], [b"nearest"])

    def _inputs_have(self, node: onnx.NodeProto, scale: tuple[Any, ...]) -> bool:
        data = node.input if node.op_type == "Concat" else node.input[:1]
        makers = [self._makers.get(name) for name in data]
        return all(
            maker is not None
            and maker.op_type == "DequantizeLinear"
            and self._scale(maker) == scale
            for maker in makers
        )

    def _scale(self, node: onnx.NodeProto) -> tuple[Any, ...]:
        """Return scale and zero point as numbers, or their names if they are arrays."""
        return tuple(self._single.get(name, name) for name in node.input[1:])
