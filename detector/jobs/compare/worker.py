"""One variant in a process of its own: a JSON line in, a JSON line out, until the parent lets go.

A crash, a leak and the peak of its memory are then this variant's alone. Whatever a library prints goes to stderr.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol, TextIO

import numpy as np

from detector.errors import EXIT_INTERNAL, DetectVideoError
from detector.types import Detections, Frame, Image

if TYPE_CHECKING:
    from detector.config.schema import Config
    from detector.loop.parts import FrameSource
    from detector.run.wire import LoadedModel
    from detector.session.outcome import SourceRun
    from detector.sources.base import Source
    from detector.types import Detections, Frame


# ----------------------------------------------------------------------
# Pictures as they were decoded, by their digest, and what was found in them, from process to process.


class Digest(Protocol):
    def update(self, data: Any, /) -> None: ...


class HashingSource:
    """A source whose pictures go through a digest on their way: what is given is the same, or the digest is not."""

    def __init__(self, source: FrameSource, digest: Digest) -> None:
        self.info = source.info
        self._source, self._digest = source, digest

    def read(self, into: Image | None = None) -> Frame | None:
        frame = self._source.read(into)
        if frame is not None:
            self._digest.update(f"{frame.index} {frame.pts} {frame.image.shape}".encode())
            self._digest.update(np.ascontiguousarray(frame.image).data)
        return frame


def save_detections(path: Path, found: Sequence[Detections]) -> None:
    """All frames in four arrays, exactly as they were found; class names are left out."""
    lengths = np.array([len(detections) for detections in found], np.int64)
    with path.open("wb") as file:
        np.savez(
            file,
            lengths=lengths,
            boxes=np.concatenate([np.zeros((0, 4), np.float32), *(one.boxes for one in found)]),
            scores=np.concatenate([np.zeros(0, np.float32), *(one.scores for one in found)]),
            class_ids=np.concatenate([np.zeros(0, np.int64), *(one.class_ids for one in found)]),
        )


def load_detections(path: Path) -> list[Detections]:
    with np.load(path) as arrays:
        ends = np.cumsum(arrays["lengths"])
        boxes, scores, class_ids = arrays["boxes"], arrays["scores"], arrays["class_ids"]
    starts = [0, *ends.tolist()]
    return [
        Detections(boxes[start:end], scores[start:end], class_ids[start:end])
        for start, end in zip(starts, ends.tolist(), strict=False)
    ]


Answer = dict[str, Any]
SHORT_PAUSE_S = 0.2
PATIENCE_S = 10.0  # after the parent is gone: for what is inside a library to come back


def main() -> None:
    """Serves until ``close``, or until nobody writes to stdin any more."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to judge
    signal.signal(signal.SIGTERM, _leave)
    commands: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_listen, args=(sys.stdin, commands), daemon=True).start()
    serve(commands.get, answers)


def _leave(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _listen(stdin: TextIO, commands: SimpleQueue[str]) -> None:
    for line in stdin:
        commands.put(line)
    # The parent is gone: nobody will ask for this result. Left in order, so that no half file stays.
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(PATIENCE_S)
    os._exit(EXIT_INTERNAL)


def serve(next_line: Callable[[], str], answers: TextIO) -> None:
    variant: _Opened | None = None
    while (command := json.loads(next_line()))["do"] != "close":
        try:
            if command["do"] == "open":
                variant = _Opened(command)
                answer = variant.facts()
            else:
                assert variant is not None, "open comes first"
                work = {"check": variant.check, "judge": variant.judge, "round": variant.round}[
                    command["do"]
                ]
                answer = work(command)
            answer["memory_mb"] = peak_memory_mb()
        except DetectVideoError as error:
            answer = {"error": " ".join(str(error).split()), "exit_code": error.exit_code}
        except MemoryError:
            answer = {
                "error": "out of memory; try a smaller --batch or --size",
                "exit_code": EXIT_INTERNAL,
            }
        except Exception as error:
            text = " ".join(f"{type(error).__name__}: {error}".split())
            answer = {"error": f"internal error: {text}", "exit_code": EXIT_INTERNAL}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    if variant is not None:
        variant.machine.engine.close()


class _Opened:
    """The variant, warmed up."""

    def __init__(self, command: dict[str, Any]) -> None:
        from detector.config.levels import merge_levels
        from detector.run.wire import PhaseTimer, load_model

        self.config: Config = merge_levels(("compare", command["config"]))
        self.source: str = command["source"]
        self.folder = Path(command["folder"])
        self._timer = PhaseTimer()
        self.machine: LoadedModel = load_model(self.config, self._timer)
        self._left = (time.perf_counter(), time.process_time())

    def facts(self) -> Answer:
        from detector.analysis.summary import executed

        machine, seconds = self.machine, self._timer.seconds
        return {
            "load_s": sum(seconds[name] for name in ("import", "load", "warmup")) - machine.build_s,
            "build_s": machine.artefact_s,
            "computes": machine.engine.precision != "none",
            "precision_executed": executed(machine.layers),
            "threads": machine.engine.threads,
            "concurrency": machine.engine.concurrency,
            "device": machine.engine.device,
            "notes": machine.notes,
            "model": machine.network.name,
            "model_sha256": machine.network.sha256,
            "model_input": [machine.network.input.height, machine.network.input.width],
            "random_weights": machine.network.random_seed,
            "class_names": machine.network.names,
        }

    def check(self, _command: Answer) -> Answer:
        """Untimed: the pictures that this process decodes, and what it finds in them."""
        digest = hashlib.sha256()
        found: list[Detections] = []
        with self._opened() as opened:
            for _, detections in self._found(
                self.config, self.machine, HashingSource(opened, digest)
            ):
                found.append(detections)
        path = self.folder / "detections.npz"
        save_detections(path, found)
        self._left = (time.perf_counter(), time.process_time())
        return {"frames": len(found), "frames_digest": digest.hexdigest(), "detections": str(path)}

    def judge(self, command: Answer) -> Answer:
        """Untimed: what it finds at ``eval``'s thresholds, in the classes of the labels (``targets`` and ``groups`` of
        a ``classmap.Bound``); the network that is timed stays as it is."""
        from detector.config.schema import EVAL_DEFAULTS
        from detector.datasets.classmap import Bound
        from detector.jobs.evaluate.study import with_mapped_head

        bound = Bound(tuple(command["targets"]), tuple(map(tuple, command["groups"])), {}, {})
        options: Answer = {"classes": None, **EVAL_DEFAULTS}
        config = replace(self.config, selection=replace(self.config.selection, **options))
        machine = replace(
            self.machine, network=with_mapped_head(self.machine.network, bound), classes=None
        )
        seen: list[tuple[int, str | None, int, int]] = []
        found: list[Detections] = []
        with self._opened() as opened:
            for frame, detections in self._found(config, machine, opened):
                height, width = frame.image.shape[:2]
                seen.append((frame.index, frame.path, width, height))
                found.append(detections)
            damaged = opened.damaged
        path = self.folder / "judged.npz"
        save_detections(path, found)
        self._left = (time.perf_counter(), time.process_time())
        return {"seen": seen, "damaged": damaged, "detections": str(path)}

    def _opened(self) -> Source:
        from detector import sources

        options = self.config.input
        return sources.open(
            self.source, decoder=options.decoder, stride=options.stride, frames=options.frames
        )

    def _found(
        self, config: Config, machine: LoadedModel, source: Any
    ) -> Iterator[tuple[Frame, Detections]]:
        """Every frame of the source with what is found in it; nothing is drawn or written."""
        from detector.loop.parts import Progress
        from detector.run.wire import run_loop, wire_loop
        from detector.timeline import OffTimeline

        yield from run_loop(
            wire_loop(config, machine, source, []), config, OffTimeline(), Progress()
        )

    def round(self, _command: Answer) -> Answer:
        """Timed, all of it: read, infer, annotate, write and close the files. These are deleted afterwards."""
        import shutil

        from detector.run.detect import run_opened

        idle = self._idle_cpu()
        place = self.folder / "round"
        place.mkdir()
        try:
            run = run_opened(self.source, self.config, self.machine, place)
        finally:
            shutil.rmtree(place, ignore_errors=True)
            self._left = (time.perf_counter(), time.process_time())
        if run.error is not None:
            raise run.error
        return {"idle_cpu": idle, **round_facts(run)}

    def _idle_cpu(self) -> float:
        """Cores that this process kept busy since its last answer; of a short pause the answer itself is too much."""
        wall, cpu = time.perf_counter() - self._left[0], time.process_time() - self._left[1]
        return cpu / wall if wall > SHORT_PAUSE_S else 0.0


def round_facts(run: SourceRun) -> Answer:
    """FPS as a run's summary defines them, and CPU of each stage, milliseconds a frame."""
    from detector.session.recording import record

    recording = record(run.timeline)
    frames = max(1, run.written)
    infer_s = recording.infer_ns / 1e9
    return {
        "frames": run.written,
        "fps": {
            "inference": run.written / infer_s if infer_s > 0 else None,
            "end_to_end": run.written / run.run_s if run.run_s > 0 else None,
        },
        "cpu_ms": {name: stage.cpu_ns / 1e6 / frames for name, stage in recording.stages.items()},
    }


def peak_memory_mb() -> float | None:
    """The most that was resident at once in this process, everything in it: MB of 10^6 bytes (Linux; else None).

    Not ``ru_maxrss``: that one starts at the size of the process that made this one.
    """
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / 1e6
    except OSError:
        pass
    return None


if __name__ == "__main__":
    main()
