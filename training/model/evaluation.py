"""The accuracy of a model on the validation pictures, and its speed.

Classes are mapped before NMS. Boxes need a score above 0.001; NMS is per class, at IoU 0.65; a
match needs IoU 0.5. ``detector.core.analysis.matching`` computes the statistics.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import cv2
import numpy as np
from numpy.typing import NDArray

from detector.core.analysis import matching
from detector.core.analysis.agreement import agreement
from detector.core.analysis.assignment import overlaps
from detector.core.config.schema import CalibrationConfig
from detector.core.stages.nms import nms
from detector.core.stages.preprocess import letterbox
from detector.core.types import Candidates, Letterbox
from detector.lab.analysis.accuracy import average_precision as ap
from model.data import CLASSES, IGNORED

if TYPE_CHECKING:
    from detector.core.models import Network
    from detector.core.run.quantize.calibrate import Calibration, Int8Result
    from detector.core.run.quantize.search import Reference

NAMES = ("person", "vehicle")
CONFIDENCE, NMS_IOU, MAX_KEPT = 0.001, 0.65, 300
REPORTED = 0.25  # the score at which recall and precision are reported
CALIBRATION = 256  # training pictures for int8: one half for the ranges, one for the agreement

PRODUCT_NMS_IOU = 0.45  # detect-video's default

Rows = tuple[NDArray[np.float32], NDArray[np.float32]]
Model = Callable[[NDArray[np.uint8]], Rows]
"""u8 BGR picture -> boxes xyxy [N, 4] in its pixels, scores [N, 2]; before threshold and NMS."""
Results = dict[tuple[str, str], list[matching.Matches]]
"""(group, class) -> one entry per picture."""


# The pictures


@dataclass(slots=True)
class Labelled:
    """One validation picture."""

    image: NDArray[np.uint8]  # BGR
    group: str  # "coco", "road", "overpass", "elevated", "street.mp4"
    held_out: bool  # used only for final figures, not for choices
    truths: tuple[matching.Truth | None, matching.Truth | None]  # per class; None: not labelled
    name: str = ""  # the file's name


def is_held_out(name: str) -> bool:
    """Return whether a picture is in the held-out half. The hash of its name decides."""
    return hashlib.sha256(name.encode()).digest()[0] % 2 == 1


def read_validation(labelled: Path) -> Iterator[Labelled]:
    """Read ``coco/val`` and ``highway/valid``."""
    for part, split in (("coco", "val"), ("highway", "valid")):
        path = labelled / part / f"{split}.json"
        yield from _read(
            path, lambda entry, at=path.parent: cv2.imread(str(at / entry["file_name"]))
        )


def read_clip(video: Path, every: int) -> Iterator[Labelled]:
    """Read one frame in ``every`` from a clip that has a COCO json next to it."""
    capture, at = cv2.VideoCapture(str(video)), -1

    def frame(entry: dict) -> NDArray[np.uint8]:
        nonlocal at
        while at < entry["frame_index"]:
            at += 1
            capture.grab()
        return capture.retrieve()[1]

    yield from _read(video.with_suffix(".json"), frame, video.name, every)


def _read(
    path: Path, picture: Callable[[dict], NDArray[np.uint8]], group: str = "coco", every: int = 1
) -> Iterator[Labelled]:
    document = json.loads(path.read_text(encoding="utf-8"))
    names = {row["id"]: row["name"] for row in document["categories"]}
    rows: dict[int, list[dict]] = {}
    for row in document["annotations"]:
        rows.setdefault(row["image_id"], []).append(row)
    for entry in document["images"][::every]:
        labels = rows.get(entry["id"], [])
        known = {CLASSES[name] for name in entry.get("labelled", NAMES) if name in CLASSES}
        truths = tuple(truth_of(labels, names, c) if c in known else None for c in (0, 1))
        held_out = is_held_out(entry["file_name"])
        group_of = entry.get("set", group)
        yield Labelled(picture(entry), group_of, held_out, truths, entry["file_name"])


def truth_of(rows: list[dict], names: dict[int, str], class_id: int) -> matching.Truth:
    """Return the true boxes of a class. Objects that resemble vehicles are regions to ignore."""
    objects = []
    for row in rows:
        name = names[row["category_id"]]
        ignored = name in IGNORED
        if CLASSES.get(name) == class_id or (class_id == 1 and ignored):
            objects.append((row["bbox"], ignored, bool(row.get("iscrowd", 0))))
    boxes = np.array([box for box, _, _ in objects], np.float64).reshape(-1, 4)
    boxes[:, 2:] += boxes[:, :2]
    crowd = np.array([c for _, _, c in objects], bool)
    return matching.Truth(boxes, np.array([i for _, i, _ in objects], bool) & ~crowd, crowd)


# The models


def open_ours(
    model: str,
    weights: str | None,
    size: tuple[int, int] | None,
    threads: int,
    int8: CalibrationConfig | None = None,
    packaged: bool = False,
    engine: str = "ort",
) -> Model:
    """Open a model of detect-video, with its classes mapped to person and vehicle.

    ``int8``: quantise it like ``--precision int8 --calibrate ...``. ``packaged``: use the
    calibration that comes with the model.
    """
    from detector.core.models import ModelRequest, open_network

    network = open_network(ModelRequest(str(model), weights=weights and Path(weights), size=size))
    rules = network.input
    if int8 is not None:
        from detector.core.run.quantize import calibrate

        calibration = (
            calibrate.packaged(network, str(model)) if packaged else measure(network, int8)
        )
        if calibration is None:
            raise SystemExit(f"{model}: has no calibration for {rules.width}x{rules.height}")
        network = in_int8(network, calibration, engine)
    infer = open_engine(engine, network, threads)
    columns = [
        [5 + i for i, name in enumerate(network.names) if CLASSES.get(name) == c] for c in (0, 1)
    ]

    def rows(image):
        slot, fit = fit_into(image, (rules.height, rules.width), rules.geometry, rules.pad_value)
        dense = network.dense(infer(slot[None]))[0]
        half = dense[:, 2:4] / 2
        boxes = np.concatenate([dense[:, :2] - half, dense[:, :2] + half], axis=1)
        best = np.stack([dense[:, of_class].max(1) for of_class in columns], axis=1)
        return to_source(boxes, fit), dense[:, 4:5] * best

    grey = np.full((1, rules.height, rules.width, 3), 99, np.uint8)
    rows.infer = lambda: infer(grey)  # type: ignore[attr-defined]
    return rows


def in_int8(network: Network, calibration: Calibration, engine: str) -> Network:
    """Print the calibration, and quantise with it."""
    from detector.core.engines import graph_precision_for
    from detector.core.models.graph.int8 import weight_top
    from detector.core.models.graph.qdq import quantised_graph
    from detector.core.run.quantize.calibrate import FLOAT_IN_BF16

    kind = calibration.form_of(graph_precision_for(engine, "int8"))
    print(*calibration.sentences(calibration.key_here(kind)), sep="\n")
    float_layers = set(calibration.result[kind].kept)
    graph = quantised_graph(network.graph, calibration.ranges, float_layers, kind, weight_top(kind))
    halves = calibration.result.get(FLOAT_IN_BF16)
    details = {**network.details, "int8": {"float_in_bf16": halves and halves.agreement}}
    return replace(network, graph=graph, path=None, precision=kind, details=details)


def open_engine(name: str, network: Network, threads: int) -> Callable:
    """Open an engine with one request; return a function from u8 [1, H, W, 3] to its outputs."""
    from detector.core import engines
    from detector.core.engines.base import EngineOptions

    precision = "fp32" if network.precision == "fp32" else "int8"
    options = EngineOptions(precision=precision, threads=threads, requests=1, concurrency=1)
    engine = engines.open(name, network, options)
    print(*engine.notes, sep="\n", end="\n" if engine.notes else "")
    request = engine.requests[0]

    def infer(slot):
        request.slot[:] = slot
        return [output.copy() for output in request.infer(1)]

    return infer


def open_by_shape(model: str, open_at: Callable[[tuple[int, int]], Model]) -> Model:
    """Return a model that chooses the canvas by each picture's shape, like a run on a video.

    ``open_at``: (height, width) -> the model with this input.
    """
    from detector.core.models.catalogue import canvases_of
    from detector.core.run.canvas import STRIDE
    from detector.core.stages.preprocess import input_of_shape

    own, *_ = canvases_of(model)
    opened = {own: open_at(own)}

    def rows(image):
        height, width = image.shape[:2]
        canvas = input_of_shape(own, STRIDE, width, height)
        if canvas not in opened:
            opened[canvas] = open_at(canvas)
        return opened[canvas](image)

    rows.infer = opened[own].infer  # type: ignore[attr-defined]
    return rows


def measure(network: Network, int8: CalibrationConfig) -> Calibration:
    """Calibrate on the pictures that ``int8`` names."""
    from detector.core.run.quantize.frames import read_frames
    from detector.core.run.quantize.making import calibrate

    frames = read_frames(str(int8.calibrate), network.input, int8.calibrate_frames)
    return calibrate(network, frames, int8)


def package_calibration(model: str, int8: CalibrationConfig, source: str, target: Path) -> None:
    """Write the calibration file that ships with a known model (``calibration:`` in
    cfg/models/NAME.yaml). The file also states how OpenVINO's bf16 agrees with fp32 on the same
    pictures. ``source``: the name of the pictures, stored in the file."""
    from detector.core.models import ModelRequest, open_network
    from detector.core.models.graph.int8 import FRONT
    from detector.core.run.quantize.calibrate import (
        FLOAT_IN_BF16,
        NARROW,
        Int8Result,
        for_packaging,
    )
    from detector.core.run.quantize.frames import read_frames
    from detector.core.run.quantize.making import bf16_can_be_measured, calibrate, float_in_bf16
    from detector.core.run.quantize.search import Reference, detections, raw_outputs

    network = open_network(ModelRequest(model))
    frames = read_frames(str(int8.calibrate), network.input, int8.calibrate_frames)
    calibration = calibrate(network, frames, int8)
    of_fp32 = Reference.of(network, frames.held_out)
    halves = raw_outputs(
        network, network.graph, frames.held_out, "openvino", precision="bf16", concurrency=1
    )
    share = agreement(of_fp32.detections, detections(network, halves)).share
    layers = calibration.result["int8-u8"].layers
    results = {
        "bf16": Int8Result((), share, share, 0, layers, 0.0, 1),
        NARROW: narrow_result(network, calibration, of_fp32),
    }
    if bf16_can_be_measured():
        kind = calibration.form_of(FRONT)
        halves = float_in_bf16(network, calibration.ranges, kind, calibration.result[kind], of_fp32)
        assert halves is not None, "OpenVINO could not run the model"
        results[FLOAT_IN_BF16] = halves
    calibration = replace(calibration, source=source, result={**calibration.result, **results})
    target.write_text(for_packaging(network, calibration), encoding="utf-8")
    for kind, result in calibration.result.items():
        print(f"{kind}: {result.agreement:.4f}, {result.float_layers} of {result.layers} float")


def narrow_result(network: Network, calibration: Calibration, of_fp32: Reference) -> Int8Result:
    """Return the result of int8-u8 with 7-bit weights. With them, sums overflow on no CPU."""
    from detector.core.models.graph.int8 import NARROW_TOP
    from detector.core.models.graph.qdq import quantised_graph

    of_u8 = calibration.result["int8-u8"]
    plain, reached = (
        of_fp32.agreement(
            quantised_graph(network.graph, calibration.ranges, kept, "int8-u8", NARROW_TOP)
        )
        for kept in ((), of_u8.kept)
    )
    return replace(of_u8, plain=plain, agreement=reached, runs=2)


def agreement_of_packaged(
    model: str, int8: CalibrationConfig, size: tuple[int, int] | None
) -> dict[str, float]:
    """Return kind of int8 -> agreement with fp32 at ``size`` (height, width). Uses the shipped
    calibration, and the half of the pictures that the calibration held out to measure agreement."""
    from detector.core.models import ModelRequest, open_network
    from detector.core.models.graph.int8 import FRONT, KINDS, weight_top
    from detector.core.models.graph.qdq import quantised_graph
    from detector.core.run.quantize.calibrate import packaged
    from detector.core.run.quantize.frames import read_frames
    from detector.core.run.quantize.search import Reference

    network = open_network(ModelRequest(model, size=size))
    calibration = packaged(network, model)
    if calibration is None:
        raise SystemExit(f"{model}: has no calibration for this size")
    frames = read_frames(str(int8.calibrate), network.input, int8.calibrate_frames)
    of_fp32 = Reference.of(network, frames.held_out)
    references = {kind: of_fp32 for kind in KINDS if kind in calibration.result}
    if FRONT in references:
        references[FRONT] = of_fp32.by_openvino(FRONT, "fp32")
    return {
        kind: reference.agreement(
            quantised_graph(
                network.graph,
                calibration.ranges,
                calibration.result[kind].kept,
                kind,
                weight_top(kind),
            )
        )
        for kind, reference in references.items()
    }


def open_yolox(path: Path, size: tuple[int, int], threads: int) -> Model:
    """Open yolox_nano with COCO's classes mapped to ours."""
    from model.teacher import decode_yolox, free_size

    infer = open_session(free_size(path.read_bytes()).SerializeToString(), threads)

    def rows(image):
        slot, fit = fit_into(image, size, "top-left-truncate", 114)
        bgr = np.ascontiguousarray(slot[None, ..., ::-1].transpose(0, 3, 1, 2), np.float32)
        boxes, scores = decode_yolox(infer(bgr)[0], *size)
        return to_source(boxes[0], fit), scores[0]

    grey = np.full((1, 3, *size), 99, np.float32)
    rows.infer = lambda: infer(grey)  # type: ignore[attr-defined]
    return rows


def open_session(model: bytes, threads: int) -> Callable:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda x: session.run(None, {name: x})


def fit_into(
    image: NDArray[np.uint8], size: tuple[int, int], geometry: str, pad: int
) -> tuple[NDArray[np.uint8], Letterbox]:
    """Return the letterboxed picture, and the mapping back to the source."""
    slot = np.empty((*size, 3), np.uint8)
    return slot, letterbox(image, slot, geometry=geometry, pad_value=pad)


def to_source(boxes: NDArray[np.float32], fit: Letterbox) -> NDArray[np.float32]:
    return (boxes - np.array([fit.pad_x, fit.pad_y] * 2)) / np.array([fit.scale_x, fit.scale_y] * 2)


def measure_cost(models: dict[str, Model], rounds: int) -> dict[str, float]:
    """Return each model's median ms per inference. Models take turns; the first tenth of the
    rounds is warm-up."""
    times_ms: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(rounds):
        for name, model in models.items():
            start = time.perf_counter()
            model.infer()
            times_ms[name].append((time.perf_counter() - start) * 1e3)
    return {name: float(np.median(ms[len(ms) // 10 :])) for name, ms in times_ms.items()}


# The evaluation


def judge_pictures(model: Model, pictures: list[Labelled], iou: float = NMS_IOU) -> Results:
    """Match a model's boxes with the true boxes on all pictures. ``iou``: NMS threshold."""
    results: Results = {}
    for picture in pictures:
        by_class = judge_picture(model(picture.image), picture, iou)
        for name, result in zip(NAMES, by_class, strict=True):
            if result is not None:
                results.setdefault((picture.group, name), []).append(result)
    return results


def judge_picture(
    rows: Rows, picture: Labelled, iou: float = NMS_IOU
) -> list[matching.Matches | None]:
    """After threshold and NMS, match the boxes of each labelled class with the true boxes."""
    results: list[matching.Matches | None] = []
    for c, labels in enumerate(picture.truths):
        if labels is None:
            results.append(None)
            continue
        boxes, scores = boxes_of(rows, c, picture.image, iou)
        results.append(matching.judge(boxes, scores, labels))
    return results


def boxes_of(rows: Rows, c: int, image: NDArray[np.uint8], iou: float) -> Rows:
    """Return the boxes of one class, inside the picture, and their scores [N], best first."""
    height, width = image.shape[:2]
    kept = suppress(rows, c, rows[1][:, c] > CONFIDENCE, iou)
    return kept.boxes.clip(0, [width, height, width, height]), kept.scores


def find_truths(
    boxes: NDArray, scores: NDArray, truth: matching.Truth, iou: float = 0.5
) -> tuple[matching.Matches, NDArray[np.float64]]:
    """Return the result of ``matching.judge``, and for each true box the score of its match, or 0.
    ``boxes``: best first, as returned by ``boxes_of``."""
    judged = matching.judge(boxes, scores, truth, iou)
    best_scores = np.zeros(len(truth.boxes))
    unmatched = ~(truth.ignored | truth.crowd)
    ious = overlaps(boxes, truth.boxes)
    for at in np.flatnonzero(judged.outcomes == matching.RIGHT):
        best = int(np.argmax(np.where(unmatched, ious[at], -1)))
        best_scores[best], unmatched[best] = judged.scores[at], False
    return judged, best_scores


def suppress(rows: Rows, c: int, keep: NDArray[np.bool_], iou: float):
    """Apply NMS to the chosen rows of one class."""
    scores = rows[1][keep, c].astype(np.float32)
    one_class = np.zeros(len(scores), np.int64)
    candidates = Candidates(rows[0][keep].astype(np.float32), scores, one_class)
    return nms(candidates, iou=iou, max_det=MAX_KEPT)


def figures(results: Results) -> dict[str, float]:
    """Return AP50 of every group and class.

    The labels of ``elevated`` have gaps, so we return its recall and unmatched boxes instead.
    """
    result = {}
    for (group, name), rows in results.items():
        if group == "elevated":
            result["elevated recall"] = round(ap.recall(rows, REPORTED), 4)
            result["elevated unmatched"] = ap.unmatched(rows, REPORTED)
        else:
            result[f"{group} {name}"] = round(ap.average_precision(rows), 4)
    return result
