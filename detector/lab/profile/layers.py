"""Time each layer with the engine's profiler, count its work, and compare its speed with peaks."""

from __future__ import annotations

from detector.core import engines
from detector.core.engines._layer_times import LayerTimes
from detector.core.errors import EngineError
from detector.core.errors.machine import NotHereError
from detector.core.models.graph.build import (
    NodeCost,
    count_macs,
    joint_cost,
    parameters_of,
    uncounted,
)
from detector.core.models.graph.qdq import original_names
from detector.core.run.canvas import open_network
from detector.core.run.loading import LoadedModel
from detector.core.run.reading import SourceReading
from detector.lab.analysis.layers import (
    TimedLayer,
    above_roof,
    describe_uncounted,
    explain_sum,
    layer_rows,
    sum_by_block,
    sum_by_type,
)
from detector.lab.peaks import PeakSetup, find_peaks, measure_again
from detector.lab.profile.base import Occasion, Pass, Varies
from detector.lab.profile.batches import open_with_batches
from detector.lab.session.network import LayerRow, LayersFacts, Peaks

ALONE = Varies((), "one request alone")
RUNS, BUDGET_S = 100, 6.0  # limits: runs with the profiler (as many without it), seconds of all
FEW_ABOVE = 0.02  # this share of the layers may be above the roofline by chance
MAX_REPEATS = 3  # if more are above, the peaks are measured again, at most this often
NO_GRAPH = "a TensorRT plan contains no graph: MACs, FLOPs and bytes of its layers are unknown"


def measure_layers(occasion: Occasion) -> LayersFacts:
    machine, batches = open_with_batches(occasion)
    engine = machine.engine
    assert machine.options is not None
    try:
        timed = engines.time_layers(
            engine.name, machine.network, machine.options, batches, RUNS, BUDGET_S
        )
    except EngineError as error:
        raise NotHereError(str(error)) from None
    layers, macs, parameters, uncounted_nodes = _add_costs(occasion, machine, timed)
    if engine.device == "cpu":
        peaks, rows = _compare_with_peaks(occasion, machine, layers)
    else:
        peaks, rows = None, layer_rows(layers, occasion.sheet_peaks(engine.precision))
    sum_ms = sum(row.ms for row in rows)
    off, flag = explain_sum(
        sum_ms,
        timed.run_sum_ms,
        timed.forward_ms,
        timed.profiled_ms,
        timed.outside_ms,
        on_gpu=engine.device != "cpu",
    )
    return LayersFacts(
        engine=engine.name,
        precision=engine.precision,
        threads=engine.threads,
        device=engine.device,
        batch=machine.network.batch,
        runs=timed.counted,
        forward_ms=timed.forward_ms,
        profiled_ms=timed.profiled_ms,
        sum_ms=sum_ms,
        run_sum_ms=timed.run_sum_ms,
        outside_ms=timed.outside_ms,
        off_by=off,
        flag=flag,
        notes=[
            *timed.notes,
            *([NO_GRAPH] if machine.network.plan is not None else []),
            *([describe_uncounted(uncounted_nodes)] if uncounted_nodes else []),
        ],
        macs=macs,
        parameters=parameters,
        uncounted=uncounted_nodes,
        peaks=peaks,
        rows=rows,
        by_type=sum_by_type(rows),
        by_block=sum_by_block(rows),
        slowdown=timed.profiled_ms / timed.forward_ms,
    )


def _compare_with_peaks(
    occasion: Occasion, machine: LoadedModel, layers: list[TimedLayer]
) -> tuple[Peaks, list[LayerRow]]:
    engine, options = machine.engine, machine.options
    assert options is not None
    setup = PeakSetup(engine.name, engine.precision, engine.threads, options.own)
    peaks = find_peaks(setup, occasion.config)
    rows = layer_rows(layers, peaks)
    for _ in range(MAX_REPEATS):
        placed = sum(row.utilisation is not None for row in rows)
        if len(above_roof(rows)) <= FEW_ABOVE * placed:
            break
        peaks = measure_again(setup, occasion.config, peaks)
        rows = layer_rows(layers, peaks)
    return peaks, rows


def _add_costs(
    occasion: Occasion, machine: LoadedModel, timed: LayerTimes
) -> tuple[list[TimedLayer], int | None, int | None, int]:
    """Return the layers with their costs, the graph's MACs per picture, the number of its
    parameters, and the number of nodes whose costs are unknown."""
    groups = [list(layer.nodes or (layer.name,)) for layer in timed.layers]
    costs = [NodeCost(0, 0)] * len(groups)
    macs, parameters, uncounted_nodes = None, None, 0
    if machine.network.plan is None:
        picture = SourceReading.of(occasion.config).picture_size([occasion.source])
        graph = open_network(occasion.config, picture).graph
        renamed = original_names(machine.network.graph)
        groups = [[renamed.get(name, name) for name in group] for group in groups]
        costs, uncounted_nodes = joint_cost(graph, groups), len(uncounted(graph))
        macs = None if uncounted_nodes else count_macs(graph)
        parameters = sum(parameters_of(graph).values())
    layers = [
        TimedLayer(
            layer.name,
            layer.type,
            layer.precision,
            layer.median_ms or 0.0,
            cost.macs,
            0 if layer.view else cost.elements,
            layer.nodes,
            cost.parameters,
            cost.shape,
            layer.view,
        )
        for layer, cost in zip(timed.layers, costs, strict=True)
    ]
    return layers, macs, parameters, uncounted_nodes


PASS = Pass(
    order=40,
    what="every layer, timed by the engine's profiler",
    facts=LayersFacts,
    run=measure_layers,
    varies=ALONE,
)
