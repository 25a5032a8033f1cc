"""Recognise the family of an ONNX file and where its outputs hold boxes, scores and classes.

The evidence comes, in this order, from

    the user             --describe FILE, --family NAME
    the file's metadata  names, stride and task, as Ultralytics and older YOLOs write them
    tensors' names       cfg/families lists them for some families
    the number of rows   YOLOs have 3 or 1 per cell of their maps (models/layouts)

If the metadata does not prove a layout, a test run of the network may disprove it: by scores
outside 0..1, by boxes that are all within one pixel, or by fractional classes. We refuse a file
that fits no layout, or several. The message then describes its outputs and says what to type.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from detector.core.errors import ModelError
from detector.core.errors.text import counted
from detector.core.models.description import Description, bind, families, family, listed_names
from detector.core.models.formats.onnx.evidence import DESCRIBE_PIXELS, PAGE, Evidence
from detector.core.models.formats.onnx.inputs import meaning_of
from detector.core.models.formats.onnx.pixels import needed_pixels
from detector.core.models.layouts import layouts
from detector.core.models.layouts.base import Bound
from detector.core.models.layouts.output_shapes import Dims
from detector.core.models.names import find_names, read_names, warn_of_coco
from detector.core.models.probed import doubt_outputs, doubt_pixels

if TYPE_CHECKING:
    from detector.core.models.formats.onnx.metadata import Metadata

COCO = 80  # classes
AS_DESCRIBED = "as described by --describe"
DESCRIBED = "described"  # kind of outputs that a description explains

RAW_MAPS = (
    "these are raw maps, and the file does not say what their boxes are relative to; export it "
    "with decoded boxes (Ultralytics: yolo export format=onnx; YOLOv5: export.py in eval mode; "
    "YOLOv7: export.py --grid; effdet: DetBenchPredict; SSD: its detections)"
)
FEW = 12  # a table with more rows than this may be the output for one stride
MASK_SCALE = 4  # a segmentation model's masks are smaller than the input by this factor
ALIASES = {"yolov11": "yolo11", "yolov12": "yolo12", "yolov26": "yolo26", "rt-detr": "rtdetr"}


@dataclass(frozen=True, slots=True)
class Recognition:
    description: Description
    kind: str
    bound: Bound
    why: str


def recognise(
    evidence: Evidence, *, asked: str | None = None, described: Description | None = None
) -> Recognition:
    """Recognise a graph that was folded. Raises ModelError with the actual and expected outputs."""
    metadata = evidence.metadata
    if described is not None:
        return _as_described(evidence, described)
    _refuse_masks(evidence)
    if asked is not None:
        result = _as_asked(evidence, family(ALIASES.get(asked, asked)))
        if (doubt := _doubt_pixels(evidence, result)) is not None:
            raise ModelError(f"{evidence.graph.name}: --family {asked}: {doubt}; {DESCRIBE_PIXELS}")
        return result
    match = None
    if metadata.names is None:
        match = _by_tensors(evidence)
    match = match or _by_layout(evidence) or _by_tensors(evidence)
    if match is None:
        raise ModelError(_refusal(evidence))
    names = metadata.names
    has_names = names is not None and match.bound.classes in (None, len(names))
    if not has_names or metadata.stride is None:
        layout = layouts().get(match.kind)
        doubt = layout.doubt(evidence, match.bound) if layout else None
        doubt = doubt or doubt_of(evidence, match.bound) or _doubt_pixels(evidence, match)
        if doubt is not None:
            raise ModelError(
                f"{evidence.graph.name}: looks like {match.description.family} ({match.why}), but "
                f"is not: {doubt}; {evidence.output_shapes()}; if it is a detector, "
                f"{evidence.advise()}"
            )
    return match


def _as_described(evidence: Evidence, described: Description) -> Recognition:
    why = AS_DESCRIBED
    if described.outputs is None:
        return _as_asked(evidence, described, why)
    bound = bind(described.outputs, evidence.outputs(), (evidence.height, evidence.width))
    if isinstance(bound, str):
        raise ModelError(
            f"{evidence.graph.name}: is not as described: {bound}; {evidence.output_shapes()}"
        )
    return Recognition(described, DESCRIBED, bound, why)


def _as_asked(
    evidence: Evidence, asked: Description, why: str = "as asked for by --family"
) -> Recognition:
    evidence.forced = True
    shapes = evidence.output_shapes()
    if asked.outputs is not None:
        bound = bind(asked.outputs, evidence.outputs(), (evidence.height, evidence.width))
        if isinstance(bound, str):
            raise ModelError(
                f"{evidence.graph.name}: --family {asked.family}: {bound}; {shapes}; "
                f"{evidence.advise()}"
            )
        return Recognition(asked, DESCRIBED, bound, why)
    for kind in asked.layouts:
        if match := layouts()[kind].in_graph(evidence):
            return Recognition(asked, kind, match, why)
    expected = "; or ".join(layouts()[kind].shape for kind in asked.layouts)
    raise ModelError(
        f"{evidence.graph.name}: --family {asked.family}: its exports give {expected}, but {shapes}"
    )


def _by_tensors(evidence: Evidence) -> Recognition | None:
    fitting = []
    for known in families().values():
        if known.outputs is None or not _has_signs(evidence, known):
            continue
        bound = bind(known.outputs, evidence.outputs(), (evidence.height, evidence.width))
        if not isinstance(bound, str) and _has_parts(evidence, known, bound):
            fitting.append(Recognition(known, DESCRIBED, bound, "from its tensors' names"))
    most = max((_count_signs(match.description) for match in fitting), default=0)
    fitting = [match for match in fitting if _count_signs(match.description) == most]
    if len(fitting) > 1:
        fitting = [match for match in fitting if doubt_of(evidence, match.bound) is None] or fitting
    if len(fitting) > 1:
        names = ", ".join(match.description.family for match in fitting)
        raise ModelError(
            f"{evidence.graph.name}: {evidence.output_shapes()}, which may be {names}; choose with "
            f"--family, or {evidence.advise()}"
        )
    return fitting[0] if fitting else None


def _has_parts(evidence: Evidence, known: Description, bound: Bound) -> bool:
    """Return whether the number of class columns and the computation of boxes fit the family."""
    reading, classes = bound.reading, known.signs.classes
    assert reading is not None
    background = reading.background != "none"
    if classes is not None and (bound.classes or 0) + background != classes:
        return False
    boxes = bound.outputs[reading.boxes.output]
    return not known.signs.sides or evidence.sides(boxes) == known.signs.sides


def _count_signs(known: Description) -> int:
    signs = known.signs
    return sum(bool(getattr(signs, field)) for field in signs.__struct_fields__)


def _has_signs(evidence: Evidence, known: Description) -> bool:
    signs, graph = known.signs, evidence.graph
    words = f"{evidence.metadata.description}\n{graph.name}"
    return (
        (not signs.words or re.search(signs.words, words, re.IGNORECASE) is not None)
        and all(evidence.has_operator(operator) for operator in signs.operators)
        and not any(evidence.has_operator(operator) for operator in signs.without)
        and (not signs.stem or bool(evidence.stem() & set(signs.stem)))
        and (not signs.normalises or evidence.pixel_steps().normalises)
        and (not signs.picture or graph.input.name in signs.picture)
        and {meaning_of(name) for name in signs.inputs}
        <= {meaning_of(info.name) for info in graph.sizes}
    )


def _by_layout(evidence: Evidence) -> Recognition | None:
    """Return the first layout that fits. If the file names a family, only its layouts are tried."""
    named, where = evidence.stated_family()
    for kind, layout in layouts().items():
        if named is not None and kind not in family(named).layouts:
            continue
        if bound := layout.in_graph(evidence):
            name, why = (named, where) if named else (bound.family, "from its output's shape")
            if not name:
                raise ModelError(
                    f"{evidence.graph.name}: layout {kind} has no usual_family; set it to "
                    "a family of cfg/families that lists the layout"
                )
            return Recognition(family(name), kind, bound, f"{why}, {kind} outputs")
    return None


def doubt_of(evidence: Evidence, bound: Bound) -> str | None:
    if bound.joined:  # a description or the outputs' names state one output per stride: no doubt
        return None
    assert bound.reading is not None
    if (results := evidence.probe()) is None:
        return None
    outputs = []
    for name in bound.outputs:
        values = np.asarray(results[name], np.float32)
        outputs.append(values[None] if name in bound.bare else values[:1])
    size = evidence.width, evidence.height
    names = evidence.metadata.names
    return doubt_outputs(outputs, bound.reading, size, None if names is None else len(names))


def _doubt_pixels(evidence: Evidence, result: Recognition) -> str | None:
    """Return why the first layer's output does not fit the family's range of pixels, or None."""
    pixels, probed = needed_pixels(evidence, result.description, described=False), evidence.probe()
    if probed is None or evidence.response is None:
        return None
    factor = float(np.mean(pixels.factor)) / (1.0 if evidence.is_bright() else 1 / 255)
    return doubt_pixels(evidence.response * factor)


def _refuse_masks(evidence: Evidence) -> None:
    """Refuse segmentation models: we would read their mask coefficients as class scores."""
    graph = evidence.graph
    quarter = (evidence.height // MASK_SCALE, evidence.width // MASK_SCALE)
    maps = [name for name in graph.outputs if len(evidence.dims(name)) == 4]
    has_rows = any(True for _ in evidence.rank3_outputs())
    if len(maps) == 1 and evidence.dims(maps[0])[2:] == quarter and has_rows:
        raise ModelError(
            f"{graph.name}: is a model for segmentation: {evidence.output_shapes()}, and {maps[0]} "
            "holds masks; only detection is supported: export one whose task is detect"
        )


def _list_matching_families(evidence: Evidence) -> str:
    size = (evidence.height, evidence.width)
    fitting = [
        known.family
        for known in families().values()
        if known.outputs is not None
        and not isinstance(known.outputs.boxes.tensor, int)
        and not isinstance(bind(known.outputs, evidence.outputs(), size), str)
    ]
    return f"; the outputs match the names and shapes of {' or '.join(fitting)}" if fitting else ""


def _is_map(dims: Dims) -> bool:
    is_table = len(dims) == 4 and 1 in dims[1:3] and (dims[3] or 0) <= 7
    return len(dims) >= 4 and not is_table


def _has_levels(evidence: Evidence) -> bool:
    """Return whether long tables have different numbers of rows but equal numbers of columns."""
    tables = [dims[-2:] for dims in evidence.outputs().values() if len(dims) in (2, 3)]
    shapes = {(rows, columns) for rows, columns in tables if (rows or 0) > FEW}
    return len(shapes) > len({columns for _, columns in shapes})


def _refusal(evidence: Evidence) -> str:
    graph, (named, _) = evidence.graph, evidence.stated_family()
    if any(map(_is_map, evidence.outputs().values())):
        needed = RAW_MAPS
    elif _has_levels(evidence):
        needed = (
            f"there is an output for each stride{_list_matching_families(evidence)}. Name its "
            'family with --family, or write a file for --describe with the key "levels" '
            f"({PAGE})"
        )
    else:
        needed = (
            "it is not certain where boxes and scores "
            f"are{_list_matching_families(evidence)}. Name its family with --family (to list "
            f"all {len(families())}, run: detect-video models families), or {evidence.advise()}"
        )
    start = f"its metadata says {named}, but " if named else "its family was not recognised: "
    return f"{graph.name}: {start}{evidence.output_shapes()}; {needed}"


def class_names(
    path: Path, result: Recognition, metadata: Metadata, given: Path | None
) -> tuple[tuple[str, ...], list[str]]:
    """Return class names and warnings. Names come from ``given``, or else from the metadata, the
    description, a file next to the model, or COCO."""
    classes, described = result.bound.classes, listed_names(result.description)
    if given is None and metadata.names is not None:
        if classes is not None and len(metadata.names) != classes:
            raise ModelError(
                f"{path}: its metadata has {counted(len(metadata.names), 'name')}, its output "
                f"{counted(classes, 'class')}; give --names FILE with one name per class"
            )
        return metadata.names, []
    if given is None and described is not None and classes in (None, len(described)):
        is_word = isinstance(result.description.names, str)
        assumed = classes is None and is_word and result.why != AS_DESCRIBED
        return described, [warn_of_coco(path, len(described))] if assumed else []
    if classes is not None:
        return find_names(path, classes, given)
    # From here on, the outputs are finished detections, which do not show the number of classes.
    if given is not None:
        return read_names(given), []
    names, warnings = find_names(path, COCO, None)
    return names, [*warnings, warn_of_coco(path, COCO)]
