"""Collect the facts that ``detect-video models`` shows: the known models, or one model."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from detector.core import engines, models
from detector.core.errors import ModelError, UsageError
from detector.core.errors.writing import write_whole
from detector.core.models import ModelRequest, known
from detector.core.models.base import Network
from detector.core.models.catalogue import KnownModel, known_model
from detector.core.models.description import families
from detector.core.models.names import read_names


def listing() -> list[dict[str, Any]]:
    """Return the known models from their descriptions, without opening a network."""
    return [_describe(known_model(name)) for name in known()]


def facts(request: ModelRequest) -> dict[str, Any]:
    """Return all facts about one model, counted on its graph. If its weights are missing, use
    random ones. If its layers are missing too, return only its description's figures. Raises
    ModelError."""
    entry = known_model(request.model) if request.model in known() else None
    try:
        counted = _count(_open(request), entry)
        return counted if entry else counted | {"licence": _find_licence(request)}
    except ModelError:
        if entry is None or request.weights is not None or request.random_seed is not None:
            raise
        if entry.path.is_file() and entry.path.suffix != ".cfg":
            raise  # the file exists, but is damaged
    if entry.path.suffix != ".cfg" and entry.layers is None:
        return _describe(entry) | {"needs": _needs(entry) and entry.how_to_get()}
    return _count(_open(replace(request, random_seed=0)), entry)


def _find_licence(request: ModelRequest) -> str | None:
    """Return the licence if a file's digest shows that it is the official file of a known model."""
    paths = (path for path in (request.path, request.weights) if path and path.is_file())
    digests = {hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}
    entries = [known_model(name) for name in known()]
    found = (one for one in entries if one.download and one.download.sha256 in digests)
    return next((one.licence for one in found), None)


def _open(request: ModelRequest) -> Network:
    return models.open_network(request, engines.front_ends())


def write_description(request: ModelRequest, output: str | None) -> str:
    """Return the description of a model file, and write it to the path ``output`` unless that is
    "-". Raises ModelError, UsageError and OutputError."""
    text = models.describe(request, engines.front_ends())
    if output == "-":
        return text
    target = Path(output or f"{request.path.stem}.describe.yaml")
    if target.exists():
        raise UsageError(
            f"{target}: already exists and may have been edited; choose another file with -o FILE"
        )
    write_whole(target, text.encode())
    return text


def family_listing() -> list[dict[str, Any]]:
    return [
        {
            "name": family.family,
            "about": family.about,
            "licence": family.licence,
            "source": family.source,
            "nms": family.outputs.nms if family.outputs else "as exported",
        }
        for family in families().values()
    ]


def _count(network: Network, entry: KnownModel | None) -> dict[str, Any]:
    """Return the facts of an open network. A file that an engine built has no graph to count."""
    counted = network.plan is None
    return {
        "name": entry.name if entry else network.name,
        "family": network.family,
        "description": entry.description if entry else "",
        "input": [network.input.height, network.input.width],
        "geometry": network.input.geometry,
        "stride": network.input.stride,
        "parameters": network.parameters if counted else None,
        "parameters_fused": network.parameters_fused or None,
        "macs": network.macs if counted else None,
        "flops": 2 * network.macs if counted else None,
        "macs_at_most": network.macs_at_most,
        "gflops_published": entry.figures.get("gflops_published") if entry else None,
        "counted": True,
        "names": list(network.names),
        "outputs": [list(shape) for shape in network.output_shapes],
        "nms": network.needs_nms,
        "licence": entry.licence if entry else None,
        "needs": _needs(entry) and entry.how_to_get() if entry else "",
        "sha256": network.sha256 if network.random_seed is None else None,
        "notes": [
            *([] if network.random_seed is not None else network.warnings),
            *([] if counted else ["the model file contains no graph, so nothing was counted"]),
        ],
    }


def _describe(entry: KnownModel) -> dict[str, Any]:
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
        "macs_at_most": False,
        "gflops_published": figures.get("gflops_published"),
        "counted": False,
        "names": [] if entry.names is None else list(read_names(entry.names)),
        "licence": entry.licence,
        "needs": _needs(entry),
    }


def _needs(entry: KnownModel) -> str:
    if entry.needs:
        return entry.needs
    if entry.download is None or entry.download.target.is_file():
        return ""
    if entry.download.sha256 is None:
        return f"{entry.download.target.name}, manually"
    return f"models pull {entry.name}"
