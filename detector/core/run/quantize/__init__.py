"""int8: calibrate a network on frames of the user's own video, and choose which layers stay float.

This folder reads frames and runs engines. ``detector.core.models.graph.ranges`` measures the ranges
of values, from which ``detector.core.models.graph.qdq`` writes the graph with Q and DQ nodes.

calibrate.py  finds the calibration of a model and an input size
making.py     makes a calibration, with frames.py and search.py
frames.py     samples the frames of a source, and holds half of them out
search.py     measures agreement with fp32, and finds which layers must stay float

If the int8 graph exists already, a run only reads the calibration (``_find_built``). It needs
neither the fp32 graph nor the code that converts it.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, replace
from pathlib import Path

from detector.core.config.schema import PACKAGED, Config
from detector.core.engines._built import store
from detector.core.engines.base import BuildProgress
from detector.core.errors import ModelError, UsageError
from detector.core.models.base import Network
from detector.core.models.graph.int8 import FRONT, WEIGHT_TOP, weight_top
from detector.core.run.quantize.calibrate import FLOAT_IN_BF16, Calibration, find_calibration
from detector.core.types import Background

ONE_SCALE = (
    "int8: calibrated without OpenVINO, so depthwise convolutions have one scale per tensor, and "
    "more layers stay in float; with OpenVINO installed, calibrate again with --calibrate"
)
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
    """Return the network in int8, and lines for the user.

    ``kind``: one of ``int8.KINDS``. One calibration serves all kinds and batches. If
    ``--calibrate`` names a source, make a calibration from it. Otherwise use one saved in
    ``folder``, or a packaged one. If the calibration lacks int8-u8-front, make int8-u8 instead.

    Raises UsageError if there is no calibration or no layer can be int8, SourceError for a source
    without frames, ModelError for a graph that is not fp32 or is above 2 GiB, OutputError for the
    folder, and EngineError if ``progress`` stops the calibration.
    """
    if network.precision != "fp32":
        raise ModelError(
            f"{network.name}: the graph is {network.precision}; only fp32 can be quantised to int8"
        )
    if (built := _find_built(network, kind, config, folder)) is not None:
        return built
    from detector.core.engines._built import building
    from detector.core.models.graph.qdq import quantised_graph, why_not_int8

    building.refuse_beyond_one_message(
        network,
        "measuring int8 ranges needs a graph in one protobuf message",
        "use --precision fp16, or a smaller model",
    )
    if why := why_not_int8(network.graph):
        raise UsageError(f"--precision int8: {network.name}: {why}")
    calibration, notes = get_calibration(network, config, folder, progress)
    variant, more = _describe_variant(network, kind, calibration)
    kind = variant.precision
    float_nodes = set(calibration.result[calibration.key_here(kind)].kept)
    if not store.Graphs(folder).load(variant):
        variant.graph = lambda: quantised_graph(
            network.graph, calibration.ranges, float_nodes, kind, weight_top(kind)
        )
        # Export the fp32 graph too: its file has the sizes that the next run needs.
        notes = [*notes, *building.export(network, folder).notes]
    return variant, [*notes, *more]


def get_calibration(
    network: Network, config: Config, folder: Path, progress: BuildProgress
) -> tuple[Calibration, list[str]]:
    """Make the calibration of ``--calibrate``, or find a saved one. Return it with notes."""
    if config.calibration.calibrate in (None, PACKAGED):
        return find_calibration(network, config, folder)
    from detector.core.run.quantize.making import make_calibration

    return make_calibration(network, config.calibration, folder, progress)


def _find_built(
    network: Network, kind: str, config: Config, folder: Path
) -> tuple[Network, list[str]] | None:
    """Return ``quantize_network``'s result if its graph is in the folder, otherwise None. The
    graph's manifest identifies code, network and calibration, so we need not compare tensors."""
    if config.calibration.calibrate not in (None, PACKAGED):
        return None
    try:
        calibration, notes = find_calibration(network, config, folder, by_graph=False)
    except UsageError:
        return None
    variant, more = _describe_variant(network, kind, calibration)
    return (variant, [*notes, *more]) if store.Graphs(folder).load(variant) else None


def _describe_variant(
    network: Network, kind: str, calibration: Calibration
) -> tuple[Network, list[str]]:
    """Return the network in int8 without its graph, and lines for the user."""
    requested, kind = kind, calibration.form_of(kind)
    top, key = weight_top(kind), calibration.key_here(kind)
    result = calibration.result[key]
    by_openvino = kind == calibration.form_of(FRONT)
    halves = calibration.result.get(FLOAT_IN_BF16) if by_openvino else None
    summary = {**asdict(result), "float_in_bf16": halves and halves.agreement}
    summary["kept"] = list(result.kept)  # the same type as when read from JSON
    variant = replace(
        network,
        graph=None,
        precision=kind,
        path=None,
        peak_bytes=None,
        details={**network.details, "int8": summary},
        made_with=hashlib.sha256(f"{kind} {top} {calibration.to_json()}".encode()).hexdigest(),
    )
    more = [UNMEASURED] if top != WEIGHT_TOP and key == kind else []
    more += [ONE_SCALE] if kind != requested and calibration.has_channels() else []
    return variant, [*map(Background, calibration.sentences(key)), *more]
