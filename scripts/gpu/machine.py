"""The base of the steps: the GPU, the clip's pictures, and an engine compared with ONNX Runtime."""

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
    """Return torch's device: the CPU in a rehearsal."""
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
    if (found := shutil.which(name)) is None:
        return row(name, f"not on PATH: give --{name} FOLDER", None)
    done = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=60)
    lines = [line for line in done.stdout.splitlines() if "ersion" in line]
    return row(name, lines[-1].strip() if lines else done.stderr[-200:], bool(lines), real=True)


def _doctor() -> Row:
    """Run the program's doctor; the program need not be installed."""
    with tempfile.TemporaryDirectory() as folder:
        code, out, err = detect_video("doctor", cwd=folder)
    lines = out.strip().splitlines()
    value = f"exit {code}, {len(lines)} lines" if code == 0 else f"exit {code}: {err[-300:]}"
    return row("detect-video doctor", value, code == 0, real=True)


def refused(what: str, why: Any) -> Row:
    """Return a row for a refusal: a failure on a GPU; in a rehearsal, something the CPU lacks."""
    return row(what, why, None if rehearsing() else False)


def opened(engine: str, folder: str, **options: Any) -> Any:
    """Open network and engine as the command does."""
    from detector.core.config.levels import resolve_config
    from detector.core.run.loading import load_model

    config = resolve_config(None, {"engine": engine, "engines_dir": folder, **options})
    return load_model(config)


def pictures(machine: Any, count: int = 0) -> list[Any]:
    """Return the clip's first 64 frames (2 in a rehearsal), as the network's input."""
    import numpy as np

    from detector.core import sources
    from detector.core.stages.preprocess import letterbox

    count = count or (2 if rehearsing() else 64)
    rules, found = machine.network.input, []
    with sources.open(str(CLIP), decoder="auto", stride=1, frames=count) as source:
        for frame in source:
            picture = np.empty((rules.height, rules.width, 3), np.uint8)
            letterbox(frame.image, picture, geometry=rules.geometry, pad_value=rules.pad_value)
            found.append(picture)
    return found


def outputs_of(machine: Any, given: list[Any]) -> list[Any]:
    request, batch, found = machine.engine.requests[0], machine.network.batch, []
    for picture in given:
        request.slot[:] = picture
        found.append([output[0].copy() for output in request.infer(batch)])
    return found


def difference(ours: list[Any], theirs: list[Any]) -> float:
    """Return the largest difference of a raw output, divided by the largest value of that
    output."""
    import numpy as np

    pairs = [
        (a, b)
        for one, other in zip(ours, theirs, strict=True)
        for a, b in zip(one, other, strict=True)
    ]
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)


def in_loop(machine: Any, given: list[Any], calls: int = 0) -> tuple[float, list[float]]:
    """Return pictures per second, and device times in ms, of ``concurrency`` threads with a request
    each. ``calls`` per thread: 200, in a rehearsal 2."""
    engine, batch, times = machine.engine, machine.network.batch, []
    calls = calls or (2 if rehearsing() else 200)

    def work(at: int) -> None:
        request = engine.requests[at]
        for turn in range(calls):
            request.slot[:] = given[turn % len(given)]
            request.infer(batch)
            if request.device_ms is not None:
                times.append(request.device_ms)

    threads = [threading.Thread(target=work, args=(at,)) for at in range(engine.concurrency)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return calls * engine.concurrency * batch / (time.perf_counter() - start), times


def ort_reference(folder: str) -> list[Any]:
    machine = opened("ort", folder)
    with machine.engine:
        return outputs_of(machine, pictures(machine))


def variant(
    engine: str, name: str, folder: str, reference: list[Any], limit: float, **options: Any
) -> Iterator[Row]:
    """Yield rows for one way to run the model: agreement with ONNX Runtime, frames per second,
    device time, executed precision."""
    from detector.core.errors import DetectVideoError

    what = f"{engine} {name}"
    # A fake driver has a fake GPU, also in a rehearsal.
    place = "cuda:0" if has_gpu() else device()
    try:
        machine = opened(engine, folder, device=place, **options)
    except DetectVideoError as error:
        yield refused(what, error)
        return
    with machine.engine:
        given = pictures(machine)
        far = difference(outputs_of(machine, given), reference[: len(given)])
        yield row(
            f"{what}: raw outputs against ort fp32", f"{far:.2g}, at most {limit}", far <= limit
        )
        fps, times = in_loop(machine, given)
        if engine == "torch":
            captured = machine.engine.captured
            asked = "graphs=0" not in options.get("engine_options", ())
            yield row(f"{what}: CUDA graphs", captured, None if rehearsing() else captured is asked)
        if rehearsing():
            yield row(f"{what}: speed", "not reported for a stand-in", None)
        else:
            ms = f"{statistics.median(times):.3f} ms device" if times else "no device time"
            yield row(f"{what}: speed, 200 calls", f"{fps:.0f} FPS, {ms}", bool(times))
        executed = Counter(layer.precision for layer in machine.engine.execution())
        yield row(
            f"{what}: layers",
            dict(executed.most_common()) or "not reported",
            None if not executed else True,
        )


def command(
    engine: str, name: str, folder: str, *options: str, by: tuple[str, ...] = ("-m", "detector")
) -> Row:
    """Run the whole command on the clip, end to end."""
    few = ("--frames", "4", "--no-video") if rehearsing() else ()
    asked = (str(CLIP), "--engine", engine, "--device", device(), "--json", *options, *few)
    line = [sys.executable, *by, *asked, "--engines-dir", folder]
    code, out, err = run(line, 120, cwd=folder)
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
    """Unpack the carried wheels where ``PYTHONPATH`` finds them; return why that failed, or
    None."""
    wheels = sorted(map(str, folder.glob("*.whl")))
    if not wheels:
        return None
    options = "--quiet --no-index --no-deps --no-compile --no-cache-dir --target".split()
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, str(target), *wheels],
        capture_output=True,
        text=True,
        timeout=120,
    )
    return None if done.returncode == 0 else done.stderr.strip()[-300:]
