"""Find the tensors that two graphs have in common, and read them from an engine."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from detector.core.models.base import Network
from detector.core.models.graph.build import infer_shapes, output_shapes, tensor_shapes
from detector.core.models.graph.operators import MULTIPLYING
from detector.lab.compare.where.difference import compare_tensors

if TYPE_CHECKING:
    import onnx

Array = NDArray[Any]
CONVERTING = ("Cast", "QuantizeLinear", "DequantizeLinear")
AT_ONCE = 32  # tensors to read in one run: about 50 MB for a network at 640x640
ENDING = re.compile("_(fp16|bf16|tap)$")


@dataclass(frozen=True)
class Point:
    """A float tensor that both graphs have, named ``a`` in A and ``b`` in B. ``before``: the
    nearest points before it. ``node``: its node's type. ``computed``: whether weights affect it."""

    name: str
    a: str
    b: str
    node: str
    before: frozenset[str]
    computed: bool


def common_points(a: onnx.ModelProto, b: onnx.ModelProto) -> list[Point]:
    """List common tensors in order of computation, without the outputs."""
    left, right = _map_floats(a, _list_tensors(b)), _map_floats(b, _list_tensors(a))
    shapes = tensor_shapes(a), tensor_shapes(b)
    outputs = {info.name for model in (a, b) for info in model.graph.output}
    producers = {tensor: node for node in a.graph.node for tensor in node.output}
    names = {tensor: name for name, tensor in left.items()}
    sources: dict[str, frozenset[str]] = {}  # tensor of A -> nearest points before it
    computed: dict[str, bool] = {}
    points = []
    for node in a.graph.node:
        inputs = [name for name in node.input if name in producers]
        nearest = frozenset().union(*(sources[tensor] for tensor in inputs))
        has_weights = node.op_type in MULTIPLYING or any(computed[tensor] for tensor in inputs)
        for tensor in node.output:
            sources[tensor], computed[tensor] = nearest, has_weights
            name = names.get(tensor)
            if name is None or name not in right or {tensor, name} & outputs:
                continue
            if (
                shapes[0].get(tensor, ()) != shapes[1].get(right[name], (0,))
                or not shapes[0][tensor]
            ):
                continue
            kind = str(producers.get(name, node).op_type)
            points.append(Point(name, tensor, right[name], kind, nearest, has_weights))
            sources[tensor] = frozenset({name})
    return points


def _list_tensors(model: onnx.ModelProto) -> set[str]:
    return {name for node in model.graph.node for name in node.output}


def _map_floats(model: onnx.ModelProto, others: set[str]) -> dict[str, str]:
    """Return name -> float tensor of this graph. The name is what the tensor was called before
    any conversion to another precision. ``others``: the other graph's tensors."""
    from onnx import TensorProto

    constants = {tensor.name for tensor in model.graph.initializer}
    floats = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
    kinds = {info.name: info.type.tensor_type.elem_type for info in model.graph.value_info}
    kinds |= {info.name: info.type.tensor_type.elem_type for info in model.graph.output}
    floats_by_name: dict[str, str] = {}
    origin: dict[str, str] = {}  # tensor -> name of the tensor that it was converted from
    for node in model.graph.node:
        converts = node.op_type in CONVERTING and node.input[0] not in constants
        for output in node.output:
            if converts and node.input[0] in origin and output not in others:
                name = origin[output] = origin[node.input[0]]
            else:
                name = origin[output] = ENDING.sub("", output)
            if kinds.get(output) in floats:
                floats_by_name[name] = output
    return floats_by_name


def with_outputs(network: Network, tensors: Sequence[str], *, cut: bool) -> Network:
    """Add these tensors, as float32, to a network's outputs. ``cut``: remove the old outputs."""
    import onnx
    from onnx import TensorProto, helper

    source = network.graph.graph
    kinds = {info.name: info.type.tensor_type.elem_type for info in source.value_info}
    kinds |= {info.name: info.type.tensor_type.elem_type for info in source.output}
    own = [] if cut else [info.name for info in source.output]
    casts = {
        name: helper.make_node("Cast", [name], [f"{name}_tap"], f"{name}_tap", to=TensorProto.FLOAT)
        for name in tensors
        if kinds.get(name, TensorProto.FLOAT) != TensorProto.FLOAT
    }
    added = [casts[name].output[0] if name in casts else name for name in tensors]
    needed = {*own, *tensors}
    nodes = []
    for node in reversed(source.node):
        if needed.intersection(node.output):
            nodes.append(node)
            needed.update(_list_inputs(node))
    graph = helper.make_graph(
        [*nodes[::-1], *casts.values()],
        source.name or "graph",
        source.input,
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in (*own, *added)],
        initializer=[tensor for tensor in source.initializer if tensor.name in needed],
    )
    model = helper.make_model(
        graph, opset_imports=network.graph.opset_import, ir_version=network.graph.ir_version
    )
    assert isinstance(model, onnx.ModelProto)
    infer_shapes(model)
    return replace(
        network, graph=model, output_shapes=output_shapes(model), path=None, peak_bytes=None
    )


def _list_inputs(node: onnx.NodeProto) -> Iterator[str]:
    yield from node.input
    for attribute in node.attribute:
        if attribute.HasField("g"):
            for inner in attribute.g.node:
                yield from _list_inputs(inner)


class TensorReader:
    """Reads tensors inside a side's graph, for one picture. The tensor is added to the outputs; if
    that fails or changes other outputs, the engine runs only the graph up to the tensor."""

    def __init__(self, side: Any, slots: Sequence[Array], outputs: Sequence[Array]) -> None:
        """``slots``: the inputs of all pictures up to this one, since engines may keep state."""
        self._side, self._slots, self._outputs = side, slots, outputs

    def read(self, tensor: str, tolerance: float) -> tuple[Array, str]:
        """Return the tensor and how it was read. Raises EngineError if it cannot be read."""
        from detector.core.errors import EngineError, ModelError

        with np.errstate(all="ignore"):
            try:
                *own, values = self._run(with_outputs(self._side.network, [tensor], cut=False))
                if not any(
                    compare_tensors(mine, now, tolerance).differs
                    for mine, now in zip(self._outputs, own, strict=True)
                ):
                    return values, "outputs added"
            except (EngineError, ModelError):
                pass
            (values,) = self._run(with_outputs(self._side.network, [tensor], cut=True))
            return values, "cut graph"

    def read_all(self, tensors: Sequence[str]) -> list[Array]:
        values: list[Array] = []
        with np.errstate(all="ignore"):
            for at in range(0, len(tensors), AT_ONCE):
                part = tensors[at : at + AT_ONCE]
                network = with_outputs(self._side.network, part, cut=False)
                values += self._run(network)[-len(part) :]
        return values

    def _run(self, network: Network) -> list[Array]:
        with self._side.open(network) as engine:
            return infer(engine.requests[0], self._slots)[-1]


def infer(request: Any, slots: Sequence[Array]) -> list[list[Array]]:
    outputs = []
    for slot in slots:
        request.slot[0] = slot
        outputs.append([np.array(output[:1]) for output in request.infer(1)])
    return outputs
