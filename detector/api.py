"""The Python API: ``Detector`` finds objects in one picture, or in a stream of frames."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from types import TracebackType
from typing import TYPE_CHECKING, Any

from detector.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from detector.engines.base import Request
    from detector.types import Detections, Frame, Image


class Detector:
    """A model on an engine, warmed up.

    ``model``: path of a model file or a known name; "street" (person, vehicle) comes with the
    package. ``engine``: "auto", "ort", "openvino", "torch", "trt" or "null". ``options``: any
    option of the command line under its name (``conf=0.4``, ``batch=8``, ``classes=["person"]``,
    ``weights=...``); an unknown one raises UsageError. Raises ModelError and EngineError as the
    command does. Close it, or use ``with``.
    """

    def __init__(self, model: str = "street", *, engine: str = "auto", **options: Any) -> None:
        from detector.config.levels import resolve_config
        from detector.run.wire import load_model

        self._config = resolve_config(None, {"model": str(model), "engine": engine, **options})
        # A call waits for its picture, and one request on all threads answers soonest. With
        # concurrency=N a stream runs N requests.
        self._loaded = load_model(self._config, spare_requests=1, one_at_a_time=True)
        turns = threading.BoundedSemaphore(self._loaded.engine.concurrency)
        self._requests = [_Turn(request, turns) for request in self._loaded.engine.requests]
        self._streaming = False

    @property
    def names(self) -> tuple[str, ...]:
        """Class names, by class id."""
        return self._loaded.network.names

    @property
    def engine(self) -> str:
        return self._loaded.engine.name

    def __call__(self, image: Image) -> Detections:
        """The objects in one picture: u8 BGR [h, w, 3], as ``cv2.imread`` returns it.

        The picture is not changed. Raises UsageError for anything else.
        """
        from detector.run.wire import stage_functions

        if (
            getattr(image, "ndim", 0) != 3
            or image.shape[2] != 3
            or image.dtype.name != "uint8"
            or not image.size
        ):
            kind = f"{getattr(image, 'dtype', type(image).__name__)} {getattr(image, 'shape', '')}"
            raise UsageError(f"a picture must be uint8 BGR [height, width, 3], not {kind.strip()}")
        preprocess, head, nms = stage_functions(self._config, self._loaded)
        request = self._requests[-1]  # the spare one: a stream may be using the others
        fit = preprocess(image, request.slot[0])
        return fit.to_source(nms(head([output[:1] for output in request.infer(1)])))

    def stream(self, source: str) -> Iterator[tuple[Frame, Detections]]:
        """Every frame of a video, a picture, a folder or a glob, with its objects, in order.

        Reading and inference run in threads of their own while the caller works. The caller may
        keep the frames. Leaving the loop early stops the threads. One stream at a time. Raises
        SourceError, and UsageError for a second stream.
        """
        from detector.loop.parts import Parts, Progress
        from detector.run.wire import open_source, run_loop, stage_functions
        from detector.timeline import OffTimeline
        from detector.types import Frame

        if self._streaming:
            raise UsageError(
                "this Detector is streaming already; close that stream first, or make another one"
            )
        self._streaming = True
        try:
            with open_source(str(source), self._config) as opened:
                preprocess, head, nms = stage_functions(self._config, self._loaded)
                parts = Parts(
                    opened,
                    self._requests[:-1],
                    self._loaded.engine.concurrency,
                    preprocess,
                    head,
                    nms,
                )
                with closing(run_loop(parts, self._config, OffTimeline(), Progress())) as frames:
                    for frame, detections in frames:
                        own = frame.image.copy()  # the loop uses its buffer again
                        yield (
                            Frame(frame.index, frame.pts, frame.time_s, own, frame.path),
                            detections,
                        )
        finally:
            self._streaming = False

    def close(self) -> None:
        """Releases the engine. May be called twice."""
        self._loaded.engine.close()

    def __enter__(self) -> Detector:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _Turn:
    """A request that waits until the engine has room.

    A call and a stream together must not exceed the engine's concurrency.
    """

    def __init__(self, request: Request, turns: threading.BoundedSemaphore) -> None:
        self._request = request
        self._turns = turns
        self.slot = request.slot
        self.device_ms: float | None = None  # no call here reports it

    def infer(self, n: int) -> list[NDArray[np.float32]]:
        with self._turns:
            return self._request.infer(n)
