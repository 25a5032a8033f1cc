"""Describe a graph in a file for --describe (the command ``models describe``)."""

from __future__ import annotations

from pathlib import Path

import msgspec

from detector.core.errors import ModelError
from detector.core.models.description import PIXEL, as_yaml
from detector.core.models.formats.onnx.evidence import PAGE, Evidence
from detector.core.models.formats.onnx.pixels import input_of
from detector.core.models.formats.onnx.recognise import recognise

TEMPLATE = """\
# {reason}
# {shapes}
# This is a template: correct each line to match the model's documentation. All keys: {page}
version: 1
family: {family}
input:
  colour: {colour}  # rgb or bgr
  scale: {scale}  # 1 if the network takes pixels of 0..255
  # mean: [0.485, 0.456, 0.406]  # and deviation: [0.229, 0.224, 0.225], for a backbone of ImageNet
  fit: letterbox  # or stretch
  align: centre  # or top-left
outputs:
  boxes:
    tensor: {boxes}
    columns: 0-3
    form: xyxy  # or yxyx, cxcywh, xywh (from the top left corner)
    unit: pixels  # or fraction (0..1)
    axis: {axis}  # first for columns before rows, as in [1, 4, N]
  scores:
    tensor: {scores}
    columns: {columns}  # omit the key if the output holds nothing else
    values: probabilities  # or logits, softmax
    background: none  # or first, last: a column that means background
    axis: {axis}
  # objectness: {{tensor: {scores}, column: 4}}  # if the network has one
  # classes: {{tensor: {scores}, column: 5, first: 0}}  # of finished detections
  nms: needed  # or inside; none if each object gets one box (DETR)
"""


def describe_graph(path: Path, evidence: Evidence, family: str | None) -> str:
    """Return YAML: the description that fits the file, or else a template. Raises ModelError."""
    try:
        result = recognise(evidence, asked=family)
    except ModelError as exc:
        return _fill_template(evidence, str(exc))
    head = f"# {path.name} is recognised as {result.description.family} ({result.why}).\n"
    pixels = input_of(evidence, result.description)
    if evidence.pixel_steps().swaps_channels:  # the graph needs the opposite of the family's order
        pixels = msgspec.structs.replace(pixels, colour="rgb" if pixels.colour == "bgr" else "bgr")
    layouts = () if result.description.outputs else (result.kind,)
    described = msgspec.structs.replace(result.description, input=pixels, layouts=layouts)
    return head + as_yaml(described)


def _fill_template(evidence: Evidence, reason: str) -> str:
    outputs = evidence.outputs()
    boxes = next((name for name, dims in outputs.items() if dims[-1:] == (4,)), next(iter(outputs)))
    others = [name for name in outputs if name != boxes]
    across = any(columns > rows for _, rows, columns in evidence.rank3_outputs())
    return TEMPLATE.format(
        reason=reason,
        shapes=evidence.output_shapes(),
        page=PAGE,
        family=msgspec.json.encode(evidence.graph.name).decode(),
        colour="bgr" if evidence.pixel_steps().swaps_channels else "rgb",
        scale=1 if evidence.is_bright() else PIXEL,
        boxes=msgspec.json.encode(boxes).decode(),
        scores=msgspec.json.encode(others[0] if others else boxes).decode(),
        columns="0-" if others else "4-",
        axis="first" if across else "last",
    )
