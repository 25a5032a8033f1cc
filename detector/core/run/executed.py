"""The layers that an engine ran, their precision, and their cost in the graph. An engine on a CPU
reports the same for the same file, which takes a quarter second, so we store it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detector.core import engines
from detector.core.engines._built import store
from detector.core.errors import OutputError, UsageError
from detector.core.run.environment import describe_cpu
from detector.core.run.measurements import library_version
from detector.core.session.codec import from_json, to_json

if TYPE_CHECKING:
    from detector.core.engines.base import Engine
    from detector.core.models.base import Network
    from detector.core.session.outcome import ExecutedLayer

SUFFIX = ".layers.json"
KEPT = 16  # engines, precisions and versions per file
# in version 1 the work of a quantised output was listed at the DequantizeLinear after it
SCHEMA = 2


def find_layers(
    network: Network,
    engine: Engine,
    path: str | None,
    own: Mapping[str, str],
    ran: Network | None = None,
) -> tuple[ExecutedLayer, ...]:
    """Return ``executed_layers``, or its stored result. ``path``: of the exported graph."""
    if path is None or engine.device != "cpu":
        return executed_layers(network, engine, ran)
    file, key = Path(path).with_suffix(SUFFIX), _key(engine, own)
    if (known := _read(file).get(key)) is not None and (layers := _layers(known)) is not None:
        return layers
    layers = executed_layers(network, engine, ran)
    # Stored results only make later runs faster; nothing else depends on them.
    with suppress(OutputError):
        _keep(file, key, layers)
    return layers


def executed_layers(
    network: Network, engine: Engine, ran: Network | None = None
) -> tuple[ExecutedLayer, ...]:
    """Return each layer with the cost of the nodes that it represents. ``network``: before
    conversion; ``ran``: the converted one. Added layers are omitted."""
    from detector.core.models.graph.build import node_costs
    from detector.core.models.graph.qdq import original_names
    from detector.core.session.outcome import ExecutedLayer

    reported = engine.execution()
    costs = node_costs(network.graph) if reported and network.plan is None else {}
    renamed = original_names(ran.graph) if ran is not None and costs else {}
    layers = []
    for layer in reported:
        names = [renamed.get(name, name) for name in layer.nodes or (layer.name,)]
        known = [costs[name] for name in names if name in costs]
        if known:
            macs, elements = sum(cost.macs for cost in known), sum(cost.elements for cost in known)
            layers.append(ExecutedLayer(layer.name, layer.precision, macs, elements))
    return tuple(layers)


def _key(engine: Engine, own: Mapping[str, str]) -> str:
    parts = [
        engine.name,
        library_version(engine.name),
        engine.precision,
        dict(own),
        " ".join(sorted(describe_cpu()["flags"])),
        store.code_of(engines.__path__[0]),
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _read(file: Path) -> dict[str, Any]:
    try:
        kept = store.read_kept(file.parent, file.name)
        document = from_json(kept or b"{}", dict[str, Any], file.name)
    except UsageError:
        return {}
    found = document.get("executed")
    return found if document.get("schema") == SCHEMA and isinstance(found, dict) else {}


def _layers(known: object) -> tuple[ExecutedLayer, ...] | None:
    from detector.core.session.outcome import ExecutedLayer

    try:
        return tuple(
            ExecutedLayer(str(name), str(precision), int(macs), int(elements))
            for name, precision, macs, elements in known  # type: ignore[attr-defined]
        )
    except (TypeError, ValueError):
        return None


def _keep(file: Path, key: str, layers: tuple[ExecutedLayer, ...]) -> None:
    rows = [[one.name, one.precision, one.macs, one.elements] for one in layers]

    def add(before: bytes | None) -> bytes:
        entries = dict(list(_read(file).items())[1 - KEPT :]) if before else {}
        return to_json({"schema": SCHEMA, "executed": {**entries, key: rows}}).encode()

    store.rewrite(file.parent, file.name, add)
