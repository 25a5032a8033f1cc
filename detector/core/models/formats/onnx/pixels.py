"""What a graph from elsewhere wants of a picture's pixels, less what it does itself."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from detector.core.models.description import Description, InputDescription, pixel_scale
from detector.core.models.formats.onnx.evidence import Evidence


@dataclass(frozen=True, slots=True)
class Pixels:
    """``factor`` x pixel (0..255) + ``offset``, for all or for each of the graph's channels."""

    bgr: bool = False
    factor: tuple[float, ...] = (1.0,)
    offset: tuple[float, ...] = (0.0,)

    @property
    def plain(self) -> bool:
        return len(set(self.factor)) == 1 and not any(self.offset)


def input_of(evidence: Evidence, description: Description) -> InputDescription:
    return msgspec.structs.replace(description.input, **evidence.stated)


def wanted_pixels(evidence: Evidence, description: Description, *, described: bool) -> Pixels:
    """Return the family's pixel steps that the graph lacks. ``described``: by the user."""
    from onnx import TensorProto

    given = description.input if described else input_of(evidence, description)
    inside = evidence.inside()
    # A graph that turns the channels takes the other order than its family's networks.
    bgr = (given.colour == "bgr") != (inside.turned and not described)
    if evidence.graph.input.type.tensor_type.elem_type == TensorProto.UINT8:
        return Pixels(bgr)  # the graph does the rest
    scale = 1.0 if inside.scales else pixel_scale(given)
    if inside.subtracts or (given.mean is None and given.deviation is None):
        return Pixels(bgr, (scale,))
    # With a scale inside, a mean that comes after it is subtracted before it.
    ahead = pixel_scale(given) if inside.scales else 1.0
    mean, deviation = given.mean or (0.0,) * 3, given.deviation or (1.0,) * 3
    if inside.divides:  # and leaves the mean to us
        deviation = (1.0,) * 3
    return Pixels(
        bgr,
        tuple(scale / one for one in deviation),
        tuple(-m / ahead / d for m, d in zip(mean, deviation, strict=True)),
    )
