"""TensorRT and TensorRT for RTX: building, running, cached plans, layer times, refusals."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from detector.core.engines.trt import driver
from detector.core.engines.trt.edition import FULL, RTX, Edition
from gpu import machine as here
from gpu.children import detect_video, run
from gpu.findings import Row, rehearsing, row
from gpu.machine import CLIP
from gpu.stand_ins import AbsentError, fake_gpu

Variants = tuple[tuple[str, float, dict[str, Any]], ...]
TRT: Variants = (
    ("fp32", 1e-3, {"precision": "fp32"}),
    ("fp16, 2 requests", 2e-2, {"precision": "fp16", "concurrency": 2}),
    # The limit is wide: some values of the outputs differ by a whole quantisation step.
    ("int8", 4e-1, {"precision": "int8", "calibrate": str(CLIP), "calibrate_frames": 16}),
    ("tf32, 2 requests", 1e-2, {"precision": "tf32", "concurrency": 2}),
    (
        "fp16, a plan for batches 1 to 8, run with 8",
        2e-2,
        {"precision": "fp16", "batch": 8, "engine_options": ["min_batch=1"]},
    ),
    ("bf16", 2e-1, {"precision": "bf16"}),
)


def tensorrt() -> Iterator[Row]:
    """Check the full TensorRT library (from NVIDIA's own index), if it is installed."""
    yield from _step(FULL, TRT)


def rtx() -> Iterator[Row]:
    """Check TensorRT for RTX, from PyPI. On a card that it does not support, yield a single row."""
    if not rehearsing() and find_spec(RTX.module) is not None:
        for gpu in driver.gpus():
            if reason := RTX.refusal("fp32", gpu):
                yield row("rtx", reason, None)
                return
    yield from _step(RTX, TRT[:3] + TRT[4:])


def _step(edition: Edition, variants: Variants) -> Iterator[Row]:
    if not rehearsing():
        if find_spec(edition.module) is None:
            yield row(edition.module, f"not installed: {edition.install}", None)
            return
        yield from built(edition, variants)
        return
    try:
        with fake_gpu(release=1 if edition is RTX else 11):
            yield from built(edition, variants[:3])
    except AbsentError as error:
        yield row(edition.module, error, None)


def built(edition: Edition, variants: Variants) -> Iterator[Row]:
    engine = edition.engine
    with tempfile.TemporaryDirectory() as folder:
        reference = here.ort_reference(folder)
        for name, limit, options in variants[:3]:
            yield from here.variant(engine, name, folder, reference, limit, **options)
        yield kept_plans(engine, folder)
        yield from layers(engine, folder)
        if edition.records_graphs:
            yield from compiled_again(engine, folder)
        if rehearsing():
            yield row(f"detect-video --engine {engine}", "the command would lack the fakes", None)
        else:
            yield here.command(engine, "fp16", folder, "--precision", "fp16")
        plan = next(Path(folder).glob("*.plan")).read_bytes()
        yield from refusals(edition, plan)
        if edition is FULL:
            yield from by_each_package(folder, reference)
        for name, limit, options in variants[3:]:
            yield from here.variant(engine, name, folder, reference, limit, **options)


def compiled_again(engine: str, folder: str) -> Iterator[Row]:
    """Measure how long it takes to open a plan without and with cached kernels. Also print whether
    the engine chose single kernels or a CUDA graph."""
    for file in Path(folder).glob("*.jit*"):
        file.unlink()
    for cache_state in ("without its cache", "with its cache"):
        start = time.perf_counter()
        with here.opened(engine, folder, device="cuda:0").engine as opened:
            seconds, notes = time.perf_counter() - start, " ".join(opened.notes)
        yield row(f"{engine}: a plan opened {cache_state}", f"{seconds:.2f} s; {notes}")
        files = list(Path(folder).glob("*.jit"))
        yield row(f"{engine}: files of compiled kernels", len(files), bool(files))


def by_each_package(folder: str, reference: list[Any]) -> Iterator[Row]:
    """Run with each package that can allocate device memory (with fakes in a rehearsal)."""
    from detector.core.engines.trt import memory

    for provider in memory.PROVIDERS:
        with fake_gpu(provider) if rehearsing() else nullcontext():
            if (why := memory.why_unusable(provider)) is not None:
                yield row(f"trt fp32 by {provider}", why, None)
                continue
            yield from here.variant(
                "trt", f"fp32 by {provider}", folder, reference, 1e-3, device_memory=provider
            )


def kept_plans(engine: str, folder: str) -> Row:
    """Check that an existing plan is reused."""

    def plans() -> dict[str, int]:
        return {plan.name: plan.stat().st_mtime_ns for plan in Path(folder).glob("*.plan")}

    before = plans()
    options = {"precision": "fp16", "concurrency": 2}
    with here.opened(engine, folder, device="cuda:0", **options).engine:
        after = plans()
    same = bool(before) and before == after
    value = f"{len(before)} plans before, {len(after)} after" + (", the same files" if same else "")
    return row(f"{engine} fp16: reopened, the cached plan is used", value, same)


def layers(engine: str, folder: str) -> Iterator[Row]:
    """Time the layers. We join the data of TensorRT's profiler and inspector by layer names, so
    check that both use the same names."""
    import numpy as np

    from detector.core import engines

    machine = here.opened(engine, folder, device="cuda:0", precision="fp16")
    with machine.engine:
        slots = [picture[None] for picture in here.pictures(machine)]
    timed = engines.time_layers(
        engine, machine.network, machine.options, slots, 2 if rehearsing() else 50
    )
    total = sum(layer.median_ms for layer in timed.layers)
    forward = f"a forward pass with its copies takes {timed.forward_ms:.3f} ms"
    value = f"{len(timed.layers)} layers take {total:.3f} ms, {forward}"
    yield row(f"{engine} fp16: layer times", value, bool(np.isfinite(total) and total > 0))
    unknown = [layer.name for layer in timed.layers if layer.precision == "unknown"]
    yield row(
        f"{engine} fp16: timed layers that the inspector does not know",
        ", ".join(unknown) or "none",
        not unknown,
    )
    nodes = {node for layer in timed.layers for node in layer.nodes}
    convolutions = {
        node.name for node in machine.network.graph.graph.node if node.op_type == "Conv"
    }
    untimed = sorted(
        name
        for name in convolutions
        if name not in nodes and name.removesuffix("_fp16") not in nodes
    )
    yield row(f"{engine} fp16: untimed convolutions", ", ".join(untimed) or "none", not untimed)


def refusals(edition: Edition, plan: bytes) -> Iterator[Row]:
    """Check that damaged and foreign plans raise PlanError, and that the process continues."""
    from detector.core.engines.trt.plan_file import PlanError, deserialize, make_log, split

    gpu, middle = driver.gpu_of("cuda:0"), len(plan) // 2
    version = 24 if edition is RTX else 8  # offset of the version in the header
    with driver.current(gpu.index):
        for damage, data in (
            ("zeros after the magic", edition.magic + bytes(4096)),
            ("truncated", plan[:middle]),
            ("one byte changed in the middle", plan[:middle] + b"\xff" + plan[middle + 1 :]),
            ("another version in its header", plan[:version] + b"\x7f" + plan[version + 1 :]),
            ("not a plan", b"PK\3\4" + bytes(100)),
        ):
            name = f"{edition.module}: plan, {damage}"
            try:
                _, body = split(data)
                deserialize(edition, body, make_log(edition.trt), gpu)
                yield row(name, "was accepted", None if "changed" in damage else False)
            except PlanError as error:
                yield row(name, f"refused: {error}")


NO_DRIVER = """
import sys
from pathlib import Path
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
from detector.core.engines._ranking import choose_by_rank
print(choose_by_rank()[0])
"""


def no_driver() -> Iterator[Row]:
    """Hide every GPU. The command must end with status 5 and one line; TensorRT must not start."""
    hidden = {"CUDA_VISIBLE_DEVICES": ""}
    with tempfile.TemporaryDirectory() as folder:
        code, out, err = run([sys.executable, "-c", NO_DRIVER], 120, cwd=folder, **hidden)
        lines = out.strip().splitlines()
        value = " | ".join(lines) or err[-300:]
        yield row("no driver: loading the engine, opening a plan", value, code == 0, real=True)
        code, _, err = detect_video(str(CLIP), "--engine", "trt", cwd=folder, **hidden)
        yield row(
            "no driver: detect-video --engine trt",
            f"exit {code}: {err.strip()}",
            code == 5 and len(err.strip().splitlines()) == 1,
            real=True,
        )
