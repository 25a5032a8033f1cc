"""PyTorch: agreement, speed, compilation, waits for the whole device, and the best settings."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from gpu import machine as here
from gpu.children import SCRIPT, detect_video, left_s, run
from gpu.findings import Row, rehearsing, row
from gpu.machine import CLIP
from gpu.stand_ins import cheap_compiler

DEVICE_WIDE = (
    "cudaDeviceSynchronize",
    "cuCtxSynchronize",
    "cudaMemcpy",
    "cuMemcpyHtoD",
    "cuMemcpyDtoH",
)
TORCH: tuple[tuple[str, float, dict[str, Any]], ...] = (
    ("fp32", 1e-3, {}),
    ("fp32, 1 request", 1e-3, {"concurrency": 1}),
    ("fp32, no graphs", 1e-3, {"engine_options": ["graphs=0"]}),
    ("fp16", 2e-2, {"precision": "fp16"}),
    ("fp16, no graphs", 2e-2, {"precision": "fp16", "engine_options": ["graphs=0"]}),
    ("tf32", 1e-2, {"precision": "tf32"}),
    ("bf16", 2e-1, {"precision": "bf16"}),
)
COMPILED: tuple[tuple[str, float, dict[str, Any]], ...] = (
    ("fp32 compiled", 1e-3, {}),
    ("tf32 compiled", 1e-2, {"precision": "tf32"}),
    ("fp16 compiled", 2e-2, {"precision": "fp16"}),
)


def torch() -> Iterator[Row]:
    if (why := here.torch_lacks()) is not None:
        yield row("torch", why, None)
        return
    with tempfile.TemporaryDirectory() as folder:
        reference = here.ort_reference(folder)
        for name, limit, options in TORCH:
            yield from here.variant("torch", name, folder, reference, limit, **options)
        for name, flags in (
            ("fp32", ()),
            ("fp32, no graphs", ("--engine-options", "graphs=0")),
            ("fp16", ("--precision", "fp16")),
        ):
            if rehearsing() and "fp16" in flags:
                yield row(f"detect-video --engine torch, {name}", "fp16 needs a GPU", None)
            else:
                yield here.command("torch", name, folder, *flags)
        yield chosen(folder)


def chosen(folder: str) -> Row:
    """Check that a run without --engine and --device uses the GPU."""
    options = ("--frames", "4", "--no-video", "--json", "--run-dir", f"{folder}/chosen")
    code, out, err = detect_video(str(CLIP), *options, cwd=folder)
    what = "detect-video, no engine named"
    if code != 0:
        return row(what, f"exit {code}: {err[-300:]}", False)
    why = json.loads(out)["engine_reason"]
    return row(what, why, "can use the GPU" in why or rehearsing())


def compile() -> Iterator[Row]:
    """Check torch.compile in fp32, tf32 and fp16. All compilation must happen while the engine is
    opened, and none in the threads that run it."""
    if (why := here.torch_lacks()) is not None:
        yield row("torch.compile", why, None)
        return
    cheap = cheap_compiler() if rehearsing() else nullcontext()
    with cheap, tempfile.TemporaryDirectory() as folder:
        reference = here.ort_reference(folder)
        for name, limit, options in COMPILED[:1] if rehearsing() else COMPILED:
            yield from compiled(name, limit, options, folder, reference)


def compiled(
    name: str, limit: float, options: dict[str, Any], folder: str, reference: list[Any]
) -> Iterator[Row]:
    from detector.core.errors import DetectVideoError

    before = compiled_graphs()
    shared = {"device": here.device(), "engine_options": ["compile=1"], "concurrency": 2}
    try:
        machine = here.opened("torch", folder, **shared, **options)
    except DetectVideoError as error:
        yield here.refused(f"torch {name}", error)
        return
    with machine.engine:
        loaded = compiled_graphs() - before
        inputs = here.pictures(machine)
        largest = here.difference(here.outputs_of(machine, inputs), reference[: len(inputs)])
        fps, times = here.in_loop(machine, inputs)
        later = compiled_graphs() - before - loaded
    value = f"{largest:.2g} (limit {limit})"
    yield row(f"torch {name}: raw outputs against ort fp32", value, largest <= limit)
    yield row(f"torch {name}: graphs compiled while loading", loaded, loaded == 1)
    yield row(f"torch {name}: graphs compiled after loading, by 2 threads", later, later == 0)
    if not rehearsing():
        ms = statistics.median(times)
        yield row(f"torch {name}: speed", f"{fps:.0f} FPS, {ms:.3f} ms on the device")


def compiled_graphs() -> int:
    """Return how many graphs dynamo has compiled in this process, including recompilations."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def trace() -> Iterator[Row]:
    """Trace the loop with torch's profiler: no call may wait for the whole device."""
    if (why := here.torch_lacks()) is not None:
        yield row("trace", f"{why}; this step needs torch's profiler", None)
        return
    from torch.profiler import ProfilerActivity, profile, record_function

    runs: list[tuple[str, str, dict[str, Any]]] = [
        ("torch", "", {}),
        ("torch", ", no graphs", {"engine_options": ["graphs=0"]}),
    ]
    if find_spec("tensorrt") and not rehearsing():
        runs.append(("trt", "", {}))
    for engine, name, options in runs:
        with tempfile.TemporaryDirectory() as folder:
            machine = here.opened(engine, folder, device=here.device(), concurrency=2, **options)
            with machine.engine:
                inputs = here.pictures(machine)
                here.in_loop(machine, inputs)
                activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
                with profile(activities=activities) as recording, record_function("the loop"):
                    here.in_loop(machine, inputs, 2 if rehearsing() else 20)
        calls = cuda_calls(recording, "the loop")
        device_waits = {name: calls[name] for name in DEVICE_WIDE if name in calls}
        event_waits = sum(count for name, count in calls.items() if "EventSynchronize" in name)
        what = f"trace of {engine}{name}"
        if rehearsing():
            yield row(f"{what}: has the loop's range; CUDA calls inside", len(calls), not calls)
            continue
        yield row(f"{what}: calls of CUDA", dict(sorted(calls.items())), bool(calls))
        yield row(f"{what}: waits for the whole device", device_waits or "none", not device_waits)
        yield row(f"{what}: waits for a request's own event", event_waits, event_waits >= 40)


def cuda_calls(recording: Any, name: str) -> dict[str, int]:
    """Count the calls of the CUDA runtime and driver, in all threads, within the range ``name``.

    Reads the exported trace, because ``events()`` lacks threads that torch did not start.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        recording.export_chrome_trace(str(file))
        events = [
            event for event in json.loads(file.read_text())["traceEvents"] if event.get("ph") == "X"
        ]
    loop = next(event for event in events if event["name"] == name)
    start, end = loop["ts"], loop["ts"] + loop["dur"]
    return Counter(
        event["name"]
        for event in events
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and start <= event["ts"] <= end
    )


# ---- How much does each torch setting gain on this card?


class Setting(NamedTuple):
    """``far``: largest allowed difference of raw outputs from ONNX Runtime's in fp32."""

    precision: str
    channels_last: int
    benchmark: int
    far: float

    @property
    def name(self) -> str:
        layout = f"channels_last={self.channels_last}, benchmark={self.benchmark}"
        return f"torch {self.precision}, {layout}"


FAR = {"fp32": 1e-3, "fp16": 2e-2, "tf32": 1e-2}
SETTINGS = tuple(
    Setting(precision, layout, benchmark, far)
    for precision, far in FAR.items()
    for layout in (1, 0)
    for benchmark in (0, 1)
)
ROUNDS = 3  # each round runs all settings once


def settings() -> Iterator[Row]:
    """Measure frames per second and device time with channels_last and cudnn.benchmark on and off,
    in fp32, tf32 and fp16. Each setting runs in its own process, because cuDNN would keep using the
    algorithms that it chose for another setting. Settings alternate, so that a slow minute affects
    all of them. A round that would not end in time is not started."""
    if (why := here.torch_lacks()) is not None:
        yield row("settings", why, None)
        return
    chosen_settings, rounds = (SETTINGS[:3], 1) if rehearsing() else (SETTINGS, ROUNDS)
    figures: dict[Setting, list[float]] = defaultdict(list)
    longest = 0.0
    with tempfile.TemporaryDirectory() as folder:
        save_reference(folder)
        for turn in range(rounds):
            start_s = left_s()
            if turn and start_s < longest * 1.1 + 5:
                yield row(f"round {turn + 1}", f"not started: only {start_s:.0f} s left", None)
                break
            for setting in chosen_settings:
                if turn and not figures[setting]:
                    continue  # refused or crashed
                result = measure_apart(setting, folder)
                if result["fps"] is not None:
                    figures[setting].append(result["fps"])
                yield row(f"{setting.name}, round {turn + 1}", result["value"], result["ok"])
            longest = max(longest, start_s - left_s())
    yield from compared(figures)


def compared(figures: dict[Setting, list[float]]) -> Iterator[Row]:
    """Compare every setting with the default of detect-video, for each precision."""
    for precision in FAR:
        measured = [
            setting for setting in figures if setting.precision == precision and figures[setting]
        ]
        default = next(
            (
                setting
                for setting in measured
                if (setting.channels_last, setting.benchmark) == (1, 0)
            ),
            None,
        )
        if default is None:
            continue
        base = figures[default]
        texts = []
        for setting in measured:
            low, high = min(figures[setting]), max(figures[setting])
            middle = statistics.median(figures[setting])
            # With fewer rounds, the ranges may be disjoint by chance.
            enough_rounds = len(figures[setting]) >= ROUNDS
            beyond_noise = (
                enough_rounds and setting is not default and (low > max(base) or high < min(base))
            )
            ratio = middle / statistics.median(base)
            texts.append(
                f"channels_last={setting.channels_last} benchmark={setting.benchmark} "
                f"{middle:.0f} FPS [{low:.0f} .. {high:.0f}], {ratio:.2f} times the default"
                + (", beyond the noise" if beyond_noise else "")
            )
        yield row(f"torch {precision}: settings compared with the default", "; ".join(texts))


def save_reference(folder: str) -> None:
    import numpy as np

    outputs = here.ort_reference(folder)
    arrays = {
        f"{at}-{i}": array
        for at, frame_outputs in enumerate(outputs)
        for i, array in enumerate(frame_outputs)
    }
    np.savez(Path(folder) / "reference.npz", **arrays)


def measure_apart(setting: Setting, folder: str) -> dict[str, Any]:
    """Run ``measure_setting`` in another process; return its result, or how that process failed."""
    command = [sys.executable, str(SCRIPT), "--setting", json.dumps([*setting, folder])]
    code, out, err = run([*command, *(["--rehearse"] if rehearsing() else [])], left_s())
    rows = [json.loads(text) for text in out.splitlines() if text.startswith("{")]
    if code == 0 and rows:
        return dict(rows[-1])
    last = (err.strip().splitlines() or [f"exit {code}"])[-1]
    return {"fps": None, "value": f"failed: {last}", "ok": False}


def measure_setting(setting: Setting, folder: str) -> dict[str, Any]:
    import numpy as np

    from detector.core.errors import DetectVideoError

    engine_options = [f"channels_last={setting.channels_last}", f"benchmark={setting.benchmark}"]
    options = {"precision": setting.precision, "engine_options": engine_options, "concurrency": 2}
    try:
        machine = here.opened("torch", folder, device=here.device(), **options)
    except DetectVideoError as error:
        return {"fps": None, "value": str(error), "ok": None if rehearsing() else False}
    with machine.engine, np.load(Path(folder) / "reference.npz") as reference:
        inputs = here.pictures(machine)
        ours = here.outputs_of(machine, inputs)
        theirs = [[reference[f"{at}-{i}"] for i in range(len(ours[0]))] for at in range(len(ours))]
        largest = here.difference(ours, theirs)
        calls = 1 if rehearsing() else 20
        # Warm up: in each thread, cuDNN searches for algorithms.
        here.in_loop(machine, inputs, calls)
        fps, times = here.in_loop(machine, inputs)
    ms = f", {statistics.median(times):.3f} ms on the device" if times else ""
    value = f"{fps:.0f} FPS{ms}; raw outputs differ by {largest:.2g} (limit {setting.far})"
    return {"fps": fps, "value": value, "ok": largest <= setting.far}
