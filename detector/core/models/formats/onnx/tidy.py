"""Fix, in place, models that runtimes accept but ONNX's checker rejects."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from detector.core.models.formats.onnx.bounds import every_graph, subgraphs

if TYPE_CHECKING:
    import onnx

STANDARD = ("", "ai.onnx")


def tidy(model: onnx.ModelProto) -> None:
    """Sort the nodes. Give the standard domain the name "" everywhere. Remove shapes of inner
    tensors, negative dimensions of inputs and outputs, and names of output dimensions."""
    for entry in model.opset_import:
        entry.domain = "" if entry.domain in STANDARD else entry.domain
    for graph in every_graph(model):
        for node in graph.node:
            node.domain = "" if node.domain in STANDARD else node.domain
        graph.ClearField("value_info")
        _sort(graph)
    for info in (*model.graph.input, *model.graph.output):
        for dim in info.type.tensor_type.shape.dim:
            if dim.HasField("dim_value") and dim.dim_value < 0:
                dim.ClearField("dim_value")
    for info in model.graph.output:
        for dim in info.type.tensor_type.shape.dim:
            dim.ClearField("dim_param")


def _sort(graph: onnx.GraphProto | onnx.FunctionProto) -> None:
    """Sort stably, each node after those it reads. Cycles come last; the checker rejects them."""
    computed = {name for node in graph.node for name in node.output if name}
    waits: list[int] = []  # node -> number of its inputs that are not computed yet
    readers: dict[str, list[int]] = {}
    for at, node in enumerate(graph.node):
        needed = computed.intersection(reads(node))
        waits.append(len(needed))
        for name in needed:
            readers.setdefault(name, []).append(at)
    ready = [at for at, count in enumerate(waits) if not count]  # a heap
    order: list[int] = []
    while ready:
        order.append(at := heappop(ready))
        for name in set(graph.node[at].output):
            for reader in readers.pop(name, ()):
                waits[reader] -= 1
                if not waits[reader]:
                    heappush(ready, reader)
    order += sorted(set(range(len(waits))) - set(order))
    if order == sorted(order):
        return
    nodes = [graph.node[at] for at in order]
    del graph.node[:]
    graph.node.extend(nodes)


def reads(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the tensors that a node reads, including those that its branches read."""
    yield from node.input
    waiting = [node.attribute]
    while waiting:
        for attribute in waiting.pop():
            for graph in subgraphs(attribute):
                for inner in graph.node:
                    yield from inner.input
                    waiting.append(inner.attribute)
                yield from (info.name for info in graph.output)


def state_output_shapes(model: onnx.ModelProto) -> None:
    """If outputs have no shape in the file, add the shapes that ONNX's inference finds."""
    from onnx import shape_inference

    if all(info.type.tensor_type.HasField("shape") for info in model.graph.output):
        return
    with suppress(Exception):  # the checker will report what is wrong with the graph
        inferred = shape_inference.infer_shapes(model)
        del model.graph.output[:]
        model.graph.output.extend(inferred.graph.output)
