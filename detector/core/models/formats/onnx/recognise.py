"""What an ONNX file is: which family, where its outputs hold boxes, scores and classes.

A reading needs evidence. It comes, in this order, from

    the user             --describe FILE, --family NAME
    the file's metadata  what Ultralytics and the YOLOs before it write: names, stride, task
    tensors' names       of a family in cfg/families that says where its outputs stand
    the number of rows   3 boxes a cell, or 1, of a YOLO's maps: models/layouts

If the metadata does not prove a layout, one probe of the network may disprove it: scores outside
0..1, boxes within a pixel, fractional classes. A file that fits no layout, or several, is refused
with what was seen and what to type.
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
from detector.core.models.formats.onnx.guess import guess_outputs, has_levels, how_to_say
from detector.core.models.formats.onnx.inputs import meaning_of
from detector.core.models.formats.onnx.pixels import wanted_pixels
from detector.core.models.formats.onnx.raw_maps import raw_kind
from detector.core.models.layouts import layouts
from detector.core.models.layouts.base import Bound
from detector.core.models.names import find_names, read_names
from detector.core.models.probed import doubt_outputs, doubt_pixels

if TYPE_CHECKING:
    from detector.core.models.formats.onnx.metadata import Metadata

COCO = 80  # classes
AS_DESCRIBED = "as described by --describe"
DESCRIBED = "described"  # what a description says

MASK_SCALE = 4  # pixels of the input for one pixel of a segmentation model's masks
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
    """Recognise a folded graph. Raises ModelError with the shapes seen and those needed."""
    metadata = evidence.metadata
    if described is not None:
        return _as_described(evidence, described)
    _refuse_masks(evidence)
    if asked is not None:
        wanted = _as_asked(evidence, family(ALIASES.get(asked, asked)))
        if (doubt := _doubt_pixels(evidence, wanted)) is not None:
            raise ModelError(f"{evidence.graph.name}: --family {asked}: {doubt}; {DESCRIBE_PIXELS}")
        return wanted
    found = None
    if metadata.names is None:
        found = _by_tensors(evidence)
    found = found or _by_layout(evidence) or _by_tensors(evidence)
    if found is None:
        raise ModelError(_refusal(evidence))
    if not _is_proven(metadata, found.bound):
        layout = layouts().get(found.kind)
        doubt = layout.doubt(evidence, found.bound) if layout else None
        doubt = doubt or doubt_of(evidence, found.bound) or _doubt_pixels(evidence, found)
        if doubt is not None:
            raise ModelError(_contradiction(evidence, found, doubt))
    return found


# By what the user says


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
    evidence: Evidence, wanted: Description, why: str = "as asked for by --family"
) -> Recognition:
    evidence.forced = True
    seen = evidence.output_shapes()
    if wanted.outputs is not None:
        bound = bind(wanted.outputs, evidence.outputs(), (evidence.height, evidence.width))
        if isinstance(bound, str):
            raise ModelError(
                f"{evidence.graph.name}: --family {wanted.family}: {bound}; {seen}; "
                f"{how_to_say(evidence)}"
            )
        return Recognition(wanted, DESCRIBED, bound, why)
    for kind in wanted.layouts:
        if found := layouts()[kind].in_graph(evidence):
            return Recognition(wanted, kind, found, why)
    shapes = "; or ".join(layouts()[kind].shape for kind in wanted.layouts)
    raise ModelError(
        f"{evidence.graph.name}: --family {wanted.family}: its exports give {shapes}, but {seen}"
    )


# By what the file says


def _by_tensors(evidence: Evidence) -> Recognition | None:
    fitting = []
    for known in families().values():
        if known.outputs is None or not _has_signs(evidence, known):
            continue
        bound = bind(known.outputs, evidence.outputs(), (evidence.height, evidence.width))
        if not isinstance(bound, str) and _has_parts(evidence, known, bound):
            fitting.append(Recognition(known, DESCRIBED, bound, "from its tensors' names"))
    most = max((_signs(one.description) for one in fitting), default=0)
    fitting = [one for one in fitting if _signs(one.description) == most]
    if len(fitting) > 1:
        fitting = [one for one in fitting if doubt_of(evidence, one.bound) is None] or fitting
    if len(fitting) > 1:
        names = ", ".join(one.description.family for one in fitting)
        raise ModelError(
            f"{evidence.graph.name}: {evidence.output_shapes()}, which may be {names}; choose with "
            f"--family, or {how_to_say(evidence)}"
        )
    return fitting[0] if fitting else None


def _has_parts(evidence: Evidence, known: Description, bound: Bound) -> bool:
    """Whether the outputs have the signs that are about them: columns, and how boxes are made."""
    reading, wanted = bound.reading, known.signs.classes
    assert reading is not None
    background = reading.background != "none"
    if wanted is not None and (bound.classes or 0) + background != wanted:
        return False
    boxes = bound.outputs[reading.boxes.output]
    return not known.signs.sides or evidence.sides(boxes) == known.signs.sides


def _signs(known: Description) -> int:
    signs = known.signs
    return sum(bool(getattr(signs, field)) for field in signs.__struct_fields__)


def _has_signs(evidence: Evidence, known: Description) -> bool:
    signs, graph = known.signs, evidence.graph
    said = f"{evidence.metadata.description}\n{graph.name}"
    return (
        (not signs.words or re.search(signs.words, said, re.IGNORECASE) is not None)
        and all(evidence.has_operator(operator) for operator in signs.operators)
        and not any(evidence.has_operator(operator) for operator in signs.without)
        and (not signs.stem or bool(evidence.stem() & set(signs.stem)))
        and (not signs.normalises or evidence.inside().normalises)
        and (not signs.picture or graph.input.name in signs.picture)
        and {meaning_of(name) for name in signs.inputs}
        <= {meaning_of(info.name) for info in graph.sizes}
    )


def _by_layout(evidence: Evidence) -> Recognition | None:
    """Return the first layout that fits; of the family that the file names, where it does."""
    named, where = evidence.named()
    for kind, layout in layouts().items():
        if named is not None and kind not in family(named).layouts:
            continue
        if bound := layout.in_graph(evidence):
            name, why = (named, where) if named else (bound.family, "from its output's shape")
            if not name:
                known = f"layout {kind} has no usual_family, a file of cfg/families that lists it"
                raise ModelError(f"{evidence.graph.name}: {known}")
            return Recognition(family(name), kind, bound, f"{why}, {kind} outputs")
    return None


# Doubts


def _is_proven(metadata: Metadata, bound: Bound) -> bool:
    names = metadata.names
    fits = names is not None and bound.classes in (None, len(names))
    return fits and metadata.stride is not None


def doubt_of(evidence: Evidence, bound: Bound) -> str | None:
    if bound.reading is None or (answers := evidence.probe()) is None:
        return None
    if bound.joined:
        return None  # a description, or the names of every level, say what they are
    outputs = []
    for name in bound.outputs:
        values = np.asarray(answers[name], np.float32)
        outputs.append(values[None] if name in bound.bare else values[:1])
    size = evidence.width, evidence.height
    names = evidence.metadata.names
    return doubt_outputs(outputs, bound.reading, size, None if names is None else len(names))


def _doubt_pixels(evidence: Evidence, found: Recognition) -> str | None:
    """Return why the first layer's answer contradicts the family's pixels; else None."""
    wanted, probed = wanted_pixels(evidence, found.description, described=False), evidence.probe()
    if probed is None or evidence.response is None:
        return None
    factor = float(np.mean(wanted.factor)) / (1.0 if evidence.is_bright() else 1 / 255)
    return doubt_pixels(evidence.response * factor)


def _contradiction(evidence: Evidence, found: Recognition, doubt: str) -> str:
    graph = evidence.graph
    return (
        f"{graph.name}: looks like {found.description.family} ({found.why}), but is not: {doubt}; "
        f"{evidence.output_shapes()}; if it is a detector, {how_to_say(evidence)}"
    )


def _refuse_masks(evidence: Evidence) -> None:
    """Refuse segmentation models: the coefficients for masks would be read as classes."""
    graph = evidence.graph
    quarter = (evidence.height // MASK_SCALE, evidence.width // MASK_SCALE)
    maps = [name for name in graph.outputs if len(evidence.dims(name)) == 4]
    has_rows = any(True for _ in evidence.rank3_outputs())
    if len(maps) == 1 and evidence.dims(maps[0])[2:] == quarter and has_rows:
        raise ModelError(
            f"{graph.name}: is a model for segmentation: {evidence.output_shapes()}, and {maps[0]} "
            "holds masks; only detection is supported: export one whose task is detect"
        )


def _families_of_that_shape(evidence: Evidence) -> str:
    size = (evidence.height, evidence.width)
    fitting = [
        known.family
        for known in families().values()
        if known.outputs is not None
        and not isinstance(known.outputs.boxes.tensor, int)
        and not isinstance(bind(known.outputs, evidence.outputs(), size), str)
    ]
    return f"; they match the names and shapes of {' or '.join(fitting)}" if fitting else ""


def _refusal(evidence: Evidence) -> str:
    graph, (named, _) = evidence.graph, evidence.named()
    if (kind := raw_kind(evidence)) is not None:
        needed = f"these are {kind}"
    elif has_levels(evidence):
        needed = (
            f"there is an output for each stride{_families_of_that_shape(evidence)}. Name its "
            "family with --family, or write a file for --describe with the key levels "
            f"({PAGE})"
        )
    else:
        needed = (
            "it is not certain where boxes and scores "
            f"are{_families_of_that_shape(evidence)}{guess_outputs(evidence).words()}. Name its "
            f"family with --family (detect-video models families lists {len(families())}), or "
            f"{how_to_say(evidence)}"
        )
    said = f"its metadata says {named}, but " if named else "its family was not recognised: "
    return f"{graph.name}: {said}{evidence.output_shapes()}; {needed}"


# Names


def class_names(
    path: Path, result: Recognition, metadata: Metadata, given: Path | None
) -> tuple[tuple[str, ...], list[str]]:
    """Names, of ``given``, the file, the description, beside the file, or COCO's; and warnings."""
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
        return described, [_assumed(path, len(described))] if assumed else []
    if classes is not None:
        return find_names(path, classes, given)
    # Finished detections do not tell how many classes there are.
    if given is not None:
        return read_names(given), []
    names, warnings = find_names(path, COCO, None)
    return names, [*warnings, _assumed(path, COCO)]


def _assumed(path: Path, classes: int) -> str:
    return (
        f"{path.name} has no class names: COCO's {classes} are assumed; use --names FILE for others"
    )
