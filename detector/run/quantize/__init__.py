"""int8: static quantisation with Q/DQ nodes, calibrated on frames of the user's own video.

frames.py       a source -> frames spread over it, half of them held out
ranges.py       frames -> what values each tensor takes (minmax, entropy, percentile)
units.py        which nodes can be int8, and which belong together
qdq.py          ranges -> the graph, with u8 or with s8 activations
measure.py      a graph -> detections, agreement and error against fp32
search.py       what must stay float within a budget of agreement
calibration.py  all of that, kept as one file for a model and an input size
dynamic.py      the other way, measured for what it is
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from detector.config.schema import Config
from detector.engines.base import BuildProgress
from detector.errors import ModelError, UsageError
from detector.models.base import Network
from detector.models.graph.qdq import KINDS, quantised_graph, refusal
from detector.run.quantize import calibrate

__all__ = ["KINDS", "quantized"]


def quantized(
    network: Network,
    kind: str,
    config: Config,
    folder: Path,
    progress: BuildProgress = lambda *_: True,
) -> tuple[Network, list[str]]:
    """The network in int8, and lines for the user. ``kind``: "int8-u8" or "int8-s8"; one calibration serves both, and
    every batch. It is made where ``--calibrate`` names a source, else one that is kept in ``folder`` is used.

    Raises UsageError where there is neither and where no layer can be int8, SourceError for a source without frames,
    ModelError, OutputError.
    """
    if network.precision != "fp32":
        raise ModelError(
            f"{network.name}: the graph is {network.precision}; only fp32 can become int8"
        )
    if why := refusal(network.graph):
        raise UsageError(f"--precision int8: {network.name}: {why}")
    found, notes = calibrate.made_or_kept(network, config, folder, progress)
    result = found.result[kind]
    graph = quantised_graph(network.graph, found.ranges, set(result.kept), kind)
    details = {**network.details, "int8": result.as_dict()}
    return replace(network, graph=graph, precision=kind, path=None, details=details), [
        *notes,
        *found.sentences(kind),
    ]
