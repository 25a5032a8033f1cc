"""A calibration: the ranges of a network's tensors, and what stays float in int8.

It is kept as one file for a model and an input size, whatever the batch and the kind of int8, so
that every int8 graph of the model comes from the same measurement. ``get_calibration`` finds the
file or has it made; ``calibrate`` makes the calibration itself. A known model may come with one
(``packaged``): it is used where no other is kept, and where ``--calibrate packaged`` names it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from detector.core import engines, sources
from detector.core.config.schema import PACKAGED, CalibrationConfig, Config
from detector.core.engines._built import proof, store
from detector.core.engines.base import BuildProgress
from detector.core.errors import DetectVideoError, EngineError, ModelError, UsageError
from detector.core.errors.guard import keep
from detector.core.errors.machine import BF16, cpu_flags
from detector.core.errors.parsing import parse_json
from detector.core.errors.text import counted
from detector.core.models.base import Network
from detector.core.models.catalogue import canvases_of, known, known_model
from detector.core.models.graph.qdq import (
    KINDS,
    WEIGHT_TOP,
    Unit,
    Wiring,
    float_share,
    int8_units,
    quantised_graph,
    tensors_to_measure,
)
from detector.core.models.graph.ranges import Range, measure_ranges
from detector.core.run.quantize.frames import Frames, read_frames, source_sha256
from detector.core.run.quantize.search import (
    RANKING_FRAMES,
    MakeGraph,
    Progress,
    Reference,
    choose_float_units,
    rank_units,
    weight_top,
)

SCHEMA = 1
# A key of ``Calibration.result`` that packaged calibrations have: int8-u8 with weights of 7 bits.
NARROW = "int8-u8, 7 bits"
# Another one, of those that were made on a CPU with bf16: int8-u8 by OpenVINO, whose float layers
# run in bf16. Where a calibration has it, the engine does so. One of the user's has it within the
# budget, a packaged one by what that loses in AP50 (docs/model-street.md).
FLOAT_IN_BF16 = "int8-u8, float in bf16"
HALVES_ENGINE = "openvino"  # the only one that mixes int8 and bf16
SUFFIX = ".calibration"  # a JSON file; its manifest, beside it, ends in .json
UNREADABLE = (UsageError, ValueError, KeyError, TypeError, AttributeError, OverflowError)


@dataclass(frozen=True, slots=True)
class Result:
    """What one kind of int8 reaches. Agreements are with fp32, on the held-out frames."""

    kept: tuple[str, ...]  # nodes that stay float
    plain: float  # agreement with every layer int8
    agreement: float  # agreement with ``kept`` in float
    float_layers: int  # multiplying layers that stay float, of ``layers``
    layers: int
    float_macs: float  # their share of all MACs, 0..1
    runs: int  # graphs that were measured

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "kept": list(self.kept)}


@dataclass(frozen=True, slots=True)
class Calibration:
    """The document of a calibration file. ``result``: by kind of int8, and for
    ``FLOAT_IN_BF16``; for ``NARROW`` and bf16 too in one that is packaged."""

    source: str
    method: str
    seen: int  # frames that the ranges are from
    held_out: int  # frames that agreement was measured on
    apart: bool  # whether these are other frames
    frames_sha256: str
    budget: float
    searched: bool
    detections: int  # of fp32 on the held-out frames
    ranges: Mapping[str, Range]
    result: Mapping[str, Result]

    def key_here(self, kind: str) -> str:
        """The key of ``result`` that says what a kind reaches on this CPU."""
        return NARROW if weight_top(kind) != WEIGHT_TOP and NARROW in self.result else kind

    def sentences(self, kind: str) -> list[str]:
        """Lines for the user about one kind of int8."""
        result = self.result[kind]
        measured_on = (
            f"{counted(self.held_out, 'frame')} held out"
            if self.apart
            else "the same frames, which are too few to hold any out"
        )
        lines = [
            f"int8: calibrated on {counted(self.seen, 'frame')} of {self.source} ({self.method}); "
            f"{result.float_layers} of {counted(result.layers, 'layer')} ({result.float_macs:.0%} "
            "of the "
            f"MACs) stay float; agreement with fp32 is {result.agreement:.3f} on {measured_on} "
            f"({result.plain:.3f} with every layer in int8)"
        ]
        if kind == NARROW:
            lines.append("int8: this CPU has no VNNI, so weights have 7 bits")
        if self.searched and not self.detections:
            lines.append(
                "int8: fp32 detects nothing on these frames, so the loss of int8 is unknown; "
                "calibrate on a video that shows what you look for"
            )
        if not self.searched:
            lines.append(
                "int8: with random weights there is no search for layers to keep in float; "
                "measure speed only, not accuracy"
            )
        return lines

    def as_document(self) -> dict[str, Any]:
        """JSON values."""
        document = {**asdict(self), "schema": SCHEMA}
        document["result"] = {kind: result.as_dict() for kind, result in self.result.items()}
        return document

    def to_json(self) -> str:
        return json.dumps(self.as_document(), indent=1) + "\n"

    @staticmethod
    def from_json(text: str) -> Calibration:
        """Raises one of ``UNREADABLE`` for a text that is not a calibration."""
        return Calibration.from_document(parse_json(text, "calibration"))

    @staticmethod
    def from_document(document: dict[str, Any]) -> Calibration:
        """Raises one of ``UNREADABLE`` for JSON values that are not a calibration."""
        if document.pop("schema") != SCHEMA:
            raise ValueError("another schema")
        ranges = {
            name: (float(low), float(high)) for name, (low, high) in document.pop("ranges").items()
        }
        result = {
            kind: Result(**{**entry, "kept": tuple(entry["kept"])})
            for kind, entry in document.pop("result").items()
        }
        return Calibration(**document, ranges=ranges, result=result)


# Finding the file, or having it made


def get_calibration(
    network: Network, config: Config, folder: Path, progress: BuildProgress
) -> tuple[Calibration, list[str]]:
    """Makes the calibration that ``--calibrate`` asks for; without it, finds the one that is kept
    for this model and size. Returns it with lines for the user.
    """
    asked = config.calibration
    if asked.calibrate is None:
        return _find_kept(network, config, folder)
    if asked.calibrate == PACKAGED:
        found = packaged(network, config.network.model)
        if found is None:
            raise UsageError(f"--calibrate {PACKAGED}: {_no_packaged(network)}")
        return found, []
    sources.refuse_pipe(asked.calibrate, "calibration reads its source more than once")
    with sources.open(asked.calibrate, frames=1):
        pass  # a source that cannot be opened is refused before anything is made
    made = store.build_once(
        folder,
        _file_stem(network),
        SUFFIX,
        _key(network, asked),
        lambda target: _make_file(network, asked, target, _stoppable(progress)),
    )
    return Calibration.from_json(Path(made.path).read_text(encoding="utf-8")), list(made.notes)


def _find_kept(network: Network, config: Config, folder: Path) -> tuple[Calibration, list[str]]:
    """The newest calibration that fits; those of the method and budget asked for come first."""
    wanted, notes = _model_key(network), []
    pattern = re.compile(re.escape(_file_stem(network)) + "-[0-9a-f]{12}" + re.escape(SUFFIX))
    paths = [path for path in folder.glob(f"*{SUFFIX}") if pattern.fullmatch(path.name)]
    asked = (config.calibration.calibrate_method, config.calibration.budget)

    def rank(path: Path) -> tuple[bool, float, str]:
        key = store.read_manifest(path).get("key", {})
        return (key.get("method"), key.get("budget")) == asked, store.age(path), path.name

    for path in sorted(paths, key=rank, reverse=True):
        manifest = store.read_manifest(path)
        if any(manifest.get("key", {}).get(name) != value for name, value in wanted.items()):
            continue
        reason = proof.why_not(path, manifest)
        try:
            found = Calibration.from_json(path.read_text()) if reason is None else None
        except UNREADABLE:
            reason = "it is damaged"
        if found is None or reason is not None:
            notes.append(f"{path}: {reason}, not used; calibrate again with --calibrate IN.mp4")
            continue
        keep("the calibration", path, path.with_suffix(".json"))
        return found, [*notes, f"int8: uses the calibration {path}"]
    if (own := packaged(network, config.network.model)) is not None:
        return own, notes
    size = f"{network.input.width}x{network.input.height}"
    advice = (
        f"int8 must be calibrated on frames like yours, and {folder} holds no calibration of "
        f"{network.name} at {size}; calibrate with: detect-video IN.mp4 "
        f"--model {config.network.model} --precision int8 --calibrate IN.mp4"
    )
    raise UsageError("; ".join([*notes, advice]))


def packaged(network: Network, model: str) -> Calibration | None:
    """The calibration that a known model comes with, for its own weights and input size.

    Where the model declares canvases, it holds at every size: ranges are of tensors, which are the
    same ones, and docs/model-street.md has the agreement on other canvases.
    """
    if model not in known() or (path := known_model(model).calibration) is None:
        return None
    try:
        document = parse_json(path.read_text(encoding="utf-8"), str(path))
        made, wanted = document.pop("key"), json.loads(json.dumps(_model_key(network)))
        if canvases_of(model):
            made.pop("input"), wanted.pop("input")
        if made != wanted:
            return None
        found = Calibration.from_document(document)
    except (OSError, *UNREADABLE) as exc:
        raise ModelError(f"{path}: is no calibration; install detect-video again") from exc
    keep("the calibration", path)
    return found


def for_packaging(network: Network, calibration: Calibration) -> str:
    """The text of the file that ``packaged`` reads."""
    return json.dumps({"key": _model_key(network), **calibration.as_document()}, indent=1) + "\n"


def _no_packaged(network: Network) -> str:
    having = [name for name in known() if known_model(name).calibration is not None]
    return (
        f"{network.name} at {network.input.width}x{network.input.height} comes with no "
        f"calibration; {', '.join(having)} does, for its own weights and its own size (leave "
        "--size out); else give --calibrate a video or pictures"
    )


def _model_key(network: Network) -> dict[str, Any]:
    """What a calibration must have in common with a network to be used for it."""
    names = "\n".join(tensors_to_measure(network.graph))
    return {
        "schema": SCHEMA,
        "sources_sha256": network.sha256,
        # The family says what the 0..255 of a pixel become, and so how large every tensor gets.
        "family": network.family,
        "input": [network.input.height, network.input.width],
        "tensors": hashlib.sha256(names.encode()).hexdigest()[:16],
    }


def _key(network: Network, asked: CalibrationConfig) -> dict[str, Any]:
    """What two calibrations must have in common to be the same file."""
    import onnxruntime

    top = weight_top(KINDS[0])
    return {
        **_model_key(network),
        **({} if top == WEIGHT_TOP else {"weight_top": top}),
        **({"float_in_bf16": True} if bf16_can_be_measured() else {}),
        "geometry": [network.input.geometry, network.input.pad_value],
        "method": asked.calibrate_method,
        "budget": asked.budget,
        "frames": asked.calibrate_frames,
        "source_sha256": source_sha256(str(asked.calibrate)),
        "onnxruntime": onnxruntime.__version__,
    }


def _file_stem(network: Network) -> str:
    """A file name without batch and precision: the calibration holds for all of them."""
    return re.sub(r"-b\d+$", "-int8", store.stem(network))


def _stoppable(progress: BuildProgress) -> Progress:
    """Reports progress, and raises EngineError where the caller wants to stop."""

    def report(doing: str, done: int, of: int) -> None:
        if not progress(doing, done, of):
            raise EngineError("int8: the calibration was stopped; nothing is kept")

    return report


# Making it


def _make_file(
    network: Network, asked: CalibrationConfig, target: Path, progress: Progress
) -> dict[str, Any]:
    """Writes the file; returns facts for its manifest."""
    frames = read_frames(str(asked.calibrate), network.input, asked.calibrate_frames)
    calibration = calibrate(network, frames, asked, progress)
    target.write_text(calibration.to_json(), encoding="utf-8")
    return {
        kind: {"agreement": result.agreement, "plain": result.plain}
        for kind, result in calibration.result.items()
    }


def calibrate(
    network: Network, frames: Frames, asked: CalibrationConfig, progress: Progress = lambda *_: None
) -> Calibration:
    """Measures the ranges and, unless the weights are random, searches for what stays float."""
    ranges = measure_ranges(
        network.graph,
        tensors_to_measure(network.graph),
        frames.seen,
        asked.calibrate_method,
        lambda done, of: progress("int8: ranges", done, of),
    )
    reference = Reference.of(network, frames.held_out)
    searched = network.random_seed is None
    budget = asked.budget if searched else 0.0  # a budget of 0 is reached without a search
    result = _search_both_kinds(network, frames, ranges, reference, budget, progress)
    if bf16_can_be_measured():
        halves = float_in_bf16(network, ranges, result[KINDS[0]], reference)
        if halves is not None and halves.agreement >= budget:
            result[FLOAT_IN_BF16] = halves
    return Calibration(
        source=str(asked.calibrate),
        method=asked.calibrate_method,
        seen=len(frames.seen),
        held_out=len(frames.held_out),
        apart=frames.apart,
        frames_sha256=frames.digest,
        budget=asked.budget,
        searched=searched,
        detections=sum(map(len, reference.detections)),
        ranges=ranges,
        result=result,
    )


def bf16_can_be_measured() -> bool:
    return bool(cpu_flags() & BF16) and engines.is_installed(HALVES_ENGINE)


def float_in_bf16(
    network: Network, ranges: Mapping[str, Range], u8: Result, reference: Reference
) -> Result | None:
    """What a result of int8-u8 becomes by OpenVINO with its float layers in bf16; None where
    OpenVINO does not run the graph, which other engines may.
    """
    kind = KINDS[0]
    graph = quantised_graph(network.graph, ranges, set(u8.kept), kind, weight_top(kind))
    in_int8 = replace(reference, network=replace(network, precision=kind))
    options = {"precision": "int8", "concurrency": 1, "own": {"float": "bf16"}}
    try:
        share = in_int8.agreement(graph, HALVES_ENGINE, **options)
    except DetectVideoError:
        return None
    return replace(u8, agreement=share, runs=1)


def _search_both_kinds(
    network: Network,
    frames: Frames,
    ranges: Mapping[str, Range],
    reference: Reference,
    budget: float,
    progress: Progress,
) -> dict[str, Result]:
    """u8 first; s8 keeps the same nodes float, and more where its coarser steps need it."""
    units = int8_units(Wiring(network.graph))
    results: dict[str, Result] = {}
    ranking: list[Unit] | None = None
    kept: list[Unit] = []
    for kind in KINDS:
        all_int8 = _graph_maker(network, ranges, kind, [])
        make_graph = _graph_maker(network, ranges, kind, kept)
        choice = choose_float_units([], make_graph, reference.agreement, 0.0, progress)
        plain = reference.agreement(all_int8([])) if kept else choice.plain
        runs = len(choice.agreements)
        if choice.plain < budget:
            if ranking is None:
                ranking = _rank_on_few_frames(network, frames, units, all_int8, progress)
                runs += len(units)
            rest = [unit for unit in ranking if unit not in kept]
            choice = choose_float_units(rest, make_graph, reference.agreement, budget, progress)
            runs += len(choice.agreements)
        kept = [*kept, *choice.kept]
        results[kind] = _result(network, kept, plain, choice.reached, runs)
    return results


def _rank_on_few_frames(
    network: Network,
    frames: Frames,
    units: Sequence[Unit],
    make_graph: MakeGraph,
    progress: Progress,
) -> list[Unit]:
    chosen = np.linspace(0, len(frames.seen) - 1, RANKING_FRAMES).round().astype(int)
    reference = Reference.of(network, frames.seen[np.unique(chosen)])
    return rank_units(units, make_graph, reference.error, progress)


def _graph_maker(
    network: Network, ranges: Mapping[str, Range], kind: str, always: Sequence[Unit]
) -> MakeGraph:
    """A function from units that stay float to the graph; those in ``always`` stay float too."""
    return lambda kept: quantised_graph(
        network.graph,
        ranges,
        {name for unit in (*always, *kept) for name in unit.nodes},
        kind,
        weight_top(kind),
    )


def _result(
    network: Network, kept: Sequence[Unit], plain: float, reached: float, runs: int
) -> Result:
    nodes = tuple(name for unit in kept for name in unit.nodes)
    share = float_share(network.graph, nodes)
    return Result(nodes, plain, reached, share.layers, share.all_layers, share.macs, runs)
