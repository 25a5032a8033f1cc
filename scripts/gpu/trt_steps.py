"""TensorRT: build and run, kept plans, layer times, refusals, and what happens without a driver."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gpu import machine as here
from gpu.children import detect_video, run
from gpu.findings import Row, rehearsing, row
from gpu.machine import CLIP
from gpu.stand_ins import AbsentError, fake_gpu

Variants = tuple[tuple[str, float, dict[str, Any]], ...]
TRT: Variants = (
    ("fp32", 1e-3, {"precision": "fp32"}),
    ("fp16, 2 at once", 2e-2, {"precision": "fp16", "concurrency": 2}),
    (
        "int8",
        4e-1,
        {"precision": "int8", "calibrate": str(CLIP), "calibrate_frames": 16},
    ),  # coarse: one step in places
    ("tf32, 2 at once", 1e-2, {"precision": "tf32", "concurrency": 2}),
    (
        "fp16, batch 1..8 at 8",
        2e-2,
        {"precision": "fp16", "batch": 8, "engine_options": ["min_batch=1"]},
    ),
    ("bf16", 2e-1, {"precision": "bf16"}),
)


def tensorrt() -> Iterator[Row]:
    """Where the full library is installed; it comes from NVIDIA's own index."""
    if not rehearsing():
        if find_spec("tensorrt") is None:
            yield row("tensorrt", "not installed: pip install 'detect-video[trt]'", None)
            return
        yield from built(TRT)
        return
    try:
        with fake_gpu():
            yield from built(TRT[:3])
    except AbsentError as error:
        yield row("tensorrt", error, None)


def built(variants: Variants) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        reference = here.ort_reference(folder)
        for name, limit, options in variants[:3]:
            yield from here.variant("trt", name, folder, reference, limit, **options)
        yield kept_plans(folder)
        yield from layers(folder)
        if rehearsing():
            yield row("detect-video --engine trt", "another process, without the fake", None)
        else:
            yield here.command("trt", "fp16", folder, "--precision", "fp16")
        import tensorrt as trt

        plan = next(Path(folder).glob("*.plan")).read_bytes()
        yield from refusals(trt, plan)
        yield from by_each_package(folder, reference)
        for name, limit, options in variants[3:]:
            yield from here.variant("trt", name, folder, reference, limit, **options)


def by_each_package(folder: str, reference: list[Any]) -> Iterator[Row]:
    """Each package that can hand out the device's memory; in a rehearsal each as a fake."""
    from detector.core.engines.trt import memory

    for provider in memory.PROVIDERS:
        with fake_gpu(provider) if rehearsing() else nullcontext():
            if (why := memory.why_unusable(provider)) is not None:
                yield row(f"trt fp32 by {provider}", why, None)
                continue
            yield from here.variant(
                "trt", f"fp32 by {provider}", folder, reference, 1e-3, device_memory=provider
            )


def kept_plans(folder: str) -> Row:
    """A plan that was built is taken again, and not built anew."""

    def plans() -> dict[str, int]:
        return {plan.name: plan.stat().st_mtime_ns for plan in Path(folder).glob("*.plan")}

    before = plans()
    options = {"precision": "fp16", "concurrency": 2}
    with here.opened("trt", folder, device="cuda:0", **options).engine:
        after = plans()
    same = bool(before) and before == after
    value = f"{len(before)} plans, then {len(after)}" + (", the same files" if same else "")
    return row("trt fp16: reopened, the cached plan is used", value, same)


def layers(folder: str) -> Iterator[Row]:
    """The profiler's names must be the inspector's, else a timed layer has no type, no precision
    and no nodes.
    """
    import numpy as np

    from detector.core import engines

    machine = here.opened("trt", folder, device="cuda:0", precision="fp16")
    with machine.engine:
        slots = [picture[None] for picture in here.pictures(machine)]
    told = engines.time_layers(
        "trt", machine.network, machine.options, slots, 2 if rehearsing() else 50
    )
    total = sum(layer.median_ms for layer in told.layers)
    forward = f"a forward pass {told.forward_ms:.3f} ms with its copies"
    value = f"{len(told.layers)} take {total:.3f} ms, {forward}"
    yield row("trt fp16: layer times", value, bool(np.isfinite(total) and total > 0))
    unknown = [layer.name for layer in told.layers if layer.precision == "unknown"]
    yield row(
        "trt fp16: timed layers that the inspector does not know",
        ", ".join(unknown) or "none",
        not unknown,
    )
    nodes = {node for layer in told.layers for node in layer.nodes}
    convolutions = {
        node.name for node in machine.network.graph.graph.node if node.op_type == "Conv"
    }
    lost = sorted(
        name
        for name in convolutions
        if name not in nodes and name.removesuffix("_fp16") not in nodes
    )
    yield row("trt fp16: convolutions in no timed layer", ", ".join(lost) or "none", not lost)


def lean() -> Iterator[Row]:
    """The runtime alone (45 MB from PyPI): it starts beside torch's context and refuses what it
    cannot run.
    """
    if rehearsing():
        yield row(
            "tensorrt_lean", "without a driver it kills the process: nothing to rehearse", None
        )
        return
    if find_spec("tensorrt_lean") is None:
        yield row("tensorrt_lean", "not installed: pip install tensorrt-lean-cu13", None)
        return
    held = None
    if here.torch_lacks() is None:
        import torch

        held = torch.ones(1 << 20, device="cuda")
        yield _sum(held, "torch's context exists before")
    import tensorrt_lean as trt

    yield from refusals(trt, b"ftrt" + bytes(4096))
    if held is not None:
        yield _sum(held, "torch continues after it")


def _sum(held: Any, what: str) -> Row:
    total = held.sum().item()
    return row(what, f"sum of ones {total:.0f}", total == 1 << 20)


def refusals(trt: Any, plan: bytes) -> Iterator[Row]:
    """Damaged and foreign plans are refused by name; the process goes on."""
    from detector.core.engines.trt import driver
    from detector.core.engines.trt.plan_file import PlanError, deserialize, kept_log, split

    with driver.current(0):
        for what, data in (
            ("zeros after the magic", b"ftrt" + bytes(4096)),
            ("truncated", plan[: len(plan) // 2]),
            (
                "one byte changed in the middle",
                plan[: len(plan) // 2] + b"\xff" + plan[len(plan) // 2 + 1 :],
            ),
            ("another version in its header", plan[:8] + b"\x7f" + plan[9:]),
            ("not a plan", b"PK\3\4" + bytes(100)),
        ):
            try:
                _, body = split(data)
                deserialize(trt, body, kept_log(trt))
                yield row(
                    f"{trt.__name__}: plan, {what}",
                    "was accepted",
                    None if "changed" in what else False,
                )
            except PlanError as error:
                yield row(f"{trt.__name__}: plan, {what}", f"refused: {error}")


NO_DRIVER = """
import sys
from pathlib import Path
try:
    import tensorrt_lean
    sys.modules.setdefault("tensorrt", tensorrt_lean)  # whichever TensorRT there is, it is loaded
except ImportError:
    pass
from detector.core import engines
from detector.core.errors import DetectVideoError
from detector.core.models import ModelRequest, open_network
from detector.core.engines.trt import driver
assert driver.absent() is not None, "a GPU is visible"
assert driver.gpus() == []
Path("x.trt").write_bytes(b"ftrt" + bytes(100))
print("TensorRT", "is loaded" if "tensorrt" in sys.modules else "is not installed")
request = ModelRequest("x.trt")
for call in (
    lambda: engines.load_library("trt"),
    lambda: open_network(request, engines.front_ends()),
):
    try:
        call()
    except DetectVideoError as error:
        print(error)
from detector.core.engines import choose_by_rank
print(choose_by_rank()[0])
"""


def no_driver() -> Iterator[Row]:
    """With every GPU hidden, our code starts nothing of TensorRT: no crash, exit 5 and a line that
    says why. Nothing stands in for anything here.
    """
    hidden = {"CUDA_VISIBLE_DEVICES": ""}
    with tempfile.TemporaryDirectory() as folder:
        code, out, err = run([sys.executable, "-c", NO_DRIVER], 120, cwd=folder, **hidden)
        lines = out.strip().splitlines()
        value = " | ".join(lines) or err[-300:]
        yield row("no driver: engine and plan", value, code == 0, real=True)
        code, _, err = detect_video(str(CLIP), "--engine", "trt", cwd=folder, **hidden)
        yield row(
            "no driver: detect-video --engine trt",
            f"exit {code}: {err.strip()}",
            code == 5 and len(err.strip().splitlines()) == 1,
            real=True,
        )
