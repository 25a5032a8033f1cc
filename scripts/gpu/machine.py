"""Shared parts of gpu_check: find the GPU, read the clip, compare engines with ONNX Runtime."""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gpu.children import ROOT, detect_video, run
from gpu.findings import Row, rehearsing, row

CLIP, WHEELS = ROOT / "videos/street.mp4", ROOT / "wheels"
HANDICAP = Path(__file__).with_name("handicap.py")
PACKAGES = (
    "torch",
    "tensorrt",
    "tensorrt_rtx_cu13",
    "pycuda",
    "cuda-bindings",
    "onnxruntime",
    "nvtx",
    "nvidia-ml-py",
    "av",
)


def has_gpu() -> bool:
    from detector.core.engines.trt import driver

    return driver.absent() is None


def device() -> str:
    """Return the value for --device: the CPU in a rehearsal, otherwise the first GPU."""
    return "cpu" if rehearsing() else "cuda:0"


def environment() -> Iterator[Row]:
    from detector.core.engines.trt import driver

    if (absent := driver.absent()) is not None:
        yield row("GPU", absent, None)
    for gpu in driver.gpus():
        capability = ".".join(map(str, gpu.capability))
        yield row(
            f"cuda:{gpu.index}",
            f"{gpu.name}, compute capability {capability}, {gpu.memory_bytes >> 20} MB",
            real=True,
        )
    if absent is None:
        yield row("driver", "CUDA {}.{}".format(*driver.cuda_version()), real=True)
    for name in PACKAGES:
        try:
            yield row(name, version(name), real=True)
        except PackageNotFoundError:
            yield row(name, "not installed", None)
    for tool in ("nsys", "ncu"):
        yield _tool(tool)
    yield _doctor()


def _tool(name: str) -> Row:
    if (path := shutil.which(name)) is None:
        return row(name, f"not on PATH: give --{name} FOLDER", None)
    completed = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60)
    lines = [line for line in completed.stdout.splitlines() if "ersion" in line]
    return row(
        name, lines[-1].strip() if lines else completed.stderr[-200:], bool(lines), real=True
    )


def _doctor() -> Row:
    """Run the checkout's `detect-video doctor`, which works without an installation."""
    with tempfile.TemporaryDirectory() as folder:
        code, out, err = detect_video("doctor", cwd=folder)
    lines = out.strip().splitlines()
    value = f"exit {code}, {len(lines)} lines" if code == 0 else f"exit {code}: {err[-300:]}"
    return row("detect-video doctor", value, code == 0, real=True)


def refused(what: str, why: Any) -> Row:
    """Return a row for an engine's error: ``fail`` on a GPU, ``not run`` in a rehearsal."""
    return row(what, why, None if rehearsing() else False)


def opened(engine: str, folder: str, **options: Any) -> Any:
    """Open the network and the engine as the command does."""
    from detector.core.config.levels import resolve_config
    from detector.core.run.loading import load_model

    config = resolve_config(None, {"engine": engine, "engines_dir": folder, **options})
    return load_model(config)


def pictures(machine: Any, count: int = 0) -> list[Any]:
    """Return the clip's first ``count`` frames as network inputs. ``count`` 0 means 64 frames, or
    2 in a rehearsal."""
    import numpy as np

    from detector.core import sources
    from detector.core.stages.preprocess import letterbox

    count = count or (2 if rehearsing() else 64)
    rules, prepared = machine.network.input, []
    with sources.open(str(CLIP), decoder="auto", stride=1, frames=count) as source:
        for frame in source:
            picture = np.empty((rules.height, rules.width, 3), np.uint8)
            letterbox(frame.image, picture, geometry=rules.geometry, pad_value=rules.pad_value)
            prepared.append(picture)
    return prepared


def outputs_of(machine: Any, inputs: list[Any]) -> list[Any]:
    request, batch, outputs = machine.engine.requests[0], machine.network.batch, []
    for picture in inputs:
        request.slot[:] = picture
        outputs.append([output[0].copy() for output in request.infer(batch)])
    return outputs


def difference(ours: list[Any], theirs: list[Any]) -> float:
    """Return the largest difference of two raw outputs, relative to the largest value of theirs."""
    import numpy as np

    pairs = [
        (a, b)
        for frame_outputs, their_outputs in zip(ours, theirs, strict=True)
        for a, b in zip(frame_outputs, their_outputs, strict=True)
    ]
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)


def in_loop(machine: Any, inputs: list[Any], calls: int = 0) -> tuple[float, list[float]]:
    """Run each request in its own thread; return pictures per second, and device times in ms.
    ``calls``: inferences per thread; 0 means 200, or 2 in a rehearsal."""
    engine, batch, times = machine.engine, machine.network.batch, []
    calls = calls or (2 if rehearsing() else 200)

    def work(index: int) -> None:
        request = engine.requests[index]
        for number in range(calls):
            request.slot[:] = inputs[number % len(inputs)]
            request.infer(batch)
            if request.device_ms is not None:
                times.append(request.device_ms)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(engine.concurrency)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return calls * engine.concurrency * batch / (time.perf_counter() - start), times


def ort_reference(folder: str) -> list[Any]:
    machine = opened("ort", folder, device="cpu")
    with machine.engine:
        return outputs_of(machine, pictures(machine))


def variant(
    engine: str, name: str, folder: str, reference: list[Any], limit: float, **options: Any
) -> Iterator[Row]:
    """Check one way to run the model: agreement with ONNX Runtime, speed, executed precision."""
    from detector.core.errors import DetectVideoError

    what = f"{engine} {name}"
    # device() would return the CPU in a rehearsal, even while a fake driver provides a fake GPU.
    device_name = "cuda:0" if has_gpu() else device()
    try:
        machine = opened(engine, folder, device=device_name, **options)
    except DetectVideoError as error:
        yield refused(what, error)
        return
    with machine.engine:
        inputs = pictures(machine)
        largest = difference(outputs_of(machine, inputs), reference[: len(inputs)])
        yield row(
            f"{what}: raw outputs against ort fp32",
            f"{largest:.2g} (limit {limit})",
            largest <= limit,
        )
        fps, times = in_loop(machine, inputs)
        if engine == "torch":
            captured = machine.engine.captured
            graphs_expected = "graphs=0" not in options.get("engine_options", ())
            yield row(
                f"{what}: CUDA graphs captured",
                captured,
                None if rehearsing() else captured is graphs_expected,
            )
        if rehearsing():
            yield row(f"{what}: speed", "not reported for a stand-in", None)
        else:
            ms = f"{statistics.median(times):.3f} ms on the device" if times else "no device time"
            timed = None if engine == "ort" else bool(times)  # ort reports no device time
            yield row(f"{what}: speed, 200 calls per thread", f"{fps:.0f} FPS, {ms}", timed)
        executed = Counter(layer.precision for layer in machine.engine.execution())
        value = dict(executed.most_common()) or "not reported"
        yield row(f"{what}: layers by precision", value, True if executed else None)


def command(
    engine: str, name: str, folder: str, *options: str, by: tuple[str, ...] = ("-m", "detector")
) -> Row:
    """Run the whole command on the clip, end to end."""
    rehearsal_options = ("--frames", "4", "--no-video") if rehearsing() else ()
    arguments = (
        str(CLIP),
        "--engine",
        engine,
        "--device",
        device(),
        "--json",
        *options,
        *rehearsal_options,
    )
    command_line = [sys.executable, *by, *arguments, "--engines-dir", folder]
    code, out, err = run(command_line, 120, cwd=folder)
    what = f"detect-video --engine {engine}, {name}"
    if code != 0:
        return row(what, f"exit {code}: {err[-300:]}", False)
    fps = json.loads(out)["fps"]
    value = f"{fps['inference']:.0f} inference FPS, {fps['end_to_end']:.0f} end-to-end FPS"
    return row(what, "it ran" if rehearsing() else value)


def torch_lacks() -> str | None:
    """Return why torch cannot run a step, or None. A rehearsal does not need CUDA."""
    if find_spec("torch") is None:
        return "not installed"
    import torch

    if torch.cuda.is_available() or rehearsing():
        return None
    return f"torch {torch.__version__} finds no CUDA: install a CUDA build"


def unpack_wheels(folder: Path, target: Path) -> str | None:
    """Unpack the wheels in ``folder`` into ``target``; return why that failed, or None."""
    wheels = sorted(map(str, folder.glob("*.whl")))
    if not wheels:
        return None
    options = "--quiet --no-index --no-deps --no-compile --no-cache-dir --target".split()
    completed = subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, str(target), *wheels],
        capture_output=True,
        text=True,
        timeout=120,
    )
    return None if completed.returncode == 0 else completed.stderr.strip()[-300:]
