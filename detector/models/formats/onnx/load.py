"""Reads an ``.onnx`` file into a ForeignGraph: standard operators, one input, opset 17 or newer.

A file that cannot be brought into this form is refused, with what to do.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from detector.errors import ModelError
from detector.models.base import START_BYTES, mistaken_for
from detector.models.formats.onnx.foreign import Dims, ForeignGraph, dims_of
from detector.models.graph.build import OPSET

if TYPE_CHECKING:
    import onnx

MAX_BYTES = (1 << 31) - 1  # of one protobuf message
STANDARD = ("", "ai.onnx")
READ_BYTES = 1 << 20


def read_graph(path: Path) -> tuple[ForeignGraph, str]:
    """The graph, and the sha256 of all files that it was read from. Raises ModelError."""
    model = _parse(path)
    _refuse_our_own(path, model)
    files = [path, *_read_external_data(path, model)]
    model = _inline_functions(path, model)
    _refuse_unknown_operators(path, model)
    _normalise(model)
    picture = _picture_input(path, model.graph)
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    model = _raise_opset(path, model)
    graph = model.graph
    return (
        ForeignGraph(
            name=path.stem,
            opset=_opset(path, model),
            ir_version=_ir_version(model),
            input=next(info for info in graph.input if info.name == picture.name),
            outputs=_outputs(path, graph),
            nodes=list(graph.node),
            constants=_constants(path, graph),
            metadata=metadata,
            declared=_declared_shapes(graph),
        ),
        _digest(files),
    )


def _parse(path: Path) -> onnx.ModelProto:
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise ModelError(
                f"{path}: is larger than 2 GiB, which no ONNX file can be; export the network with "
                "external data"
            )
        data = path.read_bytes()
        if what := mistaken_for(data[:START_BYTES]):
            raise ModelError(f"{path}: {what}; download it again")
        model = onnx.load_model_from_string(data)
    except OSError as exc:
        raise ModelError(f"{path}: cannot be read: {exc.strerror}") from exc
    except (DecodeError, ValueError) as exc:
        raise ModelError(
            f"{path}: is no ONNX file, or is damaged; download it or export it again"
        ) from exc
    if not model.graph.node or not model.graph.output:
        raise ModelError(
            f"{path}: holds no network; it is no ONNX file, or is damaged: export it again"
        )
    if not _all_text(model):
        raise ModelError(
            f"{path}: has names that are not text, so it is damaged; download it or export it again"
        )
    return model


def _all_text(model: onnx.ModelProto) -> bool:
    """Whether all names are UTF-8; protobuf hands out others as bytes."""
    graph = model.graph
    words = [node.op_type for node in graph.node] + [node.name for node in graph.node]
    words += [node.domain for node in graph.node]
    words += [name for node in graph.node for name in (*node.input, *node.output)]
    words += [attribute.name for node in graph.node for attribute in node.attribute]
    words += [item.name for item in (*graph.input, *graph.output, *graph.initializer)]
    words += [text for entry in model.metadata_props for text in (entry.key, entry.value)]
    words += [entry.domain for entry in model.opset_import]
    return all(isinstance(word, str) for word in words)


def _refuse_our_own(path: Path, model: onnx.ModelProto) -> None:
    if model.producer_name == "detect-video":
        raise ModelError(
            f"{path}: was written by detect-video, with raw outputs whose anchors it does not "
            "hold; give the model file that it was made from"
        )


def _read_external_data(path: Path, model: onnx.ModelProto) -> list[Path]:
    """Reads the weights that are stored in other files into the model; returns these files.

    They must lie in the model's folder, or below it.
    """
    from onnx import TensorProto, external_data_helper

    files: list[Path] = []
    for tensor in model.graph.initializer:
        if tensor.data_location != TensorProto.EXTERNAL:
            continue
        location = next(
            (entry.value for entry in tensor.external_data if entry.key == "location"), ""
        )
        pure = PurePosixPath(location)
        if not location or pure.is_absolute() or ".." in pure.parts:
            raise ModelError(
                f"{path}: tensor {tensor.name} claims to be stored in {location!r}, outside the "
                "model's folder; such a path is refused"
            )
        file = path.parent / location
        if not file.is_file():
            raise ModelError(
                f"{path}: its weights are stored in {location}, which is not beside it; put that "
                "file there too"
            )
        if file not in files:
            files.append(file)
    if files:
        try:
            external_data_helper.load_external_data_for_model(model, str(path.parent))
        except Exception as exc:  # onnx raises many kinds, checker errors and OSError among them
            raise ModelError(f"{path}: its external data cannot be read: {_one_line(exc)}") from exc
    return files


def _inline_functions(path: Path, model: onnx.ModelProto) -> onnx.ModelProto:
    """Functions that the file defines itself become plain nodes."""
    if not model.functions:
        return model
    from onnx import inliner

    try:
        inlined: onnx.ModelProto = inliner.inline_local_functions(model)
    except Exception as exc:
        raise ModelError(f"{path}: its functions cannot be inlined: {_one_line(exc)}") from exc
    return inlined


def _refuse_unknown_operators(path: Path, model: onnx.ModelProto) -> None:
    from onnx import defs

    unknown = sorted(
        {
            f"{node.op_type} ({node.domain})" if node.domain else node.op_type
            for node in model.graph.node
            if node.domain not in STANDARD or not defs.has(node.op_type, "")
        }
    )
    if unknown:
        raise ModelError(
            f"{path}: holds operators that are not of the ONNX standard: {', '.join(unknown)}; "
            "export it without plug-ins of one runtime (without NMS, if that is what they are)"
        )


def _normalise(model: onnx.ModelProto) -> None:
    """Corrects, in place, what runtimes accept and ONNX's checker does not.

    The standard domain gets one spelling, a negative side becomes one that is not fixed, and
    outputs get the shapes that they do not state.
    """
    from onnx import shape_inference

    for entry in (*model.graph.node, *model.opset_import):
        entry.domain = "" if entry.domain in STANDARD else entry.domain
    for info in (*model.graph.input, *model.graph.output):
        for dim in info.type.tensor_type.shape.dim:
            if dim.HasField("dim_value") and dim.dim_value < 0:
                dim.ClearField("dim_value")
    if all(info.type.tensor_type.HasField("shape") for info in model.graph.output):
        return
    with suppress(Exception):  # ``_raise_opset`` refuses such a graph, with the reason
        inferred = shape_inference.infer_shapes(model)
        del model.graph.output[:]
        model.graph.output.extend(inferred.graph.output)


def _picture_input(path: Path, graph: onnx.GraphProto) -> onnx.ValueInfoProto:
    """The one input that is not a constant: old files list their constants as inputs too."""
    constants = {tensor.name for tensor in graph.initializer}
    inputs = [info for info in graph.input if info.name not in constants]
    if len(inputs) != 1:
        listed = ", ".join(f"{info.name} {describe_tensor(info)}" for info in inputs) or "none"
        raise ModelError(
            f"{path}: has {len(inputs)} inputs: {listed}; wanted is one, the picture; export it "
            "with the others made constant, and without scaling boxes to the source picture"
        )
    if not inputs[0].type.tensor_type.HasField("shape"):
        raise ModelError(
            f"{path}: its input {inputs[0].name} has no shape, not even a number of dimensions; "
            "export it with a picture as its input: float32 or float16 [batch, 3, height, width]"
        )
    return inputs[0]


def _raise_opset(path: Path, model: onnx.ModelProto) -> onnx.ModelProto:
    """The checked model at opset 17, or at its own where that is newer."""
    from onnx import checker, defs, version_converter

    opset = _opset(path, model)
    if opset > (known := defs.onnx_opset_version()):
        raise ModelError(
            f"{path}: is of opset {opset}, but the installed onnx package knows opsets up to "
            f"{known}: pip install -U onnx, or export it again with opset {OPSET}"
        )
    try:
        checker.check_model(model)
    except Exception as exc:  # the checker's own kind, and others
        raise ModelError(f"{path}: ONNX refuses it: {_one_line(exc)}; export it again") from exc
    if opset >= OPSET:
        return model
    try:
        converted: onnx.ModelProto = version_converter.convert_version(model, OPSET)
    except Exception as exc:  # RuntimeError and its own kinds
        raise ModelError(
            f"{path}: ONNX cannot convert it from opset {opset} to {OPSET}: {_one_line(exc)}; "
            f"export it again with opset {OPSET}"
        ) from exc
    return converted


def _opset(path: Path, model: onnx.ModelProto) -> int:
    for entry in model.opset_import:
        if entry.domain in STANDARD:
            return int(entry.version)
    raise ModelError(
        f"{path}: does not say which version of ONNX's operators it uses; export it again"
    )


def _ir_version(model: onnx.ModelProto) -> int:
    """The lowest version that fits the operators: newer ones lock out older runtimes."""
    from onnx import helper

    wanted = [entry for entry in model.opset_import if entry.domain in STANDARD]
    return int(helper.find_min_ir_version_for(wanted, ignore_unknown=True))


def _outputs(path: Path, graph: onnx.GraphProto) -> dict[str, int]:
    """Output -> element type."""
    made = {name for node in graph.node for name in node.output}
    for info in graph.output:
        if info.name not in made:
            raise ModelError(f"{path}: no node makes its output {info.name}; export it again")
    return {info.name: info.type.tensor_type.elem_type for info in graph.output}


def _declared_shapes(graph: onnx.GraphProto) -> dict[str, Dims]:
    """The shapes of the outputs that state every side."""
    stated = {
        info.name: dims_of(info) for info in graph.output if info.type.tensor_type.HasField("shape")
    }
    return {name: dims for name, dims in stated.items() if all(dims)}


def _constants(path: Path, graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    if graph.sparse_initializer:
        raise ModelError(
            f"{path}: holds sparse constants, which are not supported; export it with dense ones"
        )
    return {tensor.name: tensor for tensor in graph.initializer}


def describe_tensor(info: onnx.ValueInfoProto) -> str:
    """Type and shape, for messages: ``float [1, 3, height, width]``."""
    tensor = info.type.tensor_type
    dims = [
        str(dim.dim_value) if dim.HasField("dim_value") else dim.dim_param or "?"
        for dim in tensor.shape.dim
    ]
    return f"{type_name(tensor.elem_type)} [{', '.join(dims)}]"


def type_name(kind: int) -> str:
    """``float``, ``int64``; for an unknown number, as in a damaged file, ``type 99``."""
    from onnx import TensorProto

    known: dict[int, str] = {number: name.lower() for name, number in TensorProto.DataType.items()}
    return known.get(kind, f"type {kind}")


def _digest(files: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while block := file.read(READ_BYTES):
                digest.update(block)
    return digest.hexdigest()


def _one_line(exc: BaseException) -> str:
    return " ".join(str(exc).split())[:300]
