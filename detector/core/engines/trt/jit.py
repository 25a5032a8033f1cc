"""Create the execution contexts of a plan, with CUDA graphs if those are faster. TensorRT for RTX
compiles code when it loads a plan. We store that code in a sealed file next to the plan."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

from detector.core.engines._built import building, store
from detector.core.engines.trt.driver import Gpu
from detector.core.engines.trt.edition import Edition
from detector.core.engines.trt.running import TrtRequest
from detector.core.errors import OutputError

WARM_UP, TIMED = 3, 9  # runs; the first one captures the CUDA graph (NVIDIA's documentation)


class Contexts:
    """Creates the contexts of a plan. ``artefact``: the plan's file, or None to store no cache."""

    def __init__(self, edition: Edition, engine: Any, artefact: str | None, gpu: Gpu) -> None:
        self._edition, self._engine = edition, engine
        self._file = None if artefact is None else _file(Path(artefact), gpu)
        self._known = None if self._file is None else store.read_sealed(self._file)
        self._cache = edition.create_cache(engine, self._known)

    def make(self, graphs: bool) -> Any:
        return self._edition.create_context(self._engine, graphs, self._cache)

    def store_cache(self) -> None:
        """Store the compiled code next to the plan, if possible."""
        if self._cache is None or self._file is None:
            return
        content = bytes(self._cache.serialize())
        if content != self._known:
            with suppress(OSError, OutputError):
                building.write_sealed(self._file, content)


def _file(artefact: Path, gpu: Gpu) -> Path:
    digest = hashlib.sha256(f"{gpu.name} {gpu.capability}".encode()).hexdigest()[:8]
    return artefact.with_name(f"{artefact.stem}-{digest}.jit")


def choose_graphs(open_request: Callable[[bool], TrtRequest]) -> tuple[TrtRequest, bool, str]:
    """Time the network as single kernels and as one CUDA graph, by the device's clock. Release the
    slower request. Return the faster one, whether it uses a graph, and a line for the user."""
    plain, recorded = open_request(False), open_request(True)
    times = {False: _device_ms(plain), True: _device_ms(recorded)}
    graphs = times[True] < times[False]
    faster, slower = (recorded, plain) if graphs else (plain, recorded)
    slower.release()
    faster.device_ms = None  # the caller has not run it yet
    return (
        faster,
        graphs,
        f"CUDA graph {'on' if graphs else 'off'}: {times[True]:.3f} ms with it, {times[False]:.3f} "
        "without; --engine-options graphs=0 or graphs=1 overrides this choice",
    )


def _device_ms(request: TrtRequest) -> float:
    times = []
    for _ in range(WARM_UP + TIMED):
        request.infer(len(request.slot))
        assert request.device_ms is not None
        times.append(request.device_ms)
    return median(times[WARM_UP:])
