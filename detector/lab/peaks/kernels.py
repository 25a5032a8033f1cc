"""Measure how fast an engine's convolutions run, with the same profiler as the pass ``layers``.

The graph is a chain of convolutions in shapes for which kernels are optimised: 64 to 512 channels,
3x3 and 1x1, maps of 64x64 to 16x16 pixels.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from detector.core import engines
from detector.core.engines._layer_times import WARMUP, quiet_runs
from detector.core.engines.base import EngineOptions, LayerExecution, LayerProfiler
from detector.core.errors import EngineError, ModelError
from detector.core.errors.machine import cpu_flags
from detector.core.models.base import InputRules, Network
from detector.core.models.graph.build import GraphBuilder, joint_cost, output_shapes
from detector.core.run.measurements import library_version
from detector.core.types import Candidates

BUDGET_S = 1.0  # CPU seconds per core for each precision
LOAD_FACTOR = 5  # wall time may reach BUDGET_S times this, since other programs may use the cores
FEWEST = WARMUP + 40  # passes; their fastest quarter is then enough for a median
SIDE = 64  # height and width of the input
# Channels, kernel size, and whether the map is halved first. The fastest shape differs by engine.
LAYERS = ((64, 3, False), (64, 3, False), (128, 3, True), (128, 3, False), (128, 3, False),
          (256, 1, False), (256, 1, False), (256, 3, True), (256, 3, False), (512, 1, False),
          (512, 1, False))  # fmt: skip
# CPU flags (as named by Linux) of the instructions that multiply each type, the fastest first.
INSTRUCTIONS: Mapping[str, Sequence[str]] = {
    "fp32": ("avx512f", "fma", "avx", "sse2", "asimd"),
    "bf16": ("amx_bf16", "avx512_bf16", "bf16"),
    "fp16": ("amx_fp16", "avx512_fp16", "fphp"),
    "int8": ("amx_int8", "avx512_vnni", "avx_vnni", "avx512bw", "avx2", "i8mm", "asimddp"),
}


class Reached(NamedTuple):
    """A measured rate. ``by``: the library and the layer that reached it. ``spread``: (median time
    of all passes) / (median time of quiet passes) - 1."""

    gflops_s: float
    by: str
    spread: float


def find_instructions(precision: str) -> str:
    """Return the flag of the fastest instructions that multiply this type; "" if unknown."""
    return next((one for one in INSTRUCTIONS.get(precision, ()) if one in cpu_flags()), "")


def measure(
    engine: str, precision: str, threads: int, own: Mapping[str, str]
) -> dict[str, Reached]:
    """Measure fp32 and ``precision``, if possible. Return precision -> highest rate of a layer."""
    fastest: dict[str, Reached] = {}
    for one in dict.fromkeys(("fp32", precision)):
        options = EngineOptions(
            requests=1, concurrency=1, threads=threads, precision=one, device="cpu", own=dict(own)
        )
        try:
            for name, reached in _measure(engine, options):
                if name not in fastest or reached.gflops_s > fastest[name].gflops_s:
                    fastest[name] = reached
        except (EngineError, ModelError):
            continue  # without a peak, layers of this precision have no roof
    return fastest


def _measure(engine: str, options: EngineOptions) -> Iterator[tuple[str, Reached]]:
    plain = make_chain()
    network = _convert(plain, engines.graph_precision_for(engine, options.precision, "cpu"))
    picture = np.random.default_rng(0).integers(0, 256, (1, SIDE, SIDE, 3), np.uint8)
    engines.load_library(engine)
    with _profiler(engine, network, options) as profiler:
        passes, start, used = 0, time.perf_counter(), time.process_time()
        while passes < FEWEST or _is_in_budget(start, used, max(1, options.threads or 1)):
            profiler.run(picture)
            passes += 1
        timed = profiler.times()
    library = library_version(engine) or engine
    costs = joint_cost(plain.graph, [_nodes(layer, network) for layer, _ in timed])
    # Use medians: OpenVINO's single times are inexact, as it reports running means in microseconds.
    # Choose quiet passes for each layer: on a busy machine hardly any pass is quiet for all layers.
    for (layer, times), cost in zip(timed, costs, strict=True):
        ms = statistics.median(times[at] for at in quiet_runs(times))
        if cost.macs and ms > 0:
            rate = 2 * cost.macs / ms / 1e6
            spread = statistics.median(times) / ms - 1
            shape = "x".join(map(str, cost.shape))
            yield layer.precision, Reached(rate, f"{library}, a convolution to {shape}", spread)


def _is_in_budget(start: float, used: float, threads: int) -> bool:
    """Check the CPU time, since other programs may use much of the wall time."""
    enough = time.process_time() - used >= BUDGET_S * threads
    return not enough and time.perf_counter() - start < BUDGET_S * LOAD_FACTOR


@contextmanager
def _profiler(engine: str, network: Network, options: EngineOptions) -> Iterator[LayerProfiler]:
    # Keep the engine open, as the pass ``layers`` does: some engines start threads when they open.
    with engines.open(engine, network, options) as opened:
        profiler = opened.layer_profiler(network, replace(options, threads=opened.threads))
        try:
            yield profiler
        finally:
            profiler.close()


def _nodes(layer: LayerExecution, network: Network) -> list[str]:
    from detector.core.models.graph.qdq import original_names

    names = original_names(network.graph)
    return [names.get(name, name) for name in layer.nodes or (layer.name,)]


def make_chain() -> Network:
    rng = np.random.default_rng(1)
    builder = GraphBuilder("peaks")
    x, before = builder.input_u8(1, SIDE, SIDE), 3
    for at, (channels, kernel, halved) in enumerate(LAYERS):
        if halved:
            x = builder.max_pool(f"{at}.pool", x, 2, [2, 2], [0] * 4)
        x = _add_conv(builder, rng, f"{at}.conv", x, before, channels, kernel)
        x = builder.add("Relu", f"{at}.act", [x])
        before = channels
    graph = builder.model([_add_conv(builder, rng, "out", x, before, 8, 1)])
    return Network(
        name="peaks",
        family="peaks",
        graph=graph,
        input=InputRules(SIDE, SIDE, "stretch"),
        batch=1,
        output_shapes=output_shapes(graph),
        head=_find_nothing,
        dense=lambda outputs: outputs[0],
        names=("nothing",),
    )


def _find_nothing(outputs: object, conf: float) -> Candidates:
    return Candidates(np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, np.int64))


def _add_conv(
    builder: GraphBuilder,
    rng: np.random.Generator,
    name: str,
    x: str,
    before: int,
    channels: int,
    kernel: int,
) -> str:
    shape = (channels, before, kernel, kernel)
    size = np.sqrt(2 / (before * kernel**2)) / (100 if before == 3 else 1)
    weight: NDArray[np.float32] = rng.normal(0, size, shape).astype(np.float32)
    pads = [kernel // 2] * 4
    # Networks have a bias that is not 0; engines would skip a bias of 0.
    bias = rng.normal(0, 0.1, channels).astype(np.float32)
    return builder.conv(name, x, weight, bias, strides=[1, 1], pads=pads)


def _convert(network: Network, precision: str) -> Network:
    if precision == network.precision:
        return network
    if precision in ("fp16", "bf16"):
        from detector.core.models.graph.halves import convert_to_halves

        return convert_to_halves(network, precision)
    from detector.core.models.graph.qdq import depthwise_inputs, quantised_graph, tensors_to_measure
    from detector.core.models.graph.ranges import measure_ranges

    slots = np.random.default_rng(2).integers(0, 256, (2, SIDE, SIDE, 3), np.uint8)
    graph = network.graph
    by_channel = depthwise_inputs(graph)
    ranges = measure_ranges(
        graph, tensors_to_measure(graph), slots, "minmax", by_channel=by_channel
    )
    graph = quantised_graph(graph, ranges, (), precision)
    return replace(network, graph=graph, precision=precision)
