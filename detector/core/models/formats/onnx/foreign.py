"""An ONNX graph from another exporter while we prepare it: nodes, constants, shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from detector.core import __version__
from detector.core.models.formats.onnx.tidy import reads
from detector.core.models.graph.build import Shape, infer_shapes, is_heavy
from detector.core.models.layouts.output_shapes import Dims

if TYPE_CHECKING:
    import onnx


@dataclass(slots=True)
class ForeignGraph:
    """``dims``, ``types``: shape and type of every tensor, from the latest ``infer``. ``sizes``:
    inputs that take the picture's size. ``declared``: shapes of outputs as the file states them; {}
    if we change size or batch. ``uses_declared``: outputs whose ``dims`` are the declared ones."""

    name: str
    opset: int
    ir_version: int
    input: onnx.ValueInfoProto
    sizes: Sequence[onnx.ValueInfoProto]
    outputs: dict[str, int]
    nodes: list[onnx.NodeProto]
    constants: dict[str, onnx.TensorProto]
    metadata: dict[str, str] = field(default_factory=dict)
    dims: dict[str, Dims] = field(default_factory=dict)
    types: dict[str, int] = field(default_factory=dict)
    declared: dict[str, Dims] = field(default_factory=dict)
    uses_declared: set[str] = field(default_factory=set)
    _names_made: int = 0

    def infer(self) -> None:
        model = self.model(light=True)
        infer_shapes(model, unfinished=True)
        infos = [*model.graph.input, *model.graph.value_info, *model.graph.output]
        self.dims = {name: tuple(tensor.dims) for name, tensor in self.constants.items()}
        self.types = {name: tensor.data_type for name, tensor in self.constants.items()}
        for info in infos:
            tensor = info.type.tensor_type
            self.types[info.name] = tensor.elem_type
            if tensor.HasField("shape"):
                self.dims[info.name] = dims_of(info)
        self.uses_declared = {name for name in self.declared if self._take_declared(name)}

    def _take_declared(self, name: str) -> bool:
        """Use the declared shape of an output if inference leaves two or more dimensions unknown. A
        single unknown dimension is the length of a list; the file's number is only an example."""
        declared = self.declared[name]
        inferred = self.dims.get(name, (None,) * len(declared))
        fits = len(inferred) == len(declared) and all(
            known in (None, side) for known, side in zip(inferred, declared, strict=True)
        )
        if not fits or inferred.count(None) < 2:
            return False
        self.dims[name] = declared
        return True

    def shape(self, name: str) -> Shape | None:
        dims = self.dims.get(name)
        if dims is None or None in dims:
            return None
        return tuple(dim for dim in dims if dim is not None)

    def model(self, *, light: bool = False) -> onnx.ModelProto:
        """Return the graph as a model. ``light``: large constants are replaced by inputs."""
        from onnx import helper

        infos = [
            helper.make_value_info(name, helper.make_tensor_type_proto(kind, shape=None))
            if kind
            else helper.make_empty_tensor_value_info(name)
            for name, kind in self.outputs.items()
        ]
        used = {name for node in self.nodes for name in reads(node)} | set(self.outputs)
        constants = [tensor for name, tensor in self.constants.items() if name in used]
        heavy = [tensor for tensor in constants if light and is_heavy(tensor)]
        graph = helper.make_graph(
            self.nodes,
            self.name,
            [
                self.input,
                *(helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in heavy),
            ],
            infos,
            initializer=[t for t in constants if not (light and is_heavy(t))],
        )
        return helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", self.opset)],
            ir_version=self.ir_version,
            producer_name="detect-video",
            producer_version=__version__,
        )

    def value(self, name: str) -> NDArray[Any] | None:
        """Return a constant's values; None for other tensors."""
        from onnx import numpy_helper

        tensor = self.constants.get(name)
        return None if tensor is None else numpy_helper.to_array(tensor)

    def constant(self, stem: str, values: NDArray[Any]) -> str:
        from onnx import numpy_helper

        name = self.fresh(stem)
        self.constants[name] = numpy_helper.from_array(np.ascontiguousarray(values), name)
        return name

    def node(
        self, operator: str, stem: str, inputs: Sequence[str], **attributes: Any
    ) -> onnx.NodeProto:
        from onnx import helper

        name = self.fresh(stem)
        return helper.make_node(operator, list(inputs), [name], name=name, **attributes)

    def fresh(self, stem: str) -> str:
        self._names_made += 1
        return f"{stem}@{self._names_made}"  # exporters do not use "@"

    def rename(self, old: str, new: str) -> None:
        for node in self.nodes:
            for at, name in enumerate(node.input):
                if name == old:
                    node.input[at] = new

    def makers(self) -> dict[str, onnx.NodeProto]:
        return {name: node for node in self.nodes for name in node.output if name}

    def readers(self) -> dict[str, list[onnx.NodeProto]]:
        readers: dict[str, list[onnx.NodeProto]] = {}
        for node in self.nodes:
            for name in node.input:
                readers.setdefault(name, []).append(node)
        return readers


def constant_of(node: onnx.NodeProto) -> onnx.TensorProto | None:
    """Return a Constant node's tensor; None for other nodes, and if it holds plain numbers."""
    if node.op_type != "Constant" or node.domain not in ("", "ai.onnx") or len(node.output) != 1:
        return None
    values = [attribute.t for attribute in node.attribute if attribute.name == "value"]
    return values[0] if len(node.attribute) == len(values) == 1 else None


def dims_of(info: onnx.ValueInfoProto) -> Dims:
    return tuple(
        dim.dim_value if dim.HasField("dim_value") else None
        for dim in info.type.tensor_type.shape.dim
    )


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    from onnx import helper

    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


def describe_tensor(info: onnx.ValueInfoProto) -> str:
    """Return type and shape for messages: ``float [1, 3, height, width]``."""
    tensor = info.type.tensor_type
    dims = [
        str(dim.dim_value) if dim.HasField("dim_value") else dim.dim_param or "?"
        for dim in tensor.shape.dim
    ]
    return f"{type_name(tensor.elem_type)} [{', '.join(dims)}]"


def type_name(kind: int) -> str:
    """Return ``float`` or ``int64``; for an unknown number in a damaged file, ``type 99``."""
    from onnx import TensorProto

    known = kind in TensorProto.DataType.values()
    return str(TensorProto.DataType.Name(kind)).lower() if known else f"type {kind}"
