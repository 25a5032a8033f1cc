"""ONNX Runtime's own trace of a session: one event for every node of every run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from detector.engines.base import LayerExecution
from detector.engines.layer_timing import in_order
from detector.engines.ort_graph import layers

OPTIMISED = "optimised.onnx"
SUFFIX = "_kernel_time"


def kept_graph(settings: Any, folder: str) -> Any:
    """Session options that leave the optimised graph in ``folder``."""
    settings.optimized_model_filepath = str(Path(folder, OPTIMISED))
    # Weights beside it: they are not needed, and may be more than a file of this kind holds.
    settings.add_session_config_entry("session.optimized_model_external_initializers_file_name", "weights.bin")
    return settings


def traced(settings: Any, folder: str) -> Any:
    """Session options that leave a trace in ``folder``, and the graph that the trace's names are of."""
    settings.enable_profiling = True
    settings.profile_file_prefix = str(Path(folder, "trace"))
    return kept_graph(settings, folder)


def node_times(trace: str, folder: str, graph: Any, float_math: str) -> list[tuple[LayerExecution, list[float]]]:
    """Every node of the optimised graph with its ms in each run. ``graph``: what it was made from."""
    import onnx

    optimised = onnx.load(Path(folder, OPTIMISED), load_external_data=False)
    events = json.loads(Path(trace).read_text(encoding="utf-8"))
    return in_order(layers(optimised, graph, float_math), runs_of(events))


def runs_of(events: list[dict[str, Any]]) -> list[list[tuple[str, str, float]]]:
    """Run by run (name, operator, ms) of the nodes, in order; durations are in whole microseconds. A run's own event
    is written at its end, and holds its nodes' by time."""
    nodes = [event for event in events if event.get("cat") == "Node" and event["name"].endswith(SUFFIX)]
    bounds = [
        (event["ts"], event["ts"] + event["dur"])
        for event in events
        if event.get("cat") == "Session" and event["name"] == "model_run"
    ]
    return [
        [
            (event["name"].removesuffix(SUFFIX), str(event["args"].get("op_name", "")), event["dur"] / 1e3)
            for event in nodes
            if start <= event["ts"] <= end
        ]
        for start, end in sorted(bounds)
    ]
