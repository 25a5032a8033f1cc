"""int8: calibrates a network on frames of the user's own video, and chooses what stays float.

This room reads frames and runs engines. The graph itself, with its Q and DQ nodes, is written by
``detector.core.models.graph.qdq``, from ranges that ``detector.core.models.graph.ranges`` measures.

frames.py     a source -> frames spread over it, half of them held out
search.py     how well a quantised graph agrees with fp32, and what must stay float for that
calibrate.py  both, kept as one file for a model and an input size
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from detector.core.config.schema import Config
from detector.core.engines._built import store
from detector.core.engines.base import BuildProgress
from detector.core.errors import ModelError, UsageError
from detector.core.models.base import Network
from detector.core.models.graph.qdq import KINDS, WEIGHT_TOP, quantised_graph, why_not_int8
from detector.core.run.quantize.calibrate import FLOAT_IN_BF16, Calibration, get_calibration
from detector.core.run.quantize.search import weight_top

__all__ = ["KINDS", "quantize_network"]

UNMEASURED = (
    "int8: this CPU has no VNNI, so weights have 7 bits; if the calibration is from another CPU, "
    "make it again here with --calibrate"
)


def quantize_network(
    network: Network,
    kind: str,
    config: Config,
    folder: Path,
    progress: BuildProgress = lambda *_: True,
) -> tuple[Network, list[str]]:
    """The network in int8, and lines for the user.

    ``kind``: "int8-u8" or "int8-s8"; one calibration serves both, and every batch. It is made
    where ``--calibrate`` names a source; otherwise one that is kept in ``folder`` is used.

    Raises UsageError where there is no calibration and where no layer can be int8, SourceError for
    a source without frames, ModelError for a graph that is not fp32 or above 2 GiB, OutputError for
    the folder, EngineError where ``progress`` stops the calibration.
    """
    if network.precision != "fp32":
        raise ModelError(
            f"{network.name}: the graph is {network.precision}; only fp32 can become int8"
        )
    store.refuse_beyond_one_message(
        network,
        "its ranges for int8 are measured on a graph in one piece",
        "use --precision fp16, or a smaller model",
    )
    if why := why_not_int8(network.graph):
        raise UsageError(f"--precision int8: {network.name}: {why}")
    calibration, notes = get_calibration(network, config, folder, progress)
    top, key = weight_top(kind), calibration.key_here(kind)
    result = calibration.result[key]
    halves = calibration.result.get(FLOAT_IN_BF16) if kind == "int8-u8" else None
    told = {**result.as_dict(), "float_in_bf16": halves and halves.agreement}
    details = {**network.details, "int8": told}
    variant = replace(
        network,
        graph=lambda: quantised_graph(
            network.graph, calibration.ranges, set(result.kept), kind, top
        ),
        precision=kind,
        path=None,
        peak_bytes=None,
        details=details,
        made_with=_digest(calibration, kind, top),
    )
    if (known := store.Graphs(folder).find(variant)) is not None:  # a quarter of a second sooner
        variant.graph, variant.path, variant.peak_bytes = known.load, known.path, known.peak_bytes
    more = [UNMEASURED] if top != WEIGHT_TOP and key == kind else []
    return variant, [*notes, *calibration.sentences(key), *more]


def _digest(calibration: Calibration, kind: str, top: int) -> str:
    """Of all that decides the graph besides the network."""
    return hashlib.sha256(f"{kind} {top} {calibration.to_json()}".encode()).hexdigest()
