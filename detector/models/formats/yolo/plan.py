"""Rows -> plan: the blocks of all rows put together, with shapes. What can be wrong in a description is found here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from detector.errors import ModelError
from detector.models.formats.checkpoint.contents import Module
from detector.models.formats.yolo import yolov5, yolov7
from detector.models.formats.yolo.blocks import SHARED, Entry, Planner, Wanted
from detector.models.formats.yolo.description import Description, Row
from detector.models.formats.yolo.steps import Plan, Value
from detector.models.graph.build import INPUT

BLOCKS: dict[str, Entry] = {**SHARED, **yolov5.BLOCKS, **yolov7.BLOCKS}
PROBE = 2048  # an input side that every published stride divides
MAX_SIDE = 8192
CHANNEL_STEP = 8  # scaled channels are rounded up to it

Anchors = list[tuple[tuple[float, float], ...]]


@dataclass(slots=True)
class Build:
    """What a plan is made from, whatever the input size. ``anchors``: of the weights, where those hold some."""

    description: Description
    modules: Mapping[str, Module] = field(default_factory=dict)
    anchors: Anchors | None = None

    def plan(self, height: int, width: int) -> Plan:
        """The network at one input size."""
        one = self.description
        plan = Plan(one.origin, height, width, one.classes, self.anchors or one.anchors)
        planner = Planner(plan, one.activation, self.modules)
        values: list[Value] = []
        picture = Value(INPUT, 3, height, width)
        for row in one.rows:
            planner.row = row
            inputs = [picture if source == -1 else values[source] for source in row.sources]
            values.append(_row(planner, row, inputs, one))
        if plan.head is None:
            raise one.error(
                "has no detection layer: its last layer must be Detect, IDetect or IAuxDetect"
            )
        _check_last(one)
        return plan

    def sized(self, size: tuple[int, int] | None) -> Plan:
        """At ``size`` (height, width) as asked for with --size, or at None: 640x640, 1280x1280 for a stride of 64."""
        if size is None:
            side = 640 if self.stride <= 32 else 1280
            size = (side, side)
        check_size(size, self.stride, self.description.origin)
        return self.plan(*size)

    @property
    def stride(self) -> int:
        """Both sides of the input are multiples of it."""
        return self.plan(PROBE, PROBE).stride


def check_size(size: tuple[int, int], stride: int, origin: str) -> None:
    for key, value in zip(("height", "width"), size, strict=True):
        if value % stride or not 1 <= value <= MAX_SIDE:
            near = min(max(stride, round(value / stride) * stride), MAX_SIDE // stride * stride)
            raise ModelError(
                f"{origin}: input {key} {value} is not a multiple of the network's stride {stride} up to {MAX_SIDE}; "
                f"nearest: {near} (--size)"
            )


def _row(planner: Planner, row: Row, inputs: list[Value], one: Description) -> Value:
    entry = BLOCKS.get(row.block)
    if entry is None:
        raise row.error(
            f"this block is not supported; supported: {', '.join(BLOCKS)}; export the model to ONNX instead"
        )
    planner.plan.blocks.add(row.block)
    repeats = max(round(row.repeats * one.depth), 1) if row.repeats > 1 else 1
    channels = _scaled(row.integer(0), one.width) if entry.scaled else 0
    if entry.repeats_inside or repeats == 1:
        return entry.block(planner, f"model.{row.index}", inputs, Wanted(row, channels, repeats))
    for at in range(repeats):
        inputs = [entry.block(planner, f"model.{row.index}.{at}", inputs, Wanted(row, channels, 1))]
    return inputs[0]


def _scaled(channels: int, width: float) -> int:
    return math.ceil(channels * width / CHANNEL_STEP) * CHANNEL_STEP


def _check_last(one: Description) -> None:
    """A detection layer ends the network: what would follow is read by nobody, or reads a raw map."""
    heads = [row.index for row in one.rows if row.block in ("Detect", "IDetect", "IAuxDetect")]
    if heads != [len(one.rows) - 1]:
        raise one.rows[heads[0]].error("a detection layer must be the last layer, and the only one")


def family_of(plan: Plan) -> str:
    """By the blocks: what is YOLOv7's own, or YOLOv5's."""
    return "yolov7" if plan.blocks & yolov7.BLOCKS.keys() else "yolov5"
