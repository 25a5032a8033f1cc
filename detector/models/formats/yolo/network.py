"""Description, numbers and what was asked for -> Network."""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path

from detector.errors import ModelError
from detector.models import catalogue
from detector.models.base import InputRules, ModelRequest, Network, random_weights_warning
from detector.models.formats.checkpoint.contents import Contents
from detector.models.formats.yolo.description import (
    Description,
    parse_description,
    read_description,
)
from detector.models.formats.yolo.plan import PROBE, Build, family_of
from detector.models.formats.yolo.random_numbers import PROBE_CELLS, RandomNumbers
from detector.models.formats.yolo.steps import Plan
from detector.models.formats.yolo.weights import (
    Numbers,
    StoredAnchors,
    StoredNumbers,
    stored_anchors,
)
from detector.models.names import find_names
from detector.stages.heads import AnchoredLayer, anchored, anchored_dense

MAX_SEED = 2**32 - 1


def network_of(contents: Contents, digest: bytes, request: ModelRequest) -> Network:
    """Of a file that holds numbers: with the description that it carries, or else the packaged one that fits."""
    if contents.description is not None:
        description = parse_description(contents.description, str(request.path))
    else:
        description = recognised(contents)
    return described_network(description, contents, digest, request)


def described_network(
    description: Description, contents: Contents | None, digest: bytes, request: ModelRequest
) -> Network:
    """``contents`` None: random numbers."""
    from detector.models.formats.yolo.build import YoloGraph
    from detector.models.graph.build import count_macs, output_shapes

    stored = stored_anchors(contents, description.head_path) if contents else None
    build = Build(
        description, contents.modules if contents else {}, stored.layers if stored else None
    )
    plan = build.sized(request.size or _trained_size(build, contents))
    numbers = _numbers(build, contents, request)
    graph = YoloGraph(plan, numbers, request.path.stem, request.batch).model()
    if isinstance(numbers, StoredNumbers):
        numbers.check_all_read(plan)
    names, name_warnings = _names(contents, plan.classes, request)
    layers = head_layers(plan, stored)
    return Network(
        name=request.path.stem,
        family=family_of(plan),
        graph=graph,
        input=InputRules(plan.height, plan.width, "centre", plan.stride),
        batch=request.batch,
        output_shapes=output_shapes(graph),
        head=partial(anchored, layers=layers),
        dense=partial(anchored_dense, layers=layers),
        names=names,
        parameters=contents.parameters if contents else plan.parameters,
        parameters_fused=plan.parameters_fused,
        macs=count_macs(graph),
        sha256=_digest(digest, request.random_seed),
        random_seed=request.random_seed,
        warnings=[
            *description.warnings,
            *name_warnings,
            *random_weights_warning(request.random_seed),
        ],
    )


def recognised(contents: Contents) -> Description:
    """The packaged description whose convolutions the tensors are, by name and shape; classes as found there."""
    shapes = {name: tensor.shape for name, tensor in contents.tensors.items()}
    for path in sorted((catalogue.folder() / "yolo").glob("*.yaml")):
        description, _ = read_description(path)
        description.classes = _classes(contents, description) or description.classes
        convolutions = Build(description).plan(PROBE, PROBE).convolutions
        if all(
            step.stored_shape in (shapes.get(name) for name in step.weight_names)
            for step in convolutions
        ):
            return description
    raise ModelError(
        f"{contents.origin}: holds tensors alone, and none of the packaged descriptions fits them; give the network's "
        f"own: --model NAME.yaml --weights {Path(contents.origin).name}"
    )


def _classes(contents: Contents, description: Description) -> int | None:
    """From the channels of the first detection layer: anchors x (5 + classes)."""
    bias = contents.tensors.get(f"{description.head_path}.m.0.bias")
    if bias is None or description.anchors is None or bias.size % len(description.anchors[0]):
        return None
    classes = bias.size // len(description.anchors[0]) - 5
    return classes if classes >= 1 else None


def head_layers(plan: Plan, stored: StoredAnchors | None) -> list[AnchoredLayer]:
    """How each output becomes boxes."""
    assert plan.head is not None
    assert plan.anchors is not None
    layers = []
    for value, pairs in zip(plan.head.outputs, plan.anchors, strict=True):
        stride = plan.height // value.height
        factor = stride if stored is not None and stored.in_cells else 1
        layers.append(
            AnchoredLayer(tuple((w * factor, h * factor) for w, h in pairs), plan.classes, stride)
        )
    return layers


def _trained_size(build: Build, contents: Contents | None) -> tuple[int, int] | None:
    """The one that the checkpoint states, where this network can run at it."""
    if contents is None or contents.size is None:
        return None
    return contents.size if all(side % build.stride == 0 for side in contents.size) else None


def _numbers(build: Build, contents: Contents | None, request: ModelRequest) -> Numbers:
    if request.random_seed is not None:
        if not 0 <= request.random_seed <= MAX_SEED:
            raise ModelError(
                f"--random-weights {request.random_seed} is out of range: a seed is from 0 to {MAX_SEED}"
            )
        side = PROBE_CELLS * build.stride
        return RandomNumbers(build.plan(side, side), request.random_seed)
    assert contents is not None, "numbers are stored, or random"
    return StoredNumbers(contents)


def _names(
    contents: Contents | None, classes: int, request: ModelRequest
) -> tuple[tuple[str, ...], list[str]]:
    """Given ones, else those of the checkpoint, else what is found beside the file."""
    stored = contents.names if contents else None
    if request.names is not None or stored is None:
        return find_names(request.path, classes, request.names)
    if len(stored) == classes:
        return stored, []
    names, warnings = find_names(request.path, classes)
    return names, [
        f"{request.path}: holds {len(stored)} names for {classes} classes, they are not used",
        *warnings,
    ]


def _digest(digest: bytes, random_seed: int | None) -> str:
    numbers = b"stored" if random_seed is None else f"random {random_seed}".encode()
    return hashlib.sha256(digest + numbers).hexdigest()
