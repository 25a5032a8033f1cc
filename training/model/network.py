"""street.cfg as a torch module that can be trained.

Batch normalisation is not folded. On a CPU the convolutions can run in bf16, with our own weight
gradient. With AVX-512 bf16, oneDNN's forward pass and input gradient take 0.4 of the fp32 time, but
its bf16 weight gradient takes 1 to 20 times the fp32 time. For 1x1 kernels, even its fp32 weight
gradient takes 4 times as long as a matrix product (torch 2.13, AMD Zen 4, 2 threads). So we compute
the weight gradient as one matrix product for each tap of the kernel. With stride 1, a tap needs no
copy: it reads a contiguous block of pixels from the padded picture (channels last).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from detector.core.models.formats.darknet.cfg import read_cfg
from detector.core.models.formats.darknet.layers import (
    CfgNetwork,
    Convolution,
    MaxPool,
    Route,
    Upsample,
    Yolo,
    read_architecture,
)
from model.teacher import cell_grid

OBJECTNESS, CERTAIN = 4, 15.0  # the untrained channel, and its constant logit
PRIOR = 0.01  # initial score of every class


class Street(nn.Module):
    """The network of a cfg.

    Takes RGB [B, 3, H, W] in 0..1; returns the input map of each [yolo] layer.
    """

    def __init__(self, architecture: CfgNetwork) -> None:
        super().__init__()
        self.architecture = architecture
        self.blocks = nn.ModuleDict({str(at.index): Block(at) for at in architecture.convolutions})
        self.heads = [str(layer.inputs[0]) for layer in architecture.yolos]
        for index in self.heads:
            head = self.blocks[index].conv
            nn.init.normal_(head.weight, std=0.01)
            nn.init.zeros_(head.bias)
            nn.init.constant_(head.bias[5:], float(np.log(PRIOR / (1 - PRIOR))))
        self.pin_objectness()

    @torch.no_grad()
    def pin_objectness(self) -> None:
        """Reset the objectness channel, which the optimiser must not train."""
        for index in self.heads:
            self.blocks[index].conv.weight[OBJECTNESS] = 0
            self.blocks[index].conv.bias[OBJECTNESS] = CERTAIN

    def use_half(self) -> None:
        """Train in bf16 from now on."""
        for block in self.blocks.values():
            block.half = True

    def forward(self, x: Tensor) -> list[Tensor]:
        outputs: dict[int, Tensor] = {-1: x}
        for layer in self.architecture.layers:
            inputs = [outputs[index] for index in layer.inputs]
            outputs[layer.index] = self._run(layer, inputs)
        return [outputs[layer.index] for layer in self.architecture.yolos]

    def _run(self, layer, inputs: list[Tensor]) -> Tensor:
        match layer:
            case Convolution():
                return self.blocks[str(layer.index)](inputs[0])
            case MaxPool():
                return functional.max_pool2d(inputs[0], layer.kernel, layer.stride, layer.pads[0])
            case Route():
                parts = [x.chunk(layer.groups, 1)[layer.group_id] for x in inputs]
                return parts[0] if len(parts) == 1 else torch.cat(parts, 1)
            case Upsample():
                return functional.interpolate(inputs[0], scale_factor=layer.stride, mode="nearest")
            case Yolo():
                return inputs[0]
        raise AssertionError(f"training supports no {type(layer).__name__} layer")


class Block(nn.Module):
    """One [convolutional] layer."""

    def __init__(self, layer: Convolution) -> None:
        super().__init__()
        self.conv = nn.Conv2d(
            layer.in_channels,
            layer.channels,
            layer.kernel,
            layer.stride,
            layer.padding,
            bias=not layer.batch_normalize,
        )
        self.norm = None
        if layer.batch_normalize:
            self.norm = nn.BatchNorm2d(layer.channels, momentum=0.03)
        self.half = False  # bf16 while training
        nn.init.kaiming_normal_(self.conv.weight, nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = convolve_half(self.conv, x) if self.half and self.training else self.conv(x)
        return x if self.norm is None else functional.relu(self.norm(x), inplace=True)


def read_layers(cfg: Path) -> CfgNetwork:
    return read_architecture(read_cfg(cfg)[0])


def decode(maps: list[Tensor], size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Convert maps to boxes xyxy [B, N, 4] in pixels and logits [B, N, 2].

    The arithmetic is the same as in ``stages.heads``.
    """
    rows = torch.cat([m.float().flatten(2) for m in maps], 2).transpose(1, 2)
    corners, strides, anchors = (torch.from_numpy(at).to(rows.device) for at in cell_grid(*size))
    middle = (rows[..., :2].sigmoid() * 4 - 1.5 + corners) * strides
    half = rows[..., 2:4].clamp(-6, 6).exp() * anchors / 2
    return torch.cat([middle - half, middle + half], -1), rows[..., 5:]


def convolve_half(conv: nn.Conv2d, x: Tensor) -> Tensor:
    """Compute ``conv(x)`` in bf16, for plain 1x1 and 3x3 kernels."""
    return _HalfConvolution.apply(x, conv.weight, conv.bias, conv.stride[0])


class _HalfConvolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None, stride: int) -> Tensor:
        x, half = x.bfloat16(), weight.bfloat16()
        ctx.save_for_backward(x, half)
        ctx.stride, ctx.biased, ctx.reads_picture = stride, bias is not None, x.shape[1] == 3
        half_bias = None if bias is None else bias.bfloat16()
        return functional.conv2d(x, half, half_bias, stride, weight.shape[2] // 2)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        x, weight = ctx.saved_tensors
        gradient = gradient.bfloat16().contiguous(memory_format=torch.channels_last)
        stride, kernel = ctx.stride, weight.shape[2]
        of_x = None
        if ctx.needs_input_grad[0]:
            of_x = _torch_backward(gradient, x, weight, stride, (True, False, False))[0]
        if ctx.reads_picture:  # three channels would make the matrices too thin
            tensors = gradient.float(), x.float(), weight.float()
            of_weight = _torch_backward(*tensors, stride, (False, True, False))[1]
        elif kernel == 1:
            of_weight = _flatten(gradient).t() @ _flatten(x)
        elif stride == 1:
            of_weight = _weight_gradient_stride_1(gradient, x)
        else:
            of_weight = _weight_gradient_stride_2(gradient, x)
        of_bias = gradient.float().sum((0, 2, 3)) if ctx.biased else None
        return of_x, of_weight.float().view(weight.shape), of_bias, None


def _torch_backward(
    gradient: Tensor, x: Tensor, weight: Tensor, stride: int, needed: tuple[bool, bool, bool]
):
    padding = [weight.shape[2] // 2] * 2
    return torch.ops.aten.convolution_backward(
        gradient, x, weight, None, [stride] * 2, padding, [1, 1], False, [0, 0], 1, needed
    )


def _flatten(x: Tensor) -> Tensor:
    """Reshape [B, C, H, W] to [B * H * W, C]; without a copy if channels are last."""
    return x.permute(0, 2, 3, 1).reshape(-1, x.shape[1])


def _weight_gradient_stride_1(gradient: Tensor, x: Tensor) -> Tensor:
    """Return the weight gradient of a 3x3 kernel with stride 1. Matrix rows in the
    padding add nothing, because the gradient is zero there."""
    width = x.shape[3] + 2
    last = torch.channels_last
    rows = _flatten(functional.pad(x, (1, 1, 1, 1)).contiguous(memory_format=last))
    padded = _flatten(functional.pad(gradient, (0, 2, 0, 2)).contiguous(memory_format=last))
    count = len(padded) - 2 * width - 2
    left = padded[:count].t()
    shifts = [dy * width + dx for dy in range(3) for dx in range(3)]
    return torch.stack([left @ rows[shift : shift + count] for shift in shifts], -1)


def _weight_gradient_stride_2(gradient: Tensor, x: Tensor) -> Tensor:
    """Return the weight gradient of a 3x3 kernel with stride 2, for even sides.

    A tap reads every second pixel in both directions: one of the four ``quarters``.
    """
    height, width = gradient.shape[2] + 1, gradient.shape[3] + 1
    padded = functional.pad(x, (1, 1, 1, 1)).permute(0, 2, 3, 1)
    quarters = {
        (a, b): padded[:, a::2, b::2][:, :height, :width].reshape(-1, x.shape[1])
        for a in (0, 1)
        for b in (0, 1)
    }
    rows = functional.pad(gradient, (0, 1, 0, 1)).contiguous(memory_format=torch.channels_last)
    rows = _flatten(rows)
    count = len(rows) - width - 1
    left = rows[:count].t()
    products = []
    for dy in range(3):
        for dx in range(3):
            shift = (dy // 2) * width + dx // 2
            products.append(left @ quarters[dy % 2, dx % 2][shift : shift + count])
    return torch.stack(products, -1)
