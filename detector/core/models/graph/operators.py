"""Properties of ONNX's operators that do not depend on a graph. Nothing here imports onnx."""

from __future__ import annotations

from typing import Any

MULTIPLYING = ("Conv", "ConvTranspose", "Gemm", "MatMul")  # operators whose MACs we count
TRAINED = (*MULTIPLYING, "BatchNormalization", "PRelu")  # operators with trained constants
# Operators that only move or select values (Resize only if it takes the nearest value).
MOVING = (
    "MaxPool",
    "Transpose",
    "Reshape",
    "Flatten",
    "Squeeze",
    "Unsqueeze",
    "Slice",
    "Resize",
    "Identity",
    "DepthToSpace",
    "SpaceToDepth",
)
# Operators that only convert a type, or do nothing. ``build.node_costs`` omits them.
CONVERSIONS = ("Cast", "Identity", "QuantizeLinear", "DequantizeLinear", "Constant")
# Operators that occur only in quantised graphs.
INTEGER = frozenset(
    "QuantizeLinear DequantizeLinear DynamicQuantizeLinear ConvInteger MatMulInteger QLinearConv "
    "QLinearMatMul".split()
)
QUANTISED = "the file is already quantised; --precision fp32 runs it unchanged"

# Activation functions by Darknet's names. Each has one or several steps. A step is one ONNX node:
# (name, operator, inputs, attributes). An input is "x" (the convolution's output), the name of an
# earlier step, or a constant. The last step is named "act". To add a function, add a row.
Step = tuple[str, str, tuple[str | float, ...], dict[str, Any]]

_SILU: tuple[Step, ...] = (("sigmoid", "Sigmoid", ("x",), {}), ("act", "Mul", ("x", "sigmoid"), {}))
_HARD_SWISH: tuple[Step, ...] = (("act", "HardSwish", ("x",), {}),)

ACTIVATIONS: dict[str, tuple[Step, ...]] = {
    "linear": (),
    "leaky": (("act", "LeakyRelu", ("x",), {"alpha": 0.1}),),
    "relu": (("act", "Relu", ("x",), {}),),
    "relu6": (("act", "Clip", ("x", 0.0, 6.0), {}),),
    "logistic": (("act", "Sigmoid", ("x",), {}),),
    "tanh": (("act", "Tanh", ("x",), {}),),
    "elu": (("act", "Elu", ("x",), {"alpha": 1.0}),),
    "swish": _SILU,
    "silu": _SILU,
    # x * tanh(log(1 + e^x)); ONNX has an operator for it only since opset 18
    "mish": (
        ("softplus", "Softplus", ("x",), {}),
        ("tanh", "Tanh", ("softplus",), {}),
        ("act", "Mul", ("x", "tanh"), {}),
    ),
    # x * min(2, max(0, x + 2)) / 2
    "hard_mish": (
        ("shifted", "Add", ("x", 2.0), {}),
        ("clipped", "Clip", ("shifted", 0.0, 2.0), {}),
        ("halved", "Mul", ("clipped", 0.5), {}),
        ("act", "Mul", ("x", "halved"), {}),
    ),
    "hardswish": _HARD_SWISH,
    "hard_swish": _HARD_SWISH,
}
