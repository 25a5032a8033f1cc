"""PyTorch: agreement, speed, when it compiles, what waits for what, and the value of settings."""

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
    ("fp32, 1 at once", 1e-3, {"concurrency": 1}),
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
        for name, words in (
            ("fp32", ()),
            ("fp32, no graphs", ("--engine-options", "graphs=0")),
            ("fp16", ("--precision", "fp16")),
        ):
            if rehearsing() and "fp16" in words:
                yield row(f"detect-video --engine torch, {name}", "fp16 needs a GPU", None)
            else:
                yield here.command("torch", name, folder, *words)
        yield chosen(folder)


def chosen(folder: str) -> Row:
    """Check that a user who names neither engine nor device gets an engine on the GPU."""
    few = ("--frames", "4", "--no-video", "--json", "--run-dir", f"{folder}/chosen")
    code, out, err = detect_video(str(CLIP), *few, cwd=folder)
    what = "detect-video, no engine named"
    if code != 0:
        return row(what, f"exit {code}: {err[-300:]}", False)
    why = json.loads(out)["engine_reason"]
    return row(what, why, "can use the GPU" in why or rehearsing())


def compile() -> Iterator[Row]:
    """Check torch.compile with each precision's TF32 settings; everything must be compiled while
    the engine is opened, in another thread than those that run it."""
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
    words = {"device": here.device(), "engine_options": ["compile=1"], "concurrency": 2}
    try:
        machine = here.opened("torch", folder, **words, **options)
    except DetectVideoError as error:
        yield here.refused(f"torch {name}", error)
        return
    with machine.engine:
        loaded = compiled_graphs() - before
        given = here.pictures(machine)
        far = here.difference(here.outputs_of(machine, given), reference[: len(given)])
        fps, times = here.in_loop(machine, given)
        later = compiled_graphs() - before - loaded
    value = f"{far:.2g}, at most {limit}"
    yield row(f"torch {name}: raw outputs against ort fp32", value, far <= limit)
    yield row(f"torch {name}: graphs compiled while loading", loaded, loaded == 1)
    yield row(f"torch {name}: graphs compiled after it, 2 threads", later, later == 0)
    if not rehearsing():
        ms = statistics.median(times)
        yield row(f"torch {name}: speed", f"{fps:.0f} FPS, {ms:.3f} ms device")


def compiled_graphs() -> int:
    """Return how many graphs dynamo has compiled in this process, repeats included."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def trace() -> Iterator[Row]:
    """Trace the loop by torch's profiler, for each engine that runs here: no call may wait for the
    whole device."""
    if (why := here.torch_lacks()) is not None:
        yield row("trace", f"{why}; its profiler is what looks", None)
        return
    from torch.profiler import ProfilerActivity, profile, record_function

    runs: list[tuple[str, str, dict[str, Any]]] = [
        ("torch", "", {}),
        ("torch", ", no graphs", {"engine_options": ["graphs=0"]}),
    ]
    if find_spec("tensorrt") and not rehearsing():
        runs.append(("trt", "", {}))
    for engine, name, own in runs:
        with tempfile.TemporaryDirectory() as folder:
            machine = here.opened(engine, folder, device=here.device(), concurrency=2, **own)
            with machine.engine:
                given = here.pictures(machine)
                here.in_loop(machine, given)
                both = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
                with profile(activities=both) as seen, record_function("the loop"):
                    here.in_loop(machine, given, 2 if rehearsing() else 20)
        calls = cuda_calls(seen, "the loop")
        found = {name: calls[name] for name in DEVICE_WIDE if name in calls}
        waits = sum(count for name, count in calls.items() if "EventSynchronize" in name)
        what = f"trace of {engine}{name}"
        if rehearsing():
            yield row(
                f"{what}: the loop's own range is in it, calls of CUDA", len(calls), not calls
            )
            continue
        yield row(f"{what}: calls of CUDA", dict(sorted(calls.items())), bool(calls))
        yield row(f"{what}: waits for the whole device", found or "none", not found)
        yield row(f"{what}: waits for a request's own event", waits, waits >= 40)


def cuda_calls(seen: Any, name: str) -> dict[str, int]:
    """Count calls of the CUDA runtime and driver, in all threads, while a range of that name was
    open.

    From the written trace, because ``events()`` lacks threads that torch did not start.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        seen.export_chrome_trace(str(file))
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


# ---- the value of each torch setting on this card


class Setting(NamedTuple):
    """``far``: how far raw outputs may differ from ONNX Runtime's in fp32."""

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
ROUNDS = 3  # of all settings, in turn


def settings() -> Iterator[Row]:
    """Measure channels_last and cudnn.benchmark, on and off, in fp32, tf32 and fp16: frames per
    second and device time. Each runs in its own process, because cuDNN keeps the algorithm that it
    found for a shape; in turns, so that a slow minute affects all. A round that would not end in
    time is not started."""
    if (why := here.torch_lacks()) is not None:
        yield row("settings", why, None)
        return
    wanted, rounds = (SETTINGS[:3], 1) if rehearsing() else (SETTINGS, ROUNDS)
    figures: dict[Setting, list[float]] = defaultdict(list)
    longest = 0.0
    with tempfile.TemporaryDirectory() as folder:
        save_reference(folder)
        for turn in range(rounds):
            began = left_s()
            if turn and began < longest * 1.1 + 5:
                yield row(f"round {turn + 1}", f"{began:.0f} s are left: too few", None)
                break
            for setting in wanted:
                if turn and not figures[setting]:
                    continue  # refused or crashed
                found = measure_apart(setting, folder)
                if found["fps"] is not None:
                    figures[setting].append(found["fps"])
                yield row(f"{setting.name}, round {turn + 1}", found["value"], found["ok"])
            longest = max(longest, began - left_s())
    yield from compared(figures)


def compared(figures: dict[Setting, list[float]]) -> Iterator[Row]:
    """Compare every setting with the default of detect-video, for each precision."""
    for precision in FAR:
        own = [one for one in figures if one.precision == precision and figures[one]]
        usual = next((one for one in own if (one.channels_last, one.benchmark) == (1, 0)), None)
        if usual is None:
            continue
        base = figures[usual]
        texts = []
        for one in own:
            low, high = min(figures[one]), max(figures[one])
            middle = statistics.median(figures[one])
            sure = len(figures[one]) >= ROUNDS  # fewer may differ by chance
            apart = sure and one is not usual and (low > max(base) or high < min(base))
            texts.append(
                f"channels_last={one.channels_last} benchmark={one.benchmark} {middle:.0f} FPS "
                f"[{low:.0f} .. {high:.0f}], {middle / statistics.median(base):.2f} times"
                + (", beyond the noise" if apart else "")
            )
        yield row(f"torch {precision}: settings beside the default", "; ".join(texts))


def save_reference(folder: str) -> None:
    import numpy as np

    found = here.ort_reference(folder)
    arrays = {f"{at}-{i}": a for at, one in enumerate(found) for i, a in enumerate(one)}
    np.savez(Path(folder) / "reference.npz", **arrays)


def measure_apart(setting: Setting, folder: str) -> dict[str, Any]:
    """Return the result of ``measure_setting`` in another process, or how that one ended."""
    line = [sys.executable, str(SCRIPT), "--setting", json.dumps([*setting, folder])]
    code, out, err = run([*line, *(["--rehearse"] if rehearsing() else [])], left_s())
    rows = [json.loads(text) for text in out.splitlines() if text.startswith("{")]
    if code == 0 and rows:
        return dict(rows[-1])
    last = (err.strip().splitlines() or [f"exit {code}"])[-1]
    return {"fps": None, "value": f"failed: {last}", "ok": False}


def measure_setting(setting: Setting, folder: str) -> dict[str, Any]:
    import numpy as np

    from detector.core.errors import DetectVideoError

    own = [f"channels_last={setting.channels_last}", f"benchmark={setting.benchmark}"]
    options = {"precision": setting.precision, "engine_options": own, "concurrency": 2}
    try:
        machine = here.opened("torch", folder, device=here.device(), **options)
    except DetectVideoError as error:
        return {"fps": None, "value": str(error), "ok": None if rehearsing() else False}
    with machine.engine, np.load(Path(folder) / "reference.npz") as kept:
        given = here.pictures(machine)
        ours = here.outputs_of(machine, given)
        theirs = [[kept[f"{at}-{i}"] for i in range(len(ours[0]))] for at in range(len(ours))]
        far = here.difference(ours, theirs)
        in_turn = 1 if rehearsing() else 20
        here.in_loop(machine, given, in_turn)  # cuDNN looks for algorithms in each thread
        fps, times = here.in_loop(machine, given)
    ms = f", {statistics.median(times):.3f} ms device" if times else ""
    value = f"{fps:.0f} FPS{ms}; raw outputs differ by {far:.2g}, at most {setting.far}"
    return {"fps": fps, "value": value, "ok": far <= setting.far}
