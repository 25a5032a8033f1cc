"""Convolutions in bf16 whose weights' gradients are matrix products.

On CPUs with AVX-512 bf16 oneDNN's forward pass and input gradient take 0.4 of the fp32 time, but its bf16 weight
gradient 1 to 20 times as long, and the fp32 one of 1x1 kernels 4 times what the product takes (torch 2.13, AMD Zen 4,
2 threads). So the weight gradient is one product for each tap: with the picture padded and laid out channels last,
every tap is the same rows of memory, moved by a constant, and nothing is copied.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class _HalfConvolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None, stride: int) -> Tensor:
        x, half = x.bfloat16(), weight.bfloat16()
        ctx.save_for_backward(x, half)
        ctx.stride, ctx.biased, ctx.reads_picture = stride, bias is not None, x.shape[1] == 3
        return functional.conv2d(x, half, None if bias is None else bias.bfloat16(), stride, weight.shape[2] // 2)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        x, weight = ctx.saved_tensors
        gradient = gradient.bfloat16().contiguous(memory_format=torch.channels_last)
        stride, kernel = ctx.stride, weight.shape[2]
        of_x = None
        if ctx.needs_input_grad[0]:
            of_x = _of_oned(gradient, x, weight, stride, (True, False, False))[0]
        if ctx.reads_picture:  # three channels make thin products
            of_weight = _of_oned(gradient.float(), x.float(), weight.float(), stride, (False, True, False))[1]
        elif kernel == 1:
            of_weight = _flat(gradient).t() @ _flat(x)
        else:
            of_weight = _taps(gradient, x) if stride == 1 else _taps_of_two(gradient, x)
        of_bias = gradient.float().sum((0, 2, 3)) if ctx.biased else None
        return of_x, of_weight.float().view(weight.shape), of_bias, None


def _of_oned(gradient: Tensor, x: Tensor, weight: Tensor, stride: int, wanted: tuple[bool, bool, bool]):
    padding = [weight.shape[2] // 2] * 2
    return torch.ops.aten.convolution_backward(
        gradient, x, weight, None, [stride] * 2, padding, [1, 1], False, [0, 0], 1, wanted
    )


def _flat(x: Tensor) -> Tensor:
    """[B * H * W, C]; a view where x lies channels last."""
    return x.permute(0, 2, 3, 1).reshape(-1, x.shape[1])


def _taps(gradient: Tensor, x: Tensor) -> Tensor:
    """Weight gradient of a 3x3 with stride 1. Rows of the padded gradient beyond the picture are zero."""
    width = x.shape[3] + 2
    rows = _flat(functional.pad(x, (1, 1, 1, 1)).contiguous(memory_format=torch.channels_last))
    asked = _flat(functional.pad(gradient, (0, 2, 0, 2)).contiguous(memory_format=torch.channels_last))
    count = len(asked) - 2 * width - 2
    left = asked[:count].t()
    shifts = [dy * width + dx for dy in range(3) for dx in range(3)]
    return torch.stack([left @ rows[shift : shift + count] for shift in shifts], -1)


def _taps_of_two(gradient: Tensor, x: Tensor) -> Tensor:
    """Of a 3x3 with stride 2 and even sides: each tap lies in one of the four pictures of every second pixel."""
    height, width = gradient.shape[2] + 1, gradient.shape[3] + 1
    padded = functional.pad(x, (1, 1, 1, 1)).permute(0, 2, 3, 1)
    phases = {(a, b): padded[:, a::2, b::2][:, :height, :width].reshape(-1, x.shape[1]) for a in (0, 1) for b in (0, 1)}
    asked = _flat(functional.pad(gradient, (0, 1, 0, 1)).contiguous(memory_format=torch.channels_last))
    count = len(asked) - width - 1
    left = asked[:count].t()
    products = []
    for dy in range(3):
        for dx in range(3):
            shift = (dy // 2) * width + dx // 2
            products.append(left @ phases[dy % 2, dx % 2][shift : shift + count])
    return torch.stack(products, -1)


def convolve(conv: nn.Conv2d, x: Tensor) -> Tensor:
    """``conv(x)`` in bf16, for plain 1x1 and 3x3 kernels."""
    return _HalfConvolution.apply(x, conv.weight, conv.bias, conv.stride[0])
