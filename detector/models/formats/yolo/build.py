"""Plan and numbers -> ONNX graph. Nodes carry the paths of the original modules: model.6.m.0.cv2.conv."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from detector.models.formats.yolo.steps import (
    Add,
    Concat,
    Convolution,
    MaxPool,
    Plan,
    Step,
    Upsample,
    Value,
)
from detector.models.formats.yolo.weights import Floats, Numbers
from detector.models.graph.build import ACTIVATIONS, INPUT, GraphBuilder

if TYPE_CHECKING:
    import onnx

PICTURE_SCALE = 1 / 255  # u8 pixels to 0..1


class YoloGraph:
    """Writes one step after the other; every step's output is called as the plan calls it."""

    def __init__(self, plan: Plan, numbers: Numbers, name: str, batch: int) -> None:
        self.plan, self.numbers = plan, numbers
        self.builder = GraphBuilder(name)
        self._picture = self.builder.input_u8(batch, plan.height, plan.width)

    def model(self) -> onnx.ModelProto:
        for step in self.plan.needed:
            self._add(step)
        assert self.plan.head is not None
        return self.builder.model([value.name for value in self.plan.head.outputs])

    def _add(self, step: Step) -> None:
        inputs = [self._tensor(value) for value in step.inputs]
        name = step.out.name
        match step:
            case Convolution():
                self._convolution(step)
            case MaxPool():
                self.builder.add(
                    "MaxPool",
                    name,
                    inputs,
                    kernel_shape=[step.kernel] * 2,
                    strides=[step.stride] * 2,
                    pads=[step.padding] * 4,
                )
            case Upsample():
                scales = self.builder.constant(
                    f"{name}.scales", np.array([1, 1, step.scale, step.scale], np.float32)
                )
                self.builder.add(
                    "Resize",
                    name,
                    [inputs[0], "", scales],
                    mode="nearest",
                    coordinate_transformation_mode="asymmetric",
                    nearest_mode="floor",
                )
            case Concat():
                self.builder.add("Concat", name, inputs, axis=1)
            case Add():
                self.builder.add("Add", name, inputs)

    def _tensor(self, value: Value) -> str:
        real = value.folded or value
        return self._picture if real.name == INPUT else real.name

    def _convolution(self, step: Convolution) -> None:
        x = step.inputs[0]
        weight, bias = self.numbers.filter(step)
        times = 1
        if x.folded is not None:
            weight, times = spread(weight, step.groups), 2
        if (
            (x.folded or x).name == INPUT
        ):  # 1/255 goes into the weights: zero padding stays zero, the bias is added after
            weight = weight * PICTURE_SCALE
        inputs = [
            self._tensor(x),
            self.builder.constant(f"{step.node}.weight", weight.astype(np.float32)),
            self.builder.constant(f"{step.node}.bias", bias.astype(np.float32)),
        ]
        out = self.builder.add(
            "Conv",
            step.node,
            inputs,
            kernel_shape=[times * step.kernel] * 2,
            strides=[times * step.stride] * 2,
            pads=[times * step.padding] * 4,
            dilations=[1, 1],
            group=step.groups,
        )
        self._activation(step, out)

    def _activation(self, step: Convolution, x: str) -> None:
        made = {"x": x}
        for part, operator, inputs, attributes in ACTIVATIONS[step.activation.kind]:
            if step.activation.kind == "leaky":
                attributes = {"alpha": step.activation.slope}
            name = f"{step.path}.{part}"
            tensors = [
                made[i]
                if isinstance(i, str)
                else self.builder.constant(f"{name}.n{at}", np.array(i, np.float32))
                for at, i in enumerate(inputs)
            ]
            made[part] = self.builder.add(operator, name, tensors, **attributes)


def spread(weight: Floats, groups: int) -> Floats:
    """A convolution over every 2x2 pixels as channels -> the same one over the pixels, twice as wide.

    weight [out, 4*c, k, k] -> [out, c, 2k, 2k], to be run with twice the stride and padding: the same products, added
    in another order. The four parts of the channels are the pixels (row, column) 0,0  1,0  0,1  1,1: as in
    YOLOX's Focus (Apache-2.0), whose published graphs show the slices.
    """
    assert groups == 1
    outs, channels, kernel, _ = weight.shape
    wide = np.zeros((outs, channels // 4, 2 * kernel, 2 * kernel), weight.dtype)
    for part, (row, column) in enumerate(((0, 0), (1, 0), (0, 1), (1, 1))):
        wide[:, :, row::2, column::2] = weight[
            :, part * (channels // 4) : (part + 1) * (channels // 4)
        ]
    return wide
