"""Try an engine, the default job or the encoders in a child process, so that this process survives
a crash. The child runs ``main`` with one word, and prints its results as JSON on its last line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detector.core.errors import EXIT_ENGINE, EXIT_INTERNAL, DetectVideoError
from detector.core.errors.writing import temporary_folder
from detector.core.jobs.doctor.encoding import encoders as measure_encoders
from detector.core.run.parent import child_command

if TYPE_CHECKING:
    from detector.core.models.base import Network

# Enough time to import torch from a cold disk, or to build a first plan of TensorRT.
TIMEOUT_S = 180.0
# The words that ``main`` accepts, apart from an engine's name.
DEFAULT_JOB = "default job"
BUILD = "build "  # with an engine's name after it: build that engine's file for a small network
TIME_ENCODERS = "encoders"
LAST_OUTPUT = 300  # characters of the child's errors that a message quotes
FRAMES = 3  # number of frames of the test clip
SIDE = 64  # width and height of these frames, in pixels


def try_in_child(word: str) -> dict[str, Any]:
    """Return what ``main`` printed. ``error``: what failed, or None. ``precisions`` (for an
    engine): precision -> why it cannot run, or None. ``encoders``: see ``encoding.py``."""
    code = "from detector.core.jobs.doctor.attempt import main; main(sys.argv[1])"
    try:
        done = subprocess.run(
            [*child_command(code), word],
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"{word}: no response within {TIMEOUT_S:.0f} s", "exit_code": EXIT_ENGINE}
    lines = done.stdout.strip().splitlines()
    try:
        result: dict[str, Any] = json.loads(lines[-1])
    except (IndexError, ValueError):
        return {"error": _describe_end(word, done), "exit_code": EXIT_ENGINE}
    if done.returncode < 0 and result["error"] is None:  # it crashed after printing its results
        return {**result, "error": _describe_end(word, done), "exit_code": EXIT_ENGINE}
    return result


def _describe_end(word: str, done: subprocess.CompletedProcess[str]) -> str:
    code = done.returncode
    how = f"by signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"with status {code}"
    last = " ".join(done.stderr.split())[-LAST_OUTPUT:]
    return f"{word}: its process ended {how}" + (f"; its last output: {last}" if last else "")


def main(word: str) -> None:
    start = time.perf_counter()
    try:
        if word == DEFAULT_JOB:
            result = _run_default_job()
        elif word == TIME_ENCODERS:
            result = {"error": None, "encoders": measure_encoders(quick=False)}
        elif word.startswith(BUILD):
            result = {"error": None}
            _build_plus_one(word.removeprefix(BUILD))
        else:
            from detector.core import engines

            result = {
                "error": None,
                "precisions": _run_plus_one(word),
                "offers": [offer._asdict() for offer in engines.find(word).offers()],
            }
    except DetectVideoError as error:
        result = {"error": " ".join(str(error).split()), "exit_code": error.exit_code}
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        result = {"error": text, "exit_code": EXIT_INTERNAL}
    print()  # a library may have printed an incomplete line
    print(json.dumps({**result, "seconds": time.perf_counter() - start}), flush=True)


def _run_plus_one(name: str) -> dict[str, str | None]:
    """Compute x + 1 on the engine. Return precision -> why it cannot run, or None."""
    from detector.core import engines
    from detector.core.engines.base import EngineOptions
    from detector.core.errors import EngineError

    engines.load_library(name)
    reasons: dict[str, str | None] = {}
    for precision in engines.find(name).precisions:
        try:
            engines.graph_precision_for(name, precision)
            reasons[precision] = None
        except DetectVideoError as error:
            reasons[precision] = str(error)
    with engines.open(name, _plus_one(), EngineOptions(requests=1)) as engine:
        request = engine.requests[0]
        request.slot[:] = 7
        [output] = request.infer(1)
        if engine.precision == "none":  # the null engine computes nothing
            return reasons
        if abs(float(output.min()) - 8) > 1e-3 or abs(float(output.max()) - 8) > 1e-3:
            raise EngineError(f"engine {name}: 7 + 1 came out as {output.min()} to {output.max()}")
    return reasons


def _build_plus_one(name: str) -> None:
    from detector.core import engines
    from detector.core.engines.base import EngineOptions

    engines.load_library(name, to_build=True)
    builder = engines.find(name).artefact
    assert builder is not None
    with temporary_folder("detect-video-doctor-") as folder:
        target = Path(folder) / f"plus_one{builder.suffix}"
        builder.build(_plus_one(), EngineOptions(), target, lambda *_: True)


def _plus_one() -> Network:
    import numpy as np

    from detector.core.models.base import InputRules, Network
    from detector.core.models.graph.build import GraphBuilder
    from detector.core.types import Candidates

    builder = GraphBuilder("plus_one")
    nchw = builder.input_u8(1, 32, 32)
    weight = builder.constant("weight", np.eye(3, dtype=np.float32).reshape(3, 3, 1, 1))
    bias = builder.constant("bias", np.ones(3, np.float32))
    output = builder.add("Conv", "0.conv", [nchw, weight, bias])
    none = Candidates(np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, np.int64))
    return Network(
        name="plus_one",
        family="doctor",
        graph=builder.model([output]),
        input=InputRules(32, 32, "stretch"),
        batch=1,
        output_shapes=[(1, 3, 32, 32)],
        head=lambda outputs, conf: none,
        dense=lambda outputs: outputs[0],
        names=("nothing",),
    )


def _run_default_job() -> dict[str, Any]:
    from detector.core.config.levels import resolve_config
    from detector.core.run.detect import detect

    with temporary_folder("detect-video-doctor-") as folder:
        clip = Path(folder) / "in.mp4"
        _write_clip(clip)
        options = {
            "output": f"{folder}{os.sep}out{os.sep}",
            "run_dir": str(Path(folder) / "run"),
            "engines_dir": str(Path(folder) / "engines"),
        }
        result = detect([str(clip)], resolve_config(None, options))
    code, reason = result.summary.exit.code, result.summary.exit.reason
    return {"error": None if code == 0 else reason, "exit_code": code}


def _write_clip(path: Path) -> None:
    from fractions import Fraction

    import numpy as np

    from detector.core import sinks
    from detector.core.types import Detections, Frame, SourceInfo

    sink = sinks.open("video", path)
    sink.open(SourceInfo(str(path), "video", SIDE, SIDE, Fraction(25), Fraction(1, 25)))
    for number in range(FRAMES):
        image = np.full((SIDE, SIDE, 3), 40 * number, np.uint8)
        sink.write(Frame(number, number, number / 25, image), Detections.empty())
    sink.close()
