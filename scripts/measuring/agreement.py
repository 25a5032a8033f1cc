"""Agreement of every precision with fp32, on the calibration clip and on other clips."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx

from detector.core import engines
from detector.core.analysis.agreement import Agreement, agreement, match_pairs
from detector.core.analysis.assignment import overlaps
from detector.core.config.schema import CalibrationConfig
from detector.core.errors import EngineError
from detector.core.models import ModelRequest, open_network
from detector.core.models.base import Network
from detector.core.models.graph.halves import HALVES, convert_to_halves
from detector.core.models.graph.int8 import FRONT, KINDS, weight_top
from detector.core.models.graph.qdq import quantised_graph
from detector.core.run.quantize.calibrate import Calibration
from detector.core.run.quantize.frames import read_frames
from detector.core.run.quantize.making import calibrate
from detector.core.run.quantize.search import SELECTION, Reference, detections
from detector.core.types import Detections
from measuring.rounded import rounded

PRECISIONS = (*HALVES, "int8")
BELOW = 0.2  # a box below the threshold can be a partner, down to this share of the threshold
IOU = 0.5  # lowest IoU of a detection with a partner below the threshold


@dataclass(frozen=True, slots=True)
class Row:
    """The result of one precision. ``clips``: clip -> agreement. ``alone``: number of detections
    without a partner, over all clips, and how many of these have one below the threshold.
    Only for int8: ``layers``: number of layers that multiply; ``float_layers``: how many of them
    stay float; ``float_macs``: the float layers' share of the MACs."""

    model: str
    precision: str
    clips: dict[str, Agreement]
    alone: tuple[int, int]
    layers: int | None = None
    float_layers: int | None = None
    float_macs: float | None = None


def rows(
    model: str,
    weights: str | None,
    config: CalibrationConfig,
    clips: Sequence[Path],
    count: int,
    say: Callable[[str], None],
    precisions: Sequence[str] = PRECISIONS,
    engines_too: Sequence[str] = (),
) -> Iterator[Row]:
    """Yield a row for fp16, one for bf16, and two for each kind of int8: first with every layer in
    int8, then with some layers in float, which the search chose.

    fp16 and bf16 are each followed by a row for every engine in ``engines_too`` (NAME, or
    NAME:OPTION=VALUE) that supports the precision on this machine.
    """
    network = open_network(ModelRequest(model, weights=weights and Path(weights)))
    references = {clip.name: _reference(network, clip, count) for clip in clips}
    for precision in HALVES:
        if precision in precisions:
            graph = rounded(convert_to_halves(network, precision).graph)
            yield Row(network.name, precision, *_compared(network, graph, references))
            yield from _by_engines(network, precision, engines_too, references, say)
    if "int8" not in precisions:
        return
    start = time.perf_counter()
    calibration = calibrate(
        network, read_frames(str(config.calibrate), network.input, config.calibrate_frames), config
    )
    say(
        f"{network.name}: calibrated in {time.perf_counter() - start:.0f} s, "
        f"{sum(result.runs for result in calibration.result.values())} graphs measured"
    )
    for kind in filter(calibration.result.get, KINDS):
        yield from _int8(network, calibration, kind, references)


def _by_engines(
    network: Network,
    precision: str,
    names: Sequence[str],
    references: dict[str, Reference],
    say: Callable[[str], None],
) -> Iterator[Row]:
    for name in names:
        engine, _, option = name.partition(":")
        try:
            wanted = engines.graph_precision_for(engine, precision)
        except EngineError as error:
            say(str(error))
            continue
        graph = (
            network.graph
            if wanted == network.precision
            else convert_to_halves(network, wanted).graph
        )
        engine_options = dict([option.split("=")]) if option else {}
        overrides = {"engine": engine, "options": {"precision": precision, "own": engine_options}}
        by_engine = {
            clip: replace(reference, **overrides) for clip, reference in references.items()
        }
        yield Row(network.name, f"{precision}, {name}", *_compared(network, graph, by_engine))


def _int8(
    network: Network, calibration: Calibration, kind: str, references: dict[str, Reference]
) -> Iterator[Row]:
    result = calibration.result[kind]
    top = weight_top(kind)
    if kind == FRONT:
        references = {
            clip: reference.by_openvino(kind, "fp32") for clip, reference in references.items()
        }
    all_int8 = quantised_graph(network.graph, calibration.ranges, (), kind, top)
    yield Row(
        network.name,
        f"{kind}, all",
        *_compared(network, all_int8, references),
        result.layers,
        0,
        0.0,
    )
    graph = quantised_graph(network.graph, calibration.ranges, set(result.kept), kind, top)
    compared = _compared(network, graph, references)
    yield Row(network.name, kind, *compared, result.layers, result.float_layers, result.float_macs)


def _reference(network: Network, clip: Path, count: int) -> Reference:
    read = read_frames(str(clip), network.input, count)
    return Reference.of(
        network, np.concatenate([read.seen, read.held_out]) if read.apart else read.seen
    )


def _compared(
    network: Network, graph: onnx.ModelProto, references: dict[str, Reference]
) -> tuple[dict[str, Agreement], tuple[int, int]]:
    agreements, unmatched, crossed_threshold = {}, 0, 0
    for name, reference in references.items():
        raw = reference.run(graph)
        ours = detections(network, raw)
        agreements[name] = agreement(reference.detections, ours)
        unmatched += (
            agreements[name].reference + agreements[name].other - 2 * agreements[name].matched
        )
        below = (
            detections(network, outputs, BELOW * SELECTION.conf)
            for outputs in (reference.outputs, raw)
        )
        crossed_threshold += crossings(reference.detections, ours, *below)
    return agreements, (unmatched, crossed_threshold)


def crossings(
    a: Sequence[Detections],
    b: Sequence[Detections],
    a_below: Sequence[Detections],
    b_below: Sequence[Detections],
) -> int:
    """Count the detections of ``a`` whose partner in ``b`` scores below the threshold, and those of
    ``b`` whose partner in ``a`` does.

    ``a_below``, ``b_below``: the detections of the same frames at a lower threshold, best first.
    The boxes of ``a`` (or ``b``) come first: NMS drops a box only for a box that scores higher.
    """
    count = 0
    for ours, theirs, ours_below, theirs_below in zip(a, b, a_below, b_below, strict=True):
        pairs = match_pairs(ours, theirs)
        count += _found_below(ours, {i for i, _, _ in pairs}, theirs_below, len(theirs))
        count += _found_below(theirs, {j for _, j, _ in pairs}, ours_below, len(ours))
    return count


def _found_below(one: Detections, paired: set[int], below: Detections, above: int) -> int:
    """Return how many detections outside ``paired`` have a partner below the threshold. The first
    ``above`` boxes of ``below`` score above the threshold."""
    if len(below) == above:
        return 0
    fits = overlaps(one.boxes, below.boxes[above:]) >= IOU
    fits &= one.class_ids[:, None] == below.class_ids[None, above:]
    return sum(bool(fits[at].any()) for at in range(len(one)) if at not in paired)


def table(results: Sequence[Row], calibration: str) -> str:
    """Return a Markdown table of agreements, with the mean score difference of the pairs."""
    clips = list(results[0].clips)
    calibrated_on = calibration if any(row.layers is not None for row in results) else None
    named = [f"{name} (calibrated on)" if name == calibrated_on else name for name in clips]
    lines = [
        "| " + " | ".join(["model", "precision", "float layers", "float MACs", *named]) + " |",
        "|---" * (4 + len(clips)) + "|",
    ]
    for row in results:
        layers = "-" if row.layers is None else f"{row.float_layers} of {row.layers}"
        macs = "-" if row.float_macs is None else f"{row.float_macs:.0%}"
        cells = [
            f"{row.clips[name].share:.3f} ({row.clips[name].mean_score_diff:.3f})" for name in clips
        ]
        lines.append("| " + " | ".join([row.model, row.precision, layers, macs, *cells]) + " |")
    lines.append("")
    for row in results:
        alone, crossed = row.alone
        share = f"; {crossed} ({crossed / alone:.0%}) have one below it" if alone else ""
        lines.append(
            f"{row.precision}: {alone} detections without a partner above the threshold{share}"
        )
    counts = [
        f"{results[0].clips[name].reference} in {results[0].clips[name].frames} frames of {name}"
        for name in clips
    ]
    return "\n".join([*lines, f"detections of {results[0].model} in fp32: {'; '.join(counts)}"])
