"""Damaged overlays given to ``burn``: their rows, their description, or any bytes."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from random import Random

import numpy as np

from tests.attacks.case import Case, Kind
from tests.attacks.inputs import content
from tests.attacks.mutate import damage, damage_text

CODES = frozenset({0, 3, 7})
NAMES = ("person", "car")


@cache
def overlay() -> bytes:
    """Return an overlay of h264.mp4 with two objects in each frame."""
    with tempfile.TemporaryDirectory() as folder:
        return _write(Path(folder))


def _write(folder: Path) -> bytes:
    from detector.core import sinks, sources
    from detector.core.types import Detections

    (folder / "in.mp4").write_bytes(content("h264.mp4"))
    sink = sinks.open("overlay", folder / "x.mkv")
    boxes = np.array([[2, 3, 40, 50], [30, 10, 90, 60]], np.float32)
    detections = Detections(boxes, np.array([0.9, 0.4], np.float32), np.array([0, 1]), NAMES)
    with sources.open(str(folder / "in.mp4")) as source:
        sink.open(source.info)
        for frame in source:
            sink.write(frame, detections)
    sink.close()
    return (folder / "x.mkv").read_bytes()


def make(random: Random) -> Case:
    data = overlay()
    if random.random() < 0.4:
        data = damage(random, data, [content("h264.mkv"), content("h264.mp4")])
    else:
        first = random.choice([*_find(data, b'{\n "schema"'), *_find(data, b"{detect-video 1")])
        last = data.find(b"}", first) + 1
        changed = damage_text(random, data[first:last].decode())
        # Keep the length, so that the bytes around it stay valid.
        data = data[:first] + changed[: last - first].ljust(last - first) + data[last:]
    argv = ["burn", "x.mkv", *random.choice(([], ["-o", "y.mp4"], ["--hide-labels"]))]
    return Case({"x.mkv": data}, tuple(argv), CODES)


def _find(data: bytes, start: bytes) -> list[int]:
    positions, at = [], data.find(start)
    while at >= 0:
        positions.append(at)
        at = data.find(start, at + 1)
    return positions


KIND = Kind("overlays", make, share=6)
