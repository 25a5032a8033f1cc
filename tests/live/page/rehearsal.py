"""A run that is none: it feeds a hub with pictures and figures, so that the page can be looked at.

``python -m tests.live.page.rehearsal CLIP CLIP ...`` serves looped clips with their real detections
at http://127.0.0.1:8088/; ``kill NAME``, ``stall NAME`` and ``up NAME`` on standard input do that.
"""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np

from detector.core.config.cameras import PageConfig
from detector.core.types import Arrival, Detections, Frame, Image
from detector.live.base import (
    APPEARS,
    CAMERA_DOWN,
    CAMERA_UP,
    LEAVES,
    Ages,
    Event,
    LiveFigures,
    StreamFigures,
)
from detector.live.hub import Hub
from detector.live.page import serve


def picture(number: int, width: int = 320, height: int = 180) -> Image:
    image = np.full((height, width, 3), 60, np.uint8)
    x = number * 7 % (width - 40)
    image[60:100, x : x + 40] = 255
    return image


def frame(camera: str, image: Image, number: int = 0) -> Frame:
    arrival = Arrival(camera, 1, time.perf_counter_ns(), time.time())
    return Frame(number, number, number / 25, image, arrival=arrival)


def stream(name: str, **facts: object) -> StreamFigures:
    plain = StreamFigures(
        name=name,
        url=f"rtsp://***@10.0.0.7/{name}",
        state="live",
        since_s=12.5,
        received=250,
        processed=240,
        dropped={"newer": 9, "corrupt": 1},
        reconnects=0,
        stalls=0,
        age_ms=Ages(61.0, 80.0, 118.0, 140.0),
        parts_ms={"waiting": Ages(10.0, 20.0, 30.0, 40.0)},
        camera_fps=25.0,
        processed_fps=24.0,
        size="1280x720",
    )
    return replace(plain, **facts)


class Rehearsal:
    """Cameras whose figures can be set, and pictures that are shown one at a time."""

    def __init__(self, *cameras: str) -> None:
        self.hub = Hub()
        self.streams = {name: stream(name) for name in cameras}
        self.run = LiveFigures(
            (),
            90.0,
            48.2,
            44.0,
            busy={"read": 0.12, "preprocess": 0.2, "infer": 0.91, "write": 0.05},
            cpu_share=0.83,
            computer_share=0.9,
            capacity=2.4,
            bottleneck="Inference limits this run: it is at work 91% of the time.",
            engine_age_s=0.02,
        )
        self.asked = 0  # times that the figures were read
        self.numbers = dict.fromkeys(cameras, 0)
        self.hub.figures_from(self.figures)

    def figures(self) -> LiveFigures:
        self.asked += 1
        return replace(self.run, streams=tuple(self.streams.values()))

    def set(self, camera: str, **facts: object) -> None:
        self.streams[camera] = replace(self.streams[camera], **facts)

    def step(self, camera: str, image: Image | None = None, objects: int = 0) -> bool:
        """One frame of the writer's thread: asks, draws, shows. Whether it was wanted."""
        self.numbers[camera] += 1
        wanted = self.hub.wants_pictures(camera)
        shown = picture(self.numbers[camera]) if image is None else image
        found = Detections(
            np.zeros((objects, 4), np.float32),
            np.zeros(objects, np.float32),
            np.zeros(objects, np.int64),
        )
        self.hub.show(frame(camera, shown, self.numbers[camera]), found)
        return wanted


class Pictures:
    """Shows pictures of all live cameras from a thread, ``fps`` a second, until it is left."""

    def __init__(self, run: Rehearsal, fps: float = 20.0) -> None:
        self._run, self._gap_s = run, 1 / fps
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._show, daemon=True)

    def __enter__(self) -> Pictures:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _show(self) -> None:
        while not self._over.wait(self._gap_s):
            for name, one in list(self._run.streams.items()):
                if one.state == "live":
                    self._run.step(name)


def main(clips: list[str]) -> None:
    from detector import Detector

    names = [f"{Path(clip).stem}-{number}"[:40] for number, clip in enumerate(clips, 1)]
    run = Rehearsal(*names)
    server = serve(run.hub, PageConfig(serve="8088"), recordings=Path("live"))
    print(server.address, flush=True)
    started = time.perf_counter()
    for number, (name, clip) in enumerate(zip(names, clips, strict=True)):
        run.set(
            name,
            received=0,
            processed=0,
            dropped={"newer": 0},
            url=f"rtsp://***@10.0.0.{number + 7}/main",
        )
        threading.Thread(target=_play, args=(run, name, clip, Detector), daemon=True).start()
    threading.Thread(target=_tick, args=(run, started), daemon=True).start()
    for line in sys.stdin:
        word, _, name = line.strip().partition(" ")
        state = {"kill": "waiting", "stall": "stalled", "up": "live"}.get(word)
        if state and name in run.streams:
            down, now_s = state != "live", time.time()
            said = "connection refused by 10.0.0.7: is the camera on?" if down else None
            next_s = 4.0 if word == "kill" else None
            run.set(name, state=state, since_s=0.0, error=said, next_try_s=next_s)
            kind = CAMERA_DOWN if down else CAMERA_UP
            run.hub.tell(Event(kind, name, now_s, now_s, reason=said))
    server.close()


def _play(run: Rehearsal, name: str, clip: str, detector: object) -> None:
    from detector.core.stages.annotate import annotate

    known: dict[str, int] = {}
    with detector("street", threads=1) as one:  # type: ignore[operator]
        while True:
            for shot, found in one.stream(clip):
                began = time.perf_counter()
                facts = run.streams[name]
                if facts.state == "live":
                    if run.hub.wants_pictures(name):
                        annotate(shot.image, found)
                    run.hub.show(frame(name, shot.image), found)
                    age = 70 + 40 * np.random.random() + 25 * np.sin(began / 7)
                    run.set(
                        name,
                        received=facts.received + 2,
                        processed=facts.processed + 1,
                        dropped={"newer": facts.dropped["newer"] + 1},
                        age_ms=Ages(age, age * 1.2, age * 1.9, age * 3),
                        processed_fps=11 + np.random.random(),
                        size=f"{shot.image.shape[1]}x{shot.image.shape[0]}",
                    )
                now = {found.name(i): 0 for i in range(len(found))}
                for i in range(len(found)):
                    now[found.name(i)] += 1
                for gone in set(known) - set(now):
                    run.hub.tell(Event(LEAVES, name, time.time(), time.time(), gone, known[gone]))
                for new in set(now) - set(known):
                    run.hub.tell(Event(APPEARS, name, time.time(), time.time(), new, now[new]))
                known = now
                time.sleep(max(0.0, float(Fraction(1, 12)) - (time.perf_counter() - began)))


def _tick(run: Rehearsal, started: float) -> None:
    while True:
        time.sleep(0.5)
        run.run = replace(run.run, uptime_s=time.perf_counter() - started)
        for name, one in list(run.streams.items()):
            run.set(name, since_s=one.since_s + 0.5)


if __name__ == "__main__":
    main(sys.argv[1:])
