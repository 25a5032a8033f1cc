"""The ledger: where the milliseconds of a frame went, from a summary's figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class StageRow:
    """One stage. ``share`` is of its thread's wall time; times in milliseconds a frame."""

    stage: str
    thread: str
    busy_ms: float
    share: float
    p50_ms: float | None
    p90_ms: float | None
    p99_ms: float | None
    cpu_ms: float


@dataclass(frozen=True, slots=True)
class ThreadRow:
    """One thread; the four times add up to ``wall_ms``. Milliseconds a frame."""

    thread: str
    busy_ms: float
    wait_input_ms: float
    wait_output_ms: float
    other_ms: float
    wall_ms: float
    waits: tuple[str, ...]  # what it waited for, longest first


def stage_rows(summary: dict[str, Any], frames: int) -> list[StageRow]:
    rows = []
    for name, stage in summary["stages"].items():
        if not stage["calls"]:
            continue
        wall = sum(summary["threads"][thread]["wall_s"] for thread in stage["thread"].split(","))
        share = stage["busy_s"] / wall if wall else 0.0
        per_frame = 1e3 / frames
        rows.append(
            StageRow(
                name, stage["thread"], stage["busy_s"] * per_frame, share,
                stage["p50_ms"], stage["p90_ms"], stage["p99_ms"], stage["cpu_s"] * per_frame,
            )
        )  # fmt: skip
    return rows


def thread_rows(summary: dict[str, Any], frames: int) -> list[ThreadRow]:
    rows = []
    for name, thread in summary["threads"].items():
        times = [thread[key] * 1e3 / frames for key in ("busy_s", "wait_input_s", "wait_output_s", "other_s", "wall_s")]
        if abs(sum(times[:4]) - times[4]) > 1e-6 * max(1.0, times[4]):
            raise AssertionError(f"the ledger of thread {name} does not add up: {times}")
        waits = sorted(thread["waits"].items(), key=lambda item: -item[1])
        busy, wait_input, wait_output, other, wall = times
        named = tuple(what for what, seconds in waits if seconds > 0)
        rows.append(ThreadRow(name, busy, wait_input, wait_output, other, wall, named))
    return rows


def seconds_text(summary: dict[str, Any]) -> str:
    """Seconds of each phase, and of the run those in the loop: the rest is opening the source and closing files."""
    walls = [thread["wall_s"] for thread in summary["threads"].values()]
    inside = f" ({max(walls):.2f} in the loop)" if walls else ""
    return ", ".join(
        f"{name} {seconds:.2f}{inside if name == 'run' else ''}" for name, seconds in summary["seconds"].items()
    )
