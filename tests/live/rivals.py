"""Measure other programs that read many streams, with this project's detector as their callback.

Each program has its own environment and is used as its documentation says:
``ultralytics.data.loaders.LoadStreams`` yields one picture of every stream at a time, and
``inference.InferencePipeline.init_with_custom_logic`` calls a function with new pictures.

    PYTHON tests/live/rivals.py ultralytics|inference SECONDS ENGINE URL...

This command prints the result as JSON. PYTHON is the Python of the other program's environment.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measuring.environments import MissingError, environment

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"ultralytics": "ultralytics", "inference": "inference"}
TITLES = {"ultralytics": "ultralytics LoadStreams", "inference": "inference InferencePipeline"}
# What the detector needs besides numpy and cv2, which come with the other programs.
OURS = ("click", "pyyaml", "nvtx", "onnxruntime", "onnx", "rich", "msgspec", "av")
START_S = 120.0  # time limit for the first picture of all streams
WARM_S = 3.0


@dataclass(slots=True)
class Result:
    """``fps``: pictures per second that the detector gets from one stream (mean over the streams).
    ``age_ms``: p50 and p99 of a picture's age, by the time stamp that the program gave it."""

    fps: float
    slowest_fps: float
    age_ms: tuple[float, float] | None
    cores: float
    version: str


def measure(name: str, urls: list[str], seconds: float, engine: str) -> Result:
    python = environment(name, [PACKAGES[name]], OURS)
    with tempfile.TemporaryDirectory(prefix="live-check-") as folder:
        variables = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "YOLO_CONFIG_DIR": folder,
            "TELEMETRY_OPT_OUT": "True",
            "DISABLE_VERSION_CHECK": "True",
        }
        command = [str(python), __file__, name, f"{seconds}", engine, *urls]
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                env=variables,
                capture_output=True,
                text=True,
                check=False,
                timeout=seconds + 2 * START_S,
            )
        except subprocess.TimeoutExpired as late:
            raise MissingError(f"it did not end within {late.timeout:.0f} s") from late
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        errors = done.stderr.strip().splitlines()
        raise MissingError(f"it failed: {errors[-1] if errors else done.returncode}")
    result = json.loads(lines[-1])
    result["age_ms"] = tuple(result["age_ms"]) if result["age_ms"] else None
    return Result(**result)


# ----------------------------------------------------------------------
# What runs in the environment of the other program.


class Counts:
    def __init__(self, streams: int, seconds: float) -> None:
        self.frames = [0] * streams
        self.ages_ms: list[float] = []
        self.seconds = seconds
        self._started = time.monotonic()
        self._began = self._cpu = 0.0

    def add(self, stream: int, age_ms: float | None = None) -> None:
        self.frames[stream] += 1
        if age_ms is not None:
            self.ages_ms.append(age_ms)

    def is_over(self) -> bool:
        now = time.monotonic()
        if not self._began:
            if now - self._started > START_S:
                raise SystemExit(f"only {sum(map(bool, self.frames))} streams gave a picture")
            if all(self.frames) and now - self._started > WARM_S:
                self._began, self._cpu = now, time.process_time()
                self.frames = [0] * len(self.frames)
                self.ages_ms.clear()
        return bool(self._began) and now - self._began > self.seconds

    def result(self, version: str) -> dict[str, Any]:
        passed = time.monotonic() - self._began
        ages = sorted(self.ages_ms)
        quantiles = [
            ages[min(len(ages) - 1, int(share * len(ages)))] for share in (0.5, 0.99) if ages
        ]
        return {
            "fps": sum(self.frames) / len(self.frames) / passed,
            "slowest_fps": min(self.frames) / passed,
            "age_ms": quantiles or None,
            "cores": (time.process_time() - self._cpu) / passed,
            "version": version,
        }


def run_ultralytics(detect: Callable[[Any], Any], urls: list[str], counts: Counts) -> str:
    import ultralytics
    from ultralytics.data.loaders import LoadStreams

    listed = Path("list.streams")
    listed.write_text("\n".join(urls))
    streams = LoadStreams(str(listed))
    for batch in streams:
        for place, image in enumerate(batch[1]):
            detect(image)
            counts.add(place)
        if counts.is_over():
            break
    return str(ultralytics.__version__)


def run_inference(detect: Callable[[Any], Any], urls: list[str], counts: Counts) -> str:
    from importlib.metadata import version

    from inference import InferencePipeline

    ended = threading.Event()

    def on_video_frame(frames: list[Any]) -> list[Any]:
        return [detect(frame.image) for frame in frames]

    def on_prediction(predictions: Any, frames: Any) -> None:
        for frame in frames if isinstance(frames, list) else [frames]:
            if frame is not None:
                age_ms = (time.time() - frame.frame_timestamp.timestamp()) * 1e3
                counts.add(frame.source_id or 0, age_ms)
        if counts.is_over():
            ended.set()

    pipeline = InferencePipeline.init_with_custom_logic(
        video_reference=urls, on_video_frame=on_video_frame, on_prediction=on_prediction
    )
    pipeline.start(use_main_thread=False)
    if not ended.wait(START_S + counts.seconds):
        raise SystemExit(f"{sum(map(bool, counts.frames))} of {len(urls)} streams gave pictures")
    return version("inference")


def main(name: str, seconds: float, engine: str, urls: list[str]) -> None:
    from detector import Detector

    detector = Detector(engine=engine)
    counts = Counts(len(urls), seconds)
    run = {"ultralytics": run_ultralytics, "inference": run_inference}[name]
    version = run(detector, urls, counts)
    print(json.dumps(counts.result(version)), flush=True)
    os._exit(0)  # the program's reading threads never end


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), sys.argv[3], sys.argv[4:])
