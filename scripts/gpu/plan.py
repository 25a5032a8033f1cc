"""The plan: which steps run, in which order, and how long each may take.

The most valuable steps come first: steps for every GPU precede steps for some GPUs, and checks of
correctness precede measurements of speed. A step that exceeds its budget is stopped. A step is
skipped if too little time is left for it, so only the last, least valuable steps can be lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from gpu.findings import DONE, ENDED, FAIL, RUNNING, SKIPPED, Findings, Row, Section, row

Tell = Callable[[Row], None]


@dataclass(frozen=True)
class Step:
    """A step. ``group``: the module in this folder that has the function ``name``. ``budget_s``:
    the step's time limit. ``least_s``: the step is skipped if less time is left. ``needs_gpu``: the
    step is skipped without a GPU, except in a rehearsal."""

    name: str
    group: str
    what: str
    budget_s: int
    least_s: int
    needs_gpu: bool = True


STEPS = (
    Step("environment", "machine", "the GPU, its driver, packages and tools", 30, 3, False),
    Step("torch", "torch_steps", "each precision, CUDA graphs: agreement with ort, FPS", 110, 15),
    Step("ort", "ort_steps", "ONNX Runtime's CUDA provider: agreement, FPS, layer times", 90, 20),
    Step("session", "session_steps", "memory, joules, busy and idle time, launches", 70, 20),
    Step("asserted", "failing", "a device-side assert does not lose the session", 40, 15),
    Step("limited", "failing", "too little memory is reported at opening, in one line", 30, 10),
    Step("nsys", "tool_steps", "profile --nsys reads a recording that has kernels", 80, 25),
    Step("gil", "memory_steps", "Python runs while a thread waits for an event", 30, 8),
    Step("memory", "memory_steps", "each provider copies bytes to the device and back", 20, 5),
    Step("leaks", "memory_steps", "memory and handles after 50 openings of an engine", 60, 15),
    Step("compile", "torch_steps", "torch.compile: agreement; no compilation after load", 90, 30),
    Step("tensorrt", "trt_steps", "build, run, cached plans, layers, refusals", 200, 60),
    Step("rtx", "trt_steps", "TensorRT for RTX: as in tensorrt, and cache, CUDA graphs", 200, 60),
    Step("trace", "torch_steps", "no call waits for the whole device", 30, 10),
    Step("video", "video_steps", "decoding by NVDEC, encoding by NVENC", 40, 10),
    Step("drawing", "video_steps", "FPS with and without threads that draw ahead", 60, 20),
    Step("ncu", "tool_steps", "ncu --nvtx-include on our ranges", 60, 20),
    Step("settings", "torch_steps", "cudnn.benchmark and channels_last, on and off", 160, 40),
    Step("no_driver", "trt_steps", "every GPU hidden: exit 5, a one-line error", 30, 5, False),
)
MINUTES = 9.5  # the rest of ten minutes is for starting and returning the machine


def stretched(steps: Sequence[Step], minutes: float) -> list[Step]:
    """Raise all budgets in proportion if there is more time than ``MINUTES``."""
    factor = max(1.0, minutes / MINUTES)
    return [replace(step, budget_s=int(step.budget_s * factor)) for step in steps]


def sections(steps: Sequence[Step]) -> list[Section]:
    return [Section(step.name, step.what, step.budget_s) for step in steps]


def table(steps: Sequence[Step], seconds: float) -> Iterator[str]:
    """Describe the plan: which steps always run, and which run only if earlier ones are quick."""
    yield f"{seconds:.0f} s in all; a step over its budget is stopped, and the next one starts"
    yield "  order  budget  starts by  step"
    sum_s = 0
    for number, step in enumerate(steps, 1):
        sure = sum_s + step.least_s <= seconds
        when = f"{sum_s} s" if sure else "-"
        yield f"  {number:5}  {step.budget_s:4} s  {when:>9}  {step.name}: {step.what}"
        sum_s += step.budget_s
    yield "  -: runs only if earlier steps finish early, as most do"


Start = Callable[[Step, float, Tell], bool]
"""(step, its time limit in s, receiver of its rows) -> whether the step ended before the limit."""


def go_through(
    steps: Sequence[Step],
    seconds: float,
    start: Start,
    findings: Findings,
    tell: Callable[[Step, Row], None],
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Run the steps in order while there is time."""
    end = clock() + seconds
    for step in steps:

        def keep(finding: Row, step: Step = step) -> None:
            findings.add(step.name, finding)
            tell(step, finding)

        start_s = clock()
        left_s = end - start_s
        if left_s < step.least_s:
            keep(row(step.what, f"{max(0, left_s):.0f} s left, {step.least_s} s needed", None))
            findings.set_state(step.name, SKIPPED, 0.0)
            continue
        findings.set_state(step.name, RUNNING)
        limit = min(float(step.budget_s), left_s)
        in_time = start(step, limit, keep)
        took_s = clock() - start_s
        if not in_time:
            why = "the step's budget" if limit == step.budget_s else "all the time that was left"
            ended = row(step.what, f"ended after {took_s:.0f} s, {why}", False)
            keep({**ended, "state": FAIL})
        findings.set_state(step.name, DONE if in_time else ENDED, round(took_s, 1))
