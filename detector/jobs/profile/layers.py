"""Every layer's time by the engine's own profiler, beside its cost on the graph and what this machine could do."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector import engines, sources
from detector.analysis.layers import Peaks, TimedLayer, agreement, by_type, layer_rows
from detector.engines.layer_times import LayerTimes
from detector.errors import EngineError
from detector.jobs.profile.base import NotHereError, Occasion, as_it_ran
from detector.jobs.profile.peaks import measured_peaks
from detector.models.graph.build import NodeCost, count_macs, joint_cost
from detector.run.wire import (
    LoadedModel,
    first_picture_size,
    load_model,
    open_network,
    stage_functions,
)

ORDER = 40
WHAT = "every layer under the engine's own profiler, beside this machine's peaks"
PICTURES = 8  # of the source, in turn
RUNS, BUDGET_S = 100, 6.0  # of each kind; both kinds together
NO_GRAPH = "a plan holds no graph: MACs, FLOPs and bytes of its layers are not known"


def run(occasion: Occasion) -> dict[str, Any]:
    machine, slots = opened(occasion)
    engine = machine.engine
    assert machine.options is not None
    try:
        told = engines.layer_times(
            engine.name, machine.network, machine.options, slots, RUNS, BUDGET_S
        )
    except EngineError as error:
        raise NotHereError(str(error)) from None
    peaks = measured_peaks(engine.threads) if engine.device == "cpu" else None
    layers, macs = _costed(occasion, machine, told)
    rows = layer_rows(
        layers, Peaks(peaks["gflops_s"], peaks["bandwidth_gbytes_s"]) if peaks else None
    )
    sum_ms = sum(row["ms"] for row in rows)
    gpu = engine.device != "cpu"
    off, flag = agreement(
        sum_ms, told.run_sum_ms, told.forward_ms, told.profiled_ms, told.outside_ms, on_gpu=gpu
    )
    return {
        "engine": engine.name,
        "precision": engine.precision,
        "threads": engine.threads,
        "device": engine.device,
        "batch": machine.network.batch,
        "runs": told.counted,
        "forward_ms": told.forward_ms,
        "profiled_ms": told.profiled_ms,
        "sum_ms": sum_ms,
        "run_sum_ms": told.run_sum_ms,
        "outside_ms": told.outside_ms,
        "off_by": off,
        "flag": flag,
        "notes": [*told.notes, *([NO_GRAPH] if machine.network.plan is not None else [])],
        "macs": macs,
        "peaks": peaks,
        "rows": rows,
        "by_type": by_type(rows),
        "slowdown": told.profiled_ms / told.forward_ms,
    }


def opened(occasion: Occasion) -> tuple[LoadedModel, list[NDArray[np.uint8]]]:
    """The machine as in the plain run, closed again, and the batches that its first frames make. Its options name the
    threads that a request had there: one that is opened alone would get all cores."""
    config = as_it_ran(occasion.config, occasion.plain.document)
    machine = load_model(config, picture=first_picture_size([occasion.source], config))
    with machine.engine:
        preprocess, _, _ = stage_functions(config, machine)
        shape = machine.network.input_shape
        wanted = -(-PICTURES // shape[0]) * shape[0]
        pictures: list[NDArray[np.uint8]] = []
        with sources.open(occasion.source, decoder=config.input.decoder) as source:
            while len(pictures) < wanted and (frame := source.read()) is not None:
                pictures.append(np.zeros(shape[1:], np.uint8))
                preprocess(frame.image, pictures[-1])
    pictures += [pictures[at % len(pictures)] for at in range(-len(pictures) % shape[0])]
    return machine, [
        np.stack(pictures[at : at + shape[0]]) for at in range(0, len(pictures), shape[0])
    ]


def _costed(
    occasion: Occasion, machine: LoadedModel, told: LayerTimes
) -> tuple[list[TimedLayer], int | None]:
    """The layers with their costs on the graph as the front end made it, whose nodes keep their names through every
    conversion; and the graph's MACs a picture. A plan has no graph: its layers have times only."""
    groups = [layer.nodes or (layer.name,) for layer in told.layers]
    costs = [NodeCost(0, 0)] * len(groups)
    macs = None
    if machine.network.plan is None:
        picture = first_picture_size([occasion.source], occasion.config)
        graph = open_network(occasion.config, picture).graph
        costs, macs = joint_cost(graph, groups), count_macs(graph)
    layers = [
        TimedLayer(
            layer.name,
            layer.type,
            layer.precision,
            layer.median_ms or 0.0,
            cost.macs,
            cost.elements,
            layer.nodes,
        )
        for layer, cost in zip(told.layers, costs, strict=True)
    ]
    return layers, macs
