"""The range of values that each tensor takes on the calibration frames.

``measure_ranges`` runs the fp32 graph on ONNX Runtime, and collects values by three methods:

minmax      the lowest and the highest value
percentile  what holds 99.99 % of the values, with as many left out above as below
entropy     the range whose int8 histogram loses least information, by ONNX Runtime's search
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import onnx

Range = tuple[float, float]  # lowest and highest value

PERCENT = 99.99  # of the values that "percentile" keeps
PERCENTILE_BINS = 4096
ENTROPY_BINS = 512  # for each tensor, a search in plain Python goes over all of them
QUANTISED_BINS = 128
SILENT = 4  # ONNX Runtime's log level for fatal errors only


def measure_ranges(
    model: onnx.ModelProto,
    tensors: Iterable[str],
    slots: NDArray[np.uint8],
    method: str,
    progress: Callable[[int, int], None] = lambda done, of: None,
    by_channel: Collection[str] = (),
) -> dict[str, Range]:
    """Tensor -> the range that int8 must cover.

    ``slots``: u8 RGB [N, H, W, 3], N >= 1. ``method``: "minmax", "percentile" or "entropy".
    ``progress`` gets the number of frames done and of all frames. ``by_channel``: tensors
    [N, channels, ...] whose channels are measured as well (``channel_name``).
    """
    names = list(dict.fromkeys([*tensors, *by_channel]))
    collectors: dict[str, _MinMax | _Percentile] = {}
    for done, values in enumerate(_values_of_each_frame(model, names, slots), 1):
        for name, array in zip(names, values, strict=True):
            parts = {name: array}
            if name in by_channel:
                parts |= {channel_name(name, at): part for at, part in enumerate(array)}
            for part, numbers in parts.items():
                collectors.setdefault(part, _COLLECTORS[method]()).add(numbers)
        progress(done, len(slots))
    return {name: collector.result() for name, collector in collectors.items()}


def channel_name(tensor: str, channel: int) -> str:
    """Return the key of one channel's range in the table of tensors."""
    return f"{tensor}[{channel}]"


def _values_of_each_frame(
    model: onnx.ModelProto, names: list[str], slots: NDArray[np.uint8]
) -> Iterator[list[NDArray[np.float32]]]:
    """Yield the tensors' values frame by frame, whatever the batch of the graph.

    A last batch that is not full is filled up with copies, whose results are left out. A tensor
    without a batch dimension is handed out once for each frame.
    """
    session, input_name, batch = _open_session(model, names)
    for start in range(0, len(slots), batch):
        frames = slots[start : start + batch]
        full = np.concatenate([frames, np.repeat(frames[-1:], batch - len(frames), axis=0)])
        values = session.run(names, {input_name: full})
        for at in range(len(frames)):
            yield [
                array[at] if array.ndim and array.shape[0] == batch else array for array in values
            ]


def _open_session(model: onnx.ModelProto, names: list[str]) -> tuple[Any, str, int]:
    """A session whose outputs include the tensors ``names``; its input's name, and its batch."""
    import onnx
    import onnxruntime as ort

    watched = onnx.ModelProto()
    watched.CopyFrom(model)
    outputs = {info.name for info in watched.graph.output}
    infos = {info.name: info for info in watched.graph.value_info}
    watched.graph.output.extend(infos[name] for name in names if name not in outputs)
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
        self.low = min(self.low, float(values.min()))
        self.high = max(self.high, float(values.max()))

    def result(self) -> Range:
        return self.low, self.high


class _Percentile:
    """Uses ONNX Runtime's histogram: bins around zero that grow outwards as larger values come."""

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
        return percentile_range(counts, edges, float(low), float(high), PERCENT)


class _Entropy(_Percentile):
    bins = ENTROPY_BINS

    def result(self) -> Range:
        histogram = self.collector.get_histogram_dict()[""]
        low, high = self.collector.get_entropy_threshold(histogram, QUANTISED_BINS)[:2]
        return max(float(low), float(histogram[2])), min(float(high), float(histogram[3]))


def percentile_range(
    counts: NDArray[Any], edges: NDArray[Any], low: float, high: float, percent: float
) -> Range:
    """The range that holds ``percent`` of a histogram's values, as many left out above as below.

    ``counts``: [bins]; ``edges``: [bins + 1]; ``low`` and ``high``: the extremes that were seen.
    """
    share = np.cumsum(counts) / max(1, counts.sum())
    outside = (1 - percent / 100) / 2
    first = int(np.searchsorted(share, outside, side="right"))
    last = int(np.searchsorted(share, 1 - outside, side="left"))
    last = min(last, len(counts) - 1)
    return max(low, float(edges[min(first, last)])), min(high, float(edges[last + 1]))


_COLLECTORS: dict[str, Callable[[], _MinMax | _Percentile]] = {
    "minmax": _MinMax,
    "percentile": _Percentile,
    "entropy": _Entropy,
}
