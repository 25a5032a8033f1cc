# mypy: allow-subclassing-any
"""Run the module once and record the precision in which every layer computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from detector.core.engines.base import LayerExecution

NAMES = {
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.uint8: "u8",
    torch.int8: "s8",
}
CONVOLUTIONS = (nn.Conv2d, nn.ConvTranspose2d, nn.Linear)


def list_executed_layers(
    module: fx.GraphModule, example: Tensor, arithmetic: Mapping[str, str]
) -> list[LayerExecution]:
    """Return the layers in order, with their precision. ``example``: u8 [B, H, W, 3].
    ``arithmetic``: type of a convolution's tensors -> type of its arithmetic, if they differ."""
    layers: list[LayerExecution] = []

    def record(name: str, part: nn.Module, arguments: Sequence[Any], result: Any) -> None:
        precision = _precision(part, result, arithmetic)
        view = _is_view(part, arguments, result)
        layers.append(LayerExecution(name, type(part).__name__, precision, view=view))

    with torch.inference_mode():
        _LayerRecorder(module, record).run(example)
    return layers


class _LayerRecorder(fx.Interpreter):
    def __init__(
        self, module: fx.GraphModule, record: Callable[[str, nn.Module, Sequence[Any], Any], None]
    ) -> None:
        super().__init__(module)
        self._record = record

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        result = super().call_module(target, args, kwargs)
        self._record(str(target), self.module.get_submodule(str(target)), args, result)
        return result


def _is_view(part: nn.Module, arguments: Sequence[Any], result: Tensor) -> bool:
    address = result.untyped_storage().data_ptr()
    tensors = [argument for argument in arguments if isinstance(argument, Tensor)]
    shares = any(tensor.untyped_storage().data_ptr() == address for tensor in tensors)
    return shares and not getattr(part, "inplace", False)


def _precision(part: nn.Module, result: Any, arithmetic: Mapping[str, str]) -> str:
    precision = NAMES.get(result.dtype, str(result.dtype).removeprefix("torch."))
    if isinstance(part, CONVOLUTIONS):
        precision = NAMES.get(part.weight.dtype, precision)
        return arithmetic.get(precision, precision)
    return precision
