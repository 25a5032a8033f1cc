"""A comparison over batches and precisions, read as curves: latency, throughput, and where more batch stops paying."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

KNEE = 0.95  # of the best throughput


def swept(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """``rows`` of compare's document, each with ``batch_ms``: its frames' inference one after the other, at the median
    rate; ``knees``: precision -> the least batch within 5% of the best inference FPS."""
    found = [{**row, "batch_ms": _batch_ms(row)} for row in rows]
    ran = [row for row in found if row["batch_ms"] is not None]
    knees = {}
    for precision in dict.fromkeys(row["precision"] for row in ran):
        rates = {row["batch"]: row["fps"]["inference"]["median"] for row in ran if row["precision"] == precision}
        knees[precision] = min(batch for batch, rate in rates.items() if rate >= KNEE * max(rates.values()))
    return {"rows": found, "knees": knees}


def _batch_ms(row: Mapping[str, Any]) -> float | None:
    rate = (row["fps"] or {}).get("inference")
    return 1e3 * int(row["batch"]) / float(rate["median"]) if rate else None
