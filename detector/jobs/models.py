"""Facts of models for ``detect-video models``: a list of the known ones, and everything about one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from detector.errors import ModelError
from detector.models import ModelRequest, known, open_network
from detector.models.base import Network
from detector.models.catalogue import KnownModel, known_model
from detector.models.names import read_names


def listing() -> list[dict[str, Any]]:
    """The known models, from their descriptions alone: no network is opened."""
    return [_described(known_model(name)) for name in known()]


def facts(request: ModelRequest) -> dict[str, Any]:
    """Everything about one model, counted on its graph.

    A known model whose weights are not here is counted with random numbers in their place; where even its layers are
    in the absent file, the figures of its description stand alone. Raises ModelError.
    """
    entry = known_model(request.model) if request.model in known() else None
    try:
        return _counted(open_network(request), entry)
    except ModelError:
        if entry is None or request.weights is not None or request.random_seed is not None:
            raise
        if entry.path.is_file() and entry.path.suffix != ".cfg":
            raise  # it is there, and broken
    if entry.path.suffix != ".cfg" and entry.layers is None:
        return _described(entry) | {"needs": _needs(entry) and entry.how_to_get()}
    return _counted(open_network(replace(request, random_seed=0)), entry)


def _counted(network: Network, entry: KnownModel | None) -> dict[str, Any]:
    return {
        "name": entry.name if entry else network.name,
        "family": network.family,
        "description": entry.description if entry else "",
        "input": [network.input.height, network.input.width],
        "geometry": network.input.geometry,
        "stride": network.input.stride,
        "parameters": network.parameters,
        "parameters_fused": getattr(network, "parameters_fused", None) or None,
        "macs": network.macs,
        "flops": 2 * network.macs,
        "gflops_published": entry.figures.get("gflops_published") if entry else None,
        "counted": True,
        "names": list(network.names),
        "outputs": [list(shape) for shape in network.output_shapes],
        "nms": network.needs_nms,
        "licence": entry.licence if entry else None,
        "needs": _needs(entry) and entry.how_to_get() if entry else "",
        "sha256": network.sha256 if network.random_seed is None else None,
        "notes": [] if network.random_seed is not None else network.warnings,
    }


def _described(entry: KnownModel) -> dict[str, Any]:
    figures = entry.figures
    macs = figures.get("macs")
    return {
        "name": entry.name,
        "family": entry.family,
        "description": entry.description,
        "input": figures.get("input"),
        "parameters": figures.get("parameters"),
        "parameters_fused": figures.get("parameters_fused"),
        "macs": macs,
        "flops": None if macs is None else 2 * macs,
        "gflops_published": figures.get("gflops_published"),
        "counted": False,
        "names": [] if entry.names is None else list(read_names(entry.names)),
        "licence": entry.licence,
        "needs": _needs(entry),
    }


def _needs(entry: KnownModel) -> str:
    """What is still to be done before it runs; empty where nothing is."""
    if entry.needs:
        return entry.needs
    if entry.download is None or entry.download.target.is_file():
        return ""
    if entry.download.sha256 is None:
        return f"{entry.download.target.name}, by hand"
    return f"models pull {entry.name}"
