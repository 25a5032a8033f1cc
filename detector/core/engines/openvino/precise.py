"""Mark nodes that stay float32 in any precision, with OpenVINO's attribute ``precise``. Python
cannot set it, so we write it into OpenVINO's file format. It is undocumented; openvino 2024.6 and
2026.4 respect it."""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from detector.core.errors.writing import temporary_folder

# Suffix that OpenVINO adds to a convolution's name; the addition of its bias gets the node's name.
WITHOUT_BIASES = "/WithoutBiases"
PASSIVE = ("Const", "Parameter", "Result")


def mark_precise(core: Any, model: Any, names: Set[str]) -> Any:
    """Return a copy of the model in which these nodes are marked. Raises OSError or OutputError."""
    import openvino

    with temporary_folder() as folder:
        graph, weights = Path(folder, "graph.xml"), Path(folder, "graph.bin")
        openvino.serialize(model, str(graph), str(weights))
        # Both are read into memory, since some systems cannot delete a mapped file.
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
            # OpenVINO's own order is the data, then this element.
            layer.insert(0 if layer.find("data") is None else 1, info)
        ElementTree.SubElement(info, "attribute", {"name": "precise", "version": "0"})
    return ElementTree.tostring(root)
