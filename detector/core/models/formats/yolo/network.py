"""Build a ``Network`` from a description, weights and a request. The nodes of its ONNX graph have
the names of the original modules, such as model.6.m.0.cv2.conv."""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from detector.core.errors import ModelError
from detector.core.errors.text import counted
from detector.core.models import catalogue
from detector.core.models.base import (
    InputRules,
    ModelRequest,
    Network,
    random_weights_warning,
    with_graph,
)
from detector.core.models.formats.checkpoint.contents import Contents
from detector.core.models.formats.yolo.architecture import (
    Add,
    Architecture,
    ConcatStep,
    ConvStep,
    NetStep,
    PoolStep,
    UpsampleStep,
    Value,
)
from detector.core.models.formats.yolo.blocks import PROBE, Design, family_of
from detector.core.models.formats.yolo.description import (
    YamlNetwork,
    parse_description,
    read_description,
)
from detector.core.models.formats.yolo.random_numbers import PROBE_CELLS, RandomNumbers
from detector.core.models.formats.yolo.weights import (
    Floats,
    Numbers,
    StoredAnchors,
    StoredNumbers,
    stored_anchors,
)
from detector.core.models.graph.build import INPUT, GraphBuilder
from detector.core.models.names import find_names
from detector.core.stages.anchor_maps import AnchoredLayer, anchor_maps, anchor_maps_dense

if TYPE_CHECKING:
    import onnx

PICTURE_SCALE = 1 / 255  # u8 pixels to 0..1


def network_of_contents(contents: Contents, digest: bytes, request: ModelRequest) -> Network:
    """Build the network from the description in the weights file, or else from a packaged one."""
    if contents.description is not None:
        description = parse_description(contents.description, str(request.path))
    else:
        description = recognise(contents)
    return build_network(description, contents, digest, request)


def build_network(
    description: YamlNetwork, contents: Contents | None, digest: bytes, request: ModelRequest
) -> Network:
    stored = stored_anchors(contents, description.head_path) if contents else None
    design = Design(
        description, contents.modules if contents else {}, stored.layers if stored else None
    )
    architecture = design.at_size(request.size or _choose_trained_size(design, contents))
    numbers = _load_weights(design, contents, request)

    def build() -> onnx.ModelProto:
        graph = YoloGraph(architecture, numbers, request.path.stem, request.batch).model()
        if isinstance(numbers, StoredNumbers):
            numbers.check_all_read(architecture)
        return graph

    names, name_warnings = _choose_names(contents, architecture.classes, request)
    layers = head_layers(architecture, stored)
    network = Network(
        name=request.path.stem,
        family=family_of(architecture),
        graph=build,
        input=InputRules(architecture.height, architecture.width, "centre", architecture.stride),
        batch=request.batch,
        output_shapes=[],
        head=partial(anchor_maps, layers=layers),
        dense=partial(anchor_maps_dense, layers=layers),
        names=names,
        parameters=contents.parameters if contents else architecture.parameters,
        parameters_fused=architecture.parameters_fused,
        sha256=_combine_digests(digest, request.random_seed),
        random_seed=request.random_seed,
        warnings=[
            *description.warnings,
            *name_warnings,
            *random_weights_warning(request.random_seed),
        ],
    )
    return with_graph(network, request)


def recognise(contents: Contents) -> YamlNetwork:
    """Return the packaged description whose convolutions fit the tensors. Raises ModelError."""
    shapes = {name: tensor.shape for name, tensor in contents.tensors.items()}
    for path in sorted((catalogue.folder() / "yolo").glob("*.yaml")):
        description, _ = read_description(path)
        description.classes = _count_classes(contents, description) or description.classes
        convolutions = Design(description).architecture(PROBE, PROBE).convolutions
        if all(
            step.stored_shape in (shapes.get(name) for name in step.weight_names)
            for step in convolutions
        ):
            return description
    raise ModelError(
        f"{contents.origin}: holds only tensors, and no packaged description fits them; give the "
        f"network's own: --model NAME.yaml --weights {Path(contents.origin).name}"
    )


def _count_classes(contents: Contents, description: YamlNetwork) -> int | None:
    """Derive the number of classes from a detection layer's channels: anchors x (5 + classes)."""
    bias = contents.tensors.get(f"{description.head_path}.m.0.bias")
    if bias is None or description.anchors is None or bias.size % len(description.anchors[0]):
        return None
    classes = bias.size // len(description.anchors[0]) - 5
    return classes if classes >= 1 else None


def head_layers(architecture: Architecture, stored: StoredAnchors | None) -> list[AnchoredLayer]:
    assert architecture.head is not None
    assert architecture.anchors is not None
    layers = []
    for value, pairs in zip(architecture.head.outputs, architecture.anchors, strict=True):
        stride = architecture.height // value.height
        factor = stride if stored is not None and stored.in_cells else 1
        layers.append(
            AnchoredLayer(
                tuple((w * factor, h * factor) for w, h in pairs), architecture.classes, stride
            )
        )
    return layers


def _choose_trained_size(design: Design, contents: Contents | None) -> tuple[int, int] | None:
    """Return the input size that the checkpoint states, if the network can run at it."""
    if contents is None or contents.size is None:
        return None
    return contents.size if all(side % design.stride == 0 for side in contents.size) else None


def _load_weights(design: Design, contents: Contents | None, request: ModelRequest) -> Numbers:
    if request.random_seed is not None:
        side = PROBE_CELLS * design.stride
        return RandomNumbers(design.architecture(side, side), request.random_seed)
    assert contents is not None
    return StoredNumbers(contents)


def _choose_names(
    contents: Contents | None, classes: int, request: ModelRequest
) -> tuple[tuple[str, ...], list[str]]:
    stored = contents.names if contents else None
    if request.names is not None or stored is None:
        return find_names(request.path, classes, request.names)
    if len(stored) == classes:
        return stored, []
    names, warnings = find_names(request.path, classes)
    return names, [
        f"{request.path}: holds {counted(len(stored), 'name')} for {counted(classes, 'class')}; "
        "train it with one name per class",
        *warnings,
    ]


def _combine_digests(digest: bytes, random_seed: int | None) -> str:
    numbers = b"stored" if random_seed is None else f"random {random_seed}".encode()
    return hashlib.sha256(digest + numbers).hexdigest()


class YoloGraph:
    def __init__(self, architecture: Architecture, numbers: Numbers, name: str, batch: int) -> None:
        self.architecture, self.numbers = architecture, numbers
        self.builder = GraphBuilder(name)
        self._picture = self.builder.input_u8(batch, architecture.height, architecture.width)

    def model(self) -> onnx.ModelProto:
        for step in self.architecture.needed:
            self._add_step(step)
        assert self.architecture.head is not None
        return self.builder.model([value.name for value in self.architecture.head.outputs])

    def _add_step(self, step: NetStep) -> None:
        inputs = [self._tensor_name(value) for value in step.inputs]
        name = step.out.name
        match step:
            case ConvStep():
                self._add_convolution(step)
            case PoolStep():
                self.builder.max_pool(
                    name, inputs[0], step.kernel, [step.stride] * 2, [step.padding] * 4
                )
            case UpsampleStep():
                self.builder.upsample(name, inputs[0], step.scale)
            case ConcatStep():
                self.builder.add("Concat", name, inputs, axis=1)
            case Add():
                self.builder.add("Add", name, inputs)

    def _tensor_name(self, value: Value) -> str:
        stored = value.folded or value
        return self._picture if stored.name == INPUT else stored.name

    def _add_convolution(self, step: ConvStep) -> None:
        x = step.inputs[0]
        weight, bias = self.numbers.filter(step)
        scale = 1
        if x.folded is not None:
            assert step.groups == 1
            weight, scale = spread_over_pixels(weight), 2
        if (x.folded or x).name == INPUT:
            # 1/255 can move into the weights: zero padding stays 0, and the bias is added later.
            weight = weight * PICTURE_SCALE
        out = self.builder.conv(
            step.node,
            self._tensor_name(x),
            weight.astype(np.float32),
            bias.astype(np.float32),
            strides=[scale * step.stride] * 2,
            pads=[scale * step.padding] * 4,
            groups=step.groups,
        )
        self.builder.activation(step.path, step.activation.kind, out, step.activation.slope)


def spread_over_pixels(weight: Floats) -> Floats:
    """Convert convolution weights [out, 4*c, k, k], for blocks of 2x2 pixels as channels, to
    equivalent weights [out, c, 2k, 2k], for the pixels themselves.

    The channels hold the pixels in the order of YOLOX's Focus (Apache-2.0), as listed below.
    """
    outs, channels, kernel, _ = weight.shape
    wide = np.zeros((outs, channels // 4, 2 * kernel, 2 * kernel), weight.dtype)
    for part, (row, column) in enumerate(((0, 0), (1, 0), (0, 1), (1, 1))):
        wide[:, :, row::2, column::2] = weight[
            :, part * (channels // 4) : (part + 1) * (channels // 4)
        ]
    return wide
