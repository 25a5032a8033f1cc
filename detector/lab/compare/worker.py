"""Run one variant in its own process, so that its crashes, leaks and memory peak affect no other
variant. The worker answers each ``Command`` of the parent with a ``Reply``."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from detector.core.errors import EXIT_ENGINE, EXIT_INTERNAL, DetectVideoError
from detector.core.errors.machine import peak_memory_mb, usable_cores
from detector.core.run.child import (
    GRACE_S,
    Child,
    end,
    listen,
    open_pipe,
    python_command,
    receive,
    send,
)
from detector.core.session import codec
from detector.core.session.measured import Metric
from detector.core.timeline.spans import INFER
from detector.core.types import Detections, Frame, Image
from detector.lab.analysis.layers import BYTES
from detector.lab.session.comparison import CountedLayer, ModelCounts, Round, VariantFacts
from detector.lab.session.evaluation import MeanAccuracy

if TYPE_CHECKING:
    from detector.core.config.schema import Config
    from detector.core.loop.parts import FrameSource
    from detector.core.models.base import Network
    from detector.core.run.loading import LoadedModel
    from detector.core.run.plan import RunPlan
    from detector.core.session.outcome import SourceRun
    from detector.core.sources.base import Source

# Messages between the two processes. Detections are passed in a file, by ``save_detections``.


@dataclass(frozen=True, slots=True)
class VariantOpening:
    config: dict[str, Any]
    source: str
    folder: str


@dataclass(frozen=True, slots=True)
class MappedClasses:
    targets: tuple[str, ...]
    groups: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class DataSet:
    path: str
    mapping: str | None


@dataclass(frozen=True, slots=True)
class Command:
    do: Literal["open", "check", "round", "judge", "judge_data", "close"]
    opening: VariantOpening | None = None
    keeps: bool = False  # whether a round saves its detections
    mapping: MappedClasses | None = None
    data: DataSet | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply to a command. ``answer``: None after an ``error``. ``memory_mb``: the peak so far."""

    answer: Any = None
    memory_mb: float | None = None
    error: str | None = None
    exit_code: int = 0


@dataclass(frozen=True, slots=True)
class Digests:
    frames_digest: str
    detections: str


@dataclass(frozen=True, slots=True)
class SeenFrame:
    frame: int
    path: str | None
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class Judgement:
    """Detections at eval's thresholds, for the frames ``seen``. ``damaged``: frames were lost."""

    seen: tuple[SeenFrame, ...]
    damaged: bool
    detections: str


Answer = VariantFacts | Digests | Round | Judgement | MeanAccuracy
Kind = TypeVar("Kind", VariantFacts, Digests, Round, Judgement, MeanAccuracy)


def save_detections(path: Path, detections: Sequence[Detections]) -> None:
    """Save the detections of all frames in four arrays, without the class names."""
    lengths = np.array([len(one) for one in detections], np.int64)
    with path.open("wb") as file:
        np.savez(
            file,
            lengths=lengths,
            boxes=np.concatenate([np.zeros((0, 4), np.float32), *(d.boxes for d in detections)]),
            scores=np.concatenate([np.zeros(0, np.float32), *(d.scores for d in detections)]),
            class_ids=np.concatenate([np.zeros(0, np.int64), *(d.class_ids for d in detections)]),
        )


def read_detections(path: str) -> list[Detections]:
    with np.load(path) as arrays:
        ends = np.cumsum(arrays["lengths"]).tolist()
        boxes, scores, class_ids = arrays["boxes"], arrays["scores"], arrays["class_ids"]
    return [
        Detections(boxes[start:end], scores[start:end], class_ids[start:end])
        for start, end in zip([0, *ends], ends, strict=False)
    ]


# Code of the parent. If a worker has died, ``request`` returns a Reply that says so.


class Process:
    """A worker with its ``folder``. ``shared``: a folder to remove if the parent is killed."""

    def __init__(
        self, folder: Path, shared: Path | None = None, module: str = __name__, **more: Any
    ) -> None:
        self._child = Child(
            lambda pipe: python_command(module, pipe, shared), folder / "stderr.txt", **more
        )

    def request(self, command: Command, kind: type[Kind]) -> tuple[Kind | None, Reply]:
        pipe = self._child.pipe
        try:
            send(pipe, command)
            reply = receive(pipe, Reply)
        except (EOFError, OSError):
            doing = f"during {command.do.replace('_', ' ')}"
            text = self._child.describe_death("its process", doing)
            return None, Reply(error=text, exit_code=EXIT_ENGINE)
        if reply.error is not None:
            return None, reply
        return codec.from_builtins(reply.answer, kind, "a worker of compare"), reply

    def close(self) -> None:
        with suppress(OSError):
            send(self._child.pipe, Command("close"))
        self._child.pipe.close()
        end([self._child], alone_s=GRACE_S)

    def stop(self) -> None:
        end([self._child])


# Code of the worker

SHORT_PAUSE_S = 0.2  # in shorter pauses, the CPU use of a waiting worker is not measured


def main(pipe: int) -> None:
    variant: _OpenVariant | None = None

    def answer(command: Command) -> Answer:
        nonlocal variant
        if command.opening is not None:
            variant = _OpenVariant(command.opening)
        assert variant is not None, "open comes first"
        return variant.answer(command)

    serve(pipe, answer)
    if variant is not None:
        variant.machine.engine.close()


def serve(pipe: int, answer: Callable[[Command], Answer]) -> None:
    parent = open_pipe(pipe)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    next_command = listen(parent, Command, lambda command: command.do == "close")
    while (command := next_command()).do != "close":
        try:
            reply = Reply(answer(command), peak_memory_mb())
        except DetectVideoError as error:
            reply = Reply(error=" ".join(str(error).split()), exit_code=error.exit_code)
        except Exception as error:
            reply = _describe_failure(error)
        send(parent, reply)


def _describe_failure(error: Exception) -> Reply:
    from detector.core.run.limits import blame_limit

    blamed = blame_limit(error)
    if blamed is not None:
        return Reply(error=str(blamed), exit_code=blamed.exit_code)
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return Reply(error=f"internal error: {text}", exit_code=EXIT_INTERNAL)


class _OpenVariant:
    def __init__(self, opening: VariantOpening) -> None:
        from detector.core.config.levels import merge_levels
        from detector.core.run.loading import PhaseTimer
        from detector.core.run.plan import resolve

        self.config: Config = merge_levels(("compare", opening.config))
        self.source = opening.source
        self.folder = Path(opening.folder)
        self._timer = PhaseTimer()
        self.plan = resolve(self.config, self._timer, specs=[self.source])
        self.machine: LoadedModel = self.plan.loaded
        self._mark_idle()

    def answer(self, command: Command) -> Answer:
        if command.do == "check":
            return self.check()
        if command.do == "round":
            return self.round(command.keeps)
        if command.do == "judge" and command.mapping is not None:
            return self.judge(command.mapping)
        return self.facts()

    def facts(self) -> VariantFacts:
        from detector.core.analysis.summary import executed

        machine, seconds = self.machine, self._timer.seconds
        machine.read_layers()
        engine, network = machine.engine, machine.network
        return VariantFacts(
            load_s=sum(seconds[name] for name in ("import", "load", "warmup")) - machine.build_s,
            build_s=machine.artefact_s,
            computes=engine.precision != "none",
            precision_executed=executed(machine.layers),
            threads=engine.threads,
            concurrency=engine.concurrency,
            device=engine.device,
            notes=tuple(machine.notes),
            model=network.name,
            model_sha256=network.sha256,
            model_input=(network.input.height, network.input.width),
            random_weights=network.random_seed,
            class_names=tuple(network.names),
            counts=_count_model(network),
            layers=tuple(
                CountedLayer(one.precision, one.macs, one.elements * BYTES.get(one.precision, 0))
                for one in machine.layers
            ),
        )

    def check(self) -> Digests:
        """Run without timing. Return a digest of all decoded pictures, and the detections."""
        digest = hashlib.sha256()
        with self._open_source() as opened:
            source = HashingSource(opened, digest)
            detections = [each for _, each in self._detect(self.plan, source)]
        path = self.folder / "detections.npz"
        save_detections(path, detections)
        self._mark_idle()
        return Digests(digest.hexdigest(), str(path))

    def judge(self, mapping: MappedClasses) -> Judgement:
        """Run without timing. Return detections at ``eval``'s thresholds, in label classes."""
        from detector.core.config.schema import EVAL_DEFAULTS
        from detector.core.run.plan import PlanDraft
        from detector.lab.datasets.classmap import ClassPairs
        from detector.lab.evaluate.study import map_head

        bound = ClassPairs(mapping.targets, mapping.groups, {}, {})
        options: dict[str, Any] = {"classes": None, **EVAL_DEFAULTS}
        config = replace(self.config, selection=replace(self.config.selection, **options))
        machine = replace(self.machine)
        machine.change_network(partial(map_head, bound=bound))
        plan = PlanDraft.of(config).complete(machine)
        frames: list[SeenFrame] = []
        detections_of_frames: list[Detections] = []
        with self._open_source() as opened:
            for frame, detections in self._detect(plan, opened):
                height, width = frame.size
                frames.append(SeenFrame(frame.index, frame.path, width, height))
                detections_of_frames.append(detections)
            damaged = opened.damaged
        path = self.folder / "judged.npz"
        save_detections(path, detections_of_frames)
        self._mark_idle()
        return Judgement(tuple(frames), bool(damaged), str(path))

    def round(self, keeps: bool) -> Round:
        """Run and time a round, from reading to closing. ``keeps``: save the detections."""
        import shutil

        from detector.core.run.detect import closing_session, run_opened
        from detector.core.session.store import Session

        # How many cores this process used while it waited for this command.
        wall, cpu = (time.perf_counter() - self._since[0], time.process_time() - self._since[1])
        idle = cpu / wall if wall > SHORT_PAUSE_S else 0.0
        place = self.folder / "round"
        place.mkdir()
        detections: list[Detections] = []
        detected = (lambda frame, each: detections.append(each)) if keeps else None
        try:
            session = Session.create(str(place / "session"), "")  # every run writes a session
            with closing_session(session):
                run = run_opened(self.source, self.plan, place, detected=detected, session=session)
            video = run.outputs.get("video")
            size = 0 if video is None or run.error is not None else os.path.getsize(video)
        finally:
            shutil.rmtree(place, ignore_errors=True)
            self._mark_idle()
        if run.error is not None:
            raise run.error
        path = self.folder / "detections.npz" if keeps else None
        if path is not None:
            save_detections(path, detections)
        return replace(
            round_of(run, idle), video_bytes=size, detections=None if path is None else str(path)
        )

    def _open_source(self) -> Source:
        # Timed runs and ``eval`` also use this pixel format.
        return self.plan.reading.open(self.source, "yuv420p")

    def _detect(self, plan: RunPlan, source: Any) -> Iterator[tuple[Frame, Detections]]:
        from detector.core.loop.parts import Progress
        from detector.core.timeline.timeline import OffTimeline

        with plan.loop.library_threads():  # as in a run
            yield from plan.loop.frames(plan.parts(source), OffTimeline(), Progress())

    def _mark_idle(self) -> None:
        self._since = (time.perf_counter(), time.process_time())


class HashingSource:
    def __init__(self, source: FrameSource, digest: hashlib._Hash) -> None:
        self.info = source.info
        self._source, self._digest = source, digest

    def read(self, into: Image | None = None) -> Frame | None:
        frame = self._source.read(into)
        if frame is not None:
            self._digest.update(f"{frame.index} {frame.pts} {frame.image.shape}".encode())
            self._digest.update(np.ascontiguousarray(frame.image).data)
        return frame


def round_of(run: SourceRun, idle_cpu: float) -> Round:
    from detector.core.session.recording import record

    recording = record(run.timeline)
    calls = recording.stages[INFER].durations.counts() if INFER in recording.stages else ()
    infer_s = recording.infer_ns / 1e9
    seconds: dict[Metric, float] = {"inference": infer_s, "end_to_end": run.run_s}
    frames = max(1, run.written)
    usage, others = recording.burnt, None
    if usage is not None and usage.others_ns is not None and usage.wall_ns:
        others = usage.others_ns / usage.wall_ns
    return Round(
        fps={
            metric: run.written / value if value > 0 else None for metric, value in seconds.items()
        },
        cpu_ms={name: stage.cpu_ns / 1e6 / frames for name, stage in recording.stages.items()},
        frames=run.written,
        idle_cpu=idle_cpu,
        calls_ms=tuple((ns / 1e6, count) for ns, count in calls),
        others=others,
        cores=usable_cores(),
    )


def _count_model(network: Network) -> ModelCounts:
    counted = network.plan is None
    size = network.graph.ByteSize() if network.plan is None else os.path.getsize(network.plan)
    return ModelCounts(
        name=network.name,
        sha256=network.sha256,
        input=(network.input.height, network.input.width),
        parameters=(network.parameters_fused or network.parameters) if counted else None,
        size_bytes=size,
        macs=network.macs if counted else None,
    )
