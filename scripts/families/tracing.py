"""The export of most families' networks to ONNX, by torch's tracing exporter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch


def export_onnx(
    module: Any, given: Any, path: Path, outputs: list[str], opset: int, **more: Any
) -> None:
    """Export. ``given``: the inputs for ``torch.onnx.export``; ``more``: its other arguments."""
    own = {"input_names": ["images"], "output_names": outputs} | more
    torch.onnx.export(module, given, str(path), opset_version=opset, dynamo=False, **own)
