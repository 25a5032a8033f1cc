"""Find the layers that an engine ran, their precision, and their cost in the graph. On a CPU this
takes a quarter of a second and gives the same result for the same file, so we store the result."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detector.core import engines
from detector.core.engines._built import store
from detector.core.errors import OutputError
from detector.core.run.environment import describe_cpu
from detector.core.run.measurements import library_version
from detector.core.session.codec import to_json

if TYPE_CHECKING:
    from detector.core.engines.base import Engine
    from detector.core.models.base import Network
    from detector.core.session.outcome import ExecutedLayer

SUFFIX = ".layers.json"
KEPT = 16  # results to keep per graph file, for several engines, precisions and versions
SCHEMA = 2  # version 1 assigned the cost of a quantised output to the DequantizeLinear after it


def find_layers(
    network: Network,
    engine: Engine,
    path: str | None,
    own: Mapping[str, str],
    ran: Network | None = None,
) -> tuple[ExecutedLayer, ...]:
    """Return the stored result of ``executed_layers``, or a new one. ``path``: the graph's file."""
    if path is None or engine.device != "cpu":
        return executed_layers(network, engine, ran)
    file, key = Path(path).with_suffix(SUFFIX), _hash_settings(engine, own)
    stored = _parse_entries(store.read_kept(file.parent, file.name))
    if (layers := _parse_layers(stored.get(key))) is None:
        layers = executed_layers(network, engine, ran)
        with suppress(OutputError):  # stored results only make later runs faster
            _store(file, key, layers)
    return layers


def executed_layers(
    network: Network, engine: Engine, ran: Network | None = None
) -> tuple[ExecutedLayer, ...]:
    """Return each layer with the cost of the nodes that it represents. ``network``: the network
    before conversion; ``ran``: after it. Layers that the conversion added are omitted."""
    from detector.core.models.graph.build import node_costs
    from detector.core.models.graph.qdq import original_names
    from detector.core.session.outcome import ExecutedLayer

    reported = engine.execution()
    costs = node_costs(network.graph) if reported and network.plan is None else {}
    renamed = original_names(ran.graph) if ran is not None and costs else {}
    layers = []
    for layer in reported:
        names = [renamed.get(name, name) for name in layer.nodes or (layer.name,)]
        entry = [costs[name] for name in names if name in costs]
        if entry:
            macs, elements = sum(cost.macs for cost in entry), sum(cost.elements for cost in entry)
            layers.append(ExecutedLayer(layer.name, layer.precision, macs, elements))
    return tuple(layers)


def _hash_settings(engine: Engine, own: Mapping[str, str]) -> str:
    parts = [
        engine.name,
        library_version(engine.name),
        engine.precision,
        dict(own),
        " ".join(sorted(describe_cpu()["flags"])),
        store.code_of(engines.__path__[0]),
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _parse_entries(document: dict[str, Any] | None) -> dict[str, Any]:
    entries = document.get("executed") if document and document.get("schema") == SCHEMA else None
    return entries if isinstance(entries, dict) else {}


def _parse_layers(entry: object) -> tuple[ExecutedLayer, ...] | None:
    from detector.core.session.outcome import ExecutedLayer

    try:
        return tuple(
            ExecutedLayer(str(name), str(precision), int(macs), int(elements))
            for name, precision, macs, elements in entry  # type: ignore[attr-defined]
        )
    except (TypeError, ValueError):
        return None


def _store(file: Path, key: str, layers: tuple[ExecutedLayer, ...]) -> None:
    from detector.core.engines._built import building

    rows = [[layer.name, layer.precision, layer.macs, layer.elements] for layer in layers]

    def add(before: dict[str, Any] | None) -> bytes:
        entries = dict(list(_parse_entries(before).items())[1 - KEPT :])
        return to_json({"schema": SCHEMA, "executed": {**entries, key: rows}}).encode()

    building.rewrite(file.parent, file.name, add)
