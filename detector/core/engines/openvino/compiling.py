"""How OpenVINO compiles a graph, in which type it computes, and what it says of that."""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path
from typing import Any

from detector.core.engines.base import EngineOptions
from detector.core.errors import EngineError, UsageError
from detector.core.errors.machine import BF16, cpu_flags
from detector.core.models.base import Network
from detector.core.types import Background

# int8 is in the graph, as Q/DQ nodes; what they leave in float runs as f32, or in bf16
# (``hint_of``). The hint is never left out: on a CPU with bf16 the plugin would take bf16 itself.
HINTS = {"fp32": "f32", "bf16": "bf16", "fp16": "f16", "int8": "f32"}
TYPES = {"f32": "fp32", "f16": "fp16", "bf16": "bf16"}


def compile_graph(
    network: Network, hint: str, stays: Set[str], streams: int, threads: int, **more: Any
) -> Any:
    import openvino

    core = openvino.Core()
    # Nothing is kept on disk, whatever the environment or a configuration file of OpenVINO says.
    core.set_property({"CACHE_DIR": ""})
    settings = {
        "PERFORMANCE_HINT": "THROUGHPUT" if streams > 1 else "LATENCY",
        "NUM_STREAMS": streams,
        "INFERENCE_NUM_THREADS": streams * threads,
        "INFERENCE_PRECISION_HINT": hint,
        # Pinned threads cannot move when the reader or the encoder takes their core: inference then
        # waits for both.
        "ENABLE_CPU_PINNING": False,
        **more,
    }
    model = _read(core, network)
    if stays:
        from detector.core.engines.openvino.precise import mark_precise

        model = mark_precise(core, model, stays)
    return core.compile_model(model, "CPU", settings)


def _read(core: Any, network: Network) -> Any:
    if network.plan is not None:
        from detector.core.engines._openvino_ir import read_ir

        size = network.input.height, network.input.width
        return read_ir(core, Path(network.plan), size, network.batch, network.details["outputs"])
    if network.precision == "int8-u8":
        from detector.core.engines.openvino.pairs import remove_needless_pairs

        return core.read_model(remove_needless_pairs(network.graph).SerializeToString())
    return core.read_model(network.path or network.graph.SerializeToString())


def check_contract(compiled: Any, network: Network) -> None:
    """The compiled graph must match the description: else it would write past the end of our
    arrays.
    """
    found = tuple(
        [
            (port.element_type.get_type_name(), tuple(port.partial_shape.to_shape()))
            for port in ports
        ]
        for ports in (compiled.inputs, compiled.outputs)
    )
    if found != (
        [("u8", network.input_shape)],
        [("f32", tuple(shape)) for shape in network.output_shapes],
    ):
        raise EngineError(
            f"engine openvino: the graph of {network.name} takes {found[0]} and gives {found[1]}; "
            f"expected one u8 input {network.input_shape} and f32 outputs {network.output_shapes}"
        )


def hint_of(network: Network, options: EngineOptions) -> str:
    """What the plugin computes in where the graph does not say.

    Layers that stay float in int8 run in bf16 where that is known to be harmless: a calibration
    measures it (``quantize.calibrate.FLOAT_IN_BF16``).
    """
    chosen = options.own.get("float", "auto")
    if chosen not in ("auto", "fp32", "bf16"):
        raise UsageError(f"--engine-options float={chosen}: give auto, fp32 or bf16")
    known = _float_in_bf16(network) is not None and bool(cpu_flags() & BF16)
    if options.precision == "int8" and (chosen == "bf16" or (chosen == "auto" and known)):
        return HINTS["bf16"]
    return HINTS[options.precision]


def _float_in_bf16(network: Network) -> float | None:
    """Agreement with fp32 of int8 whose float layers run in bf16, where the calibration has it."""
    agreement: float | None = network.details.get("int8", {}).get("float_in_bf16")
    return agreement


def _float_note(network: Network) -> str:
    agreement = _float_in_bf16(network)
    # Rounded down, as the line on the engine's choice has it.
    told = f" (agreement with fp32: {int(agreement * 1000) / 1000:.3f})" if agreement else ""
    return Background(
        f"engine openvino: the layers that int8 leaves in float run in bf16 on this CPU{told}; "
        "--engine-options float=fp32 keeps them in fp32"
    )


def notes_of(compiled: Any, network: Network, precision: str, hint: str) -> list[str]:
    runs = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
    if runs == hint:
        return [] if hint == HINTS[precision] else [_float_note(network)]
    return [
        f"engine openvino: {precision} was requested, but OpenVINO on this CPU runs "
        f"{TYPES.get(runs, runs)}"
    ]
