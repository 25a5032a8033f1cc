"""Facts about ONNX's operators that need no graph. Nothing here imports onnx."""

from __future__ import annotations

from typing import Any

MULTIPLYING = ("Conv", "ConvTranspose", "Gemm", "MatMul")  # whose multiply-accumulates are counted
TRAINED = (*MULTIPLYING, "BatchNormalization", "PRelu")  # whose constants training found
# Operators that only move or choose values; a Resize only if it takes the nearest value.
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
# Operators that change a type or nothing, so they say nothing about how the network runs.
CONVERSIONS = ("Cast", "Identity", "QuantizeLinear", "DequantizeLinear", "Constant")
# In an fp32 graph these show that its file was quantised already.
INTEGER = frozenset(
    "QuantizeLinear DequantizeLinear DynamicQuantizeLinear ConvInteger MatMulInteger QLinearConv "
    "QLinearMatMul".split()
)
QUANTISED = "the file is already quantised; --precision fp32 runs it unchanged"


# Activation functions by Darknet's names, as ONNX operators: adding one is one row. A step is (name
# part, operator, inputs, attributes). Among the inputs "x" is the convolution's output, another
# text an earlier step's name part, a number a constant. The last step is "act".

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
    # Mish became an ONNX operator in opset 18 only: x * tanh(log(1 + e^x)).
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
