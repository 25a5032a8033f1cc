"""Find the conversion of pixels that a model's family expects and its graph does not contain."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from detector.core.models.description import Description, InputDescription, pixel_scale
from detector.core.models.formats.onnx.evidence import Evidence


@dataclass(frozen=True, slots=True)
class Pixels:
    """``factor`` x pixel (0..255) + ``offset``. Each has one value, or one for each channel."""

    bgr: bool = False
    factor: tuple[float, ...] = (1.0,)
    offset: tuple[float, ...] = (0.0,)

    @property
    def plain(self) -> bool:
        return len(set(self.factor)) == 1 and not any(self.offset)


def input_of(evidence: Evidence, description: Description) -> InputDescription:
    return msgspec.structs.replace(description.input, **evidence.stated)


def needed_pixels(evidence: Evidence, description: Description, *, described: bool) -> Pixels:
    """Return the conversion that the graph lacks. ``described``: the user wrote ``description``."""
    from onnx import TensorProto

    pixels = description.input if described else input_of(evidence, description)
    steps = evidence.pixel_steps()
    # A graph that swaps red and blue itself needs the opposite of its family's order.
    bgr = (pixels.colour == "bgr") != (steps.swaps_channels and not described)
    if evidence.graph.input.type.tensor_type.elem_type == TensorProto.UINT8:
        return Pixels(bgr)  # the graph does the rest
    scale = 1.0 if steps.scales else pixel_scale(pixels)
    if steps.subtracts or (pixels.mean is None and pixels.deviation is None):
        return Pixels(bgr, (scale,))
    # If the graph scales pixels, we subtract the mean before that, from unscaled pixels.
    graph_scale = pixel_scale(pixels) if steps.scales else 1.0
    mean, deviation = pixels.mean or (0.0,) * 3, pixels.deviation or (1.0,) * 3
    if steps.divides:  # the graph divides, but does not subtract
        deviation = (1.0,) * 3
    return Pixels(
        bgr,
        tuple(scale / d for d in deviation),
        tuple(-m / graph_scale / d for m, d in zip(mean, deviation, strict=True)),
    )
