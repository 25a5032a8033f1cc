"""For OpenVINO, adapt graphs that other programs quantised, and check them with one inference.

OpenVINO 2026.4.1 silently misreads 16-bit activations, and signed activations after a Concat. With
two streams it may also corrupt the weights of a graph with Q/DQ pairs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from detector.core.engines.base import EngineOptions, RawRequest
from detector.core.models.base import Network
from detector.core.models.graph.build import is_quantised
from detector.core.models.probed import draw

if TYPE_CHECKING:
    import onnx

BYTE = 128  # difference between a number as s8 and as u8
FAINT = 0.1  # scores with a smaller norm are rounding errors
# Largest relative differences of boxes and scores to accept. Rounding alone causes 0.03 and 0.41
# (yolox_nano). If OpenVINO finds no object, the difference of scores is 1.
LIMITS = (0.2, 0.7)


def is_quantised_elsewhere(network: Network) -> bool:
    """Return whether another program has put Q/DQ pairs into the network's file."""
    foreign = network.precision == "fp32" and "recognised" in network.details
    return foreign and is_quantised(network.graph)


def is_wide(model: onnx.ModelProto) -> bool:
    """Return whether activations have more than 8 bits, which OpenVINO misreads (2026.4.1)."""
    from onnx import TensorProto

    zeros = {
        node.input[2]
        for node in model.graph.node
        if node.op_type == "QuantizeLinear" and node.input[2:]
    }
    wide = (TensorProto.INT16, TensorProto.UINT16)
    return any(
        tensor.name in zeros and tensor.data_type in wide for tensor in model.graph.initializer
    )


def _pairs(graph: onnx.GraphProto) -> Iterator[tuple[onnx.NodeProto, list[onnx.NodeProto], str]]:
    """Yield each Q whose result is read by DQs only, these DQs, and the zero point of them all."""
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    for node in graph.node:
        if node.op_type == "QuantizeLinear" and node.input[2:]:
            dequantisers = readers.get(node.output[0], [])
            kinds = {(reader.op_type, *reader.input[1:]) for reader in dequantisers}
            if kinds == {("DequantizeLinear", *node.input[1:])}:
                yield node, dequantisers, node.input[2]


def unsign(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the graph with u8 instead of s8 activations. Their real values stay the same."""
    import onnx
    from onnx import numpy_helper

    result = onnx.ModelProto()
    result.CopyFrom(model)
    values = {tensor.name: tensor for tensor in model.graph.initializer}
    for quantise, dequantisers, name in _pairs(result.graph):
        if name in values and values[name].data_type == onnx.TensorProto.INT8:
            for node in (quantise, *dequantisers):
                node.input[2] = f"{name}/u8"
            zero = numpy_helper.to_array(values[name]).astype(np.int16) + BYTE
            zero_point = numpy_helper.from_array(zero.astype(np.uint8), f"{name}/u8")
            if values.setdefault(zero_point.name, zero_point) is zero_point:
                result.graph.initializer.append(zero_point)
    del result.graph.value_info[:]
    return result


def to_float(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the graph with float weights. Activations are clipped as before but not rounded."""
    import onnx
    from onnx import helper, numpy_helper
    from onnx.reference import ReferenceEvaluator

    result = onnx.ModelProto()
    result.CopyFrom(model)
    graph = result.graph
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    replaced: dict[str, onnx.NodeProto] = {}
    for quantise, dequantisers, name in _pairs(graph):
        scale, zero = values.get(quantise.input[1]), values.get(name)
        if scale is None or zero is None or scale.size != 1:
            continue
        limits = np.iinfo(zero.dtype)
        ends = [f"{quantise.output[0]}/{end}" for end in ("low", "high")]
        for end, steps in zip(ends, (limits.min, limits.max), strict=True):
            value = scale.reshape(()) * (steps - int(zero.item()))
            graph.initializer.append(numpy_helper.from_array(value.astype(scale.dtype), end))
        clip = helper.make_node("Clip", [quantise.input[0], *ends], quantise.output, quantise.name)
        replaced[quantise.output[0]] = clip
        for node in dequantisers:
            replaced[node.output[0]] = helper.make_node(
                "Identity", quantise.output, node.output, node.name
            )
    nodes = [replaced.get(node.output[0], node) for node in graph.node]
    for node in [node for node in nodes if node.op_type == "DequantizeLinear"]:
        operands = {name: values[name] for name in node.input if name in values}
        if len(operands) == len(node.input):
            floats = ReferenceEvaluator(node).run(None, operands)[0]
            graph.initializer.append(numpy_helper.from_array(floats, node.output[0]))
            nodes.remove(node)
    del graph.node[:], graph.value_info[:]
    graph.node.extend(nodes)
    return result


def run_reference(network: Network) -> list[NDArray[np.float32]]:
    from detector.core import engines

    options = EngineOptions(batch=network.batch, requests=1, device="cpu")
    with engines.open("ort", network, options) as engine:
        engine.requests[0].slot[:] = draw(network.input.height, network.input.width)
        return [values.copy() for values in engine.requests[0].infer(network.batch)]


def is_unlike(
    network: Network,
    expected: list[NDArray[np.float32]],
    requests: Sequence[RawRequest],
    limits: tuple[float, float] = LIMITS,
) -> bool:
    """Run all requests concurrently on a synthetic picture. Return whether the boxes or scores of
    any request differ from those expected."""
    for request in requests:
        request.slot[:] = draw(network.input.height, network.input.width)
    with ThreadPoolExecutor(len(requests)) as threads:
        answers = list(threads.map(lambda request: request.infer(network.batch), requests))
    return any(_differs(network, expected, found, limits) for found in answers)


def _differs(
    network: Network,
    expected: list[NDArray[np.float32]],
    found: list[NDArray[np.float32]],
    limits: tuple[float, float],
) -> bool:
    """Compare the first picture. Sort each column, since the order of rows depends on rounding."""
    columns = []
    for outputs in (expected, found):
        rows = network.dense([values[:1] for values in outputs])[0]
        columns.append((np.sort(rows[:, :4], 0), np.sort(rows[:, 4:5] * rows[:, 5:], 0)))
    with np.errstate(over="ignore", invalid="ignore"):  # results may include the lowest float
        return any(
            not np.linalg.norm(there - here) <= limit * max(np.linalg.norm(here), FAINT)
            for here, there, limit in zip(*columns, limits, strict=True)
        )
