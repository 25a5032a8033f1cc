"""Front end for OpenVINO IR: NAME.xml, which describes the layers, with NAME.bin beside it.

Ultralytics writes both into ``NAME_openvino_model/`` with a metadata.yaml, which holds the class
names and the input size. Other files name their classes by a .names file or --names. Only OpenVINO
reads these files, so there is no ONNX graph: ``read_ir`` puts our input before the network and our
outputs behind it, with OpenVINO's own pre-processing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from detector.core.engines import load_library
from detector.core.engines._ready_probe import refuse_wrong_reading
from detector.core.errors import ModelError, UsageError
from detector.core.errors.guard import keep
from detector.core.errors.reading import read_text
from detector.core.errors.text import counted
from detector.core.errors.yaml_parsing import parse_yaml
from detector.core.models.base import FrontEnd, InputRules, ModelRequest, Network
from detector.core.models.layouts.plans import ReadyMade, Tensor
from detector.core.models.ready_made import (
    AS_ONNX,
    class_names_of,
    head_of,
    known_names,
    metadata_of,
)

METADATA = "metadata.yaml"
STRIDE = 32  # where nothing says
READ_BYTES = 1 << 20
FLOATS = ("f32", "f16")
# What a file may do to its input before the first layer that has weights.
MOVES = ("Convert", "Transpose")
ARITHMETIC = ("Multiply", "Divide", "Subtract", "Add")


def read(request: ModelRequest) -> Network:
    """The network of an IR. Raises ModelError, and EngineError where OpenVINO is not there."""
    import onnx

    path, batch = request.path, request.batch
    weights = path.with_suffix(".bin")
    keep("the weights file", weights)
    if not weights.is_file():
        raise ModelError(
            f"{path}: its weights, {weights.name}, are not next to it; put that file there too"
        )
    load_library("openvino")
    import openvino

    told = metadata_of(path, _metadata(path))
    core = openvino.Core()
    given = _open(core, path)
    entry = _entry(path, given)
    height, width = size = _size(path, entry, request.size, told.imgsz)
    ready = _shaped(path, given, entry, size, batch)
    tensors = [_output(path, at, port) for at, port in enumerate(ready.outputs)]
    known = known_names(path, request.names, request.class_names, told)
    seen = ReadyMade(
        path, tensors, height, width, batch, request.cfg, known, told.finished, told.description
    )
    found = head_of(seen)
    bound = found.bound
    class_names, warnings = class_names_of(path, bound, known)
    head, dense = bound.heads(len(class_names))
    order = [tensor.name for tensor in tensors]
    outputs = [order.index(name) for name in bound.outputs]
    network = Network(
        name=path.stem,
        family=f"OpenVINO IR ({found.layout})",
        graph=onnx.ModelProto(),
        input=InputRules(height, width, found.geometry, told.stride or STRIDE, found.pad_value),
        batch=batch,
        output_shapes=[tensors[at].shape for at in outputs],
        head=head,
        dense=dense,
        names=tuple(class_names),
        sha256=_digest(path, weights),
        needs_nms=bound.needs_nms,
        watched=AS_ONNX,
        plan=str(path),
        warnings=warnings,
        details={"layout": found.layout, "outputs": outputs},
    )
    refuse_wrong_reading(path, network, found, told, "openvino")
    return network


FRONT_END = FrontEnd(read, self_describing=False)


def read_ir(
    core: Any, path: Path, size: tuple[int, int], batch: int, outputs: Sequence[int]
) -> Any:
    """The model with our input, u8 RGB [batch, height, width, 3], and those of its outputs as
    float32. ``outputs``: their numbers. Raises ModelError.
    """
    from openvino import Layout, Model, Type
    from openvino.preprocess import PrePostProcessor

    given = _open(core, path)
    entry = _entry(path, given)
    shaped = _shaped(path, given, entry, size, batch)
    model = Model([shaped.output(at) for at in outputs], shaped.get_parameters(), "network")
    steps = PrePostProcessor(model)
    picture = steps.input()
    picture.tensor().set_element_type(Type.u8).set_layout(Layout("NHWC"))
    picture.model().set_layout(Layout("NCHW" if entry.planar else "NHWC"))
    if entry.kind in FLOATS:
        picture.preprocess().convert_element_type(Type.f32)
        if not entry.scales:
            picture.preprocess().scale(255.0)
    for at in range(len(outputs)):
        steps.output(at).tensor().set_element_type(Type.f32)
    return steps.build()


class _Entry(NamedTuple):
    """The input of an IR: what it takes, and whether the file itself divides by 255."""

    kind: str
    dims: tuple[int, ...]  # -1: free
    planar: bool
    scales: bool

    def describe(self) -> str:
        return f"{self.kind} [{', '.join('?' if side < 0 else str(side) for side in self.dims)}]"


def _open(core: Any, path: Path) -> Any:
    """The model of a file that looks like an IR: OpenVINO would try its readers of other formats
    too."""
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
    except Exception as exc:  # RuntimeError, of many kinds
        reason = " ".join(str(exc).split())[-200:]
        raise ModelError(
            f"{path}: is not an OpenVINO IR, or is damaged: {reason}; export it again"
        ) from exc


def _entry(path: Path, model: Any) -> _Entry:
    ports = model.inputs
    seen = ", ".join(_describe(port) for port in ports) or "none"
    if len(ports) != 1:
        raise ModelError(
            f"{path}: has {counted(len(ports), 'input')}: {seen}; expected one, the picture; "
            "export it with the others made constant"
        )
    kind, dims = ports[0].get_element_type().get_type_name(), _dims(ports[0])
    if len(dims) != 4 or 3 not in (dims[1], dims[3]) or kind not in (*FLOATS, "u8"):
        raise ModelError(
            f"{path}: its input is {seen}; expected pictures, float or u8, [batch, 3, height, "
            "width] or [batch, height, width, 3]"
        )
    scales = _scales(path, ports[0])
    if kind == "u8" and not scales:
        raise ModelError(
            f"{path}: its input is {seen}, but its scaling of the bytes was not found; export it "
            "with a float input"
        )
    return _Entry(kind, dims, dims[1] == 3, scales)


def _scales(path: Path, port: Any) -> bool:
    """Whether the file divides its input by 255. Raises ModelError for other arithmetic."""
    while True:
        readers = list(port.get_target_inputs())
        node = readers[0].get_node() if len(readers) == 1 else None
        kind = node.get_type_name() if node is not None else ""
        if node is None or kind not in (*MOVES, *ARITHMETIC):
            return False
        if kind in ARITHMETIC:
            break
        port = node.output(0)
    numbers = [
        value.get_node().get_data().ravel()
        for value in node.input_values()
        if value.get_node().get_type_name() == "Constant"
    ]
    values = numbers[0].tolist() if len(numbers) == 1 and 0 < numbers[0].size <= 3 else []
    factors = [1 / value if kind == "Divide" and value else value for value in values]
    if (
        kind in ("Multiply", "Divide")
        and factors
        and all(abs(255 * factor - 1) < 0.01 for factor in factors)
    ):
        return True
    raise ModelError(
        f"{path}: begins with {kind} of its input by {values or 'a tensor'}; only a division by "
        "255 is understood: export it without normalisation inside"
    )


def _size(
    path: Path, entry: _Entry, size: tuple[int, int] | None, told: tuple[int, int] | None
) -> tuple[int, int]:
    """(height, width). Raises ModelError where it is fixed and another one was asked for."""
    own = entry.dims[2:] if entry.planar else entry.dims[1:3]
    if -1 not in own:
        if size not in (None, own):
            raise ModelError(
                f"{path}: is fixed at {own[1]}x{own[0]}; omit --size, or export it at another size "
                "or with dynamic sizes"
            )
        return own[0], own[1]
    if (chosen := size or told) is None:
        raise ModelError(
            f"{path}: its input is {entry.describe()}, and the file does not give its training "
            "size; give it: --size 640 (or WIDTHxHEIGHT)"
        )
    if any(side not in (-1, asked) for side, asked in zip(own, chosen, strict=True)):
        raise ModelError(
            f"{path}: its input is {entry.describe()}, which does not take {chosen[1]}x{chosen[0]}"
        )
    return chosen


def _shaped(path: Path, model: Any, entry: _Entry, size: tuple[int, int], batch: int) -> Any:
    """The model at that size and batch."""
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
    """-1 for a free side."""
    shape = port.get_partial_shape()
    if shape.rank.is_dynamic:
        return ()
    return tuple(-1 if side.is_dynamic else int(side.get_length()) for side in shape)


def _describe(port: Any) -> str:
    name = next(iter(port.get_names()), "")
    shape = ", ".join("?" if side < 0 else str(side) for side in _dims(port))
    return f"{name} {port.get_element_type().get_type_name()} [{shape}]".strip()


def _output(path: Path, at: int, port: Any) -> Tensor:
    """Outputs without a name get their number."""
    dims = _dims(port)
    if not dims or -1 in dims:
        raise ModelError(
            f"{path}: the length of its output {_describe(port)} depends on the picture; export it "
            "without NMS, or to ONNX"
        )
    name = min(port.get_names(), default=f"output{at}")
    return Tensor(name, False, port.get_element_type().get_type_name(), dims)


def _metadata(path: Path) -> Mapping[str, Any]:
    """What metadata.yaml beside the file says; without one, the labels in the file itself."""
    file = path.with_name(METADATA)
    if not file.is_file():
        return {}
    keep("the model's description", file)
    try:
        content = parse_yaml(read_text(file, "a model's metadata"), file)
    except UsageError as exc:
        raise ModelError(str(exc)) from exc
    return content if isinstance(content, dict) else {}


def _digest(*files: Path) -> str:
    digest = hashlib.sha256()
    for path in files:
        try:
            with path.open("rb") as file:
                while block := file.read(READ_BYTES):
                    digest.update(block)
        except OSError as exc:
            raise ModelError(f"{path}: cannot be read: {exc.strerror}") from exc
    return digest.hexdigest()
