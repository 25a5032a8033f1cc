"""One inference of a graph from elsewhere on a drawn picture, to see what its outputs hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from detector.models.formats.onnx.foreign import ForeignGraph

SHAPES = 24  # rectangles that are drawn
SEED = 3


def run_once(
    graph: ForeignGraph, *, planar: bool, bright: bool
) -> Mapping[str, NDArray[Any]] | None:
    """Output -> values. ``planar``: the graph reads NCHW, else NHWC. ``bright``: it takes pixels of
    0 to 255, else of 0 to 1. None where onnxruntime does not run it: the engine will say why.
    """
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


def draw(height: int, width: int) -> NDArray[np.uint8]:
    """u8 RGB [H, W, 3]: a sky, a road, and upright and flat shapes in front of them."""
    rng = np.random.default_rng(SEED)
    picture = np.empty((height, width, 3), np.uint8)
    picture[:] = np.linspace(200, 90, height)[:, None, None]
    picture[height // 2 :] = np.minimum(picture[height // 2 :], 120)
    for _ in range(SHAPES):
        tall, wide = rng.integers(4, max(5, height // 3)), rng.integers(4, max(5, width // 4))
        top, left = rng.integers(0, max(1, height - 4)), rng.integers(0, max(1, width - 4))
        picture[top : top + tall, left : left + wide] = rng.integers(0, 256, 3)
    noise = rng.integers(0, 16, picture.shape, np.uint8)
    drawn: NDArray[np.uint8] = np.minimum(picture, 239) + noise
    return drawn
