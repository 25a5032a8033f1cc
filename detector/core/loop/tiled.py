"""Requests for --tiles: each row is a frame that is cut into several network inputs.

``TiledRequest``: all frames have the same number of inputs. ``MixedRequest``: each row has its own
number. With T inputs per frame, the slot's rows are [T, H, W, 3], and the outputs' rows [T, ...].
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from detector.core.loop.parts import BatchRequest, Outputs
from detector.core.types import Image


class TiledRequest:
    """A request for frames of ``tiles`` inputs each. ``slot``: u8 RGB [frames, T, H, W, 3].
    ``device_ms``: total over all calls of the engine in the last ``infer``.

    If the engine's batch holds all inputs of a frame, the slot is the engine's own memory and one
    call infers as many frames as fit. Otherwise one frame takes several calls."""

    slot: Image

    def __init__(self, request: BatchRequest, tiles: int) -> None:
        self._request, self._tiles = request, tiles
        self.device_ms: float | None = None
        batch, *shape = request.slot.shape
        frames = batch // tiles
        self._fits = frames > 0
        if self._fits:
            self.slot = request.slot[: frames * tiles].reshape(frames, tiles, *shape)
        else:
            self.slot = np.empty((1, tiles, *shape), np.uint8)
        self._outputs: Outputs = []

    def infer(self, n: int) -> Outputs:
        """Return float32 [n, T, ...], valid until the next ``infer``."""
        if not self._fits:
            inputs = [(0, tile) for tile in range(self._tiles)]
            self.device_ms = _infer_inputs(self._request, self.slot, inputs, self._outputs)
            return self._outputs
        outputs = self._request.infer(n * self._tiles)
        self.device_ms = self._request.device_ms
        return [output.reshape(n, self._tiles, *output.shape[1:]) for output in outputs]


class MixedRequest:
    """A request for frames of 1 to ``most`` inputs each. ``slot``: u8 RGB [frames, most, H, W, 3];
    ``counts[i]``: the number of inputs of row i, set before ``infer``."""

    def __init__(self, request: BatchRequest, most: int) -> None:
        self._request = request
        self.device_ms: float | None = None
        batch, *shape = request.slot.shape
        # The system allocates memory only when it is first written, so unused tiles cost nothing.
        self.slot: Image = np.empty((batch, most, *shape), np.uint8)
        self.counts = np.ones(batch, np.int64)
        self._outputs: Outputs = []

    def infer(self, n: int) -> Outputs:
        """Return float32 [n, most, ...], then ``counts`` as float32 [n]; valid until the next
        ``infer``. In row i, only the first ``counts[i]`` outputs are new."""
        inputs = [(row, tile) for row in range(n) for tile in range(int(self.counts[row]))]
        self.device_ms = _infer_inputs(self._request, self.slot, inputs, self._outputs)
        outputs = [output[:n] for output in self._outputs]
        return [*outputs, self.counts[:n].astype(np.float32)]


def _infer_inputs(
    request: BatchRequest, slot: Image, inputs: Sequence[tuple[int, int]], outputs: Outputs
) -> float | None:
    """Infer the inputs (row, tile) of ``slot``, as many at once as the engine's batch holds. Write
    the results to ``outputs``, which the first call allocates. Return the total of the device's
    milliseconds, or None if the device reports none."""
    batch, times = len(request.slot), []
    for start in range(0, len(inputs), batch):
        part = inputs[start : start + batch]
        for at, source in enumerate(part):
            request.slot[at] = slot[source]
        results = request.infer(len(part))
        if not outputs:
            outputs += [np.empty((*slot.shape[:2], *a.shape[1:]), a.dtype) for a in results]
        for output, result in zip(outputs, results, strict=True):
            for at, target in enumerate(part):
                output[target] = result[at]
        times.append(request.device_ms)
    known = [ms for ms in times if ms is not None]
    return sum(known) if len(known) == len(times) else None
