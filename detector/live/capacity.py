"""Estimates how many cameras like the present ones this machine can handle.

Two resources are limited: the loop's threads (one for each group of stages) and the CPU. Pictures
that load shedding skips are not even decoded; dropped pictures are decoded, but need no work in the
loop. So for k cameras instead of the present N, if all their pictures are detected,

    loop:  k / N * busy / processed share <= 1
    CPU:   k / N * (decoding / decoded share + rest / processed share)
                                                        <= 1 - share used by other programs

The decoded share is below 1 only under load shedding. Dividing by it adds the skipped decoding.

If pictures are dropped for lack of time, the estimate is at most N times the share of pictures not
dropped, because a machine that drops pictures of its only camera cannot handle 1.1 cameras.

Estimates are upper limits because stages share cores. docs/live.md compares them with measurements.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from detector.core.timeline.order import INFERENCE, READING, WRITING, grouped

NAMES = {READING: "Reading", INFERENCE: "Inference", WRITING: "Writing"}
CPU = "The CPU"
LEAST = 0.001  # smaller shares count as unknown
DROPPING = 0.02  # if at least this share of pictures is dropped, we say what limits the run


@dataclass(frozen=True, slots=True)
class Usage:
    """The resources used in a span of time, as shares, 0 to 1.

    ``stages``: busy time of each stage, as a mean over its workers. ``cpu``: this process's use of
    all cores. ``decoding``: the part of ``cpu`` that the feeds need. ``others``: other programs'
    use of all cores, 0 if unknown. Of the pictures that arrived, ``processed`` were detected,
    ``dropped`` were dropped for lack of time, and ``decoded`` were not skipped by load shedding."""

    cameras: int  # number of live cameras
    stages: Mapping[str, float]
    cpu: float
    decoding: float
    processed: float
    dropped: float = 0.0
    others: float = 0.0
    decoded: float = 1.0


def compute_shares(load: Usage) -> dict[str, float]:
    """Return the share of each resource that is needed to detect every picture."""
    processed = max(load.processed, LEAST)
    needed = {
        NAMES[group]: sum(load.stages.get(stage, 0.0) for stage in stages) / processed
        for group, stages in grouped(load.stages).items()
    }
    decoding = min(load.decoding, load.cpu)
    available = max(1.0 - load.others, LEAST)
    all_decoded = decoding / max(load.decoded, LEAST)
    needed[CPU] = (all_decoded + (load.cpu - decoding) / processed) / available
    return needed


def capacity(load: Usage) -> float | None:
    """Return how many cameras like the present ones are possible; None if unknown."""
    if not load.cameras or load.processed < LEAST:
        return None
    fullest = max(compute_shares(load).values())
    room = load.cameras / fullest if fullest >= LEAST else None
    if load.dropped < DROPPING:
        return room
    detected = load.cameras * (1 - load.dropped)
    return detected if room is None else min(room, detected)


def find_busiest_stage(load: Usage) -> str | None:
    """Return the busiest stage of the busiest group; None if no stage did anything."""
    needed = compute_shares(load)
    group = max(NAMES, key=lambda name: needed[NAMES[name]])
    stage = max(grouped(load.stages)[group], key=lambda name: load.stages.get(name, 0.0))
    return stage if load.stages.get(stage) else None


def sentence(load: Usage) -> str:
    """Return a sentence: what limits the run, and how many cameras are possible."""
    possible = capacity(load)
    if possible is None:
        return "no camera is live, so the capacity is unknown"
    needed = compute_shares(load)
    fullest = max(needed, key=lambda name: needed[name])
    cameras = f"{possible:.1f} such camera{'' if f'{possible:.1f}' == '1.0' else 's'}"
    if load.dropped >= DROPPING:
        limit = f"{fullest} limits this run: {load.dropped:.0%} of the frames are dropped."
    else:
        limit = f"{fullest} is the busiest part: busy {min(1.0, needed[fullest]):.0%} of the time."
    return f"{limit} This machine could handle about {cameras} ({load.cameras} live now)."
