"""Outputs that a ``Reading`` describes: most layouts, and all models that have a description."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import msgspec
import numpy as np

from detector.core.errors.parsing import quote
from detector.core.models.base import Dense, Head, InputRules
from detector.core.models.layouts.base import (
    MAX_CLASSES,
    MAX_LAYERS,
    MAX_STRIDE,
    Decoder,
    Example,
    Layout,
    Shape,
)
from detector.core.models.layouts.output_shapes import count_cells
from detector.core.stages import readings
from detector.core.stages.readings import Reading

MAX_BINS = 256  # per distance; generalised focal loss has 8 to 33
MAX_ANCHORS = 64  # per cell
LARGEST = 1e6  # largest side of a prior, in pixels
MAX_OUTPUTS = 3 * MAX_LAYERS
# A placeholder for the unit of boxes in 0..1 while the input size is unknown.
FRACTION = (2.0, 2.0)
PIXELS = (1.0, 1.0)


class ReadingDecoder(Decoder):
    """Decodes with a ``Reading``. ``listed``: whether outputs are detections with a class."""

    arguments = ("reading",)

    def __init__(
        self, name: str, head: Callable[..., Any], dense: Callable[..., Any], *, listed: bool
    ) -> None:
        self.name, self.head, self.dense = name, head, dense
        self.listed = self.watched = listed

    def heads(self, arguments: Mapping[str, Any], classes: int) -> tuple[Head, Dense]:
        keywords = {"classes": classes} if self.listed else {}
        return partial(self.head, **arguments), partial(self.dense, **arguments, **keywords)

    def store(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return {"reading": without_size(arguments["reading"])}

    def restore(self, content: Mapping[str, Any]) -> dict[str, Any]:
        stored = content.get("reading")
        if isinstance(stored, dict) and stored.get("unit") in ("pixels", "fraction"):
            stored = {**stored, "unit": PIXELS if stored["unit"] == "pixels" else FRACTION}
        try:
            reading = msgspec.convert(stored, Reading)
        except msgspec.ValidationError as exc:
            raise ValueError(f"reading: {exc}") from exc
        if not _is_valid(reading):
            raise ValueError(f"reading {quote(stored)}")
        return {"reading": reading}

    def at_size(self, arguments: Mapping[str, Any], rules: InputRules) -> Mapping[str, Any]:
        reading = arguments["reading"]
        if reading.unit != PIXELS:
            reading = replace(reading, unit=(float(rules.width), float(rules.height)))
        if reading.cells is not None:
            cells = replace(reading.cells, height=rules.height, width=rules.width)
            reading = replace(reading, cells=cells)
        return {"reading": reading}

    def fits(
        self, shapes: Sequence[Shape], arguments: Mapping[str, Any], rules: InputRules, classes: int
    ) -> bool:
        reading: Reading = arguments["reading"]
        if reading.count is not None and not 0 <= reading.count < len(shapes):
            return False
        rows = set()
        for part in _all_columns(reading):
            if (
                part.output >= len(shapes)
                or (sides := _table_size(shapes[part.output], part)) is None
            ):
                return False
            rows.add(sides[0])
            if part.first + (part.count or 1) > sides[1]:
                return False
        if len(rows) != 1:
            return False
        if reading.cells and rows != {reading.cells.rows}:
            return False
        if reading.classes is not None:
            return True
        sides = _table_size(shapes[reading.scores.output], reading.scores)
        assert sides is not None
        columns = reading.scores.count or sides[1] - reading.scores.first
        return columns - (reading.background != "none") == classes


def without_size(reading: Reading) -> dict[str, Any]:
    """Return the reading for JSON without the input size, which a later run may change."""
    values = asdict(reading)
    values["unit"] = "pixels" if reading.unit == PIXELS else "fraction"
    if reading.cells is not None:
        values["cells"] |= {"height": 0, "width": 0}
    return values


def _is_valid(reading: Reading) -> bool:
    return (
        reading.form in readings.FORMS
        and reading.values in readings.VALUES
        and reading.background in readings.BACKGROUNDS
        and reading.objectness_mean in readings.MEANS
        and 0 <= reading.first_class <= MAX_CLASSES
        and (reading.cells is None or cells_fit(reading.cells))
        and all(_columns_fit(columns) for columns in _all_columns(reading))
    )


def cells_fit(cells: readings.Cells) -> bool:
    sides = [side for level in cells.sizes for size in level for side in np.ravel(size)]
    return (
        cells.kind in readings.CELL_KINDS
        and 0 < len(cells.strides) <= MAX_LAYERS
        and all(1 <= stride <= MAX_STRIDE for stride in cells.strides)
        and 1 <= cells.bins <= MAX_BINS
        and 0 <= cells.centre <= 1
        and len(cells.boxes) == len(cells.strides)
        and all(1 <= boxes <= MAX_ANCHORS for boxes in cells.boxes)
        and all(0 < side <= LARGEST for side in (*sides, *cells.variances))
        and not (cells.sizes and (cells.anchors > 1 or cells.kind == "distances"))
    )


def _columns_fit(columns: readings.Columns) -> bool:
    return (
        0 <= columns.output < MAX_OUTPUTS
        and 0 <= columns.first <= MAX_CLASSES
        and (columns.count is None or 1 <= columns.count <= MAX_CLASSES)
    )


def _all_columns(reading: Reading) -> list[readings.Columns]:
    parts = (reading.boxes, reading.scores, reading.objectness, reading.classes)
    return [part for part in parts if part is not None]


def _table_size(shape: Shape, columns: readings.Columns) -> tuple[int, int] | None:
    if len(shape) == 2:
        return shape[1], 1
    if len(shape) == 4 and shape[2] == 1:
        shape = (shape[0], shape[1], shape[3])
    if len(shape) != 3:
        return None
    return (shape[2], shape[1]) if columns.across else (shape[1], shape[2])


class Described(Layout):
    """Has no shapes of its own: a file in cfg/families, or the user's, describes the outputs."""

    name = "described"
    decoders = (
        ReadingDecoder("rows", readings.read_rows, readings.rows_dense, listed=False),
        ReadingDecoder("list", readings.read_list, readings.list_dense, listed=True),
    )

    def examples(self, height: int, width: int, classes: int) -> Iterator[Example]:
        first, second, third = (readings.Columns(at) for at in range(3))
        softmax = Reading(first, second, "xywh", values="softmax", background="last")
        shapes: list[Shape] = [(1, 300, 4), (1, 300, classes + 1)]
        yield self.bind(softmax, ("boxes", "scores"), classes), shapes
        strides, bins = (8, 16, 32), 8
        rows = count_cells(height, width, strides)
        cells = readings.Cells("distances", height, width, strides, bins, 0.5)
        shapes = [(1, rows, classes), (1, rows, 4 * bins)]
        yield (self.bind(Reading(second, first, cells=cells), ("scores", "boxes"), classes), shapes)
        priors = ((16.0, (32.0, 20.0)), (40.0,))
        cells = readings.Cells("linear", height, width, (8, 16), sizes=priors, variances=(0.1, 0.2))
        shapes = [(1, cells.rows, classes), (1, cells.rows, 4)]
        yield self.bind(Reading(second, first, cells=cells), ("scores", "boxes"), classes), shapes
        unit = (float(width), float(height))
        counted = Reading(first, second, "yxyx", unit, classes=third, count=3)
        shapes = [(1, 300, 4), (1, 300), (1, 300), (1, 1)]
        yield self.bind(counted, ("boxes", "scores", "classes", "count"), None), shapes


LAYOUT = Described()
