"""Measure in a separate process what each part of a run adds to its resident memory."""

from __future__ import annotations

from collections import defaultdict
from itertools import count

from detector.core.config.schema import Config
from detector.core.errors.machine import peak_memory_mb, resident_bytes
from detector.core.run.loading import PhaseTimer
from detector.core.sources.base import Source

MB = 10**6  # bytes, as in compare
PARTS = {"import": "interpreter and imports", "load": "model", "warmup": "workspace of the engine"}


def measure_parts(spec: str, pixels: str, filled: int, config: Config) -> dict[str, float]:
    """Return the MB of each part; they add up to the peak. ``pixels``: pixel format of the run.
    ``filled``: the number of frames after which all pools are in use."""
    from detector.core.run.detect import Hooks, detect
    from detector.core.run.reading import SourceReading

    parts, frames = defaultdict[str, float](float), count(1)

    def add_growth(part: str) -> None:
        parts[part] += (resident_bytes() or 0) / MB - sum(parts.values())

    def open_source(spec: str) -> Source:
        add_growth("rest")
        source = SourceReading.of(config).open(spec, pixels)
        add_growth("decoder")
        return source

    def count_frame(*_: object) -> None:
        if next(frames) == filled:
            add_growth("pools of requests and pictures")

    add_growth(PARTS["import"])
    timer = PhaseTimer(lambda phase: add_growth(PARTS.get(phase, "rest")))
    hooks = Hooks(source=open_source, detected=count_frame)
    for error in detect([spec], config, timer=timer, hooks=hooks).errors:
        raise error
    parts["rest"] += (peak_memory_mb() or 0) - sum(parts.values())
    return dict(parts)
