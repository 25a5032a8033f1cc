"""Tiny networks with outputs computed by hand, and plain reference implementations of layers."""

import numpy as np
from numpy.typing import NDArray

from detector.core.models.base import InputRules, Network
from detector.core.models.graph.build import infer_shapes
from detector.core.types import Candidates
from tests.networks import need_engine


def plus_one(batch: int = 1, height: int = 2, width: int = 3) -> Network:
    """Return a network of two outputs: x + 1 as [batch, 3, height, width], and the sum of x over
    each plane as [batch, 3, 1, 1]."""
    from onnx import TensorProto, helper, numpy_helper

    shape = (batch, 3, height, width)
    weights = {
        "shift.weight": np.eye(3, dtype=np.float32).reshape(3, 3, 1, 1),
        "shift.bias": np.ones(3, np.float32),
        "total.weight": np.ones((3, 1, height, width), np.float32),
    }
    graph = helper.make_graph(
        [
            helper.make_node(
                "Cast", ["images"], ["input.cast"], name="input.cast", to=TensorProto.FLOAT
            ),
            helper.make_node(
                "Transpose", ["input.cast"], ["input.nchw"], name="input.nchw", perm=[0, 3, 1, 2]
            ),
            helper.make_node(
                "Conv", ["input.nchw", "shift.weight", "shift.bias"], ["0.conv"], name="0.conv"
            ),
            helper.make_node(
                "Conv", ["input.nchw", "total.weight"], ["1.conv"], name="1.conv", group=3
            ),
        ],
        "plus_one",
        [helper.make_tensor_value_info("images", TensorProto.UINT8, [batch, height, width, 3])],
        [
            helper.make_tensor_value_info("0.conv", TensorProto.FLOAT, shape),
            helper.make_tensor_value_info("1.conv", TensorProto.FLOAT, (batch, 3, 1, 1)),
        ],
        initializer=[numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    infer_shapes(model)
    return Network(
        name="plus_one",
        family="test",
        graph=model,
        input=InputRules(height, width, "stretch", 1),
        batch=batch,
        output_shapes=[shape, (batch, 3, 1, 1)],
        head=lambda outputs, conf: Candidates(
            np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, int)
        ),
        dense=lambda outputs: outputs[0],
        names=("thing",),
    )


def run_once(
    network: Network, pictures: NDArray[np.uint8], engine: str = "ort"
) -> list[NDArray[np.float32]]:
    from detector.core import engines

    need_engine(engine)
    with engines.open(engine, network) as opened:
        request = opened.requests[0]
        request.slot[: len(pictures)] = pictures
        return [output.copy() for output in request.infer(len(pictures))]


def plain_conv(
    x: NDArray, weights: NDArray, *, stride=(1, 1), padding=0, dilation=1, groups=1
) -> NDArray:
    """Convolve like a textbook: x [c, h, w], weights [n, c / groups, k, k] -> [n, h', w']."""
    x = np.pad(x.astype(np.float64), ((0, 0), (padding, padding), (padding, padding)))
    n, channels, kernel, _ = weights.shape
    reach = dilation * (kernel - 1) + 1
    height = (x.shape[1] - reach) // stride[0] + 1
    width = (x.shape[2] - reach) // stride[1] + 1
    out = np.zeros((n, height, width))
    for f in range(n):
        first = f // (n // groups) * channels
        for row in range(height):
            for column in range(width):
                top, left = row * stride[0], column * stride[1]
                window = x[
                    first : first + channels,
                    top : top + reach : dilation,
                    left : left + reach : dilation,
                ]
                out[f, row, column] = (window * weights[f]).sum()
    return out


def darknet_maxpool(x: NDArray, kernel: int, stride: int, padding: int) -> NDArray:
    """Pool x [c, h, w] like darknet's forward_maxpool_layer, which skips padded pixels."""
    channels, height, width = x.shape
    out_height, out_width = ((side + padding - kernel) // stride + 1 for side in (height, width))
    out = np.full((channels, out_height, out_width), -np.inf)
    for row in range(out_height):
        for column in range(out_width):
            for n in range(kernel):
                for m in range(kernel):
                    y, z = -(padding // 2) + row * stride + n, -(padding // 2) + column * stride + m
                    if 0 <= y < height and 0 <= z < width:
                        out[:, row, column] = np.maximum(out[:, row, column], x[:, y, z])
    return out
