"""A small network, and the Q/DQ graph (int8-u8) that ONNX Runtime's quantiser makes of it."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from detector.core.models.base import Network
from tests.networks import cfg_text, open_network

CFG = cfg_text(
    "net width=64 height=32",
    "convolutional batch_normalize=1 filters=8 size=3 stride=2 pad=1 activation=leaky",
    "convolutional filters=8 size=3 stride=1 pad=1 activation=relu",
    "route layers=-1,-2",
    "maxpool size=2 stride=2",
    "convolutional filters=8 size=1 activation=leaky",
    "upsample stride=2",
    "convolutional filters=7 size=1 activation=linear",
    "yolo anchors=4,4 classes=2",
)
CONVOLUTIONS = ["0.conv", "1.conv", "4.conv", "6.conv"]


def small_network(folder: Path) -> Network:
    path = folder / "small.cfg"
    path.write_text(CFG)
    return open_network(str(path), random_seed=3)


def pictures(network: Network, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, network.input_shape, np.uint8)


def quantised(
    network: Network, folder: Path, keep: tuple[str, ...] = (), activations: str = "QUInt8"
) -> Network:
    """Quantise a network. ``keep``: convolutions that stay float, with their activations."""
    import onnx
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_static,
    )

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self._batches = [{"images": pictures(network, seed)} for seed in range(4)]

        def get_next(self):
            return self._batches.pop() if self._batches else None

    source, target = folder / "float.onnx", folder / "int8.onnx"
    onnx.save(network.graph, source)
    quantize_static(
        source,
        target,
        Reader(),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        activation_type=QuantType[activations],
        weight_type=QuantType.QInt8,
        nodes_to_exclude=[*keep, *(name.replace("conv", "act") for name in keep)],
        reduce_range=True,  # CPUs without VNNI add pairs of products in 16 bits, which may overflow
    )
    return replace(network, graph=onnx.load(target), precision="int8-u8", path=None)


def run_as_written(model, inputs: np.ndarray) -> np.ndarray:
    """Compute the first output in ONNX Runtime, each node separately. Fused nodes would run in an
    int8 kernel, whose 16-bit sums may saturate on a CPU without VNNI."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return session.run(None, {session.get_inputs()[0].name: inputs})[0]
