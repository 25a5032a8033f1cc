"""Read an ``.onnx`` file into a graph that has only standard operators and opset 17 or newer."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from detector.core.errors import ModelError
from detector.core.models.base import START_BYTES, mistaken_for
from detector.core.models.formats.onnx.bounds import measure_bytes, measure_graph
from detector.core.models.formats.onnx.foreign import ForeignGraph, constant_of, dims_of
from detector.core.models.formats.onnx.inputs import split_inputs
from detector.core.models.formats.onnx.tensors import check_tensors, read_external_data
from detector.core.models.formats.onnx.tidy import STANDARD, state_output_shapes, tidy
from detector.core.models.graph.build import OPSET, check_model, is_heavy
from detector.core.models.layouts.output_shapes import Dims

if TYPE_CHECKING:
    import onnx

MAX_BYTES = (1 << 31) - 1  # the limit of protobuf


def read_graph(path: Path) -> tuple[ForeignGraph, str]:
    """Return the graph, and the sha256 of all its files. Raises ModelError. Limits are checked
    before each step that a forged file could make expensive: parsing, inlining, conversion and
    inference."""
    model, digest = _parse(path)
    measure_graph(path, model)
    tidy(model)
    for file in read_external_data(path, model):
        with file.open("rb") as opened:
            hashlib.file_digest(opened, lambda: digest)
    check_tensors(path, model)
    heavy = _remove_heavy(path, model)
    model = _inline_functions(path, model)
    _refuse_unknown_operators(path, model)
    state_output_shapes(model)
    picture, sizes = split_inputs(path, model, heavy)
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    model = _raise_opset(path, model)
    graph = model.graph
    return (
        ForeignGraph(
            name=path.stem,
            opset=_read_opset(path, model),
            ir_version=_find_ir_version(model),
            input=next(info for info in graph.input if info.name == picture.name),
            sizes=sizes,
            outputs=_read_outputs(path, graph),
            nodes=list(graph.node),
            constants={tensor.name: tensor for tensor in graph.initializer} | heavy,
            metadata=metadata,
            declared=_read_declared_shapes(graph),
        ),
        digest.hexdigest(),
    )


def _parse(path: Path) -> tuple[onnx.ModelProto, hashlib._Hash]:
    """Return the model, and the digest of the bytes that were parsed."""
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    try:
        if path.stat().st_size > MAX_BYTES:
            raise ModelError(
                f"{path}: is larger than 2 GiB, the limit of ONNX files; export the network with "
                "external data"
            )
        data = path.read_bytes()
        if what := mistaken_for(data[:START_BYTES]):
            raise ModelError(f"{path}: {what}; download it again")
        measure_bytes(path, data)
        model = onnx.load_model_from_string(data)
    except OSError as exc:
        raise ModelError(f"{path}: cannot be read: {exc.strerror}") from exc
    except (DecodeError, ValueError) as exc:
        raise ModelError(
            f"{path}: is not an ONNX file, or is damaged; download it or export it again"
        ) from exc
    if not model.graph.node or not model.graph.output:
        raise ModelError(
            f"{path}: holds no network: it is not an ONNX file, or is damaged; export it again"
        )
    model.ClearField("training_info")
    return model, hashlib.sha256(data)


def _remove_heavy(path: Path, model: onnx.ModelProto) -> dict[str, onnx.TensorProto]:
    """Replace large constants by inputs, in place, and return the constants. Each later step copies
    the model, and copies must stay below protobuf's limit of 2 GiB."""
    from onnx import helper

    graph = model.graph
    small = [tensor for tensor in graph.initializer if not is_heavy(tensor)]
    heavy: dict[str, onnx.TensorProto] = {}
    for tensor in (tensor for tensor in graph.initializer if is_heavy(tensor)):
        if tensor.name in heavy:
            raise ModelError(f"{path}: has two constants called {tensor.name!r}; export it again")
        heavy[tensor.name] = tensor
    outputs = {info.name for info in graph.output}
    nodes = []
    for node in graph.node:
        value = constant_of(node)
        if (
            value is None
            or not is_heavy(value)
            or node.output[0] in heavy
            or node.output[0] in outputs
        ):
            nodes.append(node)
        else:
            heavy[node.output[0]] = value
            value.name = node.output[0]
    if len(nodes) < len(graph.node):
        del graph.node[:]
        graph.node.extend(nodes)
    if heavy:
        listed = {info.name for info in graph.input}
        del graph.initializer[:]
        graph.initializer.extend(small)
        graph.input.extend(
            helper.make_tensor_value_info(name, tensor.data_type, tensor.dims)
            for name, tensor in heavy.items()
            if name not in listed
        )
    return heavy


def _inline_functions(path: Path, model: onnx.ModelProto) -> onnx.ModelProto:
    if not model.functions:
        return model
    from onnx import inliner

    try:
        inlined: onnx.ModelProto = inliner.inline_local_functions(model)
    except Exception as exc:
        raise ModelError(f"{path}: its functions cannot be inlined: {_join_lines(exc)}") from exc
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
        cure = (
            "ONNX Runtime added them when it optimised or quantised the file, and only it has "
            "them: give the original file, or quantise it with QuantFormat.QDQ"
            if all("com.microsoft" in name for name in unknown)
            else "export it without runtime-specific operators (often its NMS)"
        )
        listed = ", ".join(unknown)
        raise ModelError(f"{path}: uses operators outside the ONNX standard: {listed}; {cure}")


def _raise_opset(path: Path, model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the checked model at opset 17, or at its own opset if that is newer."""
    from onnx import defs, version_converter

    opset = _read_opset(path, model)
    if opset > (known := defs.onnx_opset_version()):
        raise ModelError(
            f"{path}: uses opset {opset}, but the installed onnx package only knows opsets up to "
            f"{known}; pip install -U onnx, or export it again with opset {OPSET}"
        )
    try:
        check_model(model, unfinished=True)
    except Exception as exc:  # the checker's own error, and others
        raise ModelError(
            f"{path}: the ONNX checker rejects it: {_join_lines(exc)}; export it again"
        ) from exc
    if opset >= OPSET:
        return model
    try:
        converted: onnx.ModelProto = version_converter.convert_version(model, OPSET)
    except Exception as exc:  # RuntimeError, and the converter's own errors
        raise ModelError(
            f"{path}: ONNX cannot convert it from opset {opset} to {OPSET}: {_join_lines(exc)}; "
            f"export it again with opset {OPSET}"
        ) from exc
    if opset <= 10:
        _restore_coordinates(converted)
    return converted


def _restore_coordinates(model: onnx.ModelProto) -> None:
    """Make each Resize divide its result's coordinates by the scale and round down, as in opset 10.
    The converter of onnx 1.23.2 gives Upsample and Resize the defaults of later opsets instead."""
    from onnx import helper

    for node in model.graph.node:
        if node.op_type == "Resize":
            attributes = [entry for entry in node.attribute if entry.name == "mode"]
            attributes.append(helper.make_attribute("coordinate_transformation_mode", "asymmetric"))
            attributes.append(helper.make_attribute("nearest_mode", "floor"))
            del node.attribute[:]
            node.attribute.extend(attributes)


def _read_opset(path: Path, model: onnx.ModelProto) -> int:
    for entry in model.opset_import:
        if entry.domain in STANDARD:
            return int(entry.version)
    raise ModelError(f"{path}: does not declare its opset; export it again")


def _find_ir_version(model: onnx.ModelProto) -> int:
    """Return the lowest IR version that fits the opset, because old runtimes reject newer ones."""
    from onnx import helper

    standard = [entry for entry in model.opset_import if entry.domain in STANDARD]
    return int(helper.find_min_ir_version_for(standard, ignore_unknown=True))


def _read_outputs(path: Path, graph: onnx.GraphProto) -> dict[str, int]:
    computed = {name for node in graph.node for name in node.output}
    for info in graph.output:
        if info.name not in computed:
            raise ModelError(f"{path}: no node computes its output {info.name}; export it again")
    return {info.name: info.type.tensor_type.elem_type for info in graph.output}


def _read_declared_shapes(graph: onnx.GraphProto) -> dict[str, Dims]:
    stated = {
        info.name: dims_of(info) for info in graph.output if info.type.tensor_type.HasField("shape")
    }
    return {name: dims for name, dims in stated.items() if all(dims)}


def _join_lines(exc: BaseException) -> str:
    return " ".join(str(exc).split())[:300]
