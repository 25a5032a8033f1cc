"""Reads each webcam with OpenCV, in a thread of its own, which reopens a lost device."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from detector.core.errors.writing import has_permission
from detector.core.sources._cv2 import cv2, fits
from detector.core.timeline.spans import READ, WAIT_INPUT
from detector.core.types import Arrival, Image
from detector.live.sources.base import LAG, Picture
from detector.live.sources.status import SECOND
from detector.live.sources.threaded import ThreadedFeed

MICROSECONDS = Fraction(1, 1_000_000)
PAUSE_S = 0.05  # wait this long after a failed read, since reads of a dead device fail immediately


class WebcamFeed(ThreadedFeed):
    """Reads a camera of this machine: ``0`` or ``/dev/video0``."""

    open_capture: Any = staticmethod(cv2.VideoCapture)

    def jobs(self) -> dict[str, Callable[[], None]]:
        return {"read": self._read}

    def convert(self, picture: Picture, into: Image | None) -> Image:
        image: Image = picture.content
        if into is None or not fits(into, picture.width, picture.height):
            return image
        np.copyto(into, image)
        return into

    def _read(self) -> None:
        with self.timeline.track(f"camera {self.camera.name}") as track:
            while not self.stopping.is_set():
                epoch = self.status.connect(self.clock())
                self.wake()
                capture = self._open()
                if capture is None:
                    why = self._explain()
                else:
                    try:
                        self._read_all(capture, epoch, track)
                    finally:
                        capture.release()
                    why = "it stopped sending frames; check its cable"
                if self.stopping.is_set():
                    return
                next_try_ns = self.status.fail(self.clock(), f"{self.camera.address}: {why}")
                self.wake()
                self.stopping.wait((next_try_ns - self.clock()) / SECOND)

    def _open(self) -> Any:
        spec = self.camera.address.whole
        capture = self.open_capture(int(spec) if spec.isdecimal() else spec)
        if not capture.isOpened():
            capture.release()
            return None
        if self.camera.size is not None:
            # Most webcams reach large sizes only with MJPEG. A webcam may ignore these requests.
            capture.set(cv2.CAP_PROP_FOURCC, cv2.VideoWriter.fourcc(*"MJPG"))
            capture.set(cv2.CAP_PROP_FRAME_WIDTH, self.camera.size[0])
            capture.set(cv2.CAP_PROP_FRAME_HEIGHT, self.camera.size[1])
        if self.camera.rate is not None:
            capture.set(cv2.CAP_PROP_FPS, float(self.camera.rate))
        capture.set(cv2.CAP_PROP_BUFFERSIZE, 1)  # pictures queued in the driver go stale
        return capture

    def _explain(self) -> str:
        number = re.search(r"\d+$", self.camera.address.whole)
        path = f"/dev/video{number[0]}" if number else self.camera.address.whole
        if not os.path.exists(path):
            return f"no webcam at {path}; check its cable; to list webcams, run: ls /dev/video*"
        if not has_permission(path, os.R_OK | os.W_OK):
            return f"no permission to read {path}; to get it, run: sudo usermod -aG video $USER"
        return f"{path} cannot be opened; to see whether a program uses it, run: fuser {path}"

    def _read_all(self, capture: Any, epoch: int, track: Any) -> None:
        number = 0
        while not self.stopping.is_set():
            with track.span(READ, number, WAIT_INPUT):
                grabbed = capture.grab()
            arrived_ns, utc_s = self.clock(), self.utc()
            image = None
            if grabbed:
                with track.span(READ, number):
                    image = capture.retrieve()[1]
            if image is None:
                state = self.status.state
                self.status.tick(arrived_ns)
                if self.status.state != state:
                    self.wake()
                if self.status.is_lost(arrived_ns, self.terms.start_timeout_s):
                    return
                self.stopping.wait(PAUSE_S)
                continue
            number = self.status.arrive(arrived_ns)
            self._pass_on(
                image, number, Arrival(self.camera.name, epoch, arrived_ns, utc_s, self.clock())
            )

    def _pass_on(self, image: Image, number: int, arrival: Arrival) -> None:
        height, width = image.shape[:2]
        self.status.show(
            *(arrival.arrived_ns, arrival.epoch, width, height, "webcam"),
            hash(image[:: height // 48 | 1, :: width // 48 | 1].tobytes()),
        )
        if not self.slot.has_room():  # do not wait: the driver would drop pictures uncounted
            self.status.drop(LAG)
            return
        pts = arrival.arrived_ns // 1000
        self.put(Picture(number, pts, MICROSECONDS, width, height, arrival, image))
