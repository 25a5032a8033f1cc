"""A calibration: the ranges of a network's tensors, and which nodes stay float in its int8 graphs.

One file for a model and an input size serves every batch and every kind of int8, so that all int8
graphs of the model come from the same measurement. making.py makes the file, and
``find_calibration`` finds it. A known model may have a packaged calibration (``packaged``). We use
that if no other is saved, or with ``--calibrate packaged``.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detector.core.config.schema import PACKAGED, Config
from detector.core.engines._built import proof, store
from detector.core.errors import ModelError, UsageError
from detector.core.errors.guard import keep
from detector.core.errors.parsing import parse_json
from detector.core.errors.text import counted
from detector.core.models.base import Network
from detector.core.models.catalogue import canvases_of, known, known_model
from detector.core.models.graph.int8 import KINDS, WEIGHT_TOP, weight_top

if TYPE_CHECKING:
    from detector.core.models.graph.ranges import Range

SCHEMA = 1
# Key of ``Calibration.result`` in packaged calibrations: int8-u8 with weights of 7 bits.
NARROW = "int8-u8, 7 bits"
# Key for int8 in OpenVINO with float layers in bf16. OpenVINO uses bf16 if a calibration has this
# key. A calibration made on a CPU with bf16 has it if the agreement is within the budget. A
# packaged calibration has it if the loss of AP50 is small (docs/model-street.md).
FLOAT_IN_BF16 = "int8-u8, float in bf16"
SUFFIX = ".calibration"  # JSON in spite of the name; the manifest next to it ends in .json
UNREADABLE = (UsageError, ValueError, KeyError, TypeError, AttributeError, OverflowError)


@dataclass(frozen=True, slots=True)
class Int8Result:
    """The result of one kind of int8. Agreements are with fp32, on the held-out frames."""

    kept: tuple[str, ...]  # nodes that stay float
    plain: float  # agreement if every layer is int8
    agreement: float  # agreement if ``kept`` are float
    float_layers: int  # number of multiplying layers that stay float
    layers: int  # number of all multiplying layers
    float_macs: float  # share of all MACs that stay float, 0..1
    runs: int  # number of graphs measured


@dataclass(frozen=True, slots=True)
class Calibration:
    """The document of a calibration file. ``ranges``: range of each tensor, and of each channel
    that a depthwise convolution reads. ``result``: one per kind of int8 (int8-u8-front only if
    OpenVINO ran it), and for ``FLOAT_IN_BF16``. Packaged files also have "bf16" and ``NARROW``."""

    source: str
    method: str
    seen: int  # frames used to measure the ranges
    held_out: int  # frames used to measure the agreement
    apart: bool  # whether ``seen`` and ``held_out`` are different frames
    frames_sha256: str
    budget: float  # lowest agreement to accept
    searched: bool
    detections: int  # number of detections by fp32 on the held-out frames
    ranges: Mapping[str, Range]
    result: Mapping[str, Int8Result]

    def form_of(self, kind: str) -> str:
        return kind if kind in self.result else KINDS[0]

    def has_channels(self) -> bool:
        from detector.core.models.graph.ranges import channel_name

        return any(channel_name(tensor, 0) in self.ranges for tensor in self.ranges)

    def key_here(self, kind: str) -> str:
        """Return the key of ``result`` that applies to a kind on this CPU."""
        return NARROW if weight_top(kind) != WEIGHT_TOP and NARROW in self.result else kind

    def sentences(self, kind: str) -> list[str]:
        """Return lines for the user about one kind of int8."""
        result = self.result[kind]
        measured_on = "the same frames, too few to hold any out"
        if self.apart:
            measured_on = counted(self.held_out, "held-out frame")
        lines = [
            f"int8: calibrated on {counted(self.seen, 'frame')} of {self.source} ({self.method}); "
            f"{result.float_layers} of {counted(result.layers, 'layer')} ({result.float_macs:.0%} "
            f"of the MACs) stay in float; with those in fp32 the agreement is "
            f"{result.agreement:.3f}, with every layer in int8 {result.plain:.3f}, on {measured_on}"
        ]
        if kind == NARROW:
            lines.append("int8: this CPU has no VNNI, so weights have 7 bits")
        if self.searched and not self.detections:
            lines.append(
                "int8: fp32 detects nothing in these frames, so the loss of int8 is unknown; "
                "calibrate on a video that shows the objects you look for"
            )
        if not self.searched:
            lines.append(
                "int8: with random weights all layers run in int8; measure speed only, not accuracy"
            )
        return lines

    def as_document(self) -> dict[str, Any]:
        return {**asdict(self), "schema": SCHEMA}

    def to_json(self) -> str:
        return json.dumps(self.as_document(), indent=1) + "\n"

    @staticmethod
    def from_json(text: str) -> Calibration:
        """Parse a calibration. Raises one of ``UNREADABLE`` for any other text."""
        return Calibration.from_document(parse_json(text, "calibration"))

    @staticmethod
    def from_document(document: dict[str, Any]) -> Calibration:
        """Convert JSON values to a calibration. Raises one of ``UNREADABLE`` for other values."""
        if document.pop("schema") != SCHEMA:
            raise ValueError("another schema")
        ranges = {
            name: (float(low), float(high)) for name, (low, high) in document.pop("ranges").items()
        }
        result = {
            kind: Int8Result(**{**entry, "kept": tuple(entry["kept"])})
            for kind, entry in document.pop("result").items()
        }
        return Calibration(**document, ranges=ranges, result=result)


def find_calibration(
    network: Network, config: Config, folder: Path, *, by_graph: bool = True
) -> tuple[Calibration, list[str]]:
    """Return the saved or packaged calibration for this model and size, with notes. ``by_graph``:
    also compare the names of the graph's tensors. Raises UsageError without a calibration."""
    if config.calibration.calibrate == PACKAGED:
        calibration = packaged(network, config.network.model, by_graph=by_graph)
        if calibration is None:
            raise UsageError(f"--calibrate {PACKAGED}: {_no_packaged(network)}")
        return calibration, []
    return _find_saved(network, config, folder, by_graph)


def _find_saved(
    network: Network, config: Config, folder: Path, by_graph: bool
) -> tuple[Calibration, list[str]]:
    """Return the newest saved calibration that fits, preferably with the requested --budget and
    --calibrate-method. If no saved calibration fits, return the packaged one."""
    expected, notes = model_key(network, by_graph=by_graph), []
    pattern = re.compile(re.escape(file_stem(network)) + "-[0-9a-f]{12}" + re.escape(SUFFIX))
    paths = [path for path in folder.glob(f"*{SUFFIX}") if pattern.fullmatch(path.name)]
    preferred = (config.calibration.calibrate_method, config.calibration.budget)

    def rank(path: Path) -> tuple[bool, float, str]:
        key = store.read_manifest(path).get("key", {})
        return (
            (key.get("method"), key.get("budget")) == preferred,
            store.written_at(path),
            path.name,
        )

    for path in sorted(paths, key=rank, reverse=True):
        manifest = store.read_manifest(path)
        if any(manifest.get("key", {}).get(name) != value for name, value in expected.items()):
            continue
        reason = proof.why_not(path, manifest)
        try:
            calibration = Calibration.from_json(path.read_text()) if reason is None else None
        except UNREADABLE:
            reason = "it is damaged"
        if calibration is None or reason is not None:
            notes.append(f"{path}: {reason}, ignored; calibrate again with --calibrate IN.mp4")
            continue
        keep("the calibration", path, path.with_suffix(".json"))
        return calibration, [*notes, f"int8: using the calibration {path}"]
    if (own := packaged(network, config.network.model, by_graph=by_graph)) is not None:
        return own, notes
    size = f"{network.input.width}x{network.input.height}"
    advice = (
        f"int8 must be calibrated on frames like yours, but {folder} has no calibration of "
        f"{network.name} at {size}; calibrate with: detect-video IN.mp4 "
        f"--model {config.network.model} --precision int8 --calibrate IN.mp4"
    )
    raise UsageError("; ".join([*notes, advice]))


def packaged(network: Network, model: str, *, by_graph: bool = True) -> Calibration | None:
    """Return the calibration packaged with a known model, or None for other weights or input sizes.
    If the model declares canvases, the calibration fits every size (docs/model-street.md)."""
    if model not in known() or (path := known_model(model).calibration) is None:
        return None
    try:
        document = parse_json(path.read_text(encoding="utf-8"), str(path))
        recorded = document.pop("key")
        expected = json.loads(json.dumps(model_key(network, by_graph=by_graph)))
        if canvases_of(model):
            recorded.pop("input"), expected.pop("input")
        if not by_graph:
            recorded.pop("tensors")
        if recorded != expected:
            return None
        calibration = Calibration.from_document(document)
    except (OSError, *UNREADABLE) as exc:
        raise ModelError(f"{path}: not a calibration; install detect-video again") from exc
    keep("the calibration", path)
    return calibration


def for_packaging(network: Network, calibration: Calibration) -> str:
    return json.dumps({"key": model_key(network), **calibration.as_document()}, indent=1) + "\n"


def _no_packaged(network: Network) -> str:
    names = [name for name in known() if known_model(name).calibration is not None]
    return (
        f"{network.name} at {network.input.width}x{network.input.height} has no packaged "
        f"calibration; use {' or '.join(names)} with its own weights and size (omit --size), "
        "or give --calibrate a video or pictures"
    )


def model_key(network: Network, *, by_graph: bool = True) -> dict[str, Any]:
    key: dict[str, Any] = {
        "schema": SCHEMA,
        "sources_sha256": network.sha256,
        # The family decides how pixels are scaled, which changes the range of every tensor.
        "family": network.family,
        "input": [network.input.height, network.input.width],
    }
    if by_graph:
        from detector.core.models.graph.qdq import depthwise_inputs, tensors_to_measure

        graph = network.graph
        # A network with depthwise convolutions needs a calibration of the channels they read.
        names = "\n".join([*tensors_to_measure(graph), *depthwise_inputs(graph)])
        key["tensors"] = hashlib.sha256(names.encode()).hexdigest()[:16]
    return key


def file_stem(network: Network) -> str:
    """Return a file stem without batch and precision: a calibration applies to all of them."""
    return re.sub(r"-b\d+$", "-int8", store.stem(network))
