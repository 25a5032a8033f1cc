"""One inference of a graph from elsewhere on a drawn picture, to see what its outputs hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from detector.core.models.probed import draw

if TYPE_CHECKING:
    from detector.core.models.formats.onnx.foreign import ForeignGraph


def run_once(
    graph: ForeignGraph, *, planar: bool, bright: bool
) -> Mapping[str, NDArray[Any]] | None:
    """Output -> values, or None if onnxruntime fails. ``planar``: NCHW, else NHWC. ``bright``:
    pixels of 0 to 255, else 0 to 1."""
    import onnxruntime
    from onnx import TensorProto, helper

    kind = graph.input.type.tensor_type.elem_type
    sides = [dim.dim_value for dim in graph.input.type.tensor_type.shape.dim]
    batched = len(sides) == 4
    channels_at = (1 if planar else 3) if batched else (0 if planar else 2)
    height, width = [side for at, side in enumerate(sides) if at != channels_at][-2:]
    picture = draw(height, width).astype(np.float32)
    if kind != TensorProto.UINT8 and not bright:
        picture /= 255
    if planar:
        picture = picture.transpose(2, 0, 1)
    if batched:
        picture = np.repeat(picture[None], sides[0], axis=0)
    values = np.ascontiguousarray(picture).astype(helper.tensor_dtype_to_np_dtype(kind))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    try:
        session = onnxruntime.InferenceSession(
            graph.model().SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        answers = session.run(None, {graph.input.name: values})
    except Exception:  # onnxruntime's own kinds, and protobuf's above 2 GiB
        return None
    return dict(zip(graph.outputs, answers, strict=True))
