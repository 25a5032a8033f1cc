"""street.cfg as a torch module with batch normalisation left in, and its way back into a .weights file."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from detector.models.darknet.cfg import read_cfg
from detector.models.darknet.layers import Convolution, MaxPool, Plan, Route, Upsample, Yolo
from detector.models.darknet.plan import make_plan
from model.cells import grid
from model.half_convolution import convolve

OBJECTNESS, CERTAIN = 4, 15.0  # the channel without training, and its logit
PRIOR = 0.01  # score of a class at the start


class Block(nn.Module):
    """One [convolutional]."""

    def __init__(self, layer: Convolution) -> None:
        super().__init__()
        self.conv = nn.Conv2d(
            layer.in_channels, layer.channels, layer.kernel, layer.stride, layer.padding, bias=not layer.batch_normalize
        )
        self.norm = nn.BatchNorm2d(layer.channels, momentum=0.03) if layer.batch_normalize else None
        self.half = False  # bf16 with our own weight gradient, in training
        nn.init.kaiming_normal_(self.conv.weight, nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = convolve(self.conv, x) if self.half and self.training else self.conv(x)
        return x if self.norm is None else nn.functional.relu(self.norm(x), inplace=True)


class Street(nn.Module):
    """The network of a cfg. Called with RGB [B, 3, H, W] in 0..1; returns the maps in front of every [yolo]."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan = plan
        self.blocks = nn.ModuleDict({str(layer.index): Block(layer) for layer in plan.convolutions})
        self.heads = [str(layer.inputs[0]) for layer in plan.yolos]
        for index in self.heads:
            head = self.blocks[index].conv
            nn.init.normal_(head.weight, std=0.01)
            nn.init.zeros_(head.bias)
            nn.init.constant_(head.bias[5:], float(np.log(PRIOR / (1 - PRIOR))))
        self.pin_objectness()

    @torch.no_grad()
    def pin_objectness(self) -> None:
        for index in self.heads:
            self.blocks[index].conv.weight[OBJECTNESS] = 0
            self.blocks[index].conv.bias[OBJECTNESS] = CERTAIN

    def use_half(self) -> None:
        for block in self.blocks.values():
            block.half = True

    def forward(self, x: Tensor) -> list[Tensor]:
        made: dict[int, Tensor] = {-1: x}
        for layer in self.plan.layers:
            inputs = [made[index] for index in layer.inputs]
            made[layer.index] = self._layer(layer, inputs)
        return [made[layer.index] for layer in self.plan.yolos]

    def _layer(self, layer, inputs: list[Tensor]) -> Tensor:
        match layer:
            case Convolution():
                return self.blocks[str(layer.index)](inputs[0])
            case MaxPool():
                return nn.functional.max_pool2d(inputs[0], layer.kernel, layer.stride, layer.pads[0])
            case Route():
                parts = [x.chunk(layer.groups, 1)[layer.group_id] for x in inputs]
                return parts[0] if len(parts) == 1 else torch.cat(parts, 1)
            case Upsample():
                return nn.functional.interpolate(inputs[0], scale_factor=layer.stride, mode="nearest")
            case Yolo():
                return inputs[0]
        raise AssertionError(f"street.cfg has no {type(layer).__name__}")


def plan_of(cfg: Path) -> Plan:
    return make_plan(read_cfg(cfg)[0])


def decoded(maps: list[Tensor], size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Maps -> boxes xyxy [B, N, 4] in pixels, logits [B, N, 2]; the arithmetic of ``stages.heads``."""
    rows = torch.cat([m.float().flatten(2) for m in maps], 2).transpose(1, 2)
    corners, strides, anchors = (torch.from_numpy(part).to(rows.device) for part in grid(*size))
    middle = (rows[..., :2].sigmoid() * 4 - 1.5 + corners) * strides
    half = rows[..., 2:4].clamp(-6, 6).exp() * anchors / 2
    return torch.cat([middle - half, middle + half], -1), rows[..., 5:]


def write_weights(network: Street, target: Path, seen: int) -> None:
    """darknet's .weights, batch normalisation not folded."""
    with target.open("wb") as file:
        file.write(struct.pack("<3iq", 0, 2, 5, seen))
        for layer in network.plan.convolutions:
            block = network.blocks[str(layer.index)]
            if block.norm is None:
                parts = [block.conv.bias]
            else:
                norm = block.norm
                parts = [norm.bias, norm.weight, norm.running_mean, norm.running_var]
            for part in (*parts, block.conv.weight):
                file.write(part.detach().float().cpu().contiguous().numpy().astype("<f4").tobytes())
