"""--rect: give each picture an input of its own shape, as YOLOv5's detect does.

The model is loaded for each shape. With a longest side of 640 and a stride of 32 there are at most
39 shapes. ``Shapes`` limits how many models are open, and closes the least recently used one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from detector.core.config.schema import Config
from detector.core.engines.base import RawRequest
from detector.core.errors import EngineError
from detector.core.errors.machine import too_much
from detector.core.errors.text import counted
from detector.core.run.canvas import Size, longest_side, shape_of
from detector.core.types import AnyPicture, size_of

if TYPE_CHECKING:
    from detector.core.engines.base import Engine
    from detector.core.models.base import Network
    from detector.core.session.document import InputShapes
    from detector.core.types import Candidates

    Outputs = list[NDArray[np.float32]]
    Head = Callable[[Outputs], Candidates]

MAX_OPEN = 16


class ShapedModel(Protocol):
    """A model of one shape (``loading.LoadedModel``)."""

    network: Network
    engine: Engine


def _count_that_fit(network: Network) -> int:
    """Return ``MAX_OPEN``, or fewer for a large model. (An engine stores the weights twice.)"""
    most = MAX_OPEN
    while most > 1 and too_much(2 * 4 * network.parameters * most) is not None:
        most -= 1
    return most


class ShapedRequest(RawRequest):
    """A request that can switch between models. ``shape``: the current model's input shape."""

    def __init__(self, number: int, shape: Size, request: RawRequest) -> None:
        self.number = number
        self.take(shape, request)

    def take(self, shape: Size, request: RawRequest) -> None:
        """Switch to another model's request. Call it only between two batches."""
        self.shape, self._request, self.slot = shape, request, request.slot

    def infer(self, n: int) -> list[NDArray[np.float32]]:
        outputs = self._request.infer(n)
        self.device_ms = self._request.device_ms
        return outputs


class Shapes:
    """The open models by height and width of the input. ``longest``: the input's longest side."""

    def __init__(
        self, first: ShapedModel, config: Config, load: Callable[[Config], ShapedModel]
    ) -> None:
        """Use ``first``, whose owner closes it. ``load`` opens the models of other shapes."""
        self.longest = longest_side(first.network, config)
        self._shapes: set[Size] = set()  # the input shapes of all pictures so far
        # Pictures so far; pixels of their inputs; models loaded after the first; seconds to load.
        self._pictures, self._pixels, self._made, self._made_s = 0, 0, 0, 0.0
        self._network, self._config, self._load = first.network, config, load
        own = first.network.input.height, first.network.input.width
        self._open = {own: first}  # least recently used first
        self._own, self._closed = own, False
        self._lock = threading.RLock()
        self.requests = [ShapedRequest(i, own, raw) for i, raw in enumerate(first.engine.requests)]
        # Needed at once: the first model, one model for each request, and one for the next picture.
        self._most = max(_count_that_fit(first.network), len(self.requests) + 2)

    def of_run(self, head: Callable[[Network], Head]) -> ShapesOfRun:
        return ShapesOfRun(self, head)

    def shape(self, picture: AnyPicture) -> Size:
        height, width = size_of(picture)
        return shape_of(self.longest, self._network, (width, height))

    def has(self, shape: Size) -> bool:
        return shape in self._open

    def prepare(self, shape: Size) -> None:
        with self._lock:
            if shape in self._open:
                return
            if self._closed:
                raise EngineError("--rect: the model was closed")
            start = time.perf_counter()
            while len(self._open) >= self._most:
                self._close_oldest()
            options = {"size": f"{shape[1]}x{shape[0]}", "rect": False}
            self._open[shape] = self._load(self._config.with_options(options))
            self._made += 1
            self._made_s += time.perf_counter() - start

    def _close_oldest(self) -> None:
        held = {self._own, *(request.shape for request in self.requests)}
        oldest = next(shape for shape in self._open if shape not in held)
        self._open.pop(oldest).engine.close()

    def give(self, request: ShapedRequest, shape: Size) -> Network:
        with self._lock:
            self.prepare(shape)  # load it again if another thread has closed it
            loaded = self._open[shape] = self._open.pop(shape)
            request.take(shape, loaded.engine.requests[request.number])
            self._shapes.add(shape)
            self._pictures += 1
            self._pixels += shape[0] * shape[1]
            return loaded.network

    def figures(self) -> InputShapes | None:
        """Return the summary's figures; None before the first picture."""
        from detector.core.session.document import InputShapes

        if not self._pictures:
            return None
        return InputShapes(
            shapes=len(self._shapes),
            made=self._made,
            made_s=self._made_s,
            mean_pixels=self._pixels / self._pictures,
            square_pixels=self.longest**2,
        )

    def describe(self, figures: InputShapes) -> str:
        """Return ``--rect: 3 shapes of the input; 0.4 s to prepare 2 inputs in the run; ...``."""
        fewer = 1 - figures.mean_pixels / figures.square_pixels
        took = f"{figures.made_s:.1f} s to prepare {counted(figures.made, 'input')} in the run; "
        return (
            f"--rect: {counted(figures.shapes, 'shape')} of the input; "
            f"{took if figures.made else ''}{fewer:.0%} fewer pixels than "
            f"{self.longest}x{self.longest}"
        )

    def close(self) -> None:
        """Close all models except the first. May be called twice."""
        with self._lock:
            self._closed = True
            for shape in [shape for shape in self._open if shape != self._own]:
                self._open.pop(shape).engine.close()


class ShapesOfRun:
    def __init__(self, shapes: Shapes, head: Callable[[Network], Head]) -> None:
        self.requests: Sequence[ShapedRequest] = shapes.requests
        self._shapes, self._head_of = shapes, head
        self._heads: dict[Size, Head] = {}

    def has(self, picture: AnyPicture) -> bool:
        return self._shapes.has(self._shapes.shape(picture))

    def prepare(self, picture: AnyPicture) -> None:
        self._shapes.prepare(self._shapes.shape(picture))

    def give(self, request: ShapedRequest, picture: AnyPicture) -> Head:
        shape = self._shapes.shape(picture)
        network = self._shapes.give(request, shape)
        if shape not in self._heads:
            self._heads[shape] = self._head_of(network)
        return self._heads[shape]
