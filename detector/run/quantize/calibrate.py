"""A calibration: ranges, what stays float and what that reached. One file for a model and an input size, whatever the
batch and the kind of int8, so that every graph comes from it at once."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector import sources
from detector.config.schema import CalibrationConfig, Config
from detector.engines import store
from detector.engines.base import BuildProgress
from detector.errors import EngineError, SourceError, UsageError
from detector.models.base import InputRules, Network
from detector.models.graph.qdq import (
    KINDS,
    Range,
    Unit,
    Wiring,
    float_share,
    quantised_graph,
    units,
    watched,
)
from detector.models.graph.ranges import measured
from detector.run.quantize.search import RANKING_FRAMES, Reference, Step, ranked, search
from detector.stages.preprocess import letterbox

SCHEMA = 1
SUFFIX = ".calibration"  # JSON; the manifest beside it has .json


@dataclass(frozen=True, slots=True)
class Result:
    """Of one kind of int8. ``kept``: nodes that stay float. Agreements are with fp32 on the held-out frames; ``plain``
    is that of everything int8. ``float_*``: what stays float of the layers that multiply, and of their MACs."""

    kept: tuple[str, ...]
    plain: float
    agreement: float
    float_layers: int
    layers: int
    float_macs: float
    runs: int  # graphs that were measured

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "kept": list(self.kept)}


@dataclass(frozen=True, slots=True)
class Calibration:
    source: str
    method: str
    seen: int  # frames
    held_out: int
    apart: bool
    frames_sha256: str
    budget: float
    searched: bool
    detections: int  # of fp32 on the held-out frames
    ranges: Mapping[str, Range]
    result: Mapping[str, Result]

    def sentences(self, kind: str) -> list[str]:
        """For the user."""
        result = self.result[kind]
        apart = (
            f"{self.held_out} frames held out"
            if self.apart
            else "the same frames: too few to hold any out"
        )
        said = [
            f"int8: calibrated on {self.seen} frames of {self.source} ({self.method}); "
            f"{result.float_layers} of {result.layers} layers ({result.float_macs:.0%} of the MACs) stay float; "
            f"agreement with fp32 {result.agreement:.3f} on {apart} ({result.plain:.3f} with every layer int8)"
        ]
        if self.searched and not self.detections:
            said.append(
                "int8: fp32 detects nothing on these frames, so nobody knows what int8 loses; "
                "calibrate on a video that shows what you look for"
            )
        if not self.searched:
            said.append("int8: random weights, so no search: good for speed only")
        return said

    def to_json(self) -> str:
        document = {**asdict(self), "schema": SCHEMA}
        document["result"] = {kind: result.as_dict() for kind, result in self.result.items()}
        return json.dumps(document, indent=1) + "\n"

    @staticmethod
    def from_json(text: str) -> Calibration:
        """Raises ValueError, KeyError or TypeError for what is none."""
        document = json.loads(text)
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


def made_or_kept(
    network: Network, config: Config, folder: Path, progress: BuildProgress
) -> tuple[Calibration, list[str]]:
    """From ``--calibrate``, else the one that is kept for this model and size."""
    asked = config.calibration
    if asked.calibrate is None:
        return _kept(network, config, folder)
    with sources.open(asked.calibrate, frames=1):
        pass  # what cannot be opened is said before anything is made
    key = _key(network, asked)
    made = store.build_once(
        folder,
        _stem(network),
        SUFFIX,
        key,
        lambda target: _build(network, asked, target, _steps(progress)),
    )
    found = Calibration.from_json(Path(made.path).read_text(encoding="utf-8"))
    return found, list(made.notes)


def _build(network: Network, asked: CalibrationConfig, target: Path, step: Step) -> dict[str, Any]:
    found = calibrated(
        network, read(str(asked.calibrate), network.input, asked.calibrate_frames), asked, step
    )
    target.write_text(found.to_json(), encoding="utf-8")
    return {
        kind: {"agreement": result.agreement, "plain": result.plain}
        for kind, result in found.result.items()
    }


def calibrated(
    network: Network, pictures: Frames, asked: CalibrationConfig, step: Step = lambda *_: None
) -> Calibration:
    """Ranges and, unless the weights are random, the search."""
    model = network.graph
    ranges = measured(
        model,
        watched(model),
        pictures.seen,
        asked.calibrate_method,
        lambda done, of: step("int8: ranges", done, of),
    )
    reference = Reference.of(network, pictures.held_out)
    searched = network.random_seed is None
    result = _searched(
        network, pictures, ranges, reference, asked.budget if searched else 0.0, step
    )
    return Calibration(
        source=str(asked.calibrate),
        method=asked.calibrate_method,
        seen=len(pictures.seen),
        held_out=len(pictures.held_out),
        apart=pictures.apart,
        frames_sha256=pictures.digest,
        budget=asked.budget,
        searched=searched,
        detections=sum(map(len, reference.found)),
        ranges=ranges,
        result=result,
    )


def _searched(
    network: Network,
    pictures: Frames,
    ranges: Mapping[str, Range],
    reference: Reference,
    budget: float,
    step: Step,
) -> dict[str, Result]:
    """u8 first; s8 keeps the same nodes float, and more where its coarser steps need it."""
    every = units(Wiring(network.graph))
    results: dict[str, Result] = {}
    order: list[Unit] | None = None
    kept: list[Unit] = []
    for kind in KINDS:
        graph = _graph(network, ranges, kind, kept)
        found = search([], graph, reference.agreement, 0.0, step)
        plain = (
            found.plain if not kept else reference.agreement(_graph(network, ranges, kind, [])([]))
        )
        runs = len(found.agreements)
        if found.plain < budget:
            if order is None:
                at = np.linspace(0, len(pictures.seen) - 1, RANKING_FRAMES).round().astype(int)
                few = Reference.of(network, pictures.seen[np.unique(at)])
                order = ranked(every, _graph(network, ranges, kind, []), few.error, step)
                runs += len(every)
            rest = [unit for unit in order if unit not in kept]
            found = search(rest, graph, reference.agreement, budget, step)
            runs += len(found.agreements)
        kept = [*kept, *found.kept]
        results[kind] = _result(network, kept, plain, found.reached, runs)
    return results


def _graph(
    network: Network, ranges: Mapping[str, Range], kind: str, always: Sequence[Unit]
) -> Callable[[Sequence[Unit]], Any]:
    """Units that stay float, beside those that always do -> the graph."""
    return lambda kept: quantised_graph(
        network.graph, ranges, {name for unit in (*always, *kept) for name in unit.nodes}, kind
    )


def _result(
    network: Network, kept: Sequence[Unit], plain: float, reached: float, runs: int
) -> Result:
    nodes = tuple(name for unit in kept for name in unit.nodes)
    share = float_share(network.graph, nodes)
    return Result(nodes, plain, reached, share.layers, share.all_layers, share.macs, runs)


def _kept(network: Network, config: Config, folder: Path) -> tuple[Calibration, list[str]]:
    """The newest that fits; one of the method and budget asked for before all others."""
    wanted, notes = _model_key(network), []
    pattern = re.compile(re.escape(_stem(network)) + "-[0-9a-f]{12}" + re.escape(SUFFIX))
    there = [path for path in folder.glob(f"*{SUFFIX}") if pattern.fullmatch(path.name)]
    asked = (config.calibration.calibrate_method, config.calibration.budget)

    def rank(path: Path) -> tuple[bool, float, str]:
        key = store.read_manifest(path).get("key", {})
        return (key.get("method"), key.get("budget")) == asked, path.stat().st_mtime, path.name

    for path in sorted(there, key=rank, reverse=True):
        manifest = store.read_manifest(path)
        if any(manifest.get("key", {}).get(name) != value for name, value in wanted.items()):
            continue
        data = path.read_bytes()
        if hashlib.sha256(data).hexdigest() != manifest.get("file_sha256"):
            notes.append(f"{path}: damaged, not used; calibrate again with --calibrate IN")
            continue
        return Calibration.from_json(data.decode()), [*notes, f"int8: uses the calibration {path}"]
    size = f"{network.input.width}x{network.input.height}"
    raise UsageError(
        "; ".join(
            [
                *notes,
                f"int8 must be calibrated on frames like yours, and {folder} holds no calibration of {network.name} "
                f"at {size}: detect-video IN.mp4 --model {config.network.model} --precision int8 --calibrate IN.mp4",
            ]
        )
    )


def _model_key(network: Network) -> dict[str, Any]:
    names = "\n".join(watched(network.graph))
    return {
        "schema": SCHEMA,
        "sources_sha256": network.sha256,
        "family": network.family,  # says what a picture's 0..255 become, and so how large everything behind it is
        "input": [network.input.height, network.input.width],
        "tensors": hashlib.sha256(names.encode()).hexdigest()[:16],
    }


def _key(network: Network, asked: CalibrationConfig) -> dict[str, Any]:
    import onnxruntime

    return {
        **_model_key(network),
        "geometry": [network.input.geometry, network.input.pad_value],
        "method": asked.calibrate_method,
        "budget": asked.budget,
        "frames": asked.calibrate_frames,
        "source_sha256": identity(str(asked.calibrate)),
        "onnxruntime": onnxruntime.__version__,
    }


def _stem(network: Network) -> str:
    """Without batch and precision: the calibration holds for all."""
    return re.sub(r"-b\d+$", "-int8", store.stem(network))


def _steps(progress: BuildProgress) -> Step:
    def step(doing: str, done: int, of: int) -> None:
        if not progress(doing, done, of):
            raise EngineError("int8: the calibration was stopped; nothing is kept")

    return step


# ----------------------------------------------------------------------
# Frames to calibrate on: spread over the whole of a source, as the network will see them.

Slots = NDArray[np.uint8]  # RGB [N, H, W, 3]
HOLD_OUT = 2  # every second frame is kept for measuring


@dataclass(frozen=True, slots=True)
class Frames:
    """``seen``: what the ranges are taken from. ``held_out``: what agreement is measured on; the same ones where
    there were too few to hold any out."""

    seen: Slots
    held_out: Slots
    apart: bool

    @property
    def digest(self) -> str:
        """sha256 of the pixels, in order."""
        digest = hashlib.sha256(self.seen.tobytes())
        if self.apart:
            digest.update(self.held_out.tobytes())
        return digest.hexdigest()


def read(spec: str, rules: InputRules, wanted: int) -> Frames:
    """At most ``wanted`` frames of a video, a picture or a folder of them. Raises SourceError."""
    with sources.open(spec) as source:
        pictures = spread((frame.image for frame in source), wanted, rules)
    if not pictures:
        raise SourceError(
            f"{spec}: no frame to calibrate on; give --calibrate a video or pictures that can be read"
        )
    return divided(np.stack(pictures))


def divided(slots: Slots) -> Frames:
    last = np.arange(len(slots)) % HOLD_OUT == HOLD_OUT - 1
    if not last.any():
        return Frames(slots, slots, apart=False)
    return Frames(slots[~last], slots[last], apart=True)


def spread(images: Iterable[NDArray[np.uint8]], wanted: int, rules: InputRules) -> list[Slots]:
    """``wanted`` of the images, evenly over all, whose number nobody knows beforehand (containers lie).

    Every ``step``-th is taken; when twice as many as wanted have come, every second goes and the step doubles. So
    one pass is enough, and no more than twice the wanted number is ever held.
    """
    step, taken = 1, []
    for at, image in enumerate(images):
        if at % step:
            continue
        slot = np.empty((rules.height, rules.width, 3), np.uint8)
        letterbox(image, slot, geometry=rules.geometry, pad_value=rules.pad_value)
        taken.append(slot)
        if len(taken) == 2 * wanted:
            taken, step = taken[::2], 2 * step
    chosen = np.linspace(0, len(taken) - 1, min(wanted, len(taken))).round().astype(int)
    return [taken[at] for at in chosen]


def identity(spec: str) -> str:
    """sha256 of the bytes of all files of a source: the same pictures under another name are the same."""
    digest = hashlib.sha256()
    for path in _files(spec):
        try:
            with open(path, "rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        except OSError as exc:
            raise SourceError(
                f"{path}: cannot be read ({exc.strerror}); check its permissions: ls -l"
            ) from exc
    return digest.hexdigest()


def _files(spec: str) -> list[str]:
    if os.path.isdir(spec):
        return sorted(entry.path for entry in os.scandir(spec) if entry.is_file())
    return (
        [spec]
        if os.path.exists(spec)
        else sorted(filter(os.path.isfile, glob.glob(spec, recursive=True)))
    )
