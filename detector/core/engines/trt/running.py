"""A request of TensorRT, with its own slot, execution context, stream and two events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.core.engines.base import RawRequest, translated
from detector.core.engines.trt.edition import Edition
from detector.core.engines.trt.memory import Buffer, DeviceMemory
from detector.core.models.layouts.plans import PlanTensor

CHANNELS = 3
IN_FLIGHT = 2  # concurrent requests, so that one copies data while the other computes


class TrtRequest(RawRequest):
    def __init__(self, edition: Edition, memory: DeviceMemory, log: Any) -> None:
        self._edition, self._memory, self._log = edition, memory, log
        self._context: Any = None
        self._buffers: dict[str, Buffer] = {}
        self._owned: list[Any] = []  # in the order of creation

    def prepare(
        self,
        make_context: Callable[[], Any],
        tensors: Sequence[PlanTensor],
        outputs: Sequence[str],
        batch: int,
        foreign: bool,
    ) -> None:
        """Create the context and allocate memory. ``make_context`` returns None if it fails.
        ``foreign``: the plan is not ours, so its input may be float or NCHW instead of u8 NHWC."""
        self._stream = self._own(self._memory.stream())
        self._begin = self._own(self._memory.event())
        self._end = self._own(self._memory.event())
        self._context = make_context()
        if self._context is None:
            raise self._edition.error(f"no execution context: {self._log.reason()}")
        input_tensor = next(tensor for tensor in tensors if tensor.is_input)
        self._set_batch(input_tensor, batch)
        self._allocate(tensors)
        self._input = self._buffers[input_tensor.name]
        self._outputs = [self._buffers[name] for name in outputs]
        self._results = [_as_float(buffer.host) for buffer in self._outputs]
        self._planes: NDArray[Any] | None
        self.slot, self._planes = _slot(self._input.host) if foreign else (self._input.host, None)

    def _own(self, made: Any) -> Any:
        self._owned.append(made)
        return made

    def _set_batch(self, input_tensor: PlanTensor, batch: int) -> None:
        """Set the batch. Of the profiles that allow it, use the narrowest, which is tuned best."""
        if not input_tensor.profiles:
            return
        fitting = [
            (largest[0] - smallest[0], at)
            for at, (smallest, _, largest) in enumerate(input_tensor.profiles)
            if smallest[0] <= batch <= largest[0]
        ]
        _, at = min(fitting)
        if not self._context.set_optimization_profile_async(at, self._stream.handle):
            raise self._edition.error(
                f"optimisation profile {at} is rejected: {self._log.reason()}"
            )
        if not self._context.set_input_shape(input_tensor.name, (batch, *input_tensor.shape[1:])):
            raise self._edition.error(f"batch {batch} is rejected: {self._log.reason()}")
        if missing := self._context.infer_shapes():
            raise self._edition.error(f"tensors without a shape: {', '.join(missing)}")

    def _allocate(self, tensors: Sequence[PlanTensor]) -> None:
        for tensor in tensors:
            shape = tuple(int(side) for side in self._context.get_tensor_shape(tensor.name))
            if -1 in shape:
                raise self._edition.error(
                    f"{tensor}: a size that depends on the picture is not supported"
                )
            buffer = self._own(self._memory.buffer(shape, np.dtype(tensor.dtype)))
            self._buffers[tensor.name] = buffer
            if not self._context.set_tensor_address(tensor.name, buffer.address):
                raise self._edition.error(
                    f"{tensor}: its address is rejected: {self._log.reason()}"
                )

    def infer(self, n: int) -> list[NDArray[np.float32]]:
        if self._context is None:
            raise self._edition.error("infer() called after close()")
        if self._planes is not None:
            _fill(self._planes, self.slot)
        with translated(self._edition.engine, "run the network"), self._memory.active():
            self._begin.record(self._stream)
            self._input.upload(self._stream)
            if not self._context.execute_async_v3(self._stream.handle):
                raise self._edition.error(
                    f"{self._edition.title} failed to run the network: {self._log.reason()}"
                )
            for output in self._outputs:
                output.download(self._stream)
            self._end.record(self._stream)
            self._end.wait()  # waits for this request's work only
            self.device_ms = self._end.ms_since(self._begin)
        for output, result in zip(self._outputs, self._results, strict=True):
            if result is not output.host:
                np.copyto(result, output.host, casting="unsafe")
        return [result[:n] for result in self._results]

    def attach(self, profiler: Any) -> None:
        """Time the layers of each later run; ``report`` passes the times to ``profiler``."""
        with translated(self._edition.engine, "attach a profiler"), self._memory.active():
            # If this were True, the call that starts a run would wait for the device.
            self._context.enqueue_emits_profile = False
            self._context.profiler = profiler

    def report(self) -> None:
        """Pass the layer times of the last run to the attached profiler. Raises EngineError."""
        with translated(self._edition.engine, "report layer times"), self._memory.active():
            if not self._context.report_to_profiler():
                raise self._edition.error(f"no layer times: {self._log.reason()}")

    @property
    def context(self) -> Any:
        return self._context

    def release(self) -> None:
        """Free all memory; the device must be active. May be called twice. If freeing one part
        fails, free the rest, then raise the first error."""
        owned, self._owned = self._owned, []
        errors: list[Exception] = []
        for resource in reversed(owned):
            try:
                resource.free()
            except Exception as error:  # each package has its own errors
                errors.append(error)
        self._buffers, self._context = {}, None
        if errors:
            raise errors[0]


def _slot(host: NDArray[Any]) -> tuple[NDArray[np.uint8], NDArray[Any] | None]:
    """Return the slot, u8 [B, H, W, 3], and the input as a view [B, H, W, 3] to which each run
    copies the slot. The view is None if the slot is the input itself."""
    if host.dtype == np.uint8 and host.shape[1] != CHANNELS:
        return host, None
    view = host.transpose(0, 2, 3, 1) if host.shape[1] == CHANNELS else host
    return np.zeros(view.shape, np.uint8), view


def _fill(planes: NDArray[Any], slot: NDArray[np.uint8]) -> None:
    """Copy the slot to the input. A float input gets values in 0..1 instead of 0..255."""
    if planes.dtype == np.uint8:
        np.copyto(planes, slot)
    else:
        np.multiply(slot, np.float32(1 / 255), out=planes, casting="same_kind")


def _as_float(host: NDArray[Any]) -> NDArray[np.float32]:
    return host if host.dtype == np.float32 else np.zeros(host.shape, np.float32)
