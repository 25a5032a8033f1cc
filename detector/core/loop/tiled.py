"""Requests whose rows are frames with several inputs each, for --tiles.

``TiledRequest``: all frames have the same number of inputs. ``MixedRequest``: each row has its own
number.

The loop works as usual: a row of the slot is [T, H, W, 3], a row of the outputs [T, ...]. If the
engine's batch holds a frame's inputs, they run in one inference, together with those of ``batch``
// T frames; otherwise one ``infer`` calls the engine for one part after the other.
"""

from __future__ import annotations

import time

import numpy as np

from detector.core.loop.parts import BatchRequest, Outputs
from detector.core.types import Image


class TiledRequest:
    """A request for frames of ``tiles`` inputs each. ``slot``: u8 RGB [frames, T, H, W, 3].
    ``device_ms``: of all calls of the last ``infer`` together."""

    slot: Image

    def __init__(self, request: BatchRequest, tiles: int) -> None:
        self._request, self._tiles = request, tiles
        self.device_ms: float | None = None
        batch, *shape = request.slot.shape
        frames = max(1, batch // tiles)
        self._fits = frames * tiles <= batch
        inputs = (
            request.slot[: frames * tiles]
            if self._fits
            else np.empty((frames * tiles, *shape), np.uint8)
        )
        self._inputs, self.slot = inputs, inputs.reshape(frames, tiles, *shape)
        self._outputs: Outputs = []

    def infer(self, n: int) -> Outputs:
        """Return float32 [n, T, ...], valid until the next ``infer``."""
        if self._fits:
            outputs = self._request.infer(n * self._tiles)
            self.device_ms = self._request.device_ms
        else:
            outputs = self._in_parts(n * self._tiles)
        return [one.reshape(n, self._tiles, *one.shape[1:]) for one in outputs]

    def _in_parts(self, inputs: int) -> Outputs:
        request, batch, times = self._request, len(self._request.slot), []
        for start in range(0, inputs, batch):
            count = min(batch, inputs - start)
            request.slot[:count] = self._inputs[start : start + count]
            found = request.infer(count)
            if not self._outputs:
                self._outputs = [
                    np.empty((len(self._inputs), *one.shape[1:]), one.dtype) for one in found
                ]
            for own, one in zip(self._outputs, found, strict=True):
                own[start : start + count] = one
            times.append(request.device_ms)
        self.device_ms = (
            sum(one for one in times if one is not None)
            if all(one is not None for one in times)
            else None
        )
        return [own[:inputs] for own in self._outputs]


class MixedRequest:
    """A request for frames of 1 to ``most`` inputs each. ``slot``: u8 RGB [frames, most, H, W, 3];
    ``give`` sets the number of inputs of row i, ``counts[i]``. ``input_s``: seconds per input in
    the last ``infer``; 0 before the first."""

    def __init__(self, request: BatchRequest, most: int) -> None:
        self._request = request
        self.device_ms: float | None = None
        self.input_s = 0.0
        batch, *shape = request.slot.shape
        # Unused memory is never touched, so the system does not allocate it.
        self.slot: Image = np.empty((batch, most, *shape), np.uint8)
        self.counts = np.ones(batch, np.int64)
        self._outputs: Outputs = []

    def give(self, row: int, inputs: int) -> None:
        self.counts[row] = inputs

    def infer(self, n: int) -> Outputs:
        """Return float32 [n, most, ...], then ``counts`` as float32 [n]; valid until the next
        ``infer``. Outputs of inputs that a frame lacks keep old values."""
        request, batch, times = self._request, len(self._request.slot), []
        filled = [(row, at) for row in range(n) for at in range(int(self.counts[row]))]
        began = time.perf_counter()
        for start in range(0, len(filled), batch):
            part = filled[start : start + batch]
            for place, (row, at) in enumerate(part):
                request.slot[place] = self.slot[row, at]
            found = request.infer(len(part))
            self._make_outputs(found)
            for own, one in zip(self._outputs, found, strict=True):
                for place, (row, at) in enumerate(part):
                    own[row, at] = one[place]
            times.append(request.device_ms)
        self.input_s = (time.perf_counter() - began) / len(filled)
        known = [one for one in times if one is not None]
        self.device_ms = sum(known) if len(known) == len(times) else None
        return [*(own[:n] for own in self._outputs), self.counts[:n].astype(np.float32)]

    def _make_outputs(self, found: Outputs) -> None:
        if not self._outputs:
            rows = self.slot.shape[:2]
            self._outputs = [np.empty((*rows, *one.shape[1:]), one.dtype) for one in found]
