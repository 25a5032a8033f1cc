"""Measure the range of values that each tensor has for the calibration frames.

``measure_ranges`` runs the fp32 graph on ONNX Runtime. There are two methods:

minmax      from the lowest to the highest value
percentile  the middle 99.99 % of the values
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import onnx

Range = tuple[float, float]  # lowest and highest value

PERCENT = 99.99  # share of the values that "percentile" keeps
PERCENTILE_BINS = 4096
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
    """Return tensor -> the range that int8 must cover.

    ``slots``: frames, u8 RGB [N, H, W, 3], N >= 1. ``method``: "minmax" or "percentile".
    ``progress`` gets the number of finished frames and that of all frames. ``by_channel``: tensors
    [N, channels, ...] whose channels are measured too (``channel_name``).
    """
    names = list(dict.fromkeys([*tensors, *by_channel]))
    collectors: dict[str, _MinMax | _Percentile] = {}
    for done, values in enumerate(_run_frames(model, names, slots), 1):
        for name, array in zip(names, values, strict=True):
            parts = {name: array}
            if name in by_channel:
                parts |= {channel_name(name, at): part for at, part in enumerate(array)}
            for part, numbers in parts.items():
                collectors.setdefault(part, _COLLECTORS[method]()).add(numbers)
        progress(done, len(slots))
    return {name: collector.result() for name, collector in collectors.items()}


def channel_name(tensor: str, channel: int) -> str:
    """Return the key of a channel's range in the result of ``measure_ranges``."""
    return f"{tensor}[{channel}]"


def _run_frames(
    model: onnx.ModelProto, names: list[str], slots: NDArray[np.uint8]
) -> Iterator[list[NDArray[np.float32]]]:
    """Yield each frame's tensors. A tensor without a batch axis is yielded whole for each frame."""
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
    """Return (session whose outputs include ``names``, name of its input, its batch)."""
    import onnx
    import onnxruntime as ort

    extended = onnx.ModelProto()
    extended.CopyFrom(model)
    outputs = {info.name for info in extended.graph.output}
    infos = {info.name: info for info in extended.graph.value_info}
    extended.graph.output.extend(infos[name] for name in names if name not in outputs)
    settings = ort.SessionOptions()
    settings.log_severity_level = SILENT
    settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = ort.InferenceSession(
        extended.SerializeToString(), settings, providers=["CPUExecutionProvider"]
    )
    input_info = session.get_inputs()[0]
    return session, input_info.name, int(input_info.shape[0])


class _MinMax:
    def __init__(self) -> None:
        self.low, self.high = np.inf, -np.inf

    def add(self, values: NDArray[np.float32]) -> None:
        self.low = min(self.low, float(values.min()))
        self.high = max(self.high, float(values.max()))

    def result(self) -> Range:
        return self.low, self.high


class _Percentile:
    """Uses ONNX Runtime's histogram around zero. It adds bins at both ends for larger values."""

    def __init__(self) -> None:
        from onnxruntime.quantization.calibrate import HistogramCollector

        self.collector = HistogramCollector(
            "entropy", False, PERCENTILE_BINS, QUANTISED_BINS, PERCENT, "same"
        )

    def add(self, values: NDArray[np.float32]) -> None:
        self.collector.collect_value({"": values})

    def result(self) -> Range:
        counts, edges, low, high, _ = self.collector.get_histogram_dict()[""]
        return percentile_range(counts, edges, float(low), float(high), PERCENT)


def percentile_range(
    counts: NDArray[Any], edges: NDArray[Any], low: float, high: float, percent: float
) -> Range:
    """Return the range of the middle ``percent`` of a histogram's values.

    ``counts``: [bins]; ``edges``: [bins + 1]; ``low`` and ``high``: the smallest and largest value.
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
}
