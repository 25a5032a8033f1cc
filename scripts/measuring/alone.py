"""Inference alone: an engine's time per picture with all cores to itself."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from detector.core import engines
from detector.core.config.schema import CalibrationConfig, Config, RuntimeConfig
from detector.core.engines.base import Engine, RawRequest
from detector.core.models.base import Network
from detector.core.run import prepare as variants

WARM_UP = 3  # inferences per request before each turn; meanwhile other engines' threads fall asleep


class Variant(NamedTuple):
    """``requests``: how many at once. ``threads``: per request. 0 in either: the engine chooses."""

    engine: str
    precision: str
    requests: int
    threads: int

    @staticmethod
    def of(text: str) -> Variant:
        """Parse ENGINE, ENGINE/PRECISION or ENGINE/PRECISION:REQUESTSxTHREADS."""
        name, _, shape = text.partition(":")
        engine, _, precision = name.partition("/")
        requests, _, threads = shape.partition("x")
        return Variant(engine, precision or "fp32", int(requests or 0), int(threads or 0))


def opened(network: Network, variant: Variant, calibrate: str | None) -> Engine:
    """Open the engine as a run does, and raise the same errors."""
    runtime = RuntimeConfig(
        concurrency=variant.requests, threads=variant.threads, precision=variant.precision
    )
    config = Config(runtime=runtime, calibration=CalibrationConfig(calibrate=calibrate))
    ready = variants.prepare_network(network, variant.engine, config, lambda at_once: at_once)
    return engines.open(variant.engine, ready.network, ready.options)


def turn(engine: Engine, picture: NDArray[np.uint8], runs: int) -> float:
    """Infer ``picture`` about ``runs`` times, by all requests at once; return ms per picture."""

    def serve(request: RawRequest, count: int) -> None:
        for _ in range(count):
            request.infer(1)

    for request in engine.requests:
        request.slot[:] = picture
    share = -(-runs // len(engine.requests))
    with ThreadPoolExecutor(len(engine.requests)) as pool:
        list(pool.map(lambda request: serve(request, WARM_UP), engine.requests))
        start = time.perf_counter()
        list(pool.map(lambda request: serve(request, share), engine.requests))
        return (time.perf_counter() - start) * 1e3 / (share * len(engine.requests))
