"""The default model in int8, by ONNX Runtime's static quantisation: what it costs in accuracy, not yet a product."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


class Slots:
    """Pictures for calibration, as ONNX Runtime asks for them: one after the other, then None."""

    def __init__(self, name: str, slots: Iterable[NDArray[np.uint8]]) -> None:
        self._rows = iter([{name: slot[None]} for slot in slots])

    def get_next(self) -> dict | None:
        return next(self._rows, None)


def int8(model: bytes, slots: Iterable[NDArray[np.uint8]]) -> bytes:
    """Static QDQ, per channel, of every convolution; ranges by MinMax."""
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static

    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "fp32.onnx"), Path(folder, "int8.onnx")
        source.write_bytes(model)
        import onnx

        name = onnx.load_from_string(model).graph.input[0].name
        quantize_static(
            str(source), str(target), Slots(name, slots), quant_format=QuantFormat.QDQ, per_channel=True,
            activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
            calibrate_method=CalibrationMethod.MinMax,
        )  # fmt: skip
        return target.read_bytes()
