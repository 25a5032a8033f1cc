"""Compute the decoded outputs for given arrays, for comparison with another implementation."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.core.config.schema import Config
from detector.core.errors import UsageError
from detector.core.errors.guard import keep, refuse_kept
from detector.core.errors.writing import whole_file
from detector.core.run.inputs import keep_inputs
from detector.core.run.loading import load_model

MAX_PICTURES_BYTES = 1 << 31
CURE = "choose another with --output"


def infer_raw(config: Config, given: Path, output: Path) -> dict[str, tuple[int, ...]]:
    """Run the model on the pictures in ``given``, and write its decoded outputs to ``output``.

    ``given``: .npz of u8 RGB arrays [N, H, W, 3] or [N, 3, H, W], each run at its own size.
    ``output``: .npz of float32 [N, rows, 5 + classes], ``output_NAME`` for ``input_NAME``: cx, cy,
    w, h in network pixels, objectness, and class probabilities not multiplied by it. Returns the
    outputs' shapes. Raises DetectVideoError.
    """
    keep("the input", given)
    keep_inputs(config)
    refuse_kept(output, CURE)
    pictures = read_pictures(given)
    results: dict[str, NDArray[np.float32]] = {}
    for name, array in pictures.items():
        sized = config.with_options({"size": f"{array.shape[2]}x{array.shape[1]}"})
        suffix = name.removeprefix("input") if name.startswith("input") else f"_{name}"
        results[f"output{suffix}"] = _decode(sized, array)
    _write_arrays(output, results)
    return {name: array.shape for name, array in results.items()}


def read_pictures(path: Path) -> dict[str, NDArray[np.uint8]]:
    """Return the u8 pictures [N, H, W, 3] of an .npz; ignore other arrays. Raises UsageError."""
    pictures: dict[str, NDArray[np.uint8]] = {}
    try:
        with np.load(path, allow_pickle=False) as arrays:
            for name in arrays.files:
                array = arrays[name]
                if (
                    array.dtype == np.uint8
                    and array.ndim == 4
                    and array.nbytes <= MAX_PICTURES_BYTES
                ):
                    pictures[name] = _move_channels_last(path, name, array)
    except (OSError, ValueError, zipfile.BadZipFile, AttributeError, EOFError) as exc:
        raise UsageError(f"{path}: not an .npz of arrays: {' '.join(str(exc).split())}") from exc
    if not pictures:
        raise UsageError(
            f"{path}: contains no pictures; give uint8 RGB arrays [N, H, W, 3] or [N, 3, H, W]"
        )
    return pictures


def _move_channels_last(path: Path, name: str, array: NDArray[np.uint8]) -> NDArray[np.uint8]:
    if array.shape[3] == 3 and len(array):
        return array
    if array.shape[1] == 3 and len(array):
        return np.ascontiguousarray(array.transpose(0, 2, 3, 1))
    raise UsageError(
        f"{path}: {name} is {list(array.shape)}; give RGB arrays [N, H, W, 3] or [N, 3, H, W]"
    )


def _decode(config: Config, pictures: NDArray[np.uint8]) -> NDArray[np.float32]:
    loaded = load_model(config)
    batch = loaded.network.batch
    rows: list[Any] = []
    with loaded.engine as engine:
        request = engine.requests[0]
        for start in range(0, len(pictures), batch):
            part = pictures[start : start + batch]
            request.slot[: len(part)] = part
            outputs = request.infer(len(part))
            rows += [
                loaded.network.dense([o[at : at + 1] for o in outputs]) for at in range(len(part))
            ]
    return np.concatenate(rows).astype(np.float32, copy=False)


def _write_arrays(target: Path, arrays: dict[str, NDArray[np.float32]]) -> None:
    # Given a name that does not end in .npz, numpy would append that, so we pass an open file.
    with whole_file(target, CURE) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
