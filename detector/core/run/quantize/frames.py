"""Read evenly spread frames of a source: half to calibrate on, half to measure the agreement."""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detector.core import sources
from detector.core.errors import SourceError
from detector.core.errors.guard import keep
from detector.core.models.base import InputRules
from detector.core.stages.preprocess import letterbox

Slots = NDArray[np.uint8]  # RGB [N, H, W, 3], the network's input

HOLD_OUT = 2  # hold out every second frame


@dataclass(frozen=True, slots=True)
class Frames:
    """Frames of a calibration. Ranges are measured on ``seen``, and agreement on ``held_out``. If
    there is only one frame, it is in both, and ``apart`` is False."""

    seen: Slots
    held_out: Slots
    apart: bool

    @property
    def digest(self) -> str:
        digest = hashlib.sha256(self.seen.tobytes())
        if self.apart:
            digest.update(self.held_out.tobytes())
        return digest.hexdigest()


def read_frames(spec: str, rules: InputRules, count: int) -> Frames:
    """Read up to ``count`` letterboxed frames of a source. Raises SourceError if it has none."""
    with sources.open(spec) as source:
        slots = sample_evenly((frame.image for frame in source), count, rules)
    if not slots:
        raise SourceError(
            f"{spec}: no frame to calibrate on; give --calibrate a video or pictures that can "
            "be read"
        )
    return hold_out(np.stack(slots))


def sample_evenly(
    images: Iterable[NDArray[np.uint8]], count: int, rules: InputRules
) -> list[Slots]:
    """Letterbox ``count`` of the images, [H, W, 3] each, spread evenly over all of them. We do not
    know their number, so we double the step whenever we have taken twice ``count``."""
    step, taken = 1, []
    for index, image in enumerate(images):
        if index % step:
            continue
        slot = np.empty((rules.height, rules.width, 3), np.uint8)
        letterbox(image, slot, geometry=rules.geometry, pad_value=rules.pad_value)
        taken.append(slot)
        if len(taken) == 2 * count:
            taken, step = taken[::2], 2 * step
    chosen = np.linspace(0, len(taken) - 1, min(count, len(taken))).round().astype(int)
    return [taken[index] for index in chosen]


def hold_out(slots: Slots) -> Frames:
    held_out = np.arange(len(slots)) % HOLD_OUT == HOLD_OUT - 1
    if not held_out.any():
        return Frames(slots, slots, apart=False)
    return Frames(slots[~held_out], slots[held_out], apart=True)


def source_sha256(spec: str) -> str:
    """Return the sha256 of the content of a source's files. Raises SourceError."""
    digest = hashlib.sha256()
    files = _list_files(spec)
    keep("the calibration", *files)
    for path in files:
        try:
            with open(path, "rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        except OSError as exc:
            raise SourceError(
                f"{path}: cannot be read ({exc.strerror}); check its permissions: ls -l"
            ) from exc
    return digest.hexdigest()


def _list_files(spec: str) -> list[str]:
    if os.path.isdir(spec):
        return sorted(entry.path for entry in os.scandir(spec) if entry.is_file())
    if os.path.exists(spec):
        return [spec]
    return sorted(filter(os.path.isfile, glob.glob(spec, recursive=True)))
