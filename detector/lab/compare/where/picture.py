"""Draw where two sides differ as a PNG: a heat map of a tensor or picture, or their boxes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from detector.core.errors import UsageError
from detector.core.errors.writing import write_whole
from detector.lab.compare.where.search import Differences

Array = NDArray[Any]
LONGEST = 960  # approximate length of the picture's longer side, in pixels
BAR, GREY = 22, 0.35  # height of the text below; opacity of the picture under a heat map
RED, BLUE = (40, 40, 230), (230, 120, 20)  # BGR: A's boxes and B's
MOST_BOXES = 500


def check_picture(path: str) -> None:
    if Path(path).suffix.lower() != ".png":
        raise UsageError(f"--picture {path}: the file name must end with .png")


def write_picture(result: Differences, path: str) -> Path | None:
    first = result.first
    if first is None:
        return None
    if result.boxes is not None and result.scene is not None:
        drawn, words = _draw_boxes(result.scene, *result.boxes), "red: A, blue: B"
    elif result.shown is not None and result.shown[0].shape == result.shown[1].shape:
        drawn, top = _draw_heat_map(*result.shown, result.scene)
        words = f"white: {top:.4g} apart"
    else:
        return None
    where = "" if first.frame is None else f", frame {first.frame}"
    drawn = _add_text(drawn, f"{first.stage}: {first.what}{where}. {words}")
    ready, coded = cv2.imencode(".png", drawn)
    assert ready
    target = Path(path)
    write_whole(target, coded.tobytes())
    return target


def _draw_heat_map(a: Array, b: Array, scene: Array | None) -> tuple[Array, float]:
    off = np.abs(np.nan_to_num(np.asarray(a, np.float64)) - np.nan_to_num(np.asarray(b)))
    off[~np.isfinite(a) | ~np.isfinite(b)] = off.max(initial=1.0)
    plane = _flatten(off)
    top = float(plane.max(initial=0.0)) or 1.0
    levels = np.clip(np.sqrt(plane / top) * 255, 0, 255).astype(np.uint8)
    heat = cv2.applyColorMap(_enlarge(levels), cv2.COLORMAP_HOT)
    if scene is not None and scene.shape[:2] == plane.shape:
        below = cv2.cvtColor(_enlarge(scene), cv2.COLOR_BGR2GRAY)
        below = cv2.cvtColor(below, cv2.COLOR_GRAY2BGR)
        heat = cv2.addWeighted(below, GREY, heat, 1.0, 0)
    return heat, top


def _flatten(off: Array) -> Array:
    """Return the maximum over the channels of a picture [h, w, 3] or tensor [1, channels, h, w];
    long tables of rows are wrapped into several columns."""
    while off.ndim > 3 and off.shape[0] == 1:
        off = off[0]
    if off.ndim == 3 and off.shape[-1] == 3:
        return np.asarray(off.max(-1))
    if off.ndim == 3 and off.shape[0] > 1:
        return np.asarray(off.max(0))
    rows = off.reshape(-1, off.shape[-1]) if off.ndim > 1 else off.reshape(-1, 1)
    if rows.shape[1] > rows.shape[0]:
        rows = rows.T
    side = max(1, math.ceil(math.sqrt(len(rows) / rows.shape[1])))
    each = math.ceil(len(rows) / side)
    padded = np.zeros((side * each, rows.shape[1]))
    padded[: len(rows)] = rows
    parts = padded.reshape(side, each, -1).transpose(1, 0, 2)
    return parts.reshape(each, -1)


def _enlarge(picture: Array) -> Array:
    height, width = picture.shape[:2]
    factor = LONGEST / max(height, width)
    whole = max(1, int(factor)) if factor >= 1 else factor
    size = max(1, round(width * whole)), max(1, round(height * whole))
    interpolation = cv2.INTER_NEAREST if whole >= 1 else cv2.INTER_AREA
    return np.asarray(cv2.resize(picture, size, interpolation=interpolation))


def _draw_boxes(scene: Array, a: Array, b: Array) -> Array:
    drawn = _enlarge(np.ascontiguousarray(scene))
    scale = drawn.shape[1] / scene.shape[1]
    for boxes, colour, width in ((a, RED, 4), (b, BLUE, 2)):
        for x1, y1, x2, y2 in np.nan_to_num(boxes[:MOST_BOXES] * scale).clip(-9999, 9999).tolist():
            cv2.rectangle(drawn, (int(x1), int(y1)), (int(x2), int(y2)), colour, width)
    return drawn


def _add_text(picture: Array, words: str) -> Array:
    wide = max(picture.shape[1], 480)
    canvas = np.zeros((picture.shape[0] + BAR, wide, 3), np.uint8)
    canvas[: picture.shape[0], : picture.shape[1]] = picture
    place = 6, picture.shape[0] + BAR - 7
    plain = words.encode("ascii", "replace").decode()
    cv2.putText(
        canvas, plain, place, cv2.FONT_HERSHEY_SIMPLEX, 0.42, (230, 230, 230), 1, cv2.LINE_AA
    )
    return canvas
