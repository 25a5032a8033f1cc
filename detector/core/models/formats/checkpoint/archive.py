"""Read the zip file of a checkpoint, which may be forged, and the tensors in it.

The file holds PREFIX/data.pkl, and one entry PREFIX/data/KEY for each storage of numbers. We
require that entries are uncompressed and together fit in the file, which rules out zip bombs.
"""

from __future__ import annotations

import hashlib
import math
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from detector.core.errors import ModelError
from detector.core.models.base import START_BYTES, mistaken_for

ByteOrder = Literal["<", ">"]
DTYPES = {  # name of a number type in safetensors -> numpy's name
    "F64": "f8",
    "F32": "f4",
    "F16": "f2",
    "BF16": "u2",
    "I64": "i8",
    "I32": "i4",
    "I16": "i2",
    "I8": "i1",
    "U8": "u1",
    "BOOL": "?",
}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A view of stored numbers; strides and offset count elements. Raises ValueError if invalid."""

    kind: str  # a key of DTYPES
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    stored: int  # number of elements that ``load`` returns
    load: Callable[[], bytes]
    byte_order: ByteOrder = "<"

    def __post_init__(self) -> None:
        self._check()

    def _check(self) -> None:
        numbers = (self.offset, *self.shape, *self.strides)
        if len(self.shape) != len(self.strides) or not all(
            type(n) is int and 0 <= n < 2**48 for n in numbers
        ):
            raise ValueError("a tensor without a valid shape")
        reach = self.offset + sum(
            (side - 1) * step for side, step in zip(self.shape, self.strides, strict=True)
        )
        if self.size and reach >= self.stored:
            raise ValueError(
                f"a tensor that reaches {reach + 1} numbers into a storage of {self.stored}"
            )

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def array(self) -> NDArray[Any]:
        """Return a contiguous copy in this machine's byte order; bfloat16 becomes float32."""
        self._check()
        if self.size > self.stored:  # elements share numbers, which real weights never do
            raise ValueError(f"a tensor of {self.size} numbers in a storage of {self.stored}")
        numbers = np.frombuffer(
            self.load(), np.dtype(DTYPES[self.kind]).newbyteorder(self.byte_order), self.stored
        )
        steps = [step * numbers.itemsize for step in self.strides]
        view = np.lib.stride_tricks.as_strided(
            numbers[self.offset :], self.shape, steps, writeable=False
        )
        if self.kind == "BF16":  # the upper half of a float32
            return (view.astype(np.uint32) << 16).view(np.float32)
        return view.astype(view.dtype.newbyteorder("="), order="C")


def _refuse_state(self: StoredTensor, state: Any) -> None:
    raise ValueError("state for a tensor")  # a pickle must not change a checked tensor


# Set here because, in the class, ``dataclass`` of Python 3.11.2 (Debian 12) would replace it.
setattr(StoredTensor, "__setstate__", _refuse_state)  # noqa: B010


def item_bytes(kind: str) -> int:
    return np.dtype(DTYPES[kind]).itemsize


PICKLE = "data.pkl"
CONSTANTS = "constants.pkl"  # only TorchScript has this entry
MAX_PICKLE = 16 << 20  # bytes; the largest published one, that of yolov7-e6e, is 2 MB
MAX_ENTRIES = 100_000
DAMAGE_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    ValueError,
    NotImplementedError,
    RuntimeError,
)


class Archive:
    def __init__(self, path: Path) -> None:
        self.path = path
        _check_is_zip(path)
        try:
            self._zip = zipfile.ZipFile(path)
        except OSError as exc:
            raise ModelError(
                f"{path}: cannot be read: {exc.strerror}; give the path of a checkpoint"
            ) from exc
        except DAMAGE_ERRORS as exc:
            raise self.damaged() from exc
        try:
            _refuse_torchscript(path, self._zip.namelist())
            self._entries = self._check_entries(self._zip.infolist())
            self._prefix = self._find_prefix()
            self.byte_order = self._find_byte_order()
        except BaseException:
            self._zip.close()
            raise

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()

    def pickle(self) -> bytes:
        size = self._entries[f"{self._prefix}{PICKLE}"].file_size
        if size > MAX_PICKLE:
            raise ModelError(
                f"{self.path}: its {PICKLE} takes {size >> 20} MB, more than any checkpoint needs; "
                "download it again"
            )
        return self._read(PICKLE)

    def storage(self, key: str) -> bytes:
        return self._read(f"data/{key}")

    def storage_bytes(self, key: str) -> int:
        """Return the storage's size in bytes without reading it; -1 if there is none."""
        entry = self._entries.get(f"{self._prefix}data/{key}")
        return -1 if entry is None else entry.file_size

    def sha256(self) -> str:
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def damaged(self) -> ModelError:
        return ModelError(
            f"{self.path}: truncated or damaged: not a whole zip file; copy or download it again"
        )

    def _read(self, name: str) -> bytes:
        try:
            return self._zip.read(self._entries[self._prefix + name])
        except (*DAMAGE_ERRORS, KeyError) as exc:
            raise self.damaged() from exc
        except OSError as exc:
            raise ModelError(f"{self.path}: cannot be read: {exc.strerror}") from exc

    def _check_entries(self, entries: list[zipfile.ZipInfo]) -> dict[str, zipfile.ZipInfo]:
        if len(entries) > MAX_ENTRIES:
            raise ModelError(
                f"{self.path}: {len(entries)} entries in its zip; no checkpoint has more than "
                f"{MAX_ENTRIES}; download it again"
            )
        for entry in entries:
            if (
                entry.compress_type != zipfile.ZIP_STORED
                or entry.flag_bits & 1
                or entry.file_size != entry.compress_size
            ):
                raise ModelError(
                    f"{self.path}: entry {entry.filename[:80]!r} of its zip is compressed or "
                    f"encrypted ({entry.compress_size} bytes for {entry.file_size}), which "
                    "torch.save never does: refused; save the checkpoint again with torch.save"
                )
        total = sum(entry.file_size for entry in entries)
        if total > (size := self.path.stat().st_size):
            raise ModelError(
                f"{self.path}: its zip declares {total} bytes in a file of {size}: refused; "
                "download it again"
            )
        return {entry.filename: entry for entry in entries}

    def _find_prefix(self) -> str:
        """Return the folder that holds all entries. torch.save names it after the file."""
        prefixes = [
            name.removesuffix(PICKLE) for name in self._entries if name.rsplit("/", 1)[-1] == PICKLE
        ]
        if len(prefixes) != 1:
            raise ModelError(
                f"{self.path}: a zip file, but not a checkpoint: it holds {len(prefixes)} entries "
                f"called {PICKLE}, not 1"
            )
        return prefixes[0]

    def _find_byte_order(self) -> ByteOrder:
        """Return "<" (little-endian) or ">" (big-endian). Before torch 2.1, all files were "<"."""
        if f"{self._prefix}byteorder" not in self._entries:
            return "<"
        return ">" if self._read("byteorder").strip() == b"big" else "<"


def _refuse_torchscript(path: Path, names: list[str]) -> None:
    """Refuse TorchScript here: ``_check_entries`` would only report that entries are compressed."""
    if any(name.rsplit("/", 1)[-1] == CONSTANTS for name in names):
        raise ModelError(
            f"{path}: this is TorchScript, not a checkpoint; "
            "give the .pt that training saved, or an ONNX export"
        )


def _check_is_zip(path: Path) -> None:
    try:
        with path.open("rb") as file:
            start = file.read(START_BYTES)
    except OSError as exc:
        raise ModelError(
            f"{path}: cannot be read: {exc.strerror}; give the path of a checkpoint"
        ) from exc
    if start.startswith(b"PK\x03\x04"):
        return
    if start.startswith(b"\x80") or start[257:262] == b"ustar":
        raise ModelError(
            f"{path}: saved in torch's old format (before 1.6), which detect-video does not read; "
            f"if you trust the file, convert it with torch: torch.save(torch.load('{path.name}', "
            "weights_only=False), 'new.pt')"
        )
    what = mistaken_for(start) or "is not a checkpoint: torch.save writes zip files"
    raise ModelError(f"{path}: {what}; download it again")
