"""What an engine's own convolutions reach, timed by the profiler that times its layers.

The graph is a chain of convolutions in shapes for which kernels are made: 64 to 256 channels, 3x3
and 1x1, maps of 64 to 16 pixels.
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

BUDGET_S = 1.0  # on a core, for each precision
PATIENCE = 5  # times that under other programs' load, at most
FEWEST = WARMUP + 40  # passes, so that a quarter of them are enough for a median
SIDE = 64  # of the input
# Channels, kernel, and whether the map is halved first; the fastest shape differs by engine.
LAYERS = ((64, 3, False), (64, 3, False), (128, 3, True), (128, 3, False), (128, 3, False),
          (256, 1, False), (256, 1, False), (256, 3, True), (256, 3, False), (512, 1, False),
          (512, 1, False))  # fmt: skip
# What a type's products run on, by the flags of Linux: the first that the CPU has.
INSTRUCTIONS: Mapping[str, Sequence[str]] = {
    "fp32": ("avx512f", "fma", "avx", "sse2", "asimd"),
    "bf16": ("amx_bf16", "avx512_bf16", "bf16"),
    "fp16": ("amx_fp16", "avx512_fp16", "fphp"),
    "int8": ("amx_int8", "avx512_vnni", "avx_vnni", "avx512bw", "avx2", "i8mm", "asimddp"),
}


class Reached(NamedTuple):
    """``by``: library and layer. ``spread``: the median pass over the quiet ones (0.1: 10%)."""

    gflops_s: float
    by: str
    spread: float


def instructions_of(precision: str) -> str:
    """The flag of the instructions that products of this type can use; "" where none is known."""
    return next((one for one in INSTRUCTIONS.get(precision, ()) if one in cpu_flags()), "")


def measure(
    engine: str, precision: str, threads: int, own: Mapping[str, str]
) -> dict[str, Reached]:
    """Reached by the precision that really ran: fp32 and ``precision``, unless refused."""
    found: dict[str, Reached] = {}
    for one in dict.fromkeys(("fp32", precision)):
        options = EngineOptions(
            requests=1, concurrency=1, threads=threads, precision=one, device="cpu", own=dict(own)
        )
        try:
            for name, reached in _measure(engine, options):
                if name not in found or reached.gflops_s > found[name].gflops_s:
                    found[name] = reached
        except (EngineError, ModelError):
            continue  # layers of this type then have no share of a roof
    return found


def _measure(engine: str, options: EngineOptions) -> Iterator[tuple[str, Reached]]:
    plain = chain()
    network = _converted(plain, engines.graph_wanted(engine, options.precision, "cpu"))
    picture = np.random.default_rng(0).integers(0, 256, (1, SIDE, SIDE, 3), np.uint8)
    engines.load_library(engine)
    with _profiler(engine, network, options) as profiler:
        passes, start, used = 0, time.perf_counter(), time.process_time()
        while passes < FEWEST or _is_in_budget(start, used, max(1, options.threads or 1)):
            profiler.run(picture)
            passes += 1
        told = profiler.times()
    library = library_version(engine) or engine
    costs = joint_cost(plain.graph, [_nodes(layer, network) for layer, _ in told])
    # Single times are too coarse: OpenVINO reports means over all runs, to the microsecond. Each
    # layer has quiet runs of its own, since on a busy machine hardly a whole pass is quiet.
    for (layer, times), cost in zip(told, costs, strict=True):
        ms = statistics.median(times[at] for at in quiet_runs(times))
        if cost.macs and ms > 0:
            rate = 2 * cost.macs / ms / 1e6
            spread = statistics.median(times) / ms - 1
            shape = "x".join(map(str, cost.shape))
            yield layer.precision, Reached(rate, f"{library}, a convolution to {shape}", spread)


def _is_in_budget(start: float, used: float, threads: int) -> bool:
    """Check the budget by CPU time: other programs' share of the seconds does not count."""
    enough = time.process_time() - used >= BUDGET_S * threads
    return not enough and time.perf_counter() - start < BUDGET_S * PATIENCE


@contextmanager
def _profiler(engine: str, network: Network, options: EngineOptions) -> Iterator[LayerProfiler]:
    # Open at the same time, as when layers are timed: some engines set up their threads there.
    with engines.open(engine, network, options) as opened:
        threads = opened.threads
        profiler = opened.layer_profiler(network, replace(options, threads=threads))
        try:
            yield profiler
        finally:
            profiler.close()


def _nodes(layer: LayerExecution, network: Network) -> list[str]:
    from detector.core.models.graph.qdq import original_names

    names = original_names(network.graph)
    return [names.get(name, name) for name in layer.nodes or (layer.name,)]


def chain() -> Network:
    dice = np.random.default_rng(1)
    made = GraphBuilder("peaks")
    x, before = made.input_u8(1, SIDE, SIDE), 3
    for at, (channels, kernel, halved) in enumerate(LAYERS):
        if halved:
            x = made.max_pool(f"{at}.pool", x, 2, [2, 2], [0] * 4)
        x = _conv(made, dice, f"{at}.conv", x, before, channels, kernel)
        x = made.add("Relu", f"{at}.act", [x])
        before = channels
    graph = made.model([_conv(made, dice, "out", x, before, 8, 1)])
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


def _conv(
    made: GraphBuilder,
    dice: np.random.Generator,
    name: str,
    x: str,
    before: int,
    channels: int,
    kernel: int,
) -> str:
    shape = (channels, before, kernel, kernel)
    size = np.sqrt(2 / (before * kernel**2)) / (100 if before == 3 else 1)
    weight: NDArray[np.float32] = dice.normal(0, size, shape).astype(np.float32)
    pads = [kernel // 2] * 4
    # A network's biases are not 0, and engines treat a bias of 0 as none.
    bias = dice.normal(0, 0.1, channels).astype(np.float32)
    return made.conv(name, x, weight, bias, strides=[1, 1], pads=pads)


def _converted(network: Network, wanted: str) -> Network:
    if wanted == network.precision:
        return network
    if wanted in ("fp16", "bf16"):
        from detector.core.models.graph.halves import convert_to_halves

        return convert_to_halves(network, wanted)
    from detector.core.models.graph.qdq import depthwise_inputs, quantised_graph, tensors_to_measure
    from detector.core.models.graph.ranges import measure_ranges

    slots = np.random.default_rng(2).integers(0, 256, (2, SIDE, SIDE, 3), np.uint8)
    given = network.graph
    by_channel = depthwise_inputs(given)
    ranges = measure_ranges(
        given, tensors_to_measure(given), slots, "minmax", by_channel=by_channel
    )
    graph = quantised_graph(given, ranges, (), wanted)
    return replace(network, graph=graph, precision=wanted)
