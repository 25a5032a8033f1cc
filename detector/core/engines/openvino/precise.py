"""Mark nodes with OpenVINO's attribute ``precise``: they stay float32 in a run of any precision.
OpenVINO's Python API cannot set the attribute, so we write it into the model's XML file. The
attribute is undocumented; openvino 2024.6 and 2026.4 respect it."""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from detector.core.errors.writing import temporary_folder

# OpenVINO appends this to a convolution's name. The layer that adds the bias has the node's name.
WITHOUT_BIASES = "/WithoutBiases"
PASSIVE = ("Const", "Parameter", "Result")


def mark_precise(core: Any, model: Any, names: Set[str]) -> Any:
    """Return a copy of the model with the nodes ``names`` marked. Raises OSError or OutputError."""
    import openvino

    with temporary_folder() as folder:
        graph, weights = Path(folder, "graph.xml"), Path(folder, "graph.bin")
        openvino.serialize(model, str(graph), str(weights))
        # Read graph and weights into memory, since some systems cannot delete a mapped file.
        return core.read_model(_mark(graph, names), weights.read_bytes())


def _mark(graph: Path, names: Set[str]) -> bytes:
    root = ElementTree.parse(graph).getroot()
    for layer in root.iter("layer"):
        if (
            layer.get("type") in PASSIVE
            or layer.get("name", "").removesuffix(WITHOUT_BIASES) not in names
        ):
            continue
        info = layer.find("rt_info")
        if info is None:
            info = ElementTree.Element("rt_info")
            # OpenVINO writes the element <rt_info> after <data>.
            layer.insert(0 if layer.find("data") is None else 1, info)
        ElementTree.SubElement(info, "attribute", {"name": "precise", "version": "0"})
    return ElementTree.tostring(root)
