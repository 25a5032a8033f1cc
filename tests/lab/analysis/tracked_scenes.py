"""Random scenes: labelled objects, and tracks with errors."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Boxes = NDArray[np.float64]
Ids = NDArray[np.int64]

SIZE = np.array([40.0, 90.0])


class Scene(NamedTuple):
    """Boxes xyxy [n, 4] and ids [n] of each frame."""

    labels: list[tuple[Boxes, Ids]]
    tracks: list[tuple[Boxes, Ids]]


def scene(seed: int, frames: int, objects: int, errors: float) -> Scene:
    """Return a scene. ``errors``: the probability that a box is lost, and that a frame has a swap
    of ids, a new id or an invented box. Tracked boxes deviate by about 40 x ``errors`` pixels."""
    random = np.random.default_rng(seed)
    start = random.uniform(0, 400, (objects, 2))
    speed = random.uniform(-4, 4, (objects, 2))
    name = np.arange(objects) + 1
    labels, tracks = [], []
    for t in range(frames):
        corner = start + speed * t
        boxes = np.concatenate([corner, corner + SIZE], axis=1)
        visible = random.uniform(size=objects) > 0.1
        if random.uniform() < errors and objects > 1:  # two objects swap their ids permanently
            i, j = random.choice(objects, 2, replace=False)
            name[[i, j]] = name[[j, i]]
        if random.uniform() < errors:  # one object gets a new id
            name[random.integers(objects)] = name.max() + 1
        tracked = random.uniform(size=objects) > errors
        measured = boxes + random.normal(0, 40 * errors, (objects, 4))
        labels.append((boxes[visible], np.flatnonzero(visible) + 1))
        invented = random.uniform(0, 400, (int(random.uniform() < errors), 2))
        extra = np.concatenate([invented, invented + SIZE], axis=1)
        ids = np.append(name[tracked], np.full(len(extra), 9000 + t))
        tracks.append((np.concatenate([measured[tracked], extra]), ids))
    return Scene(labels, tracks)


SCENES = {
    "perfect": (1, 30, 5, 0.0),
    "good": (2, 80, 8, 0.05),
    "poor": (3, 100, 12, 0.2),
    "bad": (4, 60, 20, 0.45),
    "one object": (5, 40, 1, 0.3),
    "crowd": (6, 50, 60, 0.15),
}


def write_benchmark(folder: Path, benchmark: str) -> None:
    """Write labels of two sequences in MOTChallenge's format, and files of the trackers ``a`` and
    ``b`` that TrackEval can read. Some objects are distractors, cars, or marked as ignored."""
    for name in ("good", "poor"):
        generated = scene(*SCENES[name])
        labels, tracks = [], {"a": [], "b": []}
        for t, (boxes, ids) in enumerate(generated.labels, 1):
            for box, one in zip(_write_boxes(boxes), ids.tolist(), strict=True):
                kind = {1: 8, 2: 3, 3: 7, 4: 6}.get(one, 1)  # MOTChallenge's classes
                labels.append(f"{t},{one},{box},{int(kind == 1 and one != 5)},{kind},1")
        for t, (boxes, ids) in enumerate(generated.tracks, 1):
            for box, one in zip(_write_boxes(boxes), ids.tolist(), strict=True):
                tracks["a"].append(f"{t},{one},{box},0.9,-1,-1,-1")
                tracks["b"].append(f"{t},{one + 100 * (t // 9)},{box},-1,-1,-1,-1")
        sequence = f"{benchmark}-{name}"
        info = f"[Sequence]\nname={sequence}\nimDir=img1\nseqLength={len(generated.labels)}\n"
        files = {f"gt/{sequence}/gt/gt.txt": labels, f"gt/{sequence}/seqinfo.ini": [info]}
        files |= {f"trackers/{each}/data/{sequence}.txt": rows for each, rows in tracks.items()}
        for path, rows in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text("\n".join([*rows, ""]))


def _write_boxes(boxes: Boxes) -> list[str]:
    return [f"{x1:.2f},{y1:.2f},{x2 - x1:.2f},{y2 - y1:.2f}" for x1, y1, x2, y2 in boxes.tolist()]
