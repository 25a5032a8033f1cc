# mypy: allow-subclassing-any
"""Runs a graph with Q/DQ nodes on int8 kernels: oneDNN's u8 x s8 convolutions.

Q is QuantizeLinear, DQ is DequantizeLinear. Three rules rewrite the graph. They are exact, except
where the third says otherwise.
1. Q moves up through nodes that only move or choose values (MaxPool, Resize, Concat, Slice,
   Transpose), which then work on bytes. The picture's Cast from u8 is a DQ with scale 1 and zero
   point 0.
2. A DQ followed by a Q of the same scale and zero point cancel out.
3. DQ -> Conv with s8 weights -> activation -> Q becomes one ``QuantizedConv``. Where a Q/DQ pair
   stands between the convolution and the activation, that rounding is left out: the convolution's
   float sum goes into the activation directly.
All other nodes run in float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx, nn

from detector.core.engines.torch.graph import QuantizedConstant
from detector.core.engines.torch.modules import (
    Clamp,
    Dequantize,
    PaddedMaxPool,
    Quantize,
    ToType,
    narrowed,
)
from detector.core.models.graph.build import MOVING


class QuantizedConv(nn.Module):
    """A u8 convolution with s8 weights, one scale for each output channel, and its activation.

    Returns u8, or float32 where no ``result`` is given.
    """

    def __init__(
        self,
        conv: nn.Conv2d,
        weights: QuantizedConstant,
        given: tuple[float, int],
        result: tuple[float, int] | None,
        activation: nn.Module | None = None,
    ) -> None:
        """``given``, ``result``: scale and zero point of the input and of the output."""
        super().__init__()
        self.given, self.result = given, result
        self.stride, self.padding, self.dilation, self.groups = (
            list(conv.stride),
            list(conv.padding),
            list(conv.dilation),
            conv.groups,
        )
        self.pointwise = (
            self.stride == [1, 1]
            and self.padding == [0, 0]
            and self.groups == 1
            and tuple(conv.kernel_size) == (1, 1)
        )
        self.fused, self.arguments, self.slope = _post_op(activation)
        # Only the matrix kernel has a leaky slope.
        if self.slope is not None and self.pointwise:
            self.fused, self.arguments, self.slope = "leaky_relu", [self.slope], None
        self.pointwise = self.fused == "leaky_relu"
        # A leaky slope and a scale commute: the kernel returns float32 in steps of the result. The
        # slope, the zero point and the clamp are left to do.
        divisor = result[0] if self.slope is not None and result is not None else 1.0
        scales = torch.from_numpy(weights.scale.copy()).expand(conv.out_channels) / divisor
        self.register_buffer("scales", scales.contiguous())
        self.register_buffer("zeros", torch.zeros(conv.out_channels, dtype=torch.int32))
        self.register_buffer("bias", None if conv.bias is None else conv.bias.detach() / divisor)
        self.register_buffer("weight", torch.from_numpy(weights.values.copy()))
        self._packed: Tensor | None = None

    def _pack(self, x: Tensor) -> Tensor:
        """Packs the weights for the kernel, once, for the shape of ``x``."""
        if self.pointwise:
            packed = torch.ops.onednn.qlinear_prepack(
                self.weight.flatten(1), [x.numel() // x.shape[1], x.shape[1]]
            )
        else:
            packed = torch.ops.onednn.qconv_prepack(
                self.weight,
                self.scales,
                *self.given,
                self.stride,
                self.padding,
                self.dilation,
                self.groups,
                list(x.shape),
            )
        self._packed = packed
        return packed

    def forward(self, x: Tensor) -> Tensor:
        packed = self._packed if self._packed is not None else self._pack(x)
        if self.slope is None:
            return self._kernel(x, packed, self.result)
        y = nn.functional.leaky_relu_(self._kernel(x, packed, None), self.slope)
        if self.result is None:
            return y
        return narrowed(y.round_().add_(self.result[1]).clamp_(0, 255), torch.uint8)

    def _kernel(self, x: Tensor, packed: Tensor, result: tuple[float, int] | None) -> Tensor:
        (scale, zero), dtype = (
            (result, torch.uint8) if result is not None else ((1.0, 0), torch.float32)
        )
        if not self.pointwise:
            y: Tensor = torch.ops.onednn.qconv2d_pointwise(
                x,
                *self.given,
                packed,
                self.scales,
                self.zeros,
                self.bias,
                self.stride,
                self.padding,
                self.dilation,
                self.groups,
                scale,
                zero,
                dtype,
                self.fused,
                self.arguments,
                "",
            )
            return y
        batch, channels, height, width = x.shape
        rows: Tensor = torch.ops.onednn.qlinear_pointwise(
            x.permute(0, 2, 3, 1).reshape(-1, channels),
            *self.given,
            packed,
            self.scales,
            self.zeros,
            self.bias,
            scale,
            zero,
            dtype,
            self.fused,
            self.arguments,
            "",
        )
        return rows.view(batch, height, width, -1).permute(0, 3, 1, 2)


class BytePool(nn.Module):
    """Pools bytes by way of float32, which holds them exactly.

    torch's own pooling of bytes fails on larger pictures ("Expected input_depth * input_height *
    input_width <= max", torch 2.13).
    """

    def __init__(self, pool: nn.Module) -> None:
        super().__init__()
        self.pool = pool

    def forward(self, x: Tensor) -> Tensor:
        return narrowed(self.pool(x.to(torch.float32)), x.dtype)


def on_integers(module: fx.GraphModule) -> fx.GraphModule:
    """Rewrites the module in place by the three rules.

    ``meta["fused"]`` then maps a fused module to the nodes that it stands for.
    """
    work = _Rewriting(module)
    work.picture_is_quantised()
    work.move_up()
    work.cancel()
    work.fuse()
    work.cancel()
    for node in reversed(list(module.graph.nodes)):
        if node.op == "call_module" and not node.users:
            module.graph.erase_node(node)
    module.graph.lint()
    module.recompile()
    module.meta["fused"] = work.fused
    return module


class _Rewriting:
    def __init__(self, module: fx.GraphModule) -> None:
        self.module, self.graph = module, module.graph
        self.operators: dict[str, str] = module.meta["operators"]
        self.weights: dict[str, QuantizedConstant] = module.meta["weights"]
        self.fused: dict[str, tuple[str, ...]] = {}

    def part(self, node: fx.Node) -> Any:
        return self.module.get_submodule(str(node.target)) if node.op == "call_module" else None

    def put(self, node: fx.Node, part: nn.Module) -> None:
        self.module.set_submodule(str(node.target), part)

    def picture_is_quantised(self) -> None:
        for node in self.graph.nodes:
            part = self.part(node)
            if (
                isinstance(part, ToType)
                and part.dtype == torch.float32
                and node.args[0].op == "placeholder"
            ):
                self.put(node, Dequantize(1.0, 0, torch.uint8))

    def move_up(self) -> None:
        """Rule 1. Goes from the last node up, so that a moved Q is met again further up."""
        for node in reversed(list(self.graph.nodes)):
            if node.op == "call_module" and self.operators.get(str(node.target)) in (
                *MOVING,
                "Concat",
            ):
                self._move_above(node)

    def _move_above(self, node: fx.Node) -> None:
        readers = list(node.users)
        parts = [self.part(reader) for reader in readers]
        if not readers or not all(isinstance(part, Quantize) for part in parts):
            return
        if len({part.steps for part in parts}) > 1:
            return
        for reader in readers[1:]:
            reader.replace_all_uses_with(readers[0])
            self.graph.erase_node(reader)
        quantize = readers[0]
        quantize.replace_all_uses_with(node)
        self.graph.erase_node(quantize)
        for at, given in enumerate(node.args):
            assert isinstance(given, fx.Node)
            with self.graph.inserting_before(node):
                # Each input gets a Q. They share one module: it holds only scale and zero point.
                node.update_arg(at, self.graph.call_module(str(quantize.target), (given,)))
        if isinstance(self.part(node), (nn.MaxPool2d, PaddedMaxPool)):
            self.put(node, BytePool(self.part(node)))

    def cancel(self) -> None:
        for node in list(self.graph.nodes):
            part = self.part(node)
            if not isinstance(part, Quantize):
                continue
            given = node.args[0]
            before = self.part(given)
            if isinstance(before, Dequantize) and before.steps == part.steps:
                node.replace_all_uses_with(given.args[0])
                self.graph.erase_node(node)

    def fuse(self) -> None:
        for node in [node for node in self.graph.nodes if isinstance(self.part(node), nn.Conv2d)]:
            conv, given = self.part(node), self.part(node.args[0])
            weights = self.weights.get(str(node.target))
            if weights is None or not isinstance(given, Dequantize):
                continue
            if given.dtype == torch.uint8 and _is_symmetric(weights, conv):
                self._fuse(node, conv, weights, given)

    def _fuse(
        self, node: fx.Node, conv: nn.Conv2d, weights: QuantizedConstant, given: Dequantize
    ) -> None:
        chain, activation, last = self._chain(node)
        result = None if last is None else (last.scale, last.zero)
        self.put(node, QuantizedConv(conv, weights, (given.scale, given.zero), result, activation))
        self.fused[str(node.target)] = tuple(
            str(one.target) for one in (node.args[0], node, *chain)
        )
        node.update_arg(0, node.args[0].args[0])
        if chain:
            chain[-1].replace_all_uses_with(node)
            for one in reversed(chain):
                self.graph.erase_node(one)

    def _chain(self, conv: fx.Node) -> tuple[list[fx.Node], nn.Module | None, Quantize | None]:
        """The nodes behind a convolution that its kernel can do, the activation, and the last Q."""
        first = self._only_reader(conv)
        if first is None:
            return [], None, None
        if isinstance(self.part(first), Quantize) and self.part(first).dtype == torch.uint8:
            return self._behind_a_pair(first) or ([first], None, self.part(first))
        if not _goes_inside(self.part(first)):
            return [], None, None
        second = self._only_reader(first)
        if (
            second is None
            or not isinstance(self.part(second), Quantize)
            or self.part(second).dtype != torch.uint8
        ):
            return [], None, None
        return [first, second], self.part(first), self.part(second)

    def _behind_a_pair(self, quantize: fx.Node) -> tuple[list[fx.Node], nn.Module, Quantize] | None:
        back = self._only_reader(quantize)
        act = (
            self._only_reader(back)
            if back is not None and isinstance(self.part(back), Dequantize)
            else None
        )
        last = self._only_reader(act) if act is not None and _goes_inside(self.part(act)) else None
        if back is None or act is None or last is None or not isinstance(self.part(last), Quantize):
            return None
        if self.part(last).dtype != torch.uint8:
            return None
        return [quantize, back, act, last], self.part(act), self.part(last)

    def _only_reader(self, node: fx.Node) -> fx.Node | None:
        users = list(node.users)
        return users[0] if len(users) == 1 and users[0].op == "call_module" else None


def _is_symmetric(weights: QuantizedConstant, conv: nn.Conv2d) -> bool:
    """Whether the weights are s8 without a zero point, with one scale, or one an output channel."""
    per_channel = weights.scale.size == 1 or (
        weights.axis == 0 and weights.scale.size == conv.out_channels
    )
    return weights.values.dtype.name == "int8" and not weights.zero.any() and per_channel


def _goes_inside(part: Any) -> bool:
    return isinstance(part, (nn.ReLU, nn.LeakyReLU, nn.Hardswish)) or (
        isinstance(part, Clamp) and part.low is not None and part.high is not None
    )


def _post_op(activation: nn.Module | None) -> tuple[str, list[float], float | None]:
    """The kernel's name for an activation, its numbers, and the slope that the kernel lacks."""
    if isinstance(activation, nn.ReLU):
        return "relu", [], None
    if isinstance(activation, nn.Hardswish):
        return "hardswish", [], None
    if isinstance(activation, nn.LeakyReLU):
        return "none", [], float(activation.negative_slope)
    if isinstance(activation, Clamp):
        return "hardtanh", [float(activation.low or 0), float(activation.high or 0)], None
    return "none", [], None
