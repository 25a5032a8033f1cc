"""Front end for OpenVINO IR: NAME.xml, which describes the layers, with NAME.bin next to it.

The code for ONNX files recognises what the IR's input and outputs mean. We do not convert the IR to
ONNX: ``read_ir`` adds our input and outputs with OpenVINO's own pre-processing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from detector.core.engines import load_library
from detector.core.engines._openvino_graph import (
    IrEvidence,
    dims_of,
    graph_of,
    output_names,
    read_stated_input,
)
from detector.core.errors import ModelError, UsageError
from detector.core.errors.guard import keep
from detector.core.errors.reading import read_text
from detector.core.errors.text import counted
from detector.core.errors.yaml_parsing import parse_yaml
from detector.core.models.base import FrontEnd, InputRules, ModelRequest, Network
from detector.core.models.description import (
    Description,
    family_names,
    geometry_of,
    given_size,
    read_description,
)
from detector.core.models.formats.onnx.describe import describe_graph
from detector.core.models.formats.onnx.pixels import Pixels, input_of, needed_pixels
from detector.core.models.formats.onnx.recognise import ALIASES, Recognition, class_names, recognise
from detector.core.models.layouts.base import Bound
from detector.core.models.layouts.plans import PlanTensor, ReadyMade
from detector.core.models.ready_made import class_names_of, head_of, metadata_of

METADATA = "metadata.yaml"
MODEL_INFO = "model_info"
STRIDE = 32  # default, if the file states no stride
READ_BYTES = 1 << 20
FLOATS = ("f32", "f16")


def read(request: ModelRequest) -> Network:
    import onnx

    path, batch = request.path, request.batch
    described = None if request.describe is None else read_description(request.describe)
    evidence = _evidence(request, None if described is None else given_size(described.input))
    result = (
        _as_darknet(request.cfg, path, evidence, batch)
        if request.cfg is not None
        else recognise(evidence, asked=request.family, described=described)
    )
    description, bound = result.description, result.bound
    if request.class_names:
        names, warnings = class_names_of(path, bound, request.class_names)
    else:
        names, warnings = class_names(path, result, evidence.metadata, request.names)
    ports = _find_ports(path, evidence, bound, batch)
    pixels = needed_pixels(evidence, description, described=described is not None)
    stated = description.input if described is not None else input_of(evidence, description)
    of_picture = description.outputs is not None and description.outputs.boxes.of == "picture"
    head, dense = bound.heads(len(names))
    return Network(
        name=path.stem,
        family=description.family,
        graph=onnx.ModelProto(),
        input=InputRules(
            evidence.height,
            evidence.width,
            bound.geometry or geometry_of(stated),
            evidence.metadata.stride or max(bound.strides, default=STRIDE),
            stated.pad if bound.geometry is None else bound.pad_value,
            of_picture,
        ),
        batch=batch,
        output_shapes=[end.shape for end in ports],
        head=head,
        dense=dense,
        names=tuple(names),
        sha256=_digest(path, described),
        needs_nms=bound.needs_nms,
        watched=evidence.advise(),
        plan=str(path),
        warnings=[f"{path.name} is {description.family}: {result.why}", *warnings],
        details={"layout": result.kind, "pixels": pixels, "ports": ports},
    )


def describe(request: ModelRequest) -> str:
    return describe_graph(request.path, _evidence(request, None), request.family)


FRONT_END = FrontEnd(read, (*family_names(), *ALIASES), describe=describe, self_describing=False)


class IrPort(NamedTuple):
    """``numbers``: indexes of the model's outputs to join. ``shape`` includes the batch."""

    numbers: tuple[int, ...]
    shape: tuple[int, ...]


def read_ir(
    core: Any,
    path: Path,
    size: tuple[int, int],
    batch: int,
    pixels: Pixels,
    ports: Sequence[IrPort],
) -> Any:
    """Return the model with our input, u8 RGB [batch, height, width, 3], and float32 outputs."""
    from openvino import Layout, Model, Type
    from openvino.preprocess import PrePostProcessor

    source = _open(core, path)
    entry = _entry(path, source)
    shaped = _set_shape(path, source, entry, size, batch)
    outputs = [_join([shaped.output(at) for at in end.numbers], end.shape) for end in ports]
    steps = PrePostProcessor(Model(outputs, shaped.get_parameters(), "network"))
    picture = steps.input()
    picture.tensor().set_element_type(Type.u8).set_layout(Layout("NHWC"))
    picture.model().set_layout(Layout("NCHW" if entry.planar else "NHWC"))
    conversion = picture.preprocess()
    if pixels.bgr:
        conversion.reverse_channels()
    if entry.kind in FLOATS:
        conversion.convert_element_type(Type.f32)
        if any(pixels.offset):
            conversion.mean([-a / b for a, b in zip(pixels.offset, pixels.factor, strict=True)])
        if any(factor != 1 for factor in pixels.factor):
            conversion.scale([1 / factor for factor in pixels.factor])
    for at in range(len(ports)):
        steps.output(at).tensor().set_element_type(Type.f32)
    return steps.build()


def _join(outputs: Sequence[Any], shape: tuple[int, ...]) -> Any:
    """Join the outputs of all levels into one with this shape (see ``rewrite.join_levels``)."""
    from openvino import opset13 as operators

    if len(outputs) == 1 and len(dims_of(outputs[0])) == len(shape):
        return outputs[0]
    tables = []
    for output in outputs:
        table = output.get_node().input_value(0)
        if len(outputs) > 1 and len(dims_of(output)) == 4:
            table = operators.transpose(table, [0, 2, 3, 1]).output(0)
        if len(dims_of(output)) != len(shape):
            sides = [shape[0], -1, *shape[2:]] if len(outputs) > 1 else shape
            table = operators.reshape(table, sides, False).output(0)
        tables.append(table)
    return operators.concat(tables, 1).output(0) if len(tables) > 1 else tables[0]


def _evidence(request: ModelRequest, described: tuple[int, int] | None) -> IrEvidence:
    path = request.path
    weights = path.with_suffix(".bin")
    keep("the weights file", weights)
    if not weights.is_file():
        raise ModelError(
            f"{path}: its weights, {weights.name}, are not in the same folder; put that file there"
        )
    load_library("openvino")
    import openvino

    source = _open(openvino.Core(), path)
    info = _model_info(source)
    metadata = metadata_of(path, {**_labels(info), **_metadata(path)})
    entry = _entry(path, source)
    height, width = size = _size(path, entry, request.size or described, metadata.imgsz)
    shaped = _set_shape(path, source, entry, size, request.batch)
    graph = graph_of(shaped, path.stem)
    return IrEvidence(
        graph, metadata, height, width, entry.planar, model=shaped, stated=read_stated_input(info)
    )


def _model_info(model: Any) -> dict[str, str]:
    if not model.has_rt_info(MODEL_INFO):
        return {}
    content = model.get_rt_info(MODEL_INFO).value
    if not isinstance(content, dict):
        return {}
    return {key: value for key, value in content.items() if isinstance(value, str)}


def _labels(info: Mapping[str, str]) -> dict[str, Any]:
    labelled: dict[str, Any] = {"description": info.get("model_type", "")}
    if labels := info.get("labels", "").split():
        labelled["names"] = [label.replace("_", " ") for label in labels]
    return labelled


def _as_darknet(cfg: Path, path: Path, evidence: IrEvidence, batch: int) -> Recognition:
    outputs = [
        PlanTensor(name, False, "f32", tuple(-1 if side is None else side for side in dims))
        for name, dims in evidence.outputs().items()
    ]
    match = head_of(ReadyMade(path, outputs, evidence.height, evidence.width, batch, cfg, ()))
    return Recognition(Description("darknet"), match.layout, match.bound, f"as {cfg.name} says")


def _find_ports(path: Path, evidence: IrEvidence, bound: Bound, batch: int) -> list[IrPort]:
    """Return the outputs to read. Raises ModelError if an output's batch or length does not fit."""
    numbers, ports = output_names(evidence.model), []
    for name in bound.outputs:
        if name in bound.joined:
            levels, rows, columns = bound.joined[name]
            places = tuple(numbers.index(level) for level in levels)
            ports.append(IrPort(places, (batch, rows, columns)))
            continue
        dims, bare = evidence.dims(name), name in bound.bare
        shape = tuple(side for side in dims if side is not None)
        if not dims or len(shape) < len(dims):
            raise ModelError(
                f"{path}: the length of its output {name} depends on the picture; export it "
                "without NMS, or to ONNX"
            )
        if batch > 1 and (bare or shape[0] != batch):
            raise ModelError(
                f"{path}: output {name} {list(shape)} is one list for the whole batch; use "
                "--batch 1"
            )
        ports.append(IrPort((numbers.index(name),), (1, *shape) if bare else shape))
    return ports


class _IrInput(NamedTuple):
    kind: str
    dims: tuple[int, ...]  # -1: dynamic
    planar: bool
    text: str  # for messages


def _open(core: Any, path: Path) -> Any:
    """Open an IR. First refuse other kinds of files, which OpenVINO may be able to read too."""
    try:
        with path.open("rb") as file:
            start = file.read(READ_BYTES)
    except OSError as exc:
        raise ModelError(f"{path}: cannot be read: {exc.strerror}") from exc
    if b"<net" not in start:
        raise ModelError(
            f"{path}: is not an OpenVINO IR, which begins with <net>; export it again, or give the "
            "ONNX file"
        )
    try:
        return core.read_model(str(path))
    except Exception as exc:  # RuntimeError and others
        reason = " ".join(str(exc).split())[-200:]
        raise ModelError(
            f"{path}: is not an OpenVINO IR, or is damaged: {reason}; export it again"
        ) from exc


def _entry(path: Path, model: Any) -> _IrInput:
    ports = model.inputs
    listed = ", ".join(_describe(port) for port in ports) or "none"
    if len(ports) != 1:
        raise ModelError(
            f"{path}: has {counted(len(ports), 'input')}: {listed}; expected the picture "
            "as the only input; export the model with all other inputs as constants"
        )
    kind, dims = ports[0].get_element_type().get_type_name(), _dims(ports[0])
    if len(dims) != 4 or 3 not in (dims[1], dims[3]) or kind not in (*FLOATS, "u8"):
        raise ModelError(
            f"{path}: its input is {listed}; expected pictures of type float or u8 and shape "
            "[batch, 3, height, width] or [batch, height, width, 3]"
        )
    return _IrInput(kind, dims, dims[1] == 3, listed)


def _size(
    path: Path, entry: _IrInput, size: tuple[int, int] | None, stated: tuple[int, int] | None
) -> tuple[int, int]:
    """Return (height, width)."""
    own = entry.dims[2:] if entry.planar else entry.dims[1:3]
    if -1 not in own:
        if size not in (None, own):
            raise ModelError(
                f"{path}: is fixed at {own[1]}x{own[0]}; omit --size, or export it at another size "
                "or with dynamic sizes"
            )
        return own[0], own[1]
    if (chosen := size or stated) is None:
        raise ModelError(
            f"{path}: its input is {entry.text}, and the file does not give its training size; "
            "give that size: --size 640 (or WIDTHxHEIGHT)"
        )
    if any(side not in (-1, asked) for side, asked in zip(own, chosen, strict=True)):
        raise ModelError(
            f"{path}: its input is {entry.text}, which does not take {chosen[1]}x{chosen[0]}"
        )
    return chosen


def _set_shape(path: Path, model: Any, entry: _IrInput, size: tuple[int, int], batch: int) -> Any:
    from openvino import PartialShape

    shape = [batch, 3, *size] if entry.planar else [batch, *size, 3]
    if entry.dims[0] not in (-1, batch):
        raise ModelError(
            f"{path}: is fixed at batch {entry.dims[0]}; use --batch {entry.dims[0]}, or export it "
            "with a dynamic batch"
        )
    try:
        model.reshape({model.inputs[0]: PartialShape(shape)})
    except Exception as exc:
        reason = " ".join(str(exc).split())[-200:]
        raise ModelError(f"{path}: does not fit {size[1]}x{size[0]}: {reason}") from exc
    return model


def _dims(port: Any) -> tuple[int, ...]:
    return tuple(-1 if side is None else side for side in dims_of(port))


def _describe(port: Any) -> str:
    name = next(iter(port.get_names()), "")
    shape = ", ".join("?" if side < 0 else str(side) for side in _dims(port))
    return f"{name} {port.get_element_type().get_type_name()} [{shape}]".strip()


def _metadata(path: Path) -> Mapping[str, Any]:
    file = path.with_name(METADATA)
    if not file.is_file():
        return {}
    keep("the model's description", file)
    try:
        content = parse_yaml(read_text(file, "a model's metadata"), file)
    except UsageError as exc:
        raise ModelError(str(exc)) from exc
    return content if isinstance(content, dict) else {}


def _digest(path: Path, described: Description | None) -> str:
    digest = hashlib.sha256()
    for file in (path, path.with_suffix(".bin")):
        try:
            with file.open("rb") as opened:
                hashlib.file_digest(opened, lambda: digest)  # hashes the file into ``digest``
        except OSError as exc:
            raise ModelError(f"{file}: cannot be read: {exc.strerror}") from exc
    if described is not None:
        digest.update(str(described).encode())
    return digest.hexdigest()
