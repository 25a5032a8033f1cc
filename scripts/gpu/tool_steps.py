"""NVIDIA's profilers: Nsight Systems records our ranges, Nsight Compute measures their kernels."""

from __future__ import annotations

import csv
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu.children import detect_video, left_s, run
from gpu.findings import Row, rehearsing, row
from gpu.machine import CLIP
from gpu.stand_ins import add_kernels

RECORD = "profile -t nvtx,osrt,cuda -s none --cpuctxsw=none --force-overwrite=true -o".split()
EXPORT = "export --type sqlite --force-overwrite=true -o".split()
FRAMES = 40


def program(*options: str) -> list[str]:
    """Return the command that is profiled; in a rehearsal, it uses the null engine."""
    gpu_options = ["--device", "cuda:0", "--engine-options", "graphs=0"]  # graphs hide kernels
    engine = ["null"] if rehearsing() else ["torch", *gpu_options]
    command = [sys.executable, "-m", "detector", str(CLIP), "--engine", *engine]
    return [*command, "--no-video", "--quiet", *options]


# ---- Nsight Systems


def nsys() -> Iterator[Row]:
    if (tool := shutil.which("nsys")) is None:
        yield row("nsys", "not on PATH: give --nsys FOLDER", None)
        return
    with tempfile.TemporaryDirectory() as folder:
        database = f"{folder}/run.sqlite"
        if (why := recorded(tool, folder, database)) is not None:
            yield row("nsys: a recording of a run", why, False)
            return
        size = Path(database).stat().st_size
        yield row("nsys: a recording of a run, exported", f"{size} bytes of SQLite", real=True)
        code, out, err = detect_video("profile", "--nsys", database, "--json", cwd=folder)
        if code != 0:
            yield row("profile --nsys reads the file", f"exit {code}: {err.strip()[-300:]}", False)
            return
        facts = json.loads(out)
        yield from stage_rows(facts)
        if rehearsing():
            yield row("nsys: kernels of CUDA", "none ran, so we add some to the export", None)
            added = add_kernels(database)
            code, out, err = detect_video("profile", "--nsys", database, "--json", cwd=folder)
            facts = json.loads(out) if code == 0 else {"gpu": {"reason": err[-300:]}}
            whole = facts["gpu"].get("kernels") == added
            yield row("profile --nsys: as many kernels as we added", added, whole)
        yield from split_rows(facts)


def recorded(tool: str, folder: str, database: str) -> str | None:
    """Record and export a run; return why that failed, or None. Tries three times: agents of some
    nsys versions hang, or do not start on a busy machine."""
    report, options = f"{folder}/run", ("--frames", str(FRAMES), "--run-dir", f"{folder}/session")
    why = "no time was left"
    for _ in range(3):
        if left_s() < 15:
            break
        half_s = left_s() / 2
        code, out, err = run([tool, *RECORD, report, *program(*options)], half_s, cwd=folder)
        if not Path(f"{report}.nsys-rep").is_file():
            why = f"exit {code}: {(err.strip() or out.strip())[-300:]}"
            continue
        code, out, err = run([tool, *EXPORT, database, f"{report}.nsys-rep"], 60, cwd=folder)
        if Path(database).is_file():
            return None
        why = f"export: exit {code}: {(err.strip() or out.strip())[-300:]}"
    return why


def stage_rows(facts: dict[str, Any]) -> Iterator[Row]:
    """Check ranges, waits and system calls of the CPU, which are real even in a rehearsal."""
    calls = {entry["step"]: entry["count"] for entry in facts["stages"]}
    complete = calls.get("infer", 0) >= FRAMES and {"read", "preprocess", "nms"} <= calls.keys()
    yield row("profile --nsys: calls of each stage", calls, bool(complete), real=True)
    yield row("profile --nsys: what threads waited for", list(facts["waits"]), real=True)
    blocked = {stage: list(each)[:3] for stage, each in facts["blocked"].items()}
    yield row("profile --nsys: system calls in stages", blocked, bool(blocked), real=True)
    path = facts["critical_path"]
    yield row("profile --nsys: a critical path", "found" if path else "none", bool(path), real=True)
    known = facts["loop_is_known"]
    yield row("profile --nsys: the loop's recorded queue sizes", facts["loop"], known, real=True)


def split_rows(facts: dict[str, Any]) -> Iterator[Row]:
    gpu = facts["gpu"]
    if not gpu.get("available"):
        yield row("profile --nsys: kernels", gpu.get("reason"), False)
        return
    share = gpu["busy_share"]
    value = f"{gpu['kernels']} kernels, the GPU busy {gpu['busy_s']:.3f} s, {share:.1%} of the run"
    yield row("profile --nsys: the split of CPU and GPU", value, 0 < share <= 1)


# ---- Nsight Compute

NO_RIGHT = "ERR_NVGPUCTRPERM"


def ncu() -> Iterator[Row]:
    """Profile the kernels in the range ``infer``; the range ``nms`` must have none."""
    if (tool := shutil.which("ncu")) is None:
        yield row("ncu", "not on PATH: give --ncu FOLDER", None)
        return
    with tempfile.TemporaryDirectory() as folder:
        for stage, expected in (("infer", True), ("nms", False)):
            if left_s() < 15:
                yield row(f"ncu --nvtx-include {stage}", "no time was left", None)
                return
            yield included(tool, stage, expected, folder)


def included(tool: str, stage: str, expected: bool, folder: str) -> Row:
    include = f"detect-video@{stage}/"
    options = ["--nvtx", "--nvtx-include", include, "--csv", "--launch-count", "5"]
    metrics = ["--metrics", "gpu__time_duration.sum", "--target-processes", "all"]
    arguments = ("--frames", "4", "--run-dir", f"{folder}/{stage}", "-o", f"{folder}/{stage}.jsonl")
    code, out, err = run([tool, *options, *metrics, *program(*arguments)], 45, cwd=folder)
    output = (out + err).strip()
    what = f"ncu --nvtx-include {include}"
    if NO_RIGHT in output:
        return row(what, f"{NO_RIGHT}: the driver lets only root read counters", None)
    kernels = kernels_of(out)
    if rehearsing():
        ran = "No kernels were profiled" in output or bool(kernels)
        return row(what, "accepted; no kernel ran" if ran else f"exit {code}: {output[-300:]}", ran)
    value = f"{len(kernels)} kernels: {', '.join(kernels[:3])}" if kernels else output[-200:]
    return row(what, value, bool(kernels) is expected)


def kernels_of(text: str) -> list[str]:
    """Return the names of kernels in ncu's CSV, which is mixed with other lines."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    return [line["Kernel Name"] for line in csv.DictReader(lines) if line.get("Kernel Name")]
