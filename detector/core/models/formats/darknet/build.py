"""Build an ONNX graph from layers and weights. Nodes are named ``INDEX.KIND`` (darknet's index)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from detector.core.models.formats.darknet.layers import (
    AveragePool,
    CfgNetwork,
    Convolution,
    Dropout,
    Layer,
    MaxPool,
    Multiplication,
    Route,
    Shortcut,
    Upsample,
    Yolo,
)
from detector.core.models.formats.darknet.weights import Filter, fold
from detector.core.models.graph.build import GraphBuilder

if TYPE_CHECKING:
    import onnx

PICTURE_SCALE = 1 / 255  # u8 pixels to 0..1


class DarknetGraph:
    def __init__(
        self, architecture: CfgNetwork, filters: list[Filter], name: str, batch: int
    ) -> None:
        self.architecture = architecture
        self.builder = GraphBuilder(name)
        self.tensors = {-1: self.builder.input_u8(batch, architecture.height, architecture.width)}
        self.outputs: list[str] = []
        self._filters = iter(filters)
        # If layer 0 is a convolution, 1/255 is folded into its weights. That is exact: only layer 0
        # reads the picture, zero padding stays zero, and the bias is added later.
        self._folds_scale = bool(architecture.layers) and isinstance(
            architecture.layers[0], Convolution
        )
        if not self._folds_scale:
            scale = self.builder.constant(
                "input.scale.factor", np.array([PICTURE_SCALE], np.float32)
            )
            self.tensors[-1] = self.builder.add("Mul", "input.scale", [self.tensors[-1], scale])

    def model(self) -> onnx.ModelProto:
        for layer in self.architecture.layers:
            self.tensors[layer.index] = self._add_layer(layer)
        return self.builder.model(self.outputs)

    def _add_layer(self, layer: Layer) -> str:
        match layer:
            case Convolution():
                return self._add_convolution(layer)
            case MaxPool():
                x = self.tensors[layer.inputs[0]]
                return self.builder.max_pool(
                    f"{layer.index}.maxpool", x, layer.kernel, layer.stride, layer.pads
                )
            case AveragePool():
                return self._add_node("GlobalAveragePool", layer, "avgpool")
            case Route():
                return self._add_route(layer)
            case Shortcut():
                added = self._add_shortcut(layer)
                return self.builder.activation(f"{layer.index}", layer.activation, added)
            case Multiplication():
                product = self._add_node("Mul", layer, "product")
                return self.builder.activation(f"{layer.index}", layer.activation, product)
            case Upsample():
                return self._add_upsample(layer)
            case Yolo():
                return self._add_yolo(layer)
            case Dropout():
                return self.tensors[layer.inputs[0]]
        raise AssertionError(f"no ONNX for {type(layer).__name__}")

    def _add_node(self, operator: str, layer: Layer, kind: str, **attributes: object) -> str:
        inputs = [self.tensors[index] for index in layer.inputs]
        return self.builder.add(operator, f"{layer.index}.{kind}", inputs, **attributes)

    def _add_convolution(self, layer: Convolution) -> str:
        first = layer.index == 0 and self._folds_scale
        weights, biases = fold(
            self.architecture, layer, next(self._filters), PICTURE_SCALE if first else 1.0
        )
        out = self.builder.conv(
            f"{layer.index}.conv",
            self.tensors[layer.inputs[0]],
            weights,
            biases,
            strides=layer.stride,
            pads=[layer.padding] * 4,
            dilation=layer.dilation,
            groups=layer.groups,
        )
        return self.builder.activation(f"{layer.index}", layer.activation, out)

    def _add_shortcut(self, layer: Shortcut) -> str:
        """Sum the inputs with at least as many channels as the first. Then add narrower inputs."""
        name = f"{layer.index}.shortcut"
        channels = layer.channels
        wide, narrow = [self.tensors[layer.inputs[0]]], []
        for at, index in enumerate(layer.inputs[1:]):
            x, count = self.tensors[index], self._count_channels(index)
            if count > channels:
                wide.append(self._slice_channels(f"{layer.index}.common{at}", x, 0, channels))
            elif count < channels:
                narrow.append((at, x, count))
            else:
                wide.append(x)
        total = wide[0]
        if len(wide) > 1:
            last = f"{layer.index}.same" if narrow else name
            total = self.builder.add("Add" if len(wide) == 2 else "Sum", last, wide)
        for at, x, count in narrow:
            first = self._slice_channels(f"{layer.index}.first{at}", total, 0, count)
            rest = self._slice_channels(f"{layer.index}.rest{at}", total, count, channels)
            added = self.builder.add("Add", f"{layer.index}.added{at}", [first, x])
            joined = name if at == narrow[-1][0] else f"{layer.index}.joined{at}"
            total = self.builder.add("Concat", joined, [added, rest], axis=1)
        return total

    def _count_channels(self, index: int) -> int:
        return 3 if index < 0 else self.architecture.layers[index].channels

    def _add_route(self, layer: Route) -> str:
        """Return the output's name. A single input without groups needs no node."""
        name = f"{layer.index}.route"
        parts = [self.tensors[index] for index in layer.inputs]
        if layer.groups > 1:
            is_single = len(parts) == 1
            for at, index in enumerate(layer.inputs):
                size = self.architecture.layers[index].channels // layer.groups
                start, part_name = size * layer.group_id, f"{layer.index}.slice{at}"
                parts[at] = self._slice_channels(
                    name if is_single else part_name, parts[at], start, start + size
                )
        return parts[0] if len(parts) == 1 else self.builder.add("Concat", name, parts, axis=1)

    def _slice_channels(self, name: str, x: str, start: int, end: int) -> str:
        constants = [
            self.builder.constant(f"{name}.{key}", np.array([value], np.int64))
            for key, value in {"starts": start, "ends": end, "axes": 1}.items()
        ]
        return self.builder.add("Slice", name, [x, *constants])

    def _add_upsample(self, layer: Upsample) -> str:
        x = self.tensors[layer.inputs[0]]
        out = self.builder.upsample(f"{layer.index}.upsample", x, layer.stride)
        if layer.scale == 1:
            return out
        name = f"{layer.index}.scale"
        factor = self.builder.constant(f"{name}.n", np.array(layer.scale, np.float32))
        return self.builder.add("Mul", name, [out, factor])

    def _add_yolo(self, layer: Yolo) -> str:
        """Make the raw map an output. The head decodes only cells with enough objectness."""
        x = self.tensors[layer.inputs[0]]
        if x in self.outputs:  # two heads read the same map, but outputs need different names
            x = self.builder.add("Identity", f"{layer.index}.yolo", [x])
        self.outputs.append(x)
        return x
