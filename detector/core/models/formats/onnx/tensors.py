"""Check that the tensors of an ONNX file have as many bytes as their types and shapes need.

Tensors occur as constants of a graph, and in Constant nodes, branches and local functions.
``read_external_data`` reads tensors from other files; these must be in the model's folder.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from detector.core.errors import ModelError
from detector.core.errors.guard import keep
from detector.core.errors.holding import watch
from detector.core.errors.machine import too_much
from detector.core.models.formats import how_to_raise, raised
from detector.core.models.formats.onnx.bounds import attributes_in, every_graph, is_function
from detector.core.models.formats.onnx.foreign import type_name

if TYPE_CHECKING:
    import onnx

MAX_RANK = 32  # dimensions; the limit of numpy 1.x
MAX_SIDE = 1 << 40
MAX_DIGITS = 18  # in an offset or a length
SHARED = 10  # tensors may overlap, but need at most this many times the files' bytes

# Element type -> (bits per element, protobuf field, elements packed into one entry of the field).
BITS = {
    "FLOAT": (32, "float_data", 1),
    "UINT8": (8, "int32_data", 1),
    "INT8": (8, "int32_data", 1),
    "UINT16": (16, "int32_data", 1),
    "INT16": (16, "int32_data", 1),
    "INT32": (32, "int32_data", 1),
    "INT64": (64, "int64_data", 1),
    "BOOL": (8, "int32_data", 1),
    "FLOAT16": (16, "int32_data", 1),
    "DOUBLE": (64, "double_data", 1),
    "UINT32": (32, "uint64_data", 1),
    "UINT64": (64, "uint64_data", 1),
    "BFLOAT16": (16, "int32_data", 1),
    "FLOAT8E4M3FN": (8, "int32_data", 1),
    "FLOAT8E4M3FNUZ": (8, "int32_data", 1),
    "FLOAT8E5M2": (8, "int32_data", 1),
    "FLOAT8E5M2FNUZ": (8, "int32_data", 1),
    "UINT4": (4, "int32_data", 2),
    "INT4": (4, "int32_data", 2),
    "STRING": (0, "string_data", 1),
}


def every_tensor(path: Path, model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield all tensors. Raises ModelError for sparse ones, which exporters do not write."""
    for graph in every_graph(model):
        sparse = [] if is_function(graph) else [*graph.sparse_initializer]
        if not is_function(graph):
            yield from graph.initializer
        for attribute in attributes_in(graph):
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            sparse += attribute.sparse_tensors
            sparse += [attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else []
        if sparse:
            raise ModelError(
                f"{path}: holds sparse constants, which are not supported; export it with dense "
                "ones"
            )


class _ExternalData(NamedTuple):
    tensor: onnx.TensorProto
    file: Path
    offset: int
    size: int


def read_external_data(path: Path, model: onnx.ModelProto) -> list[Path]:
    """Read the tensors in other files, which must be in or below the model's folder, and return the
    files. Raises ModelError."""
    from onnx import TensorProto

    places = [
        _parse_place(path, tensor)
        for tensor in every_tensor(path, model)
        if tensor.data_location == TensorProto.EXTERNAL
    ]
    files = list(dict.fromkeys(place.file for place in places))
    keep("the model's external data", *files)
    watch(*files)
    sizes = {place.file: _read_size(path, place.file) for place in places}
    for tensor, file, offset, size in places:
        if offset + size > sizes[file]:
            raise ModelError(
                f"{path}: {file.name} has {sizes[file]:,} bytes, but {_describe(tensor)} needs "
                f"{size:,} bytes from byte {offset:,} on; it is truncated or belongs to another "
                "model: copy it again"
            )
    needed = sum(place.size for place in places)
    if needed > raised(SHARED) * sum(sizes.values()):
        raise ModelError(
            f"{path}: its tensors need {needed:,} bytes, but its files have "
            f"{sum(sizes.values()):,}; it is damaged: export it again; {how_to_raise()}"
        )
    if (size_text := too_much(needed)) is not None:
        raise ModelError(f"{path}: its weights need {size_text}")
    for tensor, file, offset, size in places:
        tensor.raw_data = _read(path, file, offset, size)
        tensor.ClearField("external_data")
        tensor.ClearField("data_location")
    return list(sizes)


def _parse_place(path: Path, tensor: onnx.TensorProto) -> _ExternalData:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    pure = PurePosixPath(location)
    file = path.parent / location
    if (
        not location
        or "\0" in location
        or pure.is_absolute()
        or ".." in pure.parts
        or not _is_inside(path, file)
    ):
        raise ModelError(
            f"{path}: {_describe(tensor)} claims to be stored in {location!r}, outside the model's "
            "folder, which is refused"
        )
    numbers = {}
    for key in ("offset", "length"):
        text = entries.get(key, "")
        if text and not (text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS):
            raise ModelError(
                f"{path}: {_describe(tensor)}: {key} {text[:40]!r} is not a number of bytes; it is "
                "damaged: export it again"
            )
        numbers[key] = int(text) if text else None
    size = _check_shape(path, tensor)
    if numbers["length"] not in (None, size):
        raise ModelError(
            f"{path}: {_describe(tensor)} has {numbers['length']:,} bytes in {location}, but its "
            f"shape needs {size:,}; it is damaged: export it again"
        )
    return _ExternalData(tensor, file, numbers["offset"] or 0, size)


def _is_inside(path: Path, file: Path) -> bool:
    """Return whether a file is in the model's folder when all links are followed. If the model is a
    link, the folder of its target counts, too."""
    real = os.path.realpath(file)
    folders = (os.path.realpath(path.parent), os.path.dirname(os.path.realpath(path)))
    return any(real.startswith(folder.rstrip("/") + "/") for folder in folders)


def _read_size(path: Path, file: Path) -> int:
    try:
        status = os.stat(file)
    except OSError as exc:
        raise ModelError(
            f"{path}: its weights are stored in {file.name}, which is not next to it "
            f"({exc.strerror}); put that file there too"
        ) from exc
    if not stat.S_ISREG(status.st_mode):
        raise ModelError(f"{path}: its weights are stored in {file.name}, which is not a file")
    return status.st_size


def _read(path: Path, file: Path, offset: int, size: int) -> bytes:
    try:
        with file.open("rb") as stored:
            stored.seek(offset)
            data = stored.read(size)
    except OSError as exc:
        raise ModelError(f"{path}: {file.name} cannot be read: {exc.strerror}") from exc
    if len(data) < size:
        raise ModelError(f"{path}: {file.name} became shorter while it was read; copy it again")
    return data


def check_tensors(path: Path, model: onnx.ModelProto) -> None:
    for tensor in every_tensor(path, model):
        needed = _check_shape(path, tensor)
        count, (_, field, packed) = math.prod(tensor.dims), _storage_of(path, tensor)
        if tensor.HasField("raw_data") and field != "string_data":
            stored, unit = len(tensor.raw_data), "bytes"
        else:
            needed, stored, unit = -(-count // packed), len(getattr(tensor, field)), "values"
        if stored != needed:
            raise ModelError(
                f"{path}: {_describe(tensor)} holds {stored:,} {unit}, but its shape "
                f"{list(tensor.dims)} needs {needed:,}; it is damaged: download it or export it "
                "again"
            )


def _check_shape(path: Path, tensor: onnx.TensorProto) -> int:
    """Return the size of a tensor in bytes. Raises ModelError for an impossible shape."""
    bits, _, _ = _storage_of(path, tensor)
    sides = [*tensor.dims]
    if (
        len(sides) > MAX_RANK
        or not all(0 <= side <= MAX_SIDE for side in sides)
        or math.prod(sides) > MAX_SIDE
        or tensor.HasField("segment")
    ):
        raise ModelError(
            f"{path}: {_describe(tensor)} has the impossible shape {sides[:MAX_RANK]}; it is "
            "damaged: download it or export it again"
        )
    return (int(math.prod(sides)) * bits + 7) // 8


def _storage_of(path: Path, tensor: onnx.TensorProto) -> tuple[int, str, int]:
    name = type_name(tensor.data_type)
    if name.upper() not in BITS:
        raise ModelError(
            f"{path}: {_describe(tensor)} has type {name}, which is not supported; export "
            "it in float32, or download it again"
        )
    return BITS[name.upper()]


def _describe(tensor: onnx.TensorProto) -> str:
    return f"tensor {tensor.name[:80]!r}" if tensor.name else "a tensor without a name"
