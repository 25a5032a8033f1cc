"""Compile a graph with OpenVINO: settings, the type of float layers, and notes for the user."""

from __future__ import annotations

from collections.abc import Set
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from detector.core.engines.base import EngineOptions, cpu_threads, find_fp32_nodes
from detector.core.engines.openvino.devices import Target, find_target
from detector.core.errors import UsageError
from detector.core.errors.machine import BF16, cpu_flags
from detector.core.models.base import Network
from detector.core.types import Background

# Precision -> OpenVINO's hint for the type of float layers. In an int8 graph, Q/DQ nodes mark the
# quantised layers; the others are float (``hint_of``). Without a hint, the device would choose.
HINTS = {"fp32": "f32", "bf16": "bf16", "fp16": "f16", "int8": "f32"}
TYPES = {"f32": "fp32", "f16": "fp16", "bf16": "bf16"}
IN_FLOAT = "openvino computes in float"  # key in the details of a network that must run in float
COMPUTING = ("convolution", "matmul", "fullyconnected", "gemm", "deconvolution")


class Compilation(NamedTuple):
    """A compilation. ``hint``: type of float layers. ``stays``: nodes that stay float32."""

    network: Network
    target: Target
    hint: str
    stays: Set[str]
    streams: int
    threads: int

    def settings(self, core: Any) -> dict[str, Any]:
        """Return those properties that the device supports. HETERO, a virtual device, gets all."""
        target, many = self.target, self.streams > 1
        properties: dict[str, Any] = {
            "PERFORMANCE_HINT": "THROUGHPUT" if many else "LATENCY",
            "INFERENCE_PRECISION_HINT": self.hint,
        }
        if target.kind != "npu":  # an NPU chooses the number of streams itself
            properties["NUM_STREAMS"] = self.streams
        if target.kind == "cpu":
            # A pinned thread cannot move when the reader or the encoder takes its core, so
            # inference would wait until the core is free.
            threads = self.streams * self.threads
            properties |= {"INFERENCE_NUM_THREADS": threads, "ENABLE_CPU_PINNING": False}
        if target.compiled_for == target.own:
            supported = core.get_property(target.own, "SUPPORTED_PROPERTIES")
            properties = {name: value for name, value in properties.items() if name in supported}
        return properties


def plan_compilation(
    network: Network, options: EngineOptions, concurrency: int, core: Any
) -> Compilation:
    target = find_target(core, options)
    hint, stays = hint_of(network, options), find_fp32_nodes(network, options)
    threads = cpu_threads(options, concurrency)
    return Compilation(network, target, hint, stays, concurrency, threads)


def compile_graph(core: Any, compilation: Compilation, **more: Any) -> Any:
    model = _read(core, compilation.network)
    if compilation.stays:
        from detector.core.engines.openvino.precise import mark_precise

        model = mark_precise(core, model, compilation.stays)
    settings = {**compilation.settings(core), **more}
    return core.compile_model(model, compilation.target.compiled_for, settings)


def _read(core: Any, network: Network) -> Any:
    if network.plan is not None:
        from detector.core.engines._openvino_ir import read_ir

        size, more = (network.input.height, network.input.width), network.details
        path = Path(network.plan)
        return read_ir(core, path, size, network.batch, more["pixels"], more["ports"])
    if network.precision.startswith("int8-u8"):
        from detector.core.engines.openvino.pairs import remove_needless_pairs

        return core.read_model(remove_needless_pairs(network.graph).SerializeToString())
    if "recognised" in network.details:
        from detector.core.engines.openvino import quantised

        if quantised.is_quantised_elsewhere(network):
            as_float = network.details.get(IN_FLOAT) or quantised.is_wide(network.graph)
            make = quantised.to_float if as_float else quantised.unsign
            return core.read_model(make(network.graph).SerializeToString())
    return core.read_model(network.path or network.graph.SerializeToString())


def hint_of(network: Network, options: EngineOptions) -> str:
    """Return the type in which float layers compute. The default for int8 is bf16 if the CPU has
    bf16 and the calibration measured the agreement of boxes in bf16; otherwise fp32."""
    chosen = options.own.get("float", "auto")
    if chosen not in ("auto", "fp32", "bf16", "fp16"):
        raise UsageError(f"--engine-options float={chosen}: give auto, fp32, bf16 or fp16")
    if options.precision != "int8":
        return HINTS[options.precision]
    on_cpu = options.device in ("auto", "cpu")
    known = on_cpu and _float_in_bf16(network) is not None and bool(cpu_flags() & BF16)
    return HINTS["bf16" if known else "fp32"] if chosen == "auto" else HINTS[chosen]


def _float_in_bf16(network: Network) -> float | None:
    agreement: float | None = network.details.get("int8", {}).get("float_in_bf16")
    return agreement


def _float_note(network: Network, hint: str, where: str) -> str:
    agreement = _float_in_bf16(network) if hint == "bf16" else None
    # Round down, as the line about the choice of the engine does.
    then = f" (agreement with fp32: {int(agreement * 1000) / 1000:.3f})" if agreement else ""
    return Background(
        f"engine openvino: the layers that int8 leaves in float run in {TYPES[hint]} on {where}"
        f"{then}; --engine-options float=fp32 keeps them in fp32"
    )


def notes_of(compiled: Any, compilation: Compilation, precision: str) -> list[str]:
    """Return notes on the devices and types in which the graph is executed."""
    target, hint = compilation.target, compilation.hint
    where = "this CPU" if target.kind == "cpu" else target.full_name
    notes: list[str] = []
    if target.compiled_for != "CPU":
        places = compiled.get_property("EXECUTION_DEVICES")
        note = f"engine openvino: {target.compiled_for} runs on {' and '.join(places)}"
        note += "" if target.kind == "cpu" else f"; {target.own} is {target.full_name}"
        as_asked = target.kind == "cpu" or not any("CPU" in place for place in places)
        notes.append(Background(note) if as_asked else note)
    types_used = executed_types(compiled)
    if types_used is None:
        notes.append(f"engine openvino: OpenVINO does not report in which types {where} computes")
    elif types_used and (hint not in types_used or types_used - {hint, "f32"}):
        types = " and ".join(TYPES.get(name, name) for name in sorted(types_used))
        asked = precision if hint == HINTS[precision] else f"{TYPES[hint]} for float layers"
        notes.append(
            f"engine openvino: {asked} was requested, but OpenVINO on {where} runs {types}"
        )
    elif hint != HINTS[precision]:
        notes.append(_float_note(compilation.network, hint, where))
    return notes


def executed_types(compiled: Any) -> set[str] | None:
    """Return the float types that OpenVINO reports, or None. HETERO reports one type per layer."""
    with suppress(RuntimeError):
        return {compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()}
    with suppress(RuntimeError):
        infos = [layer.get_rt_info() for layer in compiled.get_runtime_model().get_ordered_ops()]
        types = {
            info["runtimePrecision"].astype(str).lower()
            for info in infos
            if "runtimePrecision" in info
            and info["layerType"].astype(str).lower().startswith(COMPUTING)
        }
        return types & set(TYPES) if types else None
    return None
