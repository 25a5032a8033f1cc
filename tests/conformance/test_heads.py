"""Conformance of the head of every layout of ``layouts()``, including any added later."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detector.core.models.base import Dense, Head, InputRules
from detector.core.models.description import families
from detector.core.models.layouts import decoders, layouts
from detector.core.models.layouts.base import Bound, Layout
from detector.core.models.layouts.plans import PlanTensor, ReadyMade
from detector.core.models.probed import doubt_outputs
from detector.core.stages.readings import Columns, Reading
from detector.core.types import Candidates

HEIGHT, WIDTH, CLASSES = 64, 96, 3
RULES = InputRules(HEIGHT, WIDTH, "centre")
CONFS = (0.0, 0.05, 0.5, 0.95, 1.0)


@dataclass(frozen=True)
class Case:
    bound: Bound
    shapes: list[tuple[int, ...]]
    outputs: list[np.ndarray]
    head: Head
    dense: Dense


YUNET = Reading(Columns(0), Columns(1), objectness=Columns(2, 0, 1), objectness_mean="geometric")
CASES = [
    *(
        pytest.param(bound, shapes, id=f"{layout.name}-{at}")
        for layout in layouts().values()
        for at, (bound, shapes) in enumerate(layout.examples(HEIGHT, WIDTH, CLASSES))
    ),
    pytest.param(
        Bound(YUNET, ("boxes", "scores", "objectness"), frozenset(), CLASSES, needs_nms=True),
        [(1, 300, 4), (1, 300, CLASSES), (1, 300, 1)],
        id="geometric mean",
    ),
]
every_layout = pytest.mark.parametrize("layout", layouts().values(), ids=list(layouts()))


def draw(bound: Bound, shapes: list[tuple[int, ...]], seed: int) -> list[np.ndarray]:
    """Return random outputs in valid ranges: probabilities, boxes in the input, class numbers."""
    rng = np.random.default_rng(seed)
    reading = bound.reading
    raw = reading is None or reading.values != "probabilities" or reading.cells is not None
    if reading is None:
        return [rng.normal(0, 2, shape).astype(np.float32) for shape in shapes]
    outputs = [rng.uniform(0, 1, shape).astype(np.float32) for shape in shapes]
    for part, low, high in ((reading.boxes, 0.0, 1.0), (reading.scores, -4.0, 4.0)):
        view = columns_of(outputs, part)
        if part is reading.boxes and reading.cells is None:
            scale = (WIDTH, HEIGHT, WIDTH, HEIGHT) if reading.unit == (1.0, 1.0) else (1, 1, 1, 1)
            corners = np.sort(rng.uniform(low, high, (len(view), 2, 2)), axis=1)
            view[:] = corners.reshape(-1, 4) * scale
        elif part is reading.scores and raw and reading.values != "probabilities":
            view[:] = rng.uniform(low, high, view.shape)
    if reading.classes is not None:
        view = columns_of(outputs, reading.classes)
        view[:] = rng.integers(0, CLASSES, view.shape)
    if reading.count is not None:
        outputs[reading.count][:] = 123
    return outputs


def columns_of(outputs: list[np.ndarray], part: Any) -> np.ndarray:
    whole = outputs[part.output][0]
    table = whole.reshape(len(whole), -1)
    table = table.T if part.across else table
    return table[:, part.first : None if part.count is None else part.first + part.count]


def check_candidates(
    case: Case, conf: float, outputs: list[np.ndarray] | None = None
) -> Candidates:
    outputs = case.outputs if outputs is None else outputs
    before = [output.copy() for output in outputs]
    candidates = case.head(outputs, conf)
    for output, copy in zip(outputs, before, strict=True):
        np.testing.assert_array_equal(output, copy, "the head changed the engine's outputs")
    count = len(candidates.scores)
    assert candidates.boxes.shape == (count, 4)
    assert candidates.scores.shape == candidates.class_ids.shape == (count,)
    assert candidates.boxes.dtype == candidates.scores.dtype == np.float32
    assert candidates.class_ids.dtype == np.int64
    assert np.isfinite(candidates.boxes).all()
    assert np.isfinite(candidates.scores).all()
    assert (candidates.scores >= np.float32(conf)).all()
    for output in outputs:
        for part in (candidates.boxes, candidates.scores, candidates.class_ids):
            assert not np.shares_memory(part, output), "the engine will overwrite this memory"
    return candidates


def check_rows(case: Case, conf: float) -> None:
    """Compare the candidates with the rows that the head's dense form gives for all boxes."""
    candidates = check_candidates(case, conf)
    assert ((candidates.class_ids >= 0) & (candidates.class_ids < CLASSES)).all()
    before = [output.copy() for output in case.outputs]
    rows = case.dense(case.outputs)
    for output, copy in zip(case.outputs, before, strict=True):
        np.testing.assert_array_equal(output, copy, "the head changed the engine's outputs")
        assert not np.shares_memory(rows, output), "the engine will overwrite this memory"
    assert rows.dtype == np.float32
    assert rows.shape[::2] == (1, 5 + CLASSES)
    scores = rows[0, :, 4:5] * rows[0, :, 5:]
    reading = case.bound.reading
    if reading is not None and reading.several:
        at, ids = np.nonzero(scores >= conf)
    else:
        ids = scores.argmax(axis=1)
        at = np.flatnonzero(scores[np.arange(len(ids)), ids] >= conf)
        ids = ids[at]
    if reading is not None and reading.classes is not None:
        used = scores[at, ids] > 0
        at, ids = at[used], ids[used]
    half = rows[0, at, 2:4] / 2
    centres = rows[0, at, :2]
    expected = np.column_stack([centres - half, centres + half, scores[at, ids], ids])
    actual = np.column_stack([candidates.boxes, candidates.scores, candidates.class_ids])
    borderline = np.abs(expected[:, 4] - conf).min(initial=1) < 1e-5
    assert borderline or len(actual) == len(expected)
    if not borderline:
        np.testing.assert_allclose(in_order(actual), in_order(expected), rtol=1e-4, atol=1e-3)


def in_order(rows: np.ndarray) -> np.ndarray:
    return rows[np.lexsort(rows.round(2).T)]


def check_pixels(case: Case) -> None:
    """Check that boxes are in pixels of the input: spread over it, and rarely far outside."""
    boxes = check_candidates(case, 0.0).boxes
    assert np.ptp(boxes[:, ::2]) > WIDTH / 4
    assert np.ptp(boxes[:, 1::2]) > HEIGHT / 4
    centres = (boxes[:, :2] + boxes[:, 2:]) / 2
    assert (np.abs(centres - [WIDTH / 2, HEIGHT / 2]) < [WIDTH, HEIGHT]).mean() > 0.9
    if case.bound.reading is not None:
        size = (WIDTH, HEIGHT)
        outputs, reading = case.outputs, case.bound.reading
        doubt = doubt_outputs(outputs, reading, size, CLASSES)
        assert doubt is None or reading.form == "cxcywh", doubt


def check_damaged_outputs(case: Case) -> None:
    """Check that boxes and scores stay finite if some or all outputs are NaN, infinite or huge."""
    for value in (np.nan, np.inf, -np.inf, 3e38, -3e38):
        check_candidates(case, 0.1, [np.full(s, value, np.float32) for s in case.shapes])
        damaged = [output.copy() for output in case.outputs]
        for output in damaged:
            output.reshape(-1)[::101] = value
        check_candidates(case, 0.1, damaged)


def check_slices(case: Case) -> None:
    """Check that a picture gives the same candidates in a batch as alone."""
    alone = check_candidates(case, 0.3)
    batch = [np.concatenate([output + 1, output, output * 0]) for output in case.outputs]
    inside = check_candidates(case, 0.3, [output[1:2] for output in batch])
    for part, expected in zip(
        (inside.boxes, inside.scores, inside.class_ids),
        (alone.boxes, alone.scores, alone.class_ids),
        strict=True,
    ):
        np.testing.assert_array_equal(part, expected)


@pytest.mark.parametrize(("bound", "shapes"), CASES)
@pytest.mark.parametrize("seed", range(3))
def test_head_finds_the_same_boxes_as_its_dense_form(
    bound: Bound, shapes: list[tuple[int, ...]], seed: int
) -> None:
    case = Case(bound, shapes, draw(bound, shapes, seed), *bound.heads(CLASSES))
    for conf in CONFS:
        check_rows(case, conf)
    check_pixels(case)
    check_damaged_outputs(case)
    assert check_candidates(case, 1e6).boxes.shape == (0, 4)
    check_candidates(case, 0.6, [np.zeros(shape, np.float32) for shape in case.shapes])
    check_slices(case)


@every_layout
def test_layout_declares_all_that_is_needed(layout: Layout) -> None:
    table = layouts()
    assert list(layout.examples(HEIGHT, WIDTH, CLASSES))
    if type(layout).in_graph is not Layout.in_graph:
        known = families().get(layout.usual_family)
        assert known, "in_graph needs a usual_family: the name of a file in cfg/families"
        assert layout.name in known.layouts, f"{layout.usual_family}.yaml does not list the layout"
    listed = any(layout.name in known.layouts for known in families().values())
    assert bool(layout.shape) == listed, "a layout has a shape exactly if cfg/families lists it"
    for known in families().values():
        assert set(known.layouts) <= set(table)


@pytest.mark.parametrize(("bound", "shapes"), CASES)
def test_stored_arguments_restore_the_same_head(
    bound: Bound, shapes: list[tuple[int, ...]]
) -> None:
    head, dense = bound.heads(CLASSES)
    assert isinstance(head, partial)
    [decoder] = [one for one in decoders().values() if one.head is head.func]
    stored = decoder.store(head.keywords)
    assert set(stored) <= set(decoder.arguments)
    arguments = decoder.at_size(decoder.restore(stored), RULES)
    again, again_dense = decoder.heads(arguments, CLASSES)
    assert (again.func, again.keywords) == (head.func, head.keywords)  # type: ignore[attr-defined]
    assert again_dense.keywords == dense.keywords  # type: ignore[attr-defined]
    assert decoder.fits(shapes, arguments, RULES, CLASSES)
    assert not decoder.fits(shapes[:-1], arguments, RULES, CLASSES)
    assert bound.classes is None or not decoder.fits(shapes, arguments, RULES, CLASSES + 1)
    for damaged in ({}, dict.fromkeys(stored), dict.fromkeys(stored, 7), dict.fromkeys(stored, "")):
        with pytest.raises(ValueError, match=r"\S"):
            decoder.restore(damaged)


@every_layout
def test_head_that_is_recognised_by_shapes_alone_reads_those_shapes(layout: Layout) -> None:
    names = tuple(f"class{at}" for at in range(CLASSES))
    for bound, shapes in layout.examples(HEIGHT, WIDTH, CLASSES):
        tensors = [
            PlanTensor(name, False, "float32", shape)
            for name, shape in zip(bound.outputs, shapes, strict=True)
        ]
        about = f"Ultralytics {layout.usual_family}"
        plan = ReadyMade(Path("m.plan"), tensors, HEIGHT, WIDTH, 1, None, names, about=about)
        if (found := layout.in_plan(plan)) is None:
            continue
        outputs = dict(zip(bound.outputs, shapes, strict=True))
        head, _ = found.heads(CLASSES)
        head([np.zeros(outputs[name], np.float32) for name in found.outputs], 0.5)
        assert found.classes in (None, CLASSES)
