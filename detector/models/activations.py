"""Activation functions as ONNX operators, as data: adding one is one row. Darknet's names, and nearly all of them.

A step is (name part, operator, inputs, attributes). Inputs: "x" is the convolution's output, another text is an
earlier step's name part, a number is a constant. The last step is always called "act".
"""

from __future__ import annotations

from typing import Any

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
