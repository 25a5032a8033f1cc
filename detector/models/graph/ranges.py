"""What values each tensor takes on the calibration frames: minmax, percentile or entropy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import onnx

Range = tuple[float, float]

PERCENT = (
    99.99  # of the values that "percentile" keeps; the rest is cut off, half of it at either end
)
PERCENTILE_BINS = 4096
ENTROPY_BINS = 512  # a search in plain Python over all of them, a tensor
QUANTISED_BINS = 128
SILENT = 4


def measured(
    model: onnx.ModelProto,
    tensors: Iterable[str],
    slots: NDArray[np.uint8],
    method: str,
    step: Callable[[int, int], None] = lambda done, of: None,
) -> dict[str, Range]:
    """Tensor -> (lowest, highest) that int8 must be able to say. ``slots``: u8 RGB [N, H, W, 3], any N >= 1."""
    names = list(tensors)
    collectors = {name: _COLLECTORS[method]() for name in names}
    for done, values in enumerate(_values(model, names, slots), 1):
        for name, array in zip(names, values, strict=True):
            collectors[name].add(array)
        step(done, len(slots))
    return {name: collector.result() for name, collector in collectors.items()}


def _values(
    model: onnx.ModelProto, names: list[str], slots: NDArray[np.uint8]
) -> Iterator[list[NDArray[np.float32]]]:
    """The tensors' values, frame by frame, whatever the batch of the graph. A ragged last batch is filled up with
    copies, whose results are left out; what has no batch dimension is handed out once a frame."""
    session, given, batch = _session(model, names)
    for start in range(0, len(slots), batch):
        part = slots[start : start + batch]
        filled = np.concatenate([part, np.repeat(part[-1:], batch - len(part), axis=0)])
        found = session.run(names, {given: filled})
        for at in range(len(part)):
            yield [
                array[at] if array.ndim and array.shape[0] == batch else array for array in found
            ]


def _session(model: onnx.ModelProto, names: list[str]) -> tuple[Any, str, int]:
    import onnx
    import onnxruntime as ort

    watched = onnx.ModelProto()
    watched.CopyFrom(model)
    there = {info.name for info in watched.graph.output}
    known = {info.name: info for info in watched.graph.value_info}
    watched.graph.output.extend(known[name] for name in names if name not in there)
    settings = ort.SessionOptions()
    settings.log_severity_level = SILENT
    settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = ort.InferenceSession(
        watched.SerializeToString(), settings, providers=["CPUExecutionProvider"]
    )
    described = session.get_inputs()[0]
    return session, described.name, int(described.shape[0])


class _MinMax:
    def __init__(self) -> None:
        self.low, self.high = np.inf, -np.inf

    def add(self, values: NDArray[np.float32]) -> None:
        self.low, self.high = (
            min(self.low, float(values.min())),
            max(self.high, float(values.max())),
        )

    def result(self) -> Range:
        return self.low, self.high


class _Histogram:
    """ONNX Runtime's own: bins around zero that grow outwards as larger values come."""

    bins = PERCENTILE_BINS

    def __init__(self) -> None:
        from onnxruntime.quantization.calibrate import HistogramCollector

        self.collector = HistogramCollector(
            "entropy", False, self.bins, QUANTISED_BINS, PERCENT, "same"
        )

    def add(self, values: NDArray[np.float32]) -> None:
        self.collector.collect_value({"": values})

    def result(self) -> Range:
        counts, edges, low, high, _ = self.collector.get_histogram_dict()[""]
        return cut(counts, edges, float(low), float(high), PERCENT)


class _Entropy(_Histogram):
    bins = ENTROPY_BINS

    def result(self) -> Range:
        histogram = self.collector.get_histogram_dict()[""]
        low, high = self.collector.get_entropy_threshold(histogram, QUANTISED_BINS)[:2]
        return max(float(low), float(histogram[2])), min(float(high), float(histogram[3]))


def cut(
    counts: NDArray[Any], edges: NDArray[Any], low: float, high: float, percent: float
) -> Range:
    """The range that holds ``percent`` of the values, as many left out above as below; within what was seen."""
    share = np.cumsum(counts) / max(1, counts.sum())
    outside = (1 - percent / 100) / 2
    first = int(np.searchsorted(share, outside, side="right"))
    last = int(np.searchsorted(share, 1 - outside, side="left"))
    last = min(last, len(counts) - 1)
    return max(low, float(edges[min(first, last)])), min(high, float(edges[last + 1]))


_COLLECTORS: dict[str, Callable[[], _MinMax | _Histogram]] = {
    "minmax": _MinMax,
    "percentile": _Histogram,
    "entropy": _Entropy,
}
