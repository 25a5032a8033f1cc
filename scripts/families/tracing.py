"""How most families' networks become ONNX files: by the exporter of torch that traces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch


def export_onnx(
    module: Any, given: Any, path: Path, outputs: list[str], opset: int, **more: Any
) -> None:
    """``given``: the inputs, as ``torch.onnx.export`` takes them; ``more``: its other arguments."""
    own = {"input_names": ["images"], "output_names": outputs} | more
    torch.onnx.export(module, given, str(path), opset_version=opset, dynamo=False, **own)
