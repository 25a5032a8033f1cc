"""Make a calibration: measure ranges on frames, and find the units (node groups) to keep float."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from detector.core import engines, sources
from detector.core.config.schema import CalibrationConfig
from detector.core.engines._built import building
from detector.core.engines.base import BuildProgress
from detector.core.errors import DetectVideoError, EngineError
from detector.core.errors.machine import BF16, cpu_flags
from detector.core.models.base import Network
from detector.core.models.graph.int8 import FRONT, KINDS, WEIGHT_TOP, weight_top
from detector.core.models.graph.qdq import (
    Unit,
    Wiring,
    depthwise_inputs,
    float_share,
    int8_units,
    quantised_graph,
    tensors_to_measure,
)
from detector.core.models.graph.ranges import Range, measure_ranges
from detector.core.run.quantize.calibrate import (
    FLOAT_IN_BF16,
    SUFFIX,
    Calibration,
    Int8Result,
    file_stem,
    model_key,
)
from detector.core.run.quantize.frames import Frames, read_frames, source_sha256
from detector.core.run.quantize.search import (
    OPENVINO,
    RANKING_FRAMES,
    MakeGraph,
    Progress,
    Reference,
    choose_float_units,
    rank_units,
)

if TYPE_CHECKING:
    import onnx


def make_calibration(
    network: Network, settings: CalibrationConfig, folder: Path, progress: BuildProgress
) -> tuple[Calibration, list[str]]:
    """Return the calibration on the source of ``--calibrate``, made now or earlier, and notes."""
    source = str(settings.calibrate)
    sources.refuse_pipe(source, "calibration reads its source more than once")
    with sources.open(source, frames=1):
        pass  # if the source cannot be opened, raise the error before anything is made
    made = building.build_once(
        folder,
        file_stem(network),
        SUFFIX,
        _calibration_key(network, settings),
        lambda target: _make_file(network, settings, target, _make_stoppable(progress)),
    )
    return Calibration.from_json(Path(made.path).read_text(encoding="utf-8")), list(made.notes)


def _calibration_key(network: Network, settings: CalibrationConfig) -> dict[str, Any]:
    import onnxruntime

    top = weight_top(KINDS[0])
    return {
        **model_key(network),
        **({} if top == WEIGHT_TOP else {"weight_top": top}),
        **({"float_in_bf16": True} if bf16_can_be_measured() else {}),
        **({FRONT: True} if engines.is_installed(OPENVINO) else {}),
        "geometry": [network.input.geometry, network.input.pad_value],
        "method": settings.calibrate_method,
        "budget": settings.budget,
        "frames": settings.calibrate_frames,
        "source_sha256": source_sha256(str(settings.calibrate)),
        "onnxruntime": onnxruntime.__version__,
    }


def _make_stoppable(progress: BuildProgress) -> Progress:
    """Return a function that reports progress. It raises EngineError if the user stops the run."""

    def report(doing: str, done: int, of: int) -> None:
        if not progress(doing, done, of):
            raise EngineError("int8: calibration stopped; nothing was kept")

    return report


def _make_file(
    network: Network, settings: CalibrationConfig, target: Path, progress: Progress
) -> dict[str, Any]:
    frames = read_frames(str(settings.calibrate), network.input, settings.calibrate_frames)
    calibration = calibrate(network, frames, settings, progress)
    target.write_text(calibration.to_json(), encoding="utf-8")
    return {
        kind: {"agreement": result.agreement, "plain": result.plain}
        for kind, result in calibration.result.items()
    }


def calibrate(
    network: Network,
    frames: Frames,
    settings: CalibrationConfig,
    progress: Progress = lambda *_: None,
) -> Calibration:
    """Measure the ranges and, unless the weights are random, find which units stay float."""
    ranges = measure_ranges(
        network.graph,
        tensors_to_measure(network.graph),
        frames.seen,
        settings.calibrate_method,
        lambda done, of: progress("int8: ranges", done, of),
        depthwise_inputs(network.graph),
    )
    reference = Reference.of(network, frames.held_out)
    searched = network.random_seed is None
    budget = settings.budget if searched else 0.0  # with a budget of 0, no unit stays float
    search = partial(_search_kinds, network, frames, ranges, budget=budget, progress=progress)
    result, of_openvino = search(KINDS[:2], reference), KINDS[0]
    if engines.is_installed(OPENVINO):
        by_openvino = reference.by_openvino(FRONT, "fp32")
        all_int8 = _graph_maker(network, ranges, FRONT, [])([])
        if _agreement_if_it_runs(by_openvino, all_int8) is not None:
            result |= search((FRONT,), by_openvino)
            of_openvino = FRONT
    if bf16_can_be_measured():
        halves = float_in_bf16(network, ranges, of_openvino, result[of_openvino], reference)
        if halves is not None and halves.agreement >= budget:
            result[FLOAT_IN_BF16] = halves
    return Calibration(
        source=str(settings.calibrate),
        method=settings.calibrate_method,
        seen=len(frames.seen),
        held_out=len(frames.held_out),
        apart=frames.apart,
        frames_sha256=frames.digest,
        budget=settings.budget,
        searched=searched,
        detections=sum(map(len, reference.detections)),
        ranges=ranges,
        result=result,
    )


def bf16_can_be_measured() -> bool:
    return bool(cpu_flags() & BF16) and engines.is_installed(OPENVINO)


def float_in_bf16(
    network: Network,
    ranges: Mapping[str, Range],
    kind: str,
    int8_result: Int8Result,
    reference: Reference,
) -> Int8Result | None:
    """Measure the int8 graph with its float layers in bf16; None if OpenVINO cannot run it."""
    graph = quantised_graph(network.graph, ranges, set(int8_result.kept), kind, weight_top(kind))
    share = _agreement_if_it_runs(reference.by_openvino(kind, "bf16"), graph)
    return None if share is None else replace(int8_result, agreement=share, runs=1)


def _agreement_if_it_runs(reference: Reference, graph: onnx.ModelProto) -> float | None:
    try:
        return reference.agreement(graph)
    except DetectVideoError:
        return None


def _search_kinds(
    network: Network,
    frames: Frames,
    ranges: Mapping[str, Range],
    kinds: Sequence[str],
    reference: Reference,
    budget: float,
    progress: Progress,
) -> dict[str, Int8Result]:
    """Find the units that stay float in each kind. They also stay float in all later kinds."""
    units = int8_units(Wiring(network.graph))
    results: dict[str, Int8Result] = {}
    ranking: list[Unit] | None = None
    float_units: list[Unit] = []
    for kind in kinds:
        all_int8 = _graph_maker(network, ranges, kind, [])
        make_graph = _graph_maker(network, ranges, kind, float_units)
        choice = choose_float_units([], make_graph, reference.agreement, 0.0, progress)
        plain = reference.agreement(all_int8([])) if float_units else choice.plain
        runs = len(choice.agreements)
        if choice.plain < budget:
            if ranking is None:
                few = reference.with_slots(_choose_few_frames(frames))
                ranking = rank_units(units, all_int8, few.error, progress)
                runs += len(units)
            rest = [unit for unit in ranking if unit not in float_units]
            choice = choose_float_units(rest, make_graph, reference.agreement, budget, progress)
            runs += len(choice.agreements)
        float_units = [*float_units, *choice.kept]
        nodes = tuple(name for unit in float_units for name in unit.nodes)
        share = float_share(network.graph, nodes)
        results[kind] = Int8Result(
            nodes, plain, choice.reached, share.layers, share.all_layers, share.macs, runs
        )
    return results


def _choose_few_frames(frames: Frames) -> NDArray[np.uint8]:
    chosen = np.linspace(0, len(frames.seen) - 1, RANKING_FRAMES).round().astype(int)
    few: NDArray[np.uint8] = frames.seen[np.unique(chosen)]
    return few


def _graph_maker(
    network: Network, ranges: Mapping[str, Range], kind: str, always_float: Sequence[Unit]
) -> MakeGraph:
    return lambda float_units: quantised_graph(
        network.graph,
        ranges,
        {name for unit in (*always_float, *float_units) for name in unit.nodes},
        kind,
        weight_top(kind),
    )
