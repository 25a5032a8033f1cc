"""Front end for .safetensors: named tensors, whose names and shapes determine the network.

A file holds the header's length (u64), the header (JSON) and the tensors' bytes. The header maps a
tensor's name to its dtype, its shape, and its bytes [start, end), counted from the header's end.
https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import hashlib
import json
import math
from functools import partial
from pathlib import Path
from typing import Any

from detector.core.errors import ModelError
from detector.core.models.base import START_BYTES, FrontEnd, ModelRequest, Network, mistaken_for
from detector.core.models.formats.checkpoint.archive import DTYPES, StoredTensor, item_bytes
from detector.core.models.formats.checkpoint.contents import Contents, contents_of_tensors

SUFFIXES = (".safetensors",)
MAX_HEADER = 16 << 20


def read(request: ModelRequest) -> Network:
    from detector.core.models.formats.yolo.network import network_of_contents

    contents, digest = read_safetensors(request.path)
    return network_of_contents(contents, digest, request)


FRONT_END = FrontEnd(read, takes_random_weights=True)


def read_safetensors(path: Path) -> tuple[Contents, bytes]:
    """Return the contents and the file's sha256. Tensors are read on demand. Raises ModelError."""
    try:
        length = path.stat().st_size
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").digest()
            file.seek(0)
            if what := mistaken_for(file.read(START_BYTES)):
                raise ModelError(f"{path}: {what}; download it again")
            file.seek(0)
            header_bytes = int.from_bytes(file.read(8), "little")
            if length < 8 or header_bytes > length - 8:
                raise _damage_error(path, "its header reaches beyond the end of the file")
            if header_bytes > MAX_HEADER:
                raise _damage_error(path, f"its header has {header_bytes} bytes, over {MAX_HEADER}")
            header = json.loads(file.read(header_bytes))
    except OSError as exc:
        raise ModelError(
            f"{path}: cannot be read: {exc.strerror}; give the path of a .safetensors file"
        ) from exc
    except (ValueError, RecursionError) as exc:
        raise _damage_error(path, "its header is not JSON") from exc
    if not isinstance(header, dict):
        raise _damage_error(path, "its header lists no tensors")
    start = 8 + header_bytes
    tensors = {
        name: _parse_entry(path, name, entry, start, length)
        for name, entry in header.items()
        if name != "__metadata__"
    }
    return contents_of_tensors(tensors, str(path)), digest


def _parse_entry(path: Path, name: str, entry: Any, start: int, length: int) -> StoredTensor:
    try:
        kind, shape, (first, last) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        if not all(type(number) is int and 0 <= number < 2**48 for number in (*shape, first, last)):
            raise ValueError(name)
        if kind in DTYPES and last - first != math.prod(shape) * item_bytes(kind):
            raise ValueError(name)
    except (KeyError, TypeError, ValueError) as exc:
        raise _damage_error(path, f"the entry of {ascii(name)[:80]} is wrong") from exc
    if kind not in DTYPES:
        raise ModelError(
            f"{path}: {ascii(name)[:80]} is stored as {kind!s:.20}, which is not supported; "
            "save it as F16 or F32"
        )
    if start + last > length:
        raise _damage_error(path, f"{ascii(name)[:80]} reaches beyond the end of the file")
    strides = tuple(math.prod(shape[at + 1 :]) for at in range(len(shape)))
    return StoredTensor(
        kind,
        shape,
        strides,
        0,
        math.prod(shape),
        partial(_read_bytes, path, start + first, last - first),
    )


def _read_bytes(path: Path, at: int, count: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(at)
            return file.read(count)
    except OSError as exc:
        raise ModelError(f"{path}: cannot be read: {exc.strerror}") from exc


def _damage_error(path: Path, reason: str) -> ModelError:
    return ModelError(f"{path}: truncated or damaged: {reason}; copy or download it again")
