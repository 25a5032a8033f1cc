"""A fake run that gives a hub the pictures and figures that a test sets."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from detector.core.session.document import AgeFigures
from detector.core.types import Arrival, Detections, Frame, Image
from detector.live.base import LiveFigures, StreamFigures
from detector.live.hub import Hub


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
        age_ms=AgeFigures(p50=61.0, p90=80.0, p99=118.0, max=140.0),
        parts_ms={"waiting": AgeFigures(p50=10.0, p90=20.0, p99=30.0, max=40.0)},
        camera_fps=25.0,
        processed_fps=24.0,
        size="1280x720",
    )
    return replace(plain, **facts)


class FakeRun:
    """Cameras whose figures a test sets, and whose pictures it shows one at a time."""

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
            outputs={("door", "jsonl"): (False, 5), ("", "webhook"): (False, 0)},
        )
        self.reads = 0  # how often the figures were read
        self.numbers = dict.fromkeys(cameras, 0)
        self.hub.figures_from(self.figures)

    def figures(self) -> LiveFigures:
        self.reads += 1
        return replace(self.run, streams=tuple(self.streams.values()))

    def set(self, camera: str, **facts: object) -> None:
        self.streams[camera] = replace(self.streams[camera], **facts)

    def step(self, camera: str, image: Image | None = None, objects: int = 0) -> bool:
        """Show one frame as the writer's thread does. Return whether a viewer wanted it."""
        self.numbers[camera] += 1
        is_wanted = self.hub.wants_pictures(camera)
        shown = picture(self.numbers[camera]) if image is None else image
        detections = Detections(
            np.zeros((objects, 4), np.float32),
            np.zeros(objects, np.float32),
            np.zeros(objects, np.int64),
        )
        self.hub.show(frame(camera, shown, self.numbers[camera]), detections)
        return is_wanted


@contextmanager
def show_pictures(run: FakeRun, fps: float = 20.0) -> Iterator[None]:
    """While the block runs, a thread shows ``fps`` pictures per second of each live camera."""
    ended = threading.Event()

    def show() -> None:
        while not ended.wait(1 / fps):
            for name, camera in list(run.streams.items()):
                if camera.state == "live":
                    run.step(name)

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
