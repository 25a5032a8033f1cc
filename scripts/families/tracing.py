"""The export of most families' networks to ONNX, by torch's tracing exporter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch


def export_onnx(
    module: Any, inputs: Any, path: Path, outputs: list[str], opset: int, **options: Any
) -> None:
    """Export a network. ``inputs``: examples. ``options``: arguments of ``torch.onnx.export``."""
    options = {"input_names": ["images"], "output_names": outputs} | options
    torch.onnx.export(module, inputs, str(path), opset_version=opset, dynamo=False, **options)
