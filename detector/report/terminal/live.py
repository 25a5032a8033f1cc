"""One live line during a run, on a terminal: frames, ETA, end-to-end FPS, bottleneck so far."""

from __future__ import annotations

import threading
import time
from typing import Any

from rich.console import Console
from rich.live import Live as RichLive
from rich.text import Text

INTERVAL_S = 0.25  # often enough to look alive; reading the counters costs some 50 us


class LiveLine:
    """Reads the run's counters from a thread of its own: watching costs the loop nothing."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, info: Any, progress: Any, timeline: Any, frames: int | None) -> None:
        self._over = threading.Event()
        declared = info.frames_declared
        total = min(frames, declared) if frames and declared else frames or declared
        self._thread = threading.Thread(
            target=self._watch,
            args=(info.path, progress, timeline, total),
            name="detect-video live",
            daemon=True,
        )
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _watch(self, path: str, progress: Any, timeline: Any, total: int | None) -> None:
        started = time.perf_counter()
        with RichLive(console=self._console, auto_refresh=False, transient=True) as live:
            while not self._over.wait(INTERVAL_S):
                elapsed = time.perf_counter() - started
                live.update(
                    Text(line(path, progress.written, total, elapsed, timeline), no_wrap=True),
                    refresh=True,
                )


def line(path: str, written: int, total: int | None, elapsed_s: float, timeline: Any) -> str:
    """``in.mp4  120/400 frames  24.9 FPS  ETA 0:11  bottleneck: write``"""
    rate = written / elapsed_s if elapsed_s > 0 else 0.0
    count = f"{written}/{total}" if total and total >= written else str(written)
    text = f"{path}  {count} frames  {rate:.1f} FPS"
    if total and rate and total > written:
        left = int((total - written) / rate)
        text += f"  ETA {left // 60}:{left % 60:02d}"
    slowest = _busiest(timeline)
    return f"{text}  bottleneck: {slowest}" if slowest else text


def _busiest(timeline: Any) -> str | None:
    """The busiest stage of the busiest thread, so far."""
    tracks = list(timeline.tracks.values())
    if not tracks:
        return None
    track = max(tracks, key=lambda track: track.busy_ns())
    stages = {
        stage: span.self_ns for (stage, kind), span in list(track.spans.items()) if kind == "work"
    }
    return max(stages, key=lambda stage: stages[stage]) if stages else None
