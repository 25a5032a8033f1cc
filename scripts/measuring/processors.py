"""The stages of a run on two processors, as scripts/arm_check starts and compares them.

python -m measuring.processors stages OUT FRAMES [GIVEN]    one processor's, of GIVEN's inputs
python -m measuring.processors compare|rows X86 ARM64       two such files, or rows of two runs
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

VIDEO = Path(__file__).parents[2] / "videos/street.mp4"
# Outputs of libraries for equal input, which we cannot change. (The head's np.exp differs by less.)
FOREIGN = ("PyAV's BGR", "cv2.VideoCapture's BGR", "cv2.resize", "fp32 outputs", "int8 outputs")
CLOSE = (1.0, 0.01)  # pixels and score, between partners among the detections of two runs


def stages(given: Mapping[str, Any], frames: int) -> Iterator[tuple[str, Any]]:
    """Yield each stage's output, from x86's input if that is ``given``."""
    import av
    import cv2
    from av.video.reformatter import VideoReformatter

    from detector.core import sources
    from detector.core.config.levels import resolve_config
    from detector.core.run.plan import resolve

    def read(pixels: str, decoder: str = "auto") -> list[Any]:
        with sources.open(str(VIDEO), decoder=decoder, frames=frames, pixels=pixels) as source:
            return [frame.picture for frame in source]

    planes, ours = read("yuv420p"), read("bgr")
    yield "planes", [np.vstack([one.y, np.hstack([one.u, one.v])]) for one in planes]
    with av.open(str(VIDEO)) as container:
        pictures = list(islice(container.decode(video=0), frames))
    to = VideoReformatter()
    converted = [to.reformat(one, format="bgr24", interpolation="BICUBIC") for one in pictures]
    yield "PyAV's BGR", [one.to_ndarray() for one in converted]
    yield "cv2.VideoCapture's BGR", read("bgr", "opencv")
    yield "our BGR", ours
    ours = given.get("our BGR", ours)
    yield "cv2.resize", [cv2.resize(picture, (608, 342)) for picture in ours]
    for precision in ("fp32", "int8"):
        flags = {"engine": "ort", "precision": precision, "threads": 1, "concurrency": 1}
        config = resolve_config(None, {**flags, "engines_dir": "engines"})
        plan = resolve(config, specs=[str(VIDEO)])
        preprocess, head, nms = plan.stages()
        with plan.loaded as engine:
            request = engine.requests[0]
            slots = []
            for picture in [*planes, *ours]:
                preprocess(picture, request.slot[0])
                slots.append(request.slot[0].copy())
            yield "letterbox of planes", slots[: len(planes)]
            yield "letterbox of BGR", slots[len(planes) :]
            outputs = []
            for slot in given.get("letterbox of planes", slots)[:2]:  # it is slow
                request.slot[0] = slot
                raw = request.infer(1)
                outputs.append(np.hstack([one.ravel() for one in raw]))
        yield f"{precision} outputs", outputs
        ends, found = np.cumsum([one.size for one in raw])[:-1], []
        for output in given.get(f"{precision} outputs", outputs):
            parts = zip(np.split(output, ends), raw, strict=True)
            found.append(nms(head([part.reshape(one.shape) for part, one in parts])))
        columns = [np.column_stack([one.boxes, one.scores, one.class_ids]) for one in found]
        yield f"{precision} head and NMS", np.vstack(columns)


def compare(x86: Mapping[str, Any], arm: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """Yield a line for each stage, and whether it differs by more than allowed."""
    yield f"{'':24}{'x86 mean':>12}{'ARM64 mean':>12}{'differ':>9}{'by at most':>12}", False
    for name, one in x86.items():
        other = arm[name]
        same = one.shape == other.shape
        apart = np.abs(one.astype(float) - other) if same else np.array([np.inf])
        numbers = f"{one.mean():12.4f}{other.mean():12.4f}{(apart > 0).mean():9.2%}"
        allowed = np.inf if name in FOREIGN else 1e-3 if "head" in name else 0
        yield f"{name:24}{numbers}{apart.max():12.3g}", apart.max() > allowed


def compare_rows(x86: Path, arm: Path) -> Iterator[tuple[str, bool]]:
    sides = [
        [json.loads(line)["detections"] for line in path.read_text("utf-8").splitlines()]
        for path in (x86, arm)
    ]
    counts = [sum(map(len, side)) for side in sides]
    equal, pairs = 0, [(0.0, 0.0)]
    for frame, others in zip(*sides, strict=True):
        for one in frame:
            apart = [
                (np.abs(np.subtract(one["box"], other["box"])).max(), one["score"] - other["score"])
                for other in others
                if other["class"] == one["class"]
            ]
            pairs.append(min(apart, default=(np.inf, np.inf)))
            equal += one in others
    pixels, score = np.abs(pairs).max(axis=0)
    line = (
        f"{counts[0]} detections on x86, {counts[1]} on ARM64; {equal} are equal in every digit, "
        f"all by {pixels:.2f} pixels and {score:.4f} of score"
    )
    yield line, counts[0] != counts[1] or pixels > CLOSE[0] or score > CLOSE[1]


def main(what: str, *words: str) -> None:
    if what == "stages":
        out, frames, *given = words
        np.savez(out, **dict(stages(np.load(given[0]) if given else {}, int(frames))))
        return
    lines = compare_rows(*map(Path, words)) if what == "rows" else compare(*map(np.load, words))
    results = list(lines)
    print("\n".join(line for line, _ in results))
    sys.exit(any(is_wrong for _, is_wrong in results))


if __name__ == "__main__":
    main(*sys.argv[1:])
