"""Probe a file in an engine's own format. If its metadata does not prove how to read its outputs,
the engine runs the file once on a synthetic picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from detector.core import engines
from detector.core.engines.base import EngineOptions
from detector.core.errors import EngineError, ModelError
from detector.core.models.base import Network
from detector.core.models.probed import doubt_outputs, draw
from detector.core.models.ready_made import AS_ONNX, PlanHead

if TYPE_CHECKING:
    from detector.core.models.formats.onnx.metadata import Metadata


def refuse_wrong_reading(
    path: Path,
    network: Network,
    head: PlanHead,
    metadata: Metadata,
    engine: str,
    device: str = "auto",
) -> None:
    """Raise ModelError if one inference shows that the head misreads the outputs."""
    reading = head.bound.reading
    proven = metadata.names is not None and metadata.stride is not None
    if reading is None or (proven and head.bound.classes in (None, len(metadata.names or ()))):
        return
    options = EngineOptions(batch=network.batch, requests=1, device=device)
    try:
        with engines.open(engine, network, options) as opened:
            request = opened.requests[0]
            request.slot[:] = draw(network.input.height, network.input.width)
            outputs = [values[:1].copy() for values in request.infer(network.batch)]
    except EngineError:
        return  # the run will report this error
    size = network.input.width, network.input.height
    names = None if metadata.names is None else len(metadata.names)
    if (doubt := doubt_outputs(outputs, reading, size, names)) is not None:
        shapes = ", ".join(
            f"{name} {list(shape)}"
            for name, shape in zip(head.bound.outputs, network.output_shapes, strict=True)
        )
        raise ModelError(
            f"{path}: its outputs {shapes} look like {head.layout}, but are not: {doubt}; if it is "
            f"a detector, {AS_ONNX}"
        )
