"""Devices that fail: refusals at opening, and what is kept of a failed run."""

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
LENT_MB, TOO_MANY = 128, 256  # this many float32 pictures take 660 MB before the first layer
LENT_MB_CPU, TOO_MANY_CPU = 8, 16  # a second of work for a CPU
ASSERT_AT = 40  # of 80
IN_FLIGHT = 16  # most frames in flight when the device fails


def limited() -> Iterator[Row]:
    """Lend 128 MB of the GPU to a batch of 256: one line and exit 5, and the batch that it names
    runs."""
    if (why := here.torch_lacks()) is not None:
        yield row("torch", why, None)
        return
    lent, many = (LENT_MB_CPU, TOO_MANY_CPU) if rehearsing() else (LENT_MB, TOO_MANY)
    what = f"batch {many} in {lent} MB"
    with tempfile.TemporaryDirectory() as folder:
        code, lines = _batch_of(many, lent, folder)
        refused = code == ENGINE_FAILED and len(lines) == 1 and "out of GPU memory" in lines[0]
        yield row(f"torch: {what} is refused in one line", f"exit {code}: {lines[-1:]}", refused)
        found = lines[-1].rpartition("--batch ")[2] if refused and "--batch" in lines[-1] else ""
        if not found.isdigit():
            yield row("torch: the suggested batch fits", "none was suggested", None)
            return
        code, lines = _batch_of(int(found), lent, folder)
        value = f"batch {found}: exit {code} {lines[-1:] if code else ''}"
        yield row("torch: the suggested batch fits", value, code == 0)


def _batch_of(batch: int, lent: int, folder: str) -> tuple[int, list[str]]:
    words = ["--batch", str(batch), "--frames", "2", "--no-video", "--quiet"]
    code, _, err = _handicapped("memory", lent, folder, *words)
    return code, [line for line in err.splitlines() if line.strip()]


def _handicapped(what: str, value: int, folder: str, *words: str) -> tuple[int, str, str]:
    line = [sys.executable, str(HANDICAP), what, str(value), str(CLIP), "--engine", "torch"]
    own = ["--device", here.device(), "--run-dir", f"{folder}/run", "-o", f"{folder}/rows.jsonl"]
    return run([*line, *own, *words], 120, cwd=folder)


def asserted() -> Iterator[Row]:
    """Fail the 40th inference on the device: earlier frames' rows and spans are written, the first
    error is reported, and the process ends without help."""
    if (why := here.torch_lacks()) is not None:
        yield row("torch", why, None)
        return
    from detector.lab.session.read import read_session

    with tempfile.TemporaryDirectory() as folder:
        # No CUDA graph: it would replay its captured kernels, without the failing one.
        words = ("--frames", "80", "--no-video", "--quiet", "--engine-options", "graphs=0")
        code, _, err = _handicapped("assert", ASSERT_AT, folder, *words)
        lines = [line for line in err.splitlines() if line.startswith("detect-video:")]
        yield row("asserted: exit status", code, code == ENGINE_FAILED)
        clean = len(lines) == 1 and "Traceback" not in err
        yield row("asserted: the message", lines or err[-300:], clean)
        known = ("assert", "out of bounds")
        yield row(
            "asserted: the first error is reported, not one from closing",
            lines[0] if lines else "nothing",
            bool(lines) and any(word in lines[0] for word in known),
        )
        session = read_session(f"{folder}/run")
        written, least = session.document.frames.written, ASSERT_AT - IN_FLIGHT
        yield row("asserted: frames written", f"{written}, at least {least}", written >= least)
        # Outputs of a failed run are named partial.
        (file,) = Path(folder).glob("rows*.jsonl")
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        frames = {found["frame"] for found in rows if "frame" in found}
        spans = session.spans
        infer = spans["stage_names"].tolist().index("infer")
        runs = int(((spans["stage"] == infer) & (spans["kind"] == 0)).sum())
        enough = len(frames) >= written > 0
        yield row(
            f"asserted: frames that have a row in {file.name}",
            f"{len(frames)} of {written}",
            enough,
        )
        yield row("asserted: spans of infer", f"{runs} for {written} frames", runs >= written)
        reason = session.document.exit.reason
        yield row("asserted: the session says why", reason, session.document.exit.code == code)
