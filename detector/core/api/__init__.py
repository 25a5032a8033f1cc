"""The Python API: ``Detector`` finds objects in pictures, and in streams of frames."""

from __future__ import annotations

import atexit
import difflib
import os
import reprlib
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext, suppress
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, cast, overload

from detector.core.api.options import OF_CAMERAS, Options
from detector.core.api.pictures import as_image, kind_of
from detector.core.api.words import python_words
from detector.core.config.elsewhere import OF_DETECTORS, AnswersAttributes, answer_keyword
from detector.core.config.schema import DrawingConfig, OutputConfig, TrackingConfig
from detector.core.errors import STOPPED_CODES, EngineError, UsageError

if TYPE_CHECKING:
    from typing import Never, Unpack

    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    from detector.core import types
    from detector.core.api.pictures import Path, Picture
    from detector.core.api.results import Detections
    from detector.core.loop.parts import BatchRequest, InputShapes, Outputs, Progress
    from detector.core.session.document import Summary
    from detector.core.timeline import OffTimeline, Timeline
    from detector.core.types import Frame

    Classes = Sequence[str | int] | None  # names or ids


# What Detector takes by name. A message that speaks of ``--max-det`` says ``max_det`` from here.
KEYWORDS = frozenset(("model", "engine", "track", *Options.__annotations__))
FOR_A_CALL = frozenset(("conf", "classes"))
FOR_PROCESS = KEYWORDS.union(
    *(kind.__dataclass_fields__ for kind in (OutputConfig, DrawingConfig, TrackingConfig))
)

_open: weakref.WeakSet[Detector] = weakref.WeakSet()
os.register_at_fork(after_in_child=_open.clear)  # which are the parent's
# Finalizers release decoders at exit. With one before ``_close_open``, they all run behind it.
weakref.finalize(_open, bool)
_exiting = threading.Event()


@atexit.register
def _close_open() -> None:
    """End all: a thread inside an engine or a decoder aborts an interpreter that has ended."""
    _exiting.set()
    for detector in list(_open):
        with suppress(EngineError):  # a broken device
            detector._end()


class Tracker(Protocol):
    """Gives the objects of each frame of a stream, in order, the ids of their tracks."""

    def update(self, detections: types.Detections, frame: Frame) -> ArrayLike:
        """A whole number for each detection, [M]; -1 for one that has no track."""


class _Following:
    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker

    def __call__(self, frame: Frame, detections: types.Detections) -> types.Detections:
        import numpy as np

        given = self._tracker.update(detections, frame)
        ids = np.asarray(given)
        whole = ids.dtype.kind in "iu" or (ids.dtype.kind == "f" and (ids == np.rint(ids)).all())
        if ids.shape != (len(detections),) or not (whole or not ids.size):
            raise UsageError(
                f"track: {type(self._tracker).__name__}.update() must return a whole number for "
                f"each of {len(detections)} detections, not {reprlib.repr(given)}"
            )
        return replace(detections, track_ids=ids.astype(np.int64))

    def close(self) -> Sequence[str]:
        return ()

    def findings(self) -> Mapping[str, Any]:
        return {}


class Detector(AnswersAttributes):
    """A model on an engine, warmed up.

    ``model``: path of a model file or a known name; "street" (person, vehicle) comes with the
    package. ``engine``: "ort", "openvino", "torch", "trt", "null"; "auto" takes what a
    run of the command takes on this machine, None the first by rank, in fp32. ``options``:
    ``conf=0.4``, ``batch=8``, ``classes=["person"]``, ``weights=...`` and the others of
    ``Options``; an unknown one raises UsageError with the nearest. Raises ModelError and
    EngineError as the command does. Close it, or use ``with``.

    ``track``: "bytetrack" (True), "ocsort" or "sort" gives the objects of ``stream`` ids which stay
    (``found.track_ids``); so does any object with ``update(detections, frame) -> ids``. With
    ``infer_every="3"`` or ``"auto"``, ``frame.coasting`` marks frames whose boxes they moved. With
    ``zones="zones.yaml"``, or ``zones={"lines": {"door": [[0, 300], [960, 300]]}}`` as in such a
    file, each frame says what crossed, came and went: ``found.events``.
    """

    answers = OF_DETECTORS

    def __init__(
        self,
        model: str | os.PathLike[str] = "street",
        *,
        engine: str | None = None,
        track: str | bool | Tracker | None = None,
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
        given = {"model": os.fspath(model), "engine": engine or "auto", **options}
        given["track"], self._tracker = _tracker_of(track)
        with python_words(KEYWORDS):
            config = resolve_config(None, given)
            if self._tracker is not None and config.tracking.infer_every is not None:
                raise UsageError("--infer-every needs a built-in tracker; give its name to --track")
            # A call waits for its picture, and one request on all threads answers soonest. With
            # concurrency=N a stream runs N requests.
            self._given, self._as_measured = given, (as_measured := engine == "auto")
            self._plan = resolve(
                config,
                spare_requests=1,
                one_at_a_time=True,
                measured=as_measured,
                timed=as_measured,
            )
        opened = self._plan.loaded.engine
        turns = threading.BoundedSemaphore(opened.concurrency)
        self._closed = threading.Event()
        shapes = self._plan.shapes()
        requests = self._plan.requests if shapes is None else shapes.requests
        self._requests = [_Turn(request, turns, self._closed) for request in requests]
        self._newest = config.live.policy == "latest"
        self._calling = threading.Lock()  # held by the call that uses the last request
        self._streaming = threading.Lock()  # held by the stream that uses the others
        self._running: tuple[Progress, Generator[Any, None, Any]] | None = None
        # As with the command: an option of cameras says that addresses are cameras.
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
        """The objects in one picture, or in each of a list.

        A picture is u8 BGR [h, w, 3], as ``cv2.imread`` returns it, the path of a picture file, or
        a picture of PIL, taken as it is stored: ``ImageOps.exif_transpose`` turns one of a phone.
        It is not changed. A list runs in batches of the Detector's ``batch``. ``conf`` and
        ``classes`` are for this call only. Threads may call one Detector; one call runs at a time.
        Raises UsageError for anything else, and SourceError for a file that cannot be read.
        """
        _refuse_unknown(foreign, "detector", FOR_A_CALL)
        with python_words(KEYWORDS):
            _refuse_closed(self._closed)
            if isinstance(pictures, (list, tuple)):
                return self._detect(pictures, conf, classes)
            return self._detect([pictures], conf, classes)[0]

    def _detect(
        self, pictures: Sequence[Picture], conf: float | None, classes: Classes
    ) -> list[Detections]:
        from detector.core.api.results import Detections
        from detector.core.timeline import HEAD, INFER, NMS, PREPROCESS

        plan = self._plan.selecting(conf, classes)
        preprocess, head, nms = plan.stages()
        shapes = plan.shapes()
        request = self._requests[-1]  # the spare one: a stream may be using the others
        found = []
        # The request has one slot, which threads must not share, and the track is of one thread.
        images = [as_image(one, plan.reading.choice) for one in pictures]
        with self._calling, self._timeline().track("call") as track:
            _refuse_closed(self._closed)
            for start in range(0, len(images), len(request.slot)):
                batch = images[start : start + len(request.slot)]
                fits = []
                if shapes is not None:  # of one picture, then
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
        sources: Path | int | list[Path] | tuple[Path, ...] = None,  # type: ignore[assignment]
        *,
        conf: float | None = None,
        classes: Classes = None,
        **foreign: Never,
    ) -> Generator[tuple[Frame, Detections], None, None]:
        """Every frame of a video, a picture, a folder or a glob, with its objects, in order.

        Of a folder the pictures come first, then each of its videos. A file that is left out for
        its suffix, or lies in a folder of the folder, is told in a UserWarning.
        Several sources follow each other; ``frame.source`` says which one a frame is of, with its
        size and frame rate. Reading and inference run in threads of their own while the caller
        works. The caller may keep the frames. With ``blur=[...]`` the objects of these classes are
        pixelated in them. A camera is a source too: ``"rtsp://..."``, the number of a webcam, or a
        ``cameras.yaml`` for many at once. It has no end; the newest pictures are handed out, and
        ``frame.arrival`` says of which camera one is and when it came. Leaving the loop early stops
        the threads. One stream at a time. Raises SourceError, and UsageError for a second stream.
        """
        from detector.core.loop.parts import Progress

        _refuse_unknown(foreign, "stream", FOR_A_CALL)
        _refuse_closed(self._closed)
        if not self._streaming.acquire(blocking=False):
            raise UsageError(
                "this Detector is already streaming; close that stream first, or create another one"
            )
        try:
            listed = sources if isinstance(sources, (list, tuple)) else [sources]
            for spec in _gather([_as_spec(source) for source in listed]):
                progress = Progress()
                with (
                    python_words(KEYWORDS),
                    closing(self._stream_one(spec, progress, conf, classes)) as frames,
                ):
                    self._running = progress, frames
                    if not (yield from frames):  # the interpreter ends
                        _refuse_closed(self._closed)
        finally:
            self._running = None
            self._streaming.release()

    def _stream_one(
        self, source: str, progress: Progress, conf: float | None, classes: Classes
    ) -> Generator[tuple[Frame, Detections], None, bool]:
        from detector.core.api.results import Detections, Pair
        from detector.core.sources._addresses import is_web
        from detector.core.sources._standard_input import SPEC, standard_input
        from detector.core.stages.annotate import pixelate

        plan = self._plan.selecting(conf, classes)
        if source == SPEC:
            standard_input().stopped = progress.stop.is_set
        heeding: AbstractContextManager[None] = nullcontext()
        if is_web(source):
            from detector.core.sources import _web

            heeding = _web.heeding(progress.stop.is_set)
        with heeding, plan.reading.open(source, as_camera=self._as_cameras) as opened:
            live = opened if opened.arrives else None
            if live is not None and plan.reading.still is not None:
                raise UsageError("skip_still is for files, not for cameras; omit it")
            fresh = live is not None and self._newest
            made = plan.parts(opened)
            own = {} if self._tracker is None else {"track": _Following(self._tracker)}
            parts = replace(
                made,
                between={**made.between, **own},
                shapes=None if made.shapes is None else _ShapesOfTurns(made.shapes),
                # A picture of a camera that waits in a queue grows old.
                requests=self._requests[: plan.loaded.engine.concurrency + 1 if fresh else -1],
                arrive=None if live is None else live.arrive,
                fresh=fresh,
                clock=None if live is None else time.perf_counter_ns,
            )
            with closing(plan.loop.marked(parts, self._timeline(), progress)) as frames:
                try:
                    for frame, found in frames:
                        shown = frame.image.copy()  # the loop uses its buffer again
                        pixelate(shown, found, plan.drawing.blurred)
                        of = frame.source or opened.info
                        kept = replace(frame, picture=shown, source=of)
                        yield Pair((kept, Detections.wrap(found, shown)))
                    return True
                finally:
                    progress.stop.set()  # a silent pipe would keep the reader
                    for stage in parts.between.values():
                        stage.close()

    def process(
        self,
        source: Path,
        output: Path | None = None,
        *,
        callback: Callable[[Frame, Detections], None] | None = None,
        **options: Any,
    ) -> Summary:
        """Writes what ``detect-video SOURCE -o OUTPUT`` writes: the annotated video, and its rows.

        ``callback`` gets each frame once it is written, with its objects; its picture is lent until
        it returns, and may show the boxes. ``options``: further ones of the command, such as
        ``save=["csv"]``. The model is loaded again, with an input that fits the source, as for the
        command. Returns what summary.json holds. Raises DetectVideoError.
        """
        from detector.core.api.results import Detections
        from detector.core.config.levels import resolve_config
        from detector.core.run.detect import Hooks, detect

        _refuse_closed(self._closed)
        _refuse_unknown(options, "process", FOR_PROCESS)
        if self._tracker is not None:
            raise UsageError("process() needs a built-in tracker; give its name to track")

        def call(frame: Frame, found: types.Detections) -> None:
            if callback is not None:
                callback(frame, Detections.wrap(found))

        given = {**self._given, **options, "output": None if output is None else os.fspath(output)}
        measured = self._as_measured
        hooks = Hooks(detected=call, measured=measured, timed=measured, tuned=measured)
        with python_words(FOR_PROCESS):
            result = detect(_gather([_as_spec(source)]), resolve_config(None, given), hooks=hooks)
            for error in result.errors:
                raise error
        if result.exit_code in STOPPED_CODES:
            raise KeyboardInterrupt
        return result.summary

    def _timeline(self) -> Timeline | OffTimeline:
        """Ranges for a profiler that is attached; else nothing is measured, and nothing paid."""
        from detector.core.timeline import OffTimeline
        from detector.core.timeline.nvtx_ranges import attach

        loop = self._plan.loop
        seen = loop.nvtx and attach().domain is not None
        return loop.timeline(None, max_rows=0) if seen else OffTimeline()

    def close(self) -> None:
        """Releases the engine, once no thread computes on it. May be called twice; after it, calls
        and streams are refused, and those that run raise UsageError."""
        self.__exit__(None, None, None)

    def _end(self) -> None:
        self._closed.set()
        self._calling.acquire(timeout=10)
        while (running := self._running) is not None:
            progress, frames = running
            progress.stop.set()
            try:
                frames.close()
                break
            except ValueError:  # another thread is in it
                time.sleep(0.01)
        self.close()

    def __enter__(self) -> Detector:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closed.set()
        with ExitStack() as computing:
            for request in self._requests:
                computing.enter_context(request.lock)
            self._plan.loaded.__exit__(kind, error, trace)


def _tracker_of(track: object) -> tuple[str | None, Tracker | None]:
    """The name of a tracker, or the caller's own. Raises UsageError."""
    if track is True:  # as a bare --track
        return TrackingConfig.__dataclass_fields__["track"].metadata["bare"], None
    if track is None or track is False or isinstance(track, str):
        return track or None, None
    if not callable(getattr(track, "update", None)):
        raise UsageError(
            f"track: give a tracker's name or an object with update(detections, frame), not "
            f"{kind_of(track)}"
        )
    return None, cast("Tracker", track)


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
    """A source of ``stream`` as the command line names it."""
    if isinstance(source, int) and not isinstance(source, bool):
        return str(source)
    if isinstance(source, (str, os.PathLike)):
        return str(os.fspath(source))
    raise UsageError(
        "stream() takes the path, address or number of videos, pictures, folders and cameras, not "
        f"{kind_of(source)}; for pictures in memory call detector(picture) or detector([a, b])"
    )


def _gather(specs: list[str]) -> list[str]:
    """As on the command line: videos of a folder follow its pictures. Omissions are warnings."""
    from detector.core import sources
    from detector.core.errors.writing import is_output

    gathered = [one for spec in specs for one in sources.gather([spec], is_output)]
    for note in filter(None, map(sources.note_of, gathered)):
        warnings.warn(note, stacklevel=3)
    return gathered


def _refuse_closed(closed: threading.Event) -> None:
    if _exiting.is_set():  # ends a thread without a traceback, whose printing can abort Python
        raise SystemExit
    if closed.is_set():
        raise UsageError("this Detector is closed; create another one")


class _Turn:
    """A request that waits until the engine has room. ``lock``: held while it computes; a signal's
    handler may close the Detector meanwhile, in the same thread."""

    def __init__(
        self, request: BatchRequest, turns: threading.BoundedSemaphore, closed: threading.Event
    ) -> None:
        self.inner: Any = request
        self.lock = threading.RLock()
        self._turns, self._closed = turns, closed
        self.device_ms: float | None = None  # no call here reports it

    @property
    def slot(self) -> NDArray[np.uint8]:
        slot: NDArray[np.uint8] = self.inner.slot  # another one for each shape of --rect
        return slot

    def infer(self, n: int) -> list[NDArray[np.float32]]:
        with self._turns, self.lock:
            _refuse_closed(self._closed)
            outputs: list[NDArray[np.float32]] = self.inner.infer(n)
            return outputs


class _ShapesOfTurns:
    """``loop.parts.InputShapes`` for requests that take turns."""

    def __init__(self, shapes: InputShapes) -> None:
        self.has, self.prepare = shapes.has, shapes.prepare
        self._shapes = shapes

    def give(self, turn: _Turn, picture: types.AnyPicture) -> Callable[[Outputs], types.Candidates]:
        return self._shapes.give(turn.inner, picture)
