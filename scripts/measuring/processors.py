"""The stages of a run on two processors, for scripts/arm_check.

python -m measuring.processors stages OUT FRAMES [X86]   write outputs to OUT; read inputs from X86
python -m measuring.processors compare X86 ARM64         compare two files of outputs
python -m measuring.processors rows X86 ARM64            compare the rows of two runs
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
# Third-party code makes these, so any difference is allowed. (np.exp in the head differs by less.)
FOREIGN = ("PyAV's BGR", "cv2.VideoCapture's BGR", "cv2.resize", "fp32 outputs", "int8 outputs")
CLOSE = (1.0, 0.01)  # allowed difference of two runs' detections, in pixels and in score


def stages(x86_inputs: Mapping[str, Any], frames: int) -> Iterator[tuple[str, Any]]:
    """Yield each stage's output. ``x86_inputs``: {} on x86. On ARM64, it has the stages' outputs on
    x86, which replace the inputs of later stages, so that differences do not add up."""
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
    yield "planes", [np.vstack([plane.y, np.hstack([plane.u, plane.v])]) for plane in planes]
    with av.open(str(VIDEO)) as container:
        pictures = list(islice(container.decode(video=0), frames))
    reformatter = VideoReformatter()
    converted = [
        reformatter.reformat(frame, format="bgr24", interpolation="BICUBIC") for frame in pictures
    ]
    yield "PyAV's BGR", [frame.to_ndarray() for frame in converted]
    yield "cv2.VideoCapture's BGR", read("bgr", "opencv")
    yield "our BGR", ours
    ours = x86_inputs.get("our BGR", ours)
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
            for slot in x86_inputs.get("letterbox of planes", slots)[
                :2
            ]:  # only 2, because QEMU is slow
                request.slot[0] = slot
                raw = request.infer(1)
                outputs.append(np.hstack([part.ravel() for part in raw]))
        yield f"{precision} outputs", outputs
        ends, detections = np.cumsum([part.size for part in raw])[:-1], []
        for output in x86_inputs.get(f"{precision} outputs", outputs):
            parts = zip(np.split(output, ends), raw, strict=True)
            detections.append(nms(head([part.reshape(like.shape) for part, like in parts])))
        columns = [
            np.column_stack([kept.boxes, kept.scores, kept.class_ids]) for kept in detections
        ]
        yield f"{precision} head and NMS", np.vstack(columns)


def compare(x86: Mapping[str, Any], arm: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """Yield a line for each stage, and whether the outputs differ by more than allowed."""
    yield f"{'':24}{'x86 mean':>12}{'ARM64 mean':>12}{'differ':>9}{'by at most':>12}", False
    for name, x86_output in x86.items():
        arm_output = arm[name]
        same_shape = x86_output.shape == arm_output.shape
        differences = (
            np.abs(x86_output.astype(float) - arm_output) if same_shape else np.array([np.inf])
        )
        numbers = (
            f"{x86_output.mean():12.4f}{arm_output.mean():12.4f}{(differences > 0).mean():9.2%}"
        )
        allowed = np.inf if name in FOREIGN else 1e-3 if "head" in name else 0
        yield f"{name:24}{numbers}{differences.max():12.3g}", differences.max() > allowed


def compare_rows(x86: Path, arm: Path) -> Iterator[tuple[str, bool]]:
    sides = [
        [json.loads(line)["detections"] for line in path.read_text("utf-8").splitlines()]
        for path in (x86, arm)
    ]
    counts = [sum(map(len, side)) for side in sides]
    equal, pairs = 0, [(0.0, 0.0)]
    for frame, arm_frame in zip(*sides, strict=True):
        for detection in frame:
            differences = [
                (
                    np.abs(np.subtract(detection["box"], counterpart["box"])).max(),
                    detection["score"] - counterpart["score"],
                )
                for counterpart in arm_frame
                if counterpart["class"] == detection["class"]
            ]
            pairs.append(min(differences, default=(np.inf, np.inf)))
            equal += detection in arm_frame
    pixels, score = np.abs(pairs).max(axis=0)
    line = (
        f"{counts[0]} detections on x86, {counts[1]} on ARM64; {equal} are equal in every digit; "
        f"the largest differences are {pixels:.2f} pixels and {score:.4f} in score"
    )
    yield line, counts[0] != counts[1] or pixels > CLOSE[0] or score > CLOSE[1]


def main(what: str, *arguments: str) -> None:
    if what == "stages":
        out, frames, *x86_file = arguments
        np.savez(out, **dict(stages(np.load(x86_file[0]) if x86_file else {}, int(frames))))
        return
    lines = (
        compare_rows(*map(Path, arguments)) if what == "rows" else compare(*map(np.load, arguments))
    )
    results = list(lines)
    print("\n".join(line for line, _ in results))
    sys.exit(any(is_wrong for _, is_wrong in results))


if __name__ == "__main__":
    main(*sys.argv[1:])
