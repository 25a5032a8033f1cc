"""Load the plain run's network to run it alone, and prepare batches of the first frames."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import cycle, islice

import numpy as np
from numpy.typing import NDArray

from detector.core.engines.base import RawRequest
from detector.core.run.loading import LoadedModel
from detector.core.run.plan import resolve
from detector.core.run.tiling import Tiling
from detector.lab.profile.base import Occasion, execution_of

PICTURES = 8  # at least this many pictures are used in rotation

Batch = NDArray[np.uint8]
"""[B,H,W,3], like a request's slot."""


def open_with_batches(occasion: Occasion) -> tuple[LoadedModel, list[Batch]]:
    """Return the run's loaded model, with its engine closed again, and batches of the first frames.
    Open requests with the model's ``options``: others allow more threads than the run has."""
    plan = resolve(occasion.config, specs=[occasion.source])
    machine = plan.loaded
    occasion.executions.append(execution_of(machine))
    with machine.engine:
        preprocess, _, _ = replace(plan, tiling=Tiling()).stages()  # one input per frame
        shape = machine.network.input_shape
        count = -(-PICTURES // shape[0]) * shape[0]
        pictures: list[Batch] = []
        with plan.reading.open(occasion.source) as source:  # starts at --start, like the run
            while len(pictures) < count and (frame := source.read()) is not None:
                pictures.append(np.zeros(shape[1:], np.uint8))
                preprocess(frame.image, pictures[-1])
    pictures += [pictures[at % len(pictures)] for at in range(-len(pictures) % shape[0])]
    return machine, [
        np.stack(pictures[at : at + shape[0]]) for at in range(0, len(pictures), shape[0])
    ]


def time_batches(request: RawRequest, batches: Sequence[Batch], count: int) -> Iterator[float]:
    for batch in islice(cycle(batches), count):
        np.copyto(request.slot, batch)
        start = time.perf_counter()
        request.infer(len(batch))
        yield (time.perf_counter() - start) * 1e3
