"""Checks with a device that fails: while a model is loaded, and in the middle of a run."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gpu import machine as here
from gpu.children import run
from gpu.findings import Row, rehearsing, row
from gpu.machine import CLIP, HANDICAP

ENGINE_FAILED = 5  # exit status
LIMIT_MB, TOO_MANY = 128, 256  # 256 float32 pictures take 660 MB before the first layer
LIMIT_MB_CPU, TOO_MANY_CPU = 8, 16  # smaller, because a CPU is slower
ASSERT_AT = 40  # number of the inference that fails; the run has 80
IN_FLIGHT = 16  # at most this many frames are in flight when the device fails


def limited() -> Iterator[Row]:
    """Check that batch 256 in 128 MB fails with one line, and that its suggested batch fits."""
    if (why := here.torch_lacks()) is not None:
        yield row("torch", why, None)
        return
    limit_mb, batch_size = (LIMIT_MB_CPU, TOO_MANY_CPU) if rehearsing() else (LIMIT_MB, TOO_MANY)
    what = f"batch {batch_size} in {limit_mb} MB"
    with tempfile.TemporaryDirectory() as folder:
        code, lines = _batch_of(batch_size, limit_mb, folder)
        refused = code == ENGINE_FAILED and len(lines) == 1 and "out of GPU memory" in lines[0]
        yield row(f"torch: {what} is refused in one line", f"exit {code}: {lines[-1:]}", refused)
        suggested = (
            lines[-1].rpartition("--batch ")[2] if refused and "--batch" in lines[-1] else ""
        )
        if not suggested.isdigit():
            yield row("torch: the suggested batch fits", "none was suggested", None)
            return
        code, lines = _batch_of(int(suggested), limit_mb, folder)
        value = f"batch {suggested}: exit {code} {lines[-1:] if code else ''}"
        yield row("torch: the suggested batch fits", value, code == 0)


def _batch_of(batch: int, limit_mb: int, folder: str) -> tuple[int, list[str]]:
    options = ["--batch", str(batch), "--frames", "2", "--no-video", "--quiet"]
    code, _, err = _handicapped("memory", limit_mb, folder, *options)
    return code, [line for line in err.splitlines() if line.strip()]


def _handicapped(handicap: str, value: int, folder: str, *options: str) -> tuple[int, str, str]:
    command = [sys.executable, str(HANDICAP), handicap, str(value), str(CLIP), "--engine", "torch"]
    outputs = [
        "--device",
        here.device(),
        "--run-dir",
        f"{folder}/run",
        "-o",
        f"{folder}/rows.jsonl",
    ]
    return run([*command, *outputs, *options], 120, cwd=folder)


def asserted() -> Iterator[Row]:
    """Let the 40th inference fail on the device. Rows and spans of earlier frames must be written,
    the first error must be reported, and the process must end on its own."""
    if (why := here.torch_lacks()) is not None:
        yield row("torch", why, None)
        return
    from detector.lab.session.read import read_session

    with tempfile.TemporaryDirectory() as folder:
        # Turn CUDA graphs off: they would replay captured kernels without the failing one.
        options = ("--frames", "80", "--no-video", "--quiet", "--engine-options", "graphs=0")
        code, _, err = _handicapped("assert", ASSERT_AT, folder, *options)
        lines = [line for line in err.splitlines() if line.startswith("detect-video:")]
        yield row("asserted: exit status", code, code == ENGINE_FAILED)
        clean = len(lines) == 1 and "Traceback" not in err
        yield row("asserted: the message", lines or err[-300:], clean)
        known = ("assert", "out of bounds")
        yield row(
            "asserted: reports the first error, not an error at closing",
            lines[0] if lines else "nothing",
            bool(lines) and any(word in lines[0] for word in known),
        )
        session = read_session(f"{folder}/run")
        written, least = session.document.frames.written, ASSERT_AT - IN_FLIGHT
        yield row("asserted: frames written", f"{written}, at least {least}", written >= least)
        # The glob also matches the names of partial outputs, which a failed run writes.
        (file,) = Path(folder).glob("rows*.jsonl")
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        frames = {entry["frame"] for entry in rows if "frame" in entry}
        spans = session.spans
        infer = spans["stage_names"].tolist().index("infer")
        runs = int(((spans["stage"] == infer) & (spans["kind"] == 0)).sum())
        enough = len(frames) >= written > 0
        value = f"{len(frames)} of {written}"
        yield row(f"asserted: frames that have a row in {file.name}", value, enough)
        yield row("asserted: spans of infer", f"{runs} for {written} frames", runs >= written)
        reason = session.document.exit.reason
        yield row("asserted: exit in session.json", reason, session.document.exit.code == code)
