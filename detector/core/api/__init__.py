"""The Python API: ``Detector`` finds objects in pictures and in streams of frames."""

from __future__ import annotations

import atexit
import difflib
import os
import reprlib
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast, overload

from detector.core import wings
from detector.core.api.options import OF_CAMERAS, Options
from detector.core.api.pictures import as_image, kind_of
from detector.core.api.words import python_words
from detector.core.config.elsewhere import OF_DETECTORS, AnswersAttributes, answer_keyword
from detector.core.config.schema import DrawingConfig, OutputConfig
from detector.core.errors import STOPPED_CODES, EngineError, UsageError

if TYPE_CHECKING:
    from typing import Never, Unpack

    import numpy as np
    from cv2 import VideoCapture
    from numpy.typing import ArrayLike, NDArray

    from detector.core import types
    from detector.core.api.pictures import Path, Picture
    from detector.core.api.results import Detections
    from detector.core.config.schema import Config
    from detector.core.loop.parts import BatchRequest, Outputs, Progress, ShapedInputs
    from detector.core.run.plan import RunPlan
    from detector.core.session.document import Summary
    from detector.core.sources.base import Source
    from detector.core.timeline.timeline import OffTimeline, Timeline
    from detector.core.types import Frame

    Classes = Sequence[str | int] | None  # names or ids


# Keyword arguments of Detector. In its messages, ``--max-det`` becomes ``max_det``.
KEYWORDS = frozenset(("model", "engine", "track", *Options.__annotations__))
FOR_A_CALL = frozenset(("conf", "classes"))
FOR_PROCESS = KEYWORDS.union(
    *(kind.__dataclass_fields__ for kind in (OutputConfig, DrawingConfig)),
    *(kind.__dataclass_fields__ for kind in wings.options(of_guests=False).values()),
)

_open: weakref.WeakSet[Detector] = weakref.WeakSet()
os.register_at_fork(after_in_child=_open.clear)  # open Detectors belong to the parent
# At exit, finalizers release decoders. They must run after ``_close_open``. ``atexit`` calls first
# what was registered last. The first finalizer registers the call of them all, so create it now.
weakref.finalize(_open, bool)
_exiting = threading.Event()


@atexit.register
def _close_open() -> None:
    """Close all Detectors: a thread still in an engine or decoder would crash the process."""
    _exiting.set()
    for detector in list(_open):
        with suppress(EngineError):  # a broken device
            detector._close_at_exit()


class GivenTracker(Protocol):
    """The caller's own tracker, which gets the frames in order and gives each object a track id."""

    def update(self, detections: types.Detections, frame: Frame) -> ArrayLike:
        """Return a whole number for each detection, [M]; -1 for an object without a track."""


class _TrackerStage:
    def __init__(self, tracker: GivenTracker) -> None:
        self._tracker = tracker

    def __call__(self, frame: Frame, detections: types.Detections) -> types.Detections:
        import numpy as np

        returned = self._tracker.update(detections, frame)
        ids = np.asarray(returned)
        whole = ids.dtype.kind in "iu" or (ids.dtype.kind == "f" and (ids == np.rint(ids)).all())
        if ids.shape != (len(detections),) or not (whole or not ids.size):
            raise UsageError(
                f"track: {type(self._tracker).__name__}.update() must return a whole number for "
                f"each of {len(detections)} detections, not {reprlib.repr(returned)}"
            )
        return replace(detections, track_ids=ids.astype(np.int64))

    def close(self) -> Sequence[str]:
        return ()

    def findings(self) -> Mapping[str, Any]:
        return {}


class Detector(AnswersAttributes):
    """A model on an engine, warmed up: call it with pictures, or ``stream`` a video.

    ``model``: path of a model file or a known name; "street" (person, vehicle) comes with the
    package. ``engine``: "ort", "openvino", "torch", "trt", "null"; "auto" chooses by measurements,
    as the command does; None takes the first engine of a fixed order, in fp32. ``options``: see
    ``Options``, such as ``conf=0.4`` or ``classes=["person"]``. Raises ModelError, EngineError, or
    UsageError that suggests the nearest known option. ``size=640`` is the longest side: each
    picture and video gets an input of its shape. Close the Detector, or use ``with``:

        >>> import numpy as np
        >>> from detector import Detector
        >>> with Detector(conf=0.4) as detector:
        ...     found = detector(np.zeros((720, 1280, 3), np.uint8))
        >>> len(found), detector.names
        (0, ('person', 'vehicle'))

    ``track``: "bytetrack" (or True), "ocsort" or "sort" gives the objects of ``stream`` stable ids
    (``found.track_ids``); so does any object with ``update(detections, frame) -> ids``. With
    ``infer_every=3``, ``frame.coasting`` marks frames whose boxes come from tracks.
    With ``zones="zones.yaml"``, or its content, ``{"lines": {"door": [[0, 300], [960, 300]]}}``,
    ``found.events`` lists what crossed a line, or entered or left a zone, in each frame.
    """

    answers = OF_DETECTORS

    def __init__(
        self,
        model: str | os.PathLike[str] = "street",
        *,
        engine: str | None = None,
        track: str | bool | GivenTracker | None = None,
        **options: Unpack[Options],
    ) -> None:
        from detector.core.config.levels import resolve_config
        from detector.core.run.plan import resolve

        _refuse_unknown(options, "Detector", Options.__annotations__)
        if not isinstance(model, (str, os.PathLike)):
            raise UsageError(
                f"a model must be a file path or a known name, not {kind_of(model)}; "
                'Detector("street") is the packaged one'
            )
        flags = {"model": os.fspath(model), "engine": engine or "auto", **options}
        flags["track"], self._tracker = _parse_tracker(track)
        with python_words(KEYWORDS):
            config = resolve_config(None, flags)
            if self._tracker is not None and config.value("infer_every") is not None:
                raise UsageError("--infer-every needs a built-in tracker; give its name to --track")
            # A call waits for its result, so one request on all threads gives the lowest latency.
            # A stream runs concurrency=N requests.
            self._flags, self._as_measured = flags, (auto := engine == "auto")
            plan = partial(resolve, spare_requests=1, one_at_a_time=True, measured=auto, timed=auto)
            self._plan = plan(config) if "rect" in options else _resolve_shaped(plan, config)
        turns = threading.BoundedSemaphore(self._plan.loaded.engine.concurrency)
        self._closed = threading.Event()
        shapes = self._plan.shapes()
        requests = self._plan.requests if shapes is None else shapes.requests
        self._requests = [_QueuedRequest(request, turns, self._closed) for request in requests]
        self._newest = config.value("policy", "latest") == "latest"
        self._calling = threading.Lock()  # held by the call that uses the last request
        self._streaming = threading.Lock()  # held by the stream that uses the other requests
        self._running: tuple[Progress, Generator[Any, None, Any]] | None = None
        # As in the command, any option for cameras means that all addresses are cameras.
        self._as_cameras = not OF_CAMERAS.isdisjoint(options)
        _open.add(self)

    @property
    def names(self) -> tuple[str, ...]:
        return self._plan.network.names

    @property
    def engine(self) -> str:
        return self._plan.loaded.engine.name

    @overload
    def __call__(
        self, pictures: Picture, *, conf: float | None = None, classes: Classes = None
    ) -> Detections: ...

    @overload
    def __call__(
        self,
        pictures: list[Picture] | tuple[Picture, ...],
        *,
        conf: float | None = None,
        classes: Classes = None,
    ) -> list[Detections]: ...

    def __call__(
        self,
        pictures: Picture | list[Picture] | tuple[Picture, ...] = None,  # type: ignore[assignment]
        *,
        conf: float | None = None,
        classes: Classes = None,
        **foreign: Never,
    ) -> Detections | list[Detections]:
        """Return the objects in one picture, or in each of a list.

        A picture is u8 BGR [h, w, 3], as ``cv2.imread`` returns it, the path of a picture file, or
        a PIL picture, whose EXIF rotation is not applied (``ImageOps.exif_transpose`` does that).
        The picture is not changed. A list is split into batches of the size ``batch`` (an option of
        the Detector). ``conf`` and ``classes`` apply to this call only. Several threads may call
        one Detector; their calls run in turn. Raises UsageError for other values, and SourceError
        for a file that cannot be read.
        """
        _refuse_unknown(foreign, "detector", FOR_A_CALL)
        if self._tracker is not None or self._flags["track"]:
            raise UsageError(
                "track: a call knows no earlier picture; use detector.stream(pictures)"
            )
        with python_words(KEYWORDS):
            _refuse_closed(self._closed)
            if isinstance(pictures, (list, tuple)):
                return self._detect(pictures, conf, classes)
            return self._detect([pictures], conf, classes)[0]

    def _detect(
        self, pictures: Sequence[Picture], conf: float | None, classes: Classes
    ) -> list[Detections]:
        from detector.core.api.results import Detections
        from detector.core.timeline.spans import HEAD, INFER, NMS, PREPROCESS

        plan = self._plan.selecting(conf, classes)
        preprocess, head, nms = plan.stages()
        shapes = plan.shapes()
        request = self._requests[-1]  # reserved for calls: a stream may use the others
        found = []
        images = [as_image(picture, plan.reading.choice) for picture in pictures]
        # Only one thread at a time may use the request and the timeline's track.
        with self._calling, self._timeline().track("call") as track:
            _refuse_closed(self._closed)
            for start in range(0, len(images), len(request.slot)):
                batch = images[start : start + len(request.slot)]
                fits = []
                if shapes is not None:  # each picture is then a batch of one
                    head = shapes.give(request.inner, batch[0])
                for i, (image, slot) in enumerate(zip(batch, request.slot, strict=False), start):
                    with track.span(PREPROCESS, i):
                        fits.append(preprocess(image, slot))
                with track.span(INFER, start // len(request.slot)):
                    outputs = request.infer(len(batch))
                for i, fit in enumerate(fits):
                    with track.span(HEAD, start + i):
                        candidates = head([output[i : i + 1] for output in outputs])
                    with track.span(NMS, start + i):
                        objects = fit.to_source(nms(candidates))
                    found.append(Detections.wrap(objects, pictures[start + i]))
        return found

    def stream(
        self,
        sources: Path | int | Iterable[Picture] | VideoCapture = None,  # type: ignore[assignment]
        *,
        conf: float | None = None,
        classes: Classes = None,
        **foreign: Never,
    ) -> Generator[tuple[Frame, Detections], None, None]:
        """Yield every frame of a video, a picture, a folder or a glob, with its objects, in order.

        A folder's pictures come first, then each of its videos. A UserWarning lists omitted
        files: those in a subfolder, or with an unknown suffix. Several sources are read in turn;
        ``frame.source`` describes the frame's source, with its size and frame rate. Reading and
        inference run in other threads while the caller works. The caller may keep the frames.
        ``blur=[...]`` pixelates the objects of these classes in the frames. A source may also be a
        camera (``"rtsp://..."`` or the number of a webcam), a ``cameras.yaml`` for many at once,
        an iterable of pictures as for a call (at 25 frames a second), or a ``cv2.VideoCapture``.
        Cameras have no end; by default, pictures are dropped if the loop is too slow.
        ``frame.arrival`` holds the camera and the time of arrival. Leaving the loop early stops the
        threads. Raises SourceError, and UsageError for a second stream at the same time.
        """
        from detector.core.api.given import take_given
        from detector.core.loop.parts import Progress

        _refuse_unknown(foreign, "stream", FOR_A_CALL)
        _refuse_closed(self._closed)
        if not self._streaming.acquire(blocking=False):
            raise UsageError(
                "this Detector is already streaming; close that stream first, or create another one"
            )
        try:
            listed = sources if isinstance(sources, (list, tuple)) else [sources]
            given = take_given(sources, self._plan.reading)
            for spec in given or _gather([_as_spec(source) for source in listed]):
                progress = Progress()
                with (
                    python_words(KEYWORDS),
                    closing(self._stream_one(spec, progress, conf, classes)) as frames,
                ):
                    self._running = progress, frames
                    if not (yield from frames):  # the interpreter is exiting
                        _refuse_closed(self._closed)
        finally:
            self._running = None
            self._streaming.release()

    def _stream_one(
        self, source: str | Source, progress: Progress, conf: float | None, classes: Classes
    ) -> Generator[tuple[Frame, Detections], None, bool]:
        from detector.core.api.results import Detections, Pair
        from detector.core.loop.parts import LoopHooks
        from detector.core.sources._forms import STANDARD_INPUT, is_web
        from detector.core.stages.annotate import pixelate

        plan = self._plan.selecting(conf, classes)
        if source == STANDARD_INPUT:
            from detector.core.sources._standard_input import standard_input

            standard_input().stopped = progress.stop.is_set
        cut_off: AbstractContextManager[None] = nullcontext()
        if isinstance(source, str) and is_web(source):
            from detector.core.sources import _web

            cut_off = _web.cut_when(progress.stop.is_set)
        if isinstance(source, str):
            source = plan.reading.open(source, as_camera=self._as_cameras)
        with cut_off, source as opened:
            live = opened if opened.arrives else None
            if live is not None and plan.reading.still is not None:
                raise UsageError("skip_still is for files, not for cameras; omit it")
            fresh = live is not None and self._newest
            parts = plan.parts(opened)
            tracker = {} if self._tracker is None else {"track": _TrackerStage(self._tracker)}
            parts = replace(
                parts,
                between={**parts.between, **tracker},
                shapes=None if parts.shapes is None else _QueuedShapes(parts.shapes),
                # A camera gets few requests, because its pictures would go stale in a queue.
                requests=self._requests[: plan.loaded.engine.concurrency + 1 if fresh else -1],
                hooks=None if live is None else LoopHooks(live.arrive, fresh),
            )
            with closing(plan.loop.marked(parts, self._timeline(), progress)) as frames:
                try:
                    for frame, found in frames:
                        image = frame.image.copy()  # the loop will reuse its buffer
                        pixelate(image, found, plan.drawing.blurred)
                        copy = replace(frame, picture=image, source=frame.source or opened.info)
                        yield Pair((copy, Detections.wrap(found, image)))
                    return True
                finally:
                    progress.stop.set()  # otherwise a silent pipe would block the reader
                    for stage in parts.between.values():
                        stage.close()

    def process(
        self,
        source: Path,
        output: Path | None = None,
        *,
        callback: Callable[[Frame, Detections], object] | None = None,
        **options: Any,
    ) -> Summary:
        """Write what ``detect-video SOURCE -o OUTPUT`` writes: the annotated video, and its rows.

        ``callback`` receives each frame and its objects after they are written, so it cannot change
        the video; a returned picture is refused. The frame's picture may show the boxes, and must
        not be kept. ``options``: further options of the command, such as ``save=["csv"]``. The
        model is loaded again, with an input that fits the source, as in the command. Returns the
        content of summary.json. Raises DetectVideoError.
        """
        from detector.core.api.results import Detections
        from detector.core.config.levels import resolve_config
        from detector.core.run.detect import Hooks, detect

        _refuse_closed(self._closed)
        _refuse_unknown(options, "process", FOR_PROCESS)
        track, own = _parse_tracker(options.get("track", self._flags["track"]))
        if own or self._tracker is not None:
            raise UsageError("process() needs a built-in tracker; give its name to track")

        def call(frame: Frame, found: types.Detections) -> None:
            if callback and callback(frame, Detections.wrap(found)) is not None:
                raise UsageError("callback: must return None; for your own pictures use stream()")

        flags = {**self._flags, **options, "track": track}
        flags["output"] = None if output is None else os.fspath(output)
        measured = self._as_measured
        hooks = Hooks(detected=call, measured=measured, timed=measured, tuned=measured)
        with python_words(FOR_PROCESS):
            result = detect(_gather([_as_spec(source)]), resolve_config(None, flags), hooks=hooks)
            for error in result.errors:
                raise error
        if result.exit_code in STOPPED_CODES:
            raise KeyboardInterrupt
        return result.summary

    def _timeline(self) -> Timeline | OffTimeline:
        """Return the NVTX timeline if a profiler is attached, else one that measures nothing."""
        from detector.core.timeline.nvtx_ranges import attach
        from detector.core.timeline.timeline import OffTimeline

        loop = self._plan.loop
        profiled = loop.nvtx and attach().domain is not None
        return loop.timeline(None, max_rows=0) if profiled else OffTimeline()

    def close(self) -> None:
        """Wait until no thread uses the engine, then release it. Calls and streams then raise
        UsageError, even those that had begun. May be called twice."""
        self.__exit__(None, None, None)

    def _close_at_exit(self) -> None:
        self._closed.set()
        self._calling.acquire(timeout=10)
        while (running := self._running) is not None:
            progress, frames = running
            progress.stop.set()
            try:
                frames.close()
                break
            except ValueError:  # another thread is running it
                time.sleep(0.01)
        self.close()

    def __enter__(self) -> Detector:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._closed.set()
        with ExitStack() as computing:
            for request in self._requests:
                computing.enter_context(request.lock)
            self._plan.loaded.__exit__(kind, error, trace)


def _resolve_shaped(resolve: Callable[[Config], RunPlan], config: Config) -> RunPlan:
    """Resolve a plan. If ``size`` is the longest side, each picture and video gets an input of its
    shape, unless the options or model fix the shape, or the engine would build a file per shape."""
    if (config.runtime.size or "").isdecimal():
        with suppress(UsageError):  # --rect is refused
            plan = resolve(config.with_options({"rect": True}))
            if plan.loaded.options is not None and plan.loaded.options.artefact is not None:
                plan.loaded.shapes = None
            return plan
    return resolve(config)


def _parse_tracker(track: object) -> tuple[str | None, GivenTracker | None]:
    """Return the name of a built-in tracker, or the caller's own. Raises UsageError."""
    if track is True:  # like --track without a value
        return wings.default_tracker() or None, None
    if track is None or track is False or isinstance(track, str):
        return track or None, None
    if not callable(getattr(track, "update", None)):
        raise UsageError(
            f"track: give a tracker's name or an object with update(detections, frame), not "
            f"{kind_of(track)}"
        )
    return None, cast("GivenTracker", track)


def _refuse_unknown(options: Mapping[str, Any], call: str, known: Collection[str]) -> None:
    for name, value in options.items():
        if name not in known:
            hint = f"use {name}={value!r}" if name in KEYWORDS else None
            hint = hint or answer_keyword(name, value, KEYWORDS)
            if hint is None:
                near = difflib.get_close_matches(name, known, 1, 0.5)
                hint = f"did you mean {near[0]}?" if near else "see help(Detector)"
                hint = f"unknown option in Python; {hint}"
            elif known is FOR_A_CALL and "=" in hint:
                hint = f"a call takes only conf and classes; in Detector(...) {hint}"
            raise UsageError(f"{call}({name}=...): {hint}")


def _as_spec(source: object) -> str:
    """Return a source of ``stream`` as the command line spells it."""
    if isinstance(source, (str, int, os.PathLike)) and not isinstance(source, bool):
        return str(source)
    raise UsageError(
        "stream() takes a path, an address, the number of a camera, a list of these, or an "
        f"iterable of pictures, not {kind_of(source)}; for one picture call detector(picture)"
    )


def _gather(specs: list[str]) -> list[str]:
    """List sources in the command's order: a folder's pictures first. Warn about omitted files."""
    from detector.core import sources
    from detector.core.errors.writing import is_output

    gathered = [source for spec in specs for source in sources.gather([spec], is_output)]
    for note in filter(None, map(sources.note_of, gathered)):
        warnings.warn(note, stacklevel=3)
    return gathered


def _refuse_closed(closed: threading.Event) -> None:
    if _exiting.is_set():  # ends the thread without a traceback: printing one can abort Python
        raise SystemExit
    if closed.is_set():
        raise UsageError("this Detector is closed; create another one")


class _QueuedRequest:
    """``lock`` is held in inference. It is reentrant: a signal handler may close the Detector."""

    def __init__(
        self, request: BatchRequest, turns: threading.BoundedSemaphore, closed: threading.Event
    ) -> None:
        self.inner: Any = request
        self.lock = threading.RLock()
        self._turns, self._closed = turns, closed
        self.device_ms: float | None = None  # calls do not report device times

    @property
    def slot(self) -> NDArray[np.uint8]:
        slot: NDArray[np.uint8] = self.inner.slot  # replaced for each input shape of --rect
        return slot

    def infer(self, n: int) -> list[NDArray[np.float32]]:
        with self._turns, self.lock:
            _refuse_closed(self._closed)
            outputs: list[NDArray[np.float32]] = self.inner.infer(n)
            return outputs


class _QueuedShapes:
    """``loop.parts.ShapedInputs`` for ``_QueuedRequest`` objects."""

    def __init__(self, shapes: ShapedInputs) -> None:
        self.has, self.prepare = shapes.has, shapes.prepare
        self._shapes = shapes

    def give(
        self, request: _QueuedRequest, picture: types.AnyPicture
    ) -> Callable[[Outputs], types.Candidates]:
        return self._shapes.give(request.inner, picture)
