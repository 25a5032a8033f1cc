"""What the layouts of raw maps have in common. Each layer of anchors has one map."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from detector.core.errors.parsing import quote
from detector.core.models.base import InputRules
from detector.core.models.layouts.base import (
    MAX_CLASSES,
    MAX_LAYERS,
    MAX_STRIDE,
    Bound,
    Decoder,
    Example,
    Shape,
)

MAX_ANCHORS, LARGEST_ANCHOR = 64, 1e6
# Attribute of a layer -> its smallest and largest valid value.
LIMITS = {
    "classes": (1, MAX_CLASSES),
    "stride": (1, MAX_STRIDE),
    "cell_width": (0.01, MAX_STRIDE),
    "cell_height": (0.01, MAX_STRIDE),
    "scale_x_y": (0, 100),
}


class MapsDecoder(Decoder):
    """Stores layers. ``cell``: layer -> (width, height) of a cell in network pixels."""

    arguments = ("layers",)

    def __init__(
        self,
        name: str,
        head: Callable[..., Any],
        dense: Callable[..., Any],
        layer: type,
        cell: Callable[[Any], tuple[float, float]],
    ) -> None:
        self.name, self.head, self.dense = name, head, dense
        self.layer, self.cell = layer, cell

    def example(self, height: int, width: int, layers: Sequence[Any]) -> Example:
        shapes: list[Shape] = []
        for layer in layers:
            cell_width, cell_height = self.cell(layer)
            channels = len(layer.anchors) * (5 + layer.classes)
            shapes.append((1, channels, round(height / cell_height), round(width / cell_width)))
        bound = Bound(
            None,
            tuple(f"map{at}" for at in range(len(layers))),
            frozenset(),
            layers[0].classes,
            needs_nms=True,
            decoder=self,
            arguments={"layers": list(layers)},
        )
        return bound, shapes

    def store(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return {"layers": [dataclasses.asdict(layer) for layer in arguments["layers"]]}

    def restore(self, content: Mapping[str, Any]) -> dict[str, Any]:
        import msgspec

        try:
            layers = msgspec.convert(content.get("layers"), list[self.layer])  # type: ignore[name-defined]
        except msgspec.ValidationError as exc:
            raise ValueError(f"layers: {exc}") from exc
        if not 0 < len(layers) <= MAX_LAYERS or not all(map(_is_valid, layers)):
            raise ValueError(f"layers {quote(content['layers'])}")
        return {"layers": layers}

    def fits(
        self, shapes: Sequence[Shape], arguments: Mapping[str, Any], rules: InputRules, classes: int
    ) -> bool:
        layers = arguments["layers"]
        return len(shapes) == len(layers) and all(
            self._is_map(shape, layer, rules, classes)
            for shape, layer in zip(shapes, layers, strict=True)
        )

    def _is_map(self, shape: Shape, layer: Any, rules: InputRules, classes: int) -> bool:
        width, height = self.cell(layer)
        return (
            len(shape) == 4
            and layer.classes == classes
            and shape[1] == len(layer.anchors) * (5 + classes)
            and abs(shape[2] * height - rules.height) <= 0.5
            and abs(shape[3] * width - rules.width) <= 0.5
        )


def _is_valid(layer: Any) -> bool:
    sides = [side for pair in layer.anchors for side in pair]
    return (
        all(low <= getattr(layer, name, low) <= high for name, (low, high) in LIMITS.items())
        and 0 < len(layer.anchors) <= MAX_ANCHORS
        and all(0 <= side <= LARGEST_ANCHOR for side in sides)
    )
