"""ONNX Runtime on a GPU: FPS, layer times, and agreement of each precision with fp32 on a CPU."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator

from gpu import machine as here
from gpu.children import detect_video
from gpu.findings import Row, rehearsing, row
from gpu.machine import CLIP

PRECISIONS = (("fp32", 1e-3), ("tf32", 1e-2), ("fp16", 2e-2))
"""Name of a precision; how far its raw outputs may differ from those of fp32 on the CPU."""


def ort() -> Iterator[Row]:
    if (why := lacks()) is not None:
        yield row("ort on the GPU", why, None)
        return
    with tempfile.TemporaryDirectory() as folder:
        reference = here.ort_reference(folder)
        for precision, limit in PRECISIONS:
            yield from here.variant("ort", precision, folder, reference, limit, precision=precision)
        yield here.command("ort", "fp32", folder)
        yield layers(folder)


def lacks() -> str | None:
    """Return why ONNX Runtime cannot use the GPU, or None. A rehearsal needs only the CPU."""
    from detector.core.engines.ort import abilities

    return None if rehearsing() or abilities.has_cuda() else abilities.why_no_cuda()


def layers(folder: str) -> Row:
    """Check that ``profile --only layers`` times the layers that run on the GPU."""
    options = ("--only", "layers", "--frames", "16", "--json", "--run-dir", f"{folder}/layers")
    code, out, err = detect_video(
        *("profile", str(CLIP), "--engine", "ort", "--device", here.device(), *options), cwd=folder
    )
    what = "detect-video profile --engine ort --only layers"
    if code != 0:
        return row(what, f"exit {code}: {err[-300:]}", False)
    facts = json.loads(out)["layers"]
    value = f"{facts['device']}: {len(facts['rows'])} layers, {facts['sum_ms']:.3f} ms in all"
    return row(what, value, facts["device"] == here.device())
