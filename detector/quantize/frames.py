"""Frames to calibrate on: spread over the whole of a source, as the network will see them."""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detector import sources
from detector.errors import SourceError
from detector.models.base import InputRules
from detector.stages.preprocess import letterbox

Slots = NDArray[np.uint8]  # RGB [N, H, W, 3]
HOLD_OUT = 2  # every second frame is kept for measuring


@dataclass(frozen=True, slots=True)
class Frames:
    """``seen``: what the ranges are taken from. ``held_out``: what agreement is measured on; the same ones where
    there were too few to hold any out."""

    seen: Slots
    held_out: Slots
    apart: bool

    @property
    def digest(self) -> str:
        """sha256 of the pixels, in order."""
        digest = hashlib.sha256(self.seen.tobytes())
        if self.apart:
            digest.update(self.held_out.tobytes())
        return digest.hexdigest()


def read(spec: str, rules: InputRules, wanted: int) -> Frames:
    """At most ``wanted`` frames of a video, a picture or a folder of them. Raises SourceError."""
    with sources.open(spec) as source:
        pictures = spread((frame.image for frame in source), wanted, rules)
    if not pictures:
        raise SourceError(f"{spec}: no frame to calibrate on; give --calibrate a video or pictures that can be read")
    return divided(np.stack(pictures))


def divided(slots: Slots) -> Frames:
    last = np.arange(len(slots)) % HOLD_OUT == HOLD_OUT - 1
    if not last.any():
        return Frames(slots, slots, apart=False)
    return Frames(slots[~last], slots[last], apart=True)


def spread(images: Iterable[NDArray[np.uint8]], wanted: int, rules: InputRules) -> list[Slots]:
    """``wanted`` of the images, evenly over all, whose number nobody knows beforehand (containers lie).

    Every ``step``-th is taken; when twice as many as wanted have come, every second goes and the step doubles. So
    one pass is enough, and no more than twice the wanted number is ever held.
    """
    step, taken = 1, []
    for at, image in enumerate(images):
        if at % step:
            continue
        slot = np.empty((rules.height, rules.width, 3), np.uint8)
        letterbox(image, slot, geometry=rules.geometry, pad_value=rules.pad_value)
        taken.append(slot)
        if len(taken) == 2 * wanted:
            taken, step = taken[::2], 2 * step
    chosen = np.linspace(0, len(taken) - 1, min(wanted, len(taken))).round().astype(int)
    return [taken[at] for at in chosen]


def identity(spec: str) -> str:
    """sha256 of the bytes of all files of a source: the same pictures under another name are the same."""
    digest = hashlib.sha256()
    for path in _files(spec):
        try:
            with open(path, "rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        except OSError as exc:
            raise SourceError(f"{path}: cannot be read ({exc.strerror}); check its permissions: ls -l") from exc
    return digest.hexdigest()


def _files(spec: str) -> list[str]:
    if os.path.isdir(spec):
        return sorted(entry.path for entry in os.scandir(spec) if entry.is_file())
    return [spec] if os.path.exists(spec) else sorted(filter(os.path.isfile, glob.glob(spec, recursive=True)))
