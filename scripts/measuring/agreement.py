"""Agreement with fp32 of every precision, on the clip that int8 was calibrated on and on clips that it never saw."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from detector.analysis.agreement import Agreement, agreement
from detector.config import CalibrationConfig
from detector.models import open_network
from detector.models.base import Network
from detector.models.convert import HALVES, converted
from detector.quantize import KINDS, frames
from detector.quantize.calibration import Calibration, calibrated
from detector.quantize.measure import Reference, detections, outputs
from detector.quantize.qdq import quantised_graph
from measuring.rounded import rounded


@dataclass(frozen=True, slots=True)
class Row:
    """``clips``: clip -> agreement. ``float_*``: of the multiplying layers and their MACs; None for what is no int8."""

    model: str
    precision: str
    clips: dict[str, Agreement]
    layers: int | None = None
    float_layers: int | None = None
    float_macs: float | None = None


def rows(
    model: str, weights: str | None, asked: CalibrationConfig, clips: Sequence[Path], count: int,
    say: Callable[[str], None],
) -> Iterator[Row]:  # fmt: skip
    """One a precision: fp16, bf16, then both kinds of int8, first with every layer int8, then as searched."""
    network = open_network(model, weights=weights)
    references = {clip.name: _reference(network, clip, count) for clip in clips}
    for precision in HALVES:
        graph = rounded(converted(network, precision).graph)
        yield Row(network.name, precision, _compared(network, graph, references))
    began = time.perf_counter()
    found = calibrated(network, frames.read(str(asked.calibrate), network.input, asked.calibrate_frames), asked)
    say(f"{network.name}: calibrated in {time.perf_counter() - began:.0f} s, "
        f"{sum(result.runs for result in found.result.values())} graphs measured")  # fmt: skip
    for kind in KINDS:
        yield from _int8(network, found, kind, references)


def _int8(network: Network, found: Calibration, kind: str, references: dict[str, Reference]) -> Iterator[Row]:
    result = found.result[kind]
    plain = quantised_graph(network.graph, found.ranges, (), kind)
    yield Row(network.name, f"{kind}, all", _compared(network, plain, references), result.layers, 0, 0.0)
    graph = quantised_graph(network.graph, found.ranges, set(result.kept), kind)
    compared = _compared(network, graph, references)
    yield Row(network.name, kind, compared, result.layers, result.float_layers, result.float_macs)


def _reference(network: Network, clip: Path, count: int) -> Reference:
    read = frames.read(str(clip), network.input, count)
    return Reference.of(network, np.concatenate([read.seen, read.held_out]) if read.apart else read.seen)


def _compared(network: Network, graph: object, references: dict[str, Reference]) -> dict[str, Agreement]:
    found = {}
    for name, reference in references.items():
        raw = outputs(network, graph, reference.slots)  # type: ignore[arg-type]
        found[name] = agreement(reference.found, detections(network, raw))
    return found


def table(results: Sequence[Row], calibration: str) -> str:
    """Markdown. A cell: agreement, and mean score difference of the pairs behind it."""
    clips = list(results[0].clips)
    named = [f"{name} (calibrated on)" if name == calibration else name for name in clips]
    lines = [
        "| " + " | ".join(["model", "precision", "float layers", "float MACs", *named]) + " |",
        "|---" * (4 + len(clips)) + "|",
    ]
    for row in results:
        layers = "-" if row.layers is None else f"{row.float_layers} of {row.layers}"
        macs = "-" if row.float_macs is None else f"{row.float_macs:.0%}"
        cells = [f"{row.clips[name].share:.3f} ({row.clips[name].mean_score_diff:.3f})" for name in clips]
        lines.append("| " + " | ".join([row.model, row.precision, layers, macs, *cells]) + " |")
    counts = [f"{name} {results[0].clips[name].frames} frames, {results[0].clips[name].reference}" for name in clips]
    return "\n".join([*lines, "", f"detections of {results[0].model} in fp32: {'; '.join(counts)}"])
