"""Models as the evaluator calls them: a picture in, every cell's box and scores out."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from training import validation


def ours(model: str, weights: str | None, size: tuple[int, int] | None, threads: int) -> validation.Model:
    """A model of the package with the classes person and vehicle, through ONNX Runtime."""
    from detector.models import open_network

    network = open_network(model, weights=weights, size=size)
    rules, infer = network.input, session(network.graph.SerializeToString(), threads)

    def rows(image):
        slot, fit = validation.boxed(image, (rules.height, rules.width), rules.geometry, rules.pad_value)
        dense = network.dense(infer(slot[None]))[0]
        half = dense[:, 2:4] / 2
        boxes = np.concatenate([dense[:, :2] - half, dense[:, :2] + half], axis=1)
        return validation.in_source(boxes, fit), dense[:, 4:5] * dense[:, 5:]

    return rows


def yolox(path: Path, size: tuple[int, int], threads: int) -> validation.Model:
    """yolox_nano with COCO's classes mapped to ours."""
    from training.teacher import any_size, decoded

    infer = session(any_size(path.read_bytes()).SerializeToString(), threads)

    def rows(image):
        slot, fit = validation.boxed(image, size, "top-left-truncate", 114)
        bgr = np.ascontiguousarray(slot[None, ..., ::-1].transpose(0, 3, 1, 2), np.float32)
        boxes, scores = decoded(infer(bgr)[0], *size)
        return validation.in_source(boxes[0], fit), scores[0]

    return rows


def session(model: bytes, threads: int):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    made = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    name = made.get_inputs()[0].name
    return lambda x: made.run(None, {name: x})
