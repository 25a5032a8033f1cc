"""An OpenVINO model in which some nodes stay float32, whatever precision the plugin is asked for.

The plugin converts a whole graph by a hint, all but the nodes with the attribute ``precise``. Python cannot set that:
it is an attribute of a C++ type, which a dictionary of strings cannot hold. OpenVINO's own file format can, so the
model goes through a file. The attribute is in no manual; whether it took effect, the compiled model tells
(openvino 2024.6 and 2026.4 heed it).
"""

from __future__ import annotations

import tempfile
from collections.abc import Set
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

WITHOUT_BIASES = "/WithoutBiases"  # what the ONNX front end calls a convolution; the sum with its bias has the name
PASSIVE = ("Const", "Parameter", "Result")


def precise(core: Any, model: Any, names: Set[str]) -> Any:
    """The model anew, with the nodes of these names marked. ``core``: an ``openvino.Core``.

    Raises OSError where nothing can be written to the folder for temporary files.
    """
    import openvino

    with tempfile.TemporaryDirectory(prefix="detect-video-") as folder:
        graph, weights = Path(folder, "graph.xml"), Path(folder, "graph.bin")
        openvino.serialize(model, str(graph), str(weights))
        # Both into memory: a file that is mapped could not be deleted everywhere.
        return core.read_model(_marked(graph, names), weights.read_bytes())


def _marked(graph: Path, names: Set[str]) -> bytes:
    root = ElementTree.parse(graph).getroot()
    for layer in root.iter("layer"):
        if layer.get("type") in PASSIVE or layer.get("name", "").removesuffix(WITHOUT_BIASES) not in names:
            continue
        info = layer.find("rt_info")
        if info is None:
            info = ElementTree.Element("rt_info")
            layer.insert(0 if layer.find("data") is None else 1, info)  # where OpenVINO writes it: behind the data
        ElementTree.SubElement(info, "attribute", {"name": "precise", "version": "0"})
    return ElementTree.tostring(root)
