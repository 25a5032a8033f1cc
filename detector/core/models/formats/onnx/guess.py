"""Guess the description of an unknown ONNX file, for ``models describe``. Values that neither the
graph nor one test run show are marked as guesses. A run never starts with a guess."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from detector.core.models.description import (
    PIXEL,
    BoxesDescription,
    ClassesDescription,
    ColumnDescription,
    Description,
    InputDescription,
    OutputsDescription,
    ScoresDescription,
)
from detector.core.models.formats.onnx.evidence import DESCRIBE_BY_HAND, Evidence

Floats = NDArray[np.float64]
WHOLE = 1e-4  # tolerance for whole numbers
FRACTION = 1.5  # limit of coordinates in 0..1, since boxes may extend beyond the picture
FEW = 12  # most columns in a list of finished detections


@dataclass(slots=True)
class Guess:
    """``guessed``: key of the description ("boxes.form") -> its alternatives, in words."""

    outputs: OutputsDescription | None = None
    guessed: dict[str, str] = field(default_factory=dict)

    def words(self) -> str:
        if self.outputs is None:
            return ""
        boxes, scores, classes = self.outputs.boxes, self.outputs.scores, self.outputs.classes
        columns = "" if boxes.columns is None else f" columns {boxes.columns}"
        unit = "0..1" if boxes.unit == "fraction" else "pixels"
        parts = [f"boxes in {boxes.tensor}{columns} ({boxes.form}, in {unit})"]
        parts.append(f"scores in {scores.tensor}{_format_column(scores.columns)}")
        if classes is not None:
            parts.append(f"classes in {classes.tensor}{_format_column(classes.column)}")
        return f"; a test run suggests {', '.join(parts)}"


def _format_column(column: object) -> str:
    return "" if column is None else f" column {column}"


def advise(evidence: Evidence) -> str:
    return DESCRIBE_BY_HAND if guess_outputs(evidence).outputs is None else evidence.advise()


def guess_description(evidence: Evidence) -> tuple[Description, dict[str, str]]:
    guess, steps = guess_outputs(evidence), evidence.pixel_steps()
    guessed = {f"outputs.{key}": others for key, others in guess.guessed.items()}
    scale: float | str = PIXEL
    if evidence.is_bright():
        scale = 1.0
    else:
        guessed["input.scale"] = "1 if the network takes 0..255"
    colour: Literal["rgb", "bgr"] = "bgr" if steps.swaps_channels else "rgb"
    guessed["input.colour"] = "rgb" if steps.swaps_channels else "bgr"
    if not steps.normalises:
        guessed["input.mean"] = (
            "[0.485, 0.456, 0.406], with deviation: [0.229, 0.224, 0.225], for a backbone trained "
            "on ImageNet"
        )
    guessed["input.fit"] = "stretch if pictures are resized without keeping their shape"
    guessed["input.align"] = "top-left"
    return (
        Description(
            family=evidence.graph.name,
            about="what this model is, and where it comes from",
            input=InputDescription(colour, scale),
            outputs=guess.outputs,
        ),
        guessed,
    )


def guess_outputs(evidence: Evidence) -> Guess:
    tables = _output_tables(evidence)
    if not has_levels(evidence):
        for find in (_find_list, _find_list_parts, _find_two_tables, _find_one_table):
            if (guess := find(tables)) is not None:
                return guess
    return Guess()


def _output_tables(evidence: Evidence) -> dict[str, Floats]:
    outputs = (evidence.probe() or {}).items()
    tables = {name: _as_table(np.asarray(values)) for name, values in outputs}
    return {name: table for name, table in tables.items() if table is not None}


def has_levels(evidence: Evidence) -> bool:
    """Return whether each stride has its own output: long tables with equally many columns, but
    different numbers of rows."""
    tables = _output_tables(evidence).values()
    shapes = {table.shape for table in tables if len(table) > FEW}
    return len(shapes) > len({columns for _, columns in shapes})


def _as_table(values: NDArray[Any]) -> Floats | None:
    """Return the first picture's [N, columns]; None for maps and texts."""
    if values.dtype.kind not in "fiu" or values.ndim > 4:
        return None
    if values.ndim == 4:
        if 1 not in values.shape[1:3] or values.shape[3] > FEW:
            return None
        values = values[:, :, 0] if values.shape[2] == 1 else values[:, 0]
    table = values[0] if values.ndim == 3 else values
    if table.ndim == 2 and values.ndim == 2 and table.shape[0] == 1 and table.shape[1] > 7:
        table = table[0]  # [1, K]
    table = table.reshape(-1, 1) if table.ndim < 2 else table
    return table.astype(np.float64)


def _is_class(column: Floats) -> bool:
    """Return whether values are whole numbers of at least -1 (padding), and not all 0."""
    is_whole = bool((np.abs(column - np.rint(column)) < WHOLE).all())
    return is_whole and bool((column >= -1).all()) and bool(column.any())


def _is_score(column: Floats) -> bool:
    within = bool(((column >= 0) & (column <= 1.001)).all()) and bool(column.any())
    return within and not _is_class(column)


def _guess_boxes(tensor: str, table: Floats, columns: str | None, guess: Guess) -> BoxesDescription:
    ordered = bool((table[:, 2:] >= table[:, :2] - WHOLE).mean() > 0.95)
    fraction = bool(len(table)) and bool((np.abs(table) <= FRACTION).all())
    form: Literal["xyxy", "cxcywh"] = "xyxy" if ordered else "cxcywh"
    guess.guessed["boxes.form"] = (
        "yxyx (TensorFlow), or cxcywh, xywh" if ordered else "xywh, from the top left corner"
    )
    guess.guessed["boxes.unit"] = "pixels" if fraction else "fraction (0..1)"
    where, other = ("tensor", "output") if columns is None else ("columns", "columns")
    guess.guessed[f"boxes.{where}"] = f"other {other}: several may look like boxes"
    unit: Literal["fraction", "pixels"] = "fraction" if fraction else "pixels"
    return BoxesDescription(tensor=tensor, columns=columns, form=form, unit=unit)


def _find_list(tables: dict[str, Floats]) -> Guess | None:
    """Find a table of finished detections: a box, a score and a class, in any order."""
    for name, table in tables.items():
        rows = table[table.any(axis=1)]
        if not 6 <= table.shape[1] <= FEW or len(rows) < 2:
            continue
        starts = range(table.shape[1] - 3)
        for first in sorted(starts, key=lambda at: (at not in (0, starts[-1]), at)):
            others = [at for at in range(table.shape[1]) if not first <= at < first + 4]
            scores = [at for at in others if _is_score(rows[:, at])]
            classes = [at for at in others if _is_class(rows[:, at])]
            box = rows[:, first : first + 4]
            if len(scores) == len(classes) == 1 and (box[:, 2:] > 0).mean() > 0.9:
                guess = Guess()
                guess.guessed["classes.first"] = "1 if the first class has the number 1"
                guess.outputs = OutputsDescription(
                    boxes=_guess_boxes(name, box, f"{first}-{first + 3}", guess),
                    scores=ScoresDescription(tensor=name, columns=scores[0]),
                    classes=ClassesDescription(tensor=name, column=classes[0], first=0),
                    nms="inside",
                )
                return guess
    return None


def _find_list_parts(tables: dict[str, Floats]) -> Guess | None:
    """Find boxes, scores and classes in separate outputs with equally many rows."""
    wide = [name for name, table in tables.items() if table.shape[1] in (4, 5)]
    if len(wide) != 1:
        return None
    boxes = tables[wide[0]]
    flat = {
        name: table[:, 0]
        for name, table in tables.items()
        if table.shape == (len(boxes), 1) and len(boxes)
    }
    classes = [name for name, column in flat.items() if _is_class(column)]
    scores = [name for name, column in flat.items() if _is_score(column)]
    is_joined = boxes.shape[1] == 5 and not scores
    if len(classes) != 1 or not (is_joined or len(scores) == 1):
        return None
    guess = Guess()
    guess.guessed["classes.first"] = "1 if the first class has the number 1"
    columns = "0-3" if boxes.shape[1] == 5 else None
    counts = [name for name, table in tables.items() if table.shape == (1, 1)]
    guess.outputs = OutputsDescription(
        boxes=_guess_boxes(wide[0], boxes[:, :4], columns, guess),
        scores=ScoresDescription(wide[0], 4) if is_joined else ScoresDescription(scores[0]),
        classes=ClassesDescription(tensor=classes[0], first=0),
        count=ColumnDescription(counts[0]) if len(counts) == 1 else None,
        nms="inside",
    )
    return guess


def _find_two_tables(tables: dict[str, Floats]) -> Guess | None:
    """Find boxes [N, 4] and scores [N, C], or [C, N]."""
    boxes = [name for name, table in tables.items() if table.shape[1] == 4 and len(table) > 4]
    for name in boxes:
        rows = len(tables[name])
        others = [
            (other, table.shape[1] == rows)
            for other, table in tables.items()
            if other != name and rows in table.shape
        ]
        if len(others) != 1:
            continue
        guess, (scores, across) = Guess(), others[0]
        guess.outputs = OutputsDescription(
            boxes=_guess_boxes(name, tables[name], None, guess),
            scores=_guess_scores(scores, tables[scores], None, across, guess),
        )
        guess.guessed["nms"] = "none if each object gets one box (DETR)"
        return guess
    return None


def _find_one_table(tables: dict[str, Floats]) -> Guess | None:
    for name, table in tables.items():
        across = table.shape[0] < table.shape[1] and table.shape[0] >= 5
        rows = table.T if across else table
        if rows.shape[1] < 5 or len(rows) < 2 or not rows.any():
            continue
        guess = Guess()
        boxes = _guess_boxes(name, rows[:, :4], "0-3", guess)
        scores = _guess_scores(name, rows[:, 4:], "4-", across, guess)
        if across:
            boxes = BoxesDescription(name, "0-3", boxes.form, boxes.unit, "input", "first")
        guess.guessed["scores.columns"] = (
            "5-, with objectness: {tensor: ..., column: 4} if the network has an objectness"
        )
        guess.outputs = OutputsDescription(boxes=boxes, scores=scores)
        return guess
    return None


def _guess_scores(
    name: str, table: Floats, columns: str | None, across: bool, guess: Guess
) -> ScoresDescription:
    sums = table.sum(axis=0 if across and columns is None else 1)
    low, high = table.min(initial=0), table.max(initial=0)
    guess.guessed["scores.background"] = "first or last if one column means background"
    if low >= 0 and high <= 1.001:
        if np.allclose(sums, 1, atol=1e-3):
            guess.guessed["scores.background"] = "first: each row adds up to 1, so one is likely"
        values: Literal["probabilities", "logits"] = "probabilities"
    else:
        values = "logits"
        guess.guessed["scores.values"] = "softmax if that makes each row add up to 1"
    return ScoresDescription(name, columns, values, "none", "first" if across else "last")
