"""The outputs of a graph from elsewhere as every engine gives them: float32, fixed shapes, the batch first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from detector.errors import ModelError
from detector.models.onnx_file.fold import drop_unused
from detector.models.onnx_file.foreign import ForeignGraph
from detector.models.onnx_file.load import type_name

if TYPE_CHECKING:
    import onnx

MOST = 300  # rows that a list of unknown length gets: what --max-det allows by default


def settle_outputs(graph: ForeignGraph, names: tuple[str, ...], batch: int) -> None:
    """Keeps the outputs ``names``, in that order, each made by a node of its own; in place.

    A list of detections whose length depends on the picture ([K, 7], [1, K, 6]) is filled up with zeros, or cut, to
    300 rows; its best ones come first in every exporter's NMS. Raises ModelError.
    """
    from onnx import TensorProto

    for name in names:
        _refuse_type(graph, name)
        if batch > 1 and (not graph.dims[name] or graph.dims[name][0] != batch):
            raise ModelError(
                f"{graph.name}: output {name} {list(graph.dims[name])} is one list for all pictures of a batch; "
                "use --batch 1"
            )
    made = [_settled(graph, name) for name in names]
    graph.outputs = dict.fromkeys(made, TensorProto.FLOAT)
    drop_unused(graph)


def _refuse_type(graph: ForeignGraph, name: str) -> None:
    from onnx import TensorProto

    kind = graph.types[name]
    if kind not in (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.INT32, TensorProto.INT64):
        raise ModelError(f"{graph.name}: output {name} is {type_name(kind)}; wanted are float32, float16 or integers")


def _settled(graph: ForeignGraph, name: str) -> str:
    """The name of a float32 tensor of fixed shape that holds what ``name`` holds."""
    from onnx import TensorProto

    dims, x = graph.dims[name], name
    nodes: list[onnx.NodeProto] = []
    if graph.types[name] != TensorProto.FLOAT:
        nodes.append(graph.node("Cast", "output.cast", [x], to=TensorProto.FLOAT))
        x = nodes[-1].output[0]
    if name in graph.taken:  # in words that inference understands
        sides = graph.constant("output.shape", np.array(dims, np.int64))
        nodes.append(graph.node("Reshape", "output.shaped", [x, sides]))
    elif None in dims:
        nodes += _filled(graph, name, x)
    elif len(dims) == 2 and dims[1] == 7:  # [K, 7]: the batch is missing
        nodes.append(graph.node("Unsqueeze", "output.batch", [x, graph.constant("output.axes", np.array([0]))]))
    elif not nodes and _second(graph, name):
        nodes.append(graph.node("Identity", "output", [x]))
    graph.nodes += nodes
    return nodes[-1].output[0] if nodes else name


def _second(graph: ForeignGraph, name: str) -> bool:
    """Whether a node has it beside another output, or reads it further: only a first output has its node's name."""
    return bool(graph.makers()[name].output[0] != name)


def _filled(graph: ForeignGraph, name: str, x: str) -> list[onnx.NodeProto]:
    """300 rows of a list whose length is known at run time only: zeros behind it, the rest cut off."""
    dims = graph.dims[name]
    free = [at for at, side in enumerate(dims) if side is None]
    rest = [side for side in dims if side is not None]
    if len(free) != 1 or len(dims) > 3 or any(side != 1 for side in rest[: free[0]]):
        shown = ["?" if side is None else side for side in dims]
        raise ModelError(
            f"{graph.name}: output {name} {shown} depends on the picture in more than its number of detections; "
            "export it with fixed shapes"
        )
    axis, rank = free[0], len(dims)
    pads = [0] * 2 * rank
    pads[rank + axis] = MOST
    numbers = {
        "pads": np.array(pads, np.int64),
        "starts": np.array([0], np.int64),
        "ends": np.array([MOST], np.int64),
        "axes": np.array([axis], np.int64),
        "shape": np.array([1, MOST, *dims[axis + 1 :]], np.int64),
    }
    given = {key: graph.constant(f"output.{key}", value) for key, value in numbers.items()}
    padded = graph.node("Pad", "output.padded", [x, given["pads"]], mode="constant")
    cut = graph.node("Slice", "output.cut", [padded.output[0], given["starts"], given["ends"], given["axes"]])
    return [padded, cut, graph.node("Reshape", "output.rows", [cut.output[0], given["shape"]])]
