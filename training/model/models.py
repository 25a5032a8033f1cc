"""Models as the evaluator calls them: a picture in, every cell's box and scores out."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from detector.config import CalibrationConfig
from model import validation

CALIBRATION = 256  # training pictures: half of them for the ranges


def ours(
    model: str, weights: str | None, size: tuple[int, int] | None, threads: int, int8: CalibrationConfig | None = None
) -> validation.Model:
    """A model of the package with the classes person and vehicle, through ONNX Runtime. ``int8``: the model is
    in int8, as ``--precision int8 --calibrate ...`` makes it."""
    from detector.models import open_network

    network = open_network(model, weights=weights, size=size)
    rules, proto = network.input, network.graph.SerializeToString()

    def fitted(image):
        return validation.boxed(image, (rules.height, rules.width), rules.geometry, rules.pad_value)

    if int8 is not None:
        from detector.quantize import frames
        from detector.quantize.calibration import calibrated
        from detector.quantize.qdq import quantised_graph

        found = calibrated(network, frames.read(str(int8.calibrate), rules, int8.calibrate_frames), int8)
        print(*found.sentences("int8-u8"), sep="\n")
        kept = found.result["int8-u8"].kept
        proto = quantised_graph(network.graph, found.ranges, kept, "int8-u8").SerializeToString()
    infer = session(proto, threads)

    def rows(image):
        slot, fit = fitted(image)
        dense = network.dense(infer(slot[None]))[0]
        half = dense[:, 2:4] / 2
        boxes = np.concatenate([dense[:, :2] - half, dense[:, :2] + half], axis=1)
        return validation.in_source(boxes, fit), dense[:, 4:5] * dense[:, 5:]

    rows.infer = lambda: infer(np.full((1, rules.height, rules.width, 3), 99, np.uint8))  # type: ignore[attr-defined]
    return rows


def yolox(path: Path, size: tuple[int, int], threads: int) -> validation.Model:
    """yolox_nano with COCO's classes mapped to ours."""
    from model.teacher import any_size, decoded

    infer = session(any_size(path.read_bytes()).SerializeToString(), threads)

    def rows(image):
        slot, fit = validation.boxed(image, size, "top-left-truncate", 114)
        bgr = np.ascontiguousarray(slot[None, ..., ::-1].transpose(0, 3, 1, 2), np.float32)
        boxes, scores = decoded(infer(bgr)[0], *size)
        return validation.in_source(boxes[0], fit), scores[0]

    rows.infer = lambda: infer(np.full((1, 3, *size), 99, np.float32))  # type: ignore[attr-defined]
    return rows


def session(model: bytes, threads: int) -> Callable:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    made = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    name = made.get_inputs()[0].name
    return lambda x: made.run(None, {name: x})


def costs(models: dict[str, validation.Model], rounds: int) -> dict[str, float]:
    """Median ms of an inference alone, the models taking turns."""
    taken: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(rounds):
        for name, model in models.items():
            began = time.perf_counter()
            model.infer()
            taken[name].append((time.perf_counter() - began) * 1e3)
    return {name: float(np.median(values[len(values) // 10 :])) for name, values in taken.items()}
