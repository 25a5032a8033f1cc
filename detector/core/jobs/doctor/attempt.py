"""Runs an engine, the default job or the encoders in a process of its own, which a crash takes
alone. The child runs ``python -c ... main()`` with one word; its last line is JSON."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detector.core.errors import EXIT_ENGINE, EXIT_INTERNAL, DetectVideoError
from detector.core.errors.writing import temporary_folder
from detector.core.jobs.doctor.encoding import encoders as measure_encoders

if TYPE_CHECKING:
    from detector.core.models.base import Network

ROOT = Path(__file__).parents[4]
PATIENCE_S = 180.0  # a first import of torch from a cold disk, or a first plan of TensorRT
DEFAULT_JOB = "default job"
BUILD = "build "  # in front of an engine's name
ENCODERS = "encoders"
LAST_WORDS = 300  # characters
FRAMES = 3
SIDE = 64  # pixels of the clip's frames


def try_engine(engine: str) -> dict[str, Any]:
    """``error``: None, or why the engine cannot run. ``precisions``: each with None, or why not."""
    return _ask(engine)


def try_build(engine: str) -> dict[str, Any]:
    """``error``: None, or why the engine's file of a small network cannot be built here."""
    return _ask(f"{BUILD}{engine}")


def try_default_job() -> dict[str, Any]:
    """``error`` and ``exit_code`` of ``detect-video CLIP`` with nothing but defaults."""
    return _ask(DEFAULT_JOB)


def time_encoders() -> dict[str, Any]:
    """``error``, or ``encoders``: what ``encoding.encoders`` found."""
    return _ask(ENCODERS)


def _ask(word: str) -> dict[str, Any]:
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); "
        f"from detector.core.run.signals import end_with_parent; end_with_parent({os.getpid()}); "
        "from detector.core.jobs.doctor.attempt import main; main(sys.argv[1])"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", code, word],
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=PATIENCE_S,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"{word}: no response within {PATIENCE_S:.0f} s", "exit_code": EXIT_ENGINE}
    lines = done.stdout.strip().splitlines()
    try:
        told: dict[str, Any] = json.loads(lines[-1])
    except (IndexError, ValueError):
        return {"error": _epitaph(word, done), "exit_code": EXIT_ENGINE}
    if (
        done.returncode < 0 and told["error"] is None
    ):  # it answered, and crashed while it was closed
        return {**told, "error": _epitaph(word, done), "exit_code": EXIT_ENGINE}
    return told


def _epitaph(word: str, done: subprocess.CompletedProcess[str]) -> str:
    code = done.returncode
    how = f"by signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"with status {code}"
    words = " ".join(done.stderr.split())[-LAST_WORDS:]
    return f"{word}: its process ended {how}" + (f"; its last output: {words}" if words else "")


def main(word: str) -> None:
    start = time.perf_counter()
    try:
        if word == DEFAULT_JOB:
            told = _run_default_job()
        elif word == ENCODERS:
            told = {"error": None, "encoders": measure_encoders(quick=False)}
        elif word.startswith(BUILD):
            told = {"error": None}
            _try_build(word.removeprefix(BUILD))
        else:
            told = {"error": None, "precisions": _try(word), "offers": _list_offers(word)}
    except DetectVideoError as error:
        told = {"error": " ".join(str(error).split()), "exit_code": error.exit_code}
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        told = {"error": text, "exit_code": EXIT_INTERNAL}
    print()  # a library may have left half a line
    print(json.dumps({**told, "seconds": time.perf_counter() - start}), flush=True)


def _try(name: str) -> dict[str, str | None]:
    """Run x + 1 on the engine and check the answer. Raises EngineError for a wrong one."""
    from detector.core import engines
    from detector.core.engines.base import EngineOptions
    from detector.core.errors import EngineError

    engines.load_library(name)
    able: dict[str, str | None] = {}
    for precision in engines.find(name).precisions:
        try:
            engines.graph_wanted(name, precision)
            able[precision] = None
        except DetectVideoError as error:
            able[precision] = str(error)
    with engines.open(name, _plus_one(), EngineOptions(requests=1)) as engine:
        request = engine.requests[0]
        request.slot[:] = 7
        [found] = request.infer(1)
        if engine.precision == "none":  # it computes nothing, by design
            return able
        if abs(float(found.min()) - 8) > 1e-3 or abs(float(found.max()) - 8) > 1e-3:
            raise EngineError(f"engine {name}: 7 + 1 came out as {found.min()} to {found.max()}")
    return able


def _try_build(name: str) -> None:
    from detector.core import engines
    from detector.core.engines.base import EngineOptions

    engines.load_library(name, to_build=True)
    builder = engines.find(name).artefact
    assert builder is not None
    with temporary_folder("detect-video-doctor-") as folder:
        target = Path(folder) / f"plus_one{builder.suffix}"
        builder.build(_plus_one(), EngineOptions(), target, lambda *_: True)


def _list_offers(name: str) -> list[dict[str, Any]]:
    from detector.core import engines

    return [offer._asdict() for offer in engines.find(name).offers()]


def _plus_one() -> Network:
    """A convolution that adds one to every value."""
    import numpy as np

    from detector.core.models.base import InputRules, Network
    from detector.core.models.graph.build import GraphBuilder
    from detector.core.types import Candidates

    builder = GraphBuilder("plus_one")
    nchw = builder.input_u8(1, 32, 32)
    weight = builder.constant("weight", np.eye(3, dtype=np.float32).reshape(3, 3, 1, 1))
    bias = builder.constant("bias", np.ones(3, np.float32))
    output = builder.add("Conv", "0.conv", [nchw, weight, bias])
    nothing = Candidates(
        np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, np.int64)
    )
    return Network(
        name="plus_one",
        family="doctor",
        graph=builder.model([output]),
        input=InputRules(32, 32, "stretch"),
        batch=1,
        output_shapes=[(1, 3, 32, 32)],
        head=lambda outputs, conf: nothing,
        dense=lambda outputs: outputs[0],
        names=("nothing",),
    )


def _run_default_job() -> dict[str, Any]:
    """Write a clip and run the default job on it, in a folder that is removed afterwards."""
    from detector.core.config.levels import resolve_config
    from detector.core.run.detect import detect

    with temporary_folder("detect-video-doctor-") as folder:
        clip = Path(folder) / "in.mp4"
        _write_clip(clip)
        output = f"{folder}{os.sep}out{os.sep}"
        options = {
            "output": output,
            "run_dir": str(Path(folder) / "run"),
            "engines_dir": str(Path(folder) / "engines"),
        }
        result = detect([str(clip)], resolve_config(None, options))
    code, reason = result.summary.exit.code, result.summary.exit.reason
    return {"error": None if code == 0 else reason, "exit_code": code}


def _write_clip(path: Path) -> None:
    """Write some frames of H.264 with the sink that every run uses."""
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
