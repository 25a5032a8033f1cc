"""Write the file for --describe that explains a graph (``models describe``)."""

from __future__ import annotations

from pathlib import Path

import msgspec

from detector.core.errors import ModelError
from detector.core.models.description import as_yaml, describe_outputs
from detector.core.models.formats.onnx.evidence import Evidence
from detector.core.models.formats.onnx.guess import guess_description
from detector.core.models.formats.onnx.pixels import input_of
from detector.core.models.formats.onnx.recognise import recognise


def describe_graph(path: Path, evidence: Evidence, family: str | None) -> str:
    """Return the description by which we read the file, or else a guess from a test run, as YAML.
    Raises ModelError."""
    try:
        result = recognise(evidence, asked=family)
    except ModelError as exc:
        guess, alternatives = guess_description(evidence)
        if guess.outputs is None:
            raise
        head = f"# {exc}\n# Check each line marked as a guess against the model's documentation.\n"
        return head + as_yaml(guess, alternatives)
    head = f"# {path.name} is recognised as {result.description.family} ({result.why}).\n"
    if result.bound.reading is None:
        raise ModelError(f"{path}: needs no description: recognised as {result.kind}")
    pixels = input_of(evidence, result.description)
    if evidence.pixel_steps().swaps_channels:  # a description states the order that this file needs
        pixels = msgspec.structs.replace(pixels, colour="rgb" if pixels.colour == "bgr" else "bgr")
    outputs = describe_outputs(result.bound, evidence.outputs())
    described = msgspec.structs.replace(result.description, input=pixels, outputs=outputs)
    return head + as_yaml(described)
