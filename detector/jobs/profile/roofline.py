"""The whole model on the roofline of this machine, whose peaks were measured beside its layers."""

from __future__ import annotations

from typing import Any

from detector.analysis.layers import Peaks, whole
from detector.jobs.profile import layers
from detector.jobs.profile.base import NotHereError, Occasion

ORDER = 41
WHAT = "the whole model against those peaks"
UNDISTURBED = "it is made of the layers"


def run(occasion: Occasion) -> dict[str, Any]:
    found = occasion.found.get("layers") or layers.run(occasion)
    if not found.get("available", True):
        raise NotHereError(f"it is made of the layers: {found['reason']}")
    if found["peaks"] is None:
        raise NotHereError(
            f"peaks are measured on the CPU, and the network ran on {found['device']}"
        )
    peaks = found["peaks"]
    facts = whole(
        found["rows"], Peaks(peaks["gflops_s"], peaks["bandwidth_gbytes_s"]), found["forward_ms"]
    )
    batch = found["batch"]
    per_picture = {key: facts[key] // batch for key in ("macs", "flops", "bytes")}
    under = [row["name"] for row in found["rows"] if (row["utilisation"] or 0) > 1]
    return {
        **facts,
        **per_picture,
        "peaks": peaks,
        "forward_ms": found["forward_ms"],
        "peak_under_measured": under,
    }
