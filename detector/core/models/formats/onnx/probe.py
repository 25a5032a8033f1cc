"""One inference of a graph from elsewhere, to see what its outputs hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

if TYPE_CHECKING:
    from detector.core.models.formats.onnx.foreign import ForeignGraph


def run_once(
    graph: ForeignGraph, names: Sequence[str], picture: NDArray[Any]
) -> dict[str, NDArray[Any]] | None:
    """Return name -> value of these tensors; None if onnxruntime cannot run the graph."""
    import onnxruntime
    from onnx import helper

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    model = graph.model()
    model.graph.output.extend(
        helper.make_empty_tensor_value_info(name) for name in names if name not in graph.outputs
    )
    try:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        answers = session.run(list(names), {graph.input.name: picture})
    except Exception:  # onnxruntime's own kinds, and protobuf's above 2 GiB
        return None
    return dict(zip(names, answers, strict=True))
