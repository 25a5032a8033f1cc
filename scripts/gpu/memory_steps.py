"""Device memory: the packages that allocate it, whether waits block Python, and leaks."""

from __future__ import annotations

import ctypes
import gc
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

from gpu import machine as here
from gpu.findings import Row, rehearsing, row
from gpu.stand_ins import AbsentError, fake_gpu


def each_provider(slow_copies: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield each package's name with its memory provider, or with a row that says why not."""
    from detector.core.engines.trt import memory as packages

    for name in packages.PROVIDERS:
        try:
            with fake_gpu(name, slow_copies) if rehearsing() else nullcontext():
                if (reason := packages.why_unusable(name)) is not None:
                    yield name, row(name, f"{reason}: {packages.INSTALL[name]}", None)
                    continue
                provider = packages.open_memory(name, 0)
                yield name, provider
                provider.close()
        except AbsentError as error:
            yield name, row(name, error, None)


def memory() -> Iterator[Row]:
    """Copy bytes to the device and back with each provider, from two threads."""
    for name, provider in each_provider():
        if isinstance(provider, dict):
            yield provider
            continue
        errors: list[str] = []
        threads = [
            threading.Thread(target=there_and_back, args=(provider, seed, errors))
            for seed in (1, 2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        what = f"{name}: 2 threads copy 1 MB to the GPU and back, 20 times each"
        yield row(what, errors or "the same bytes", not errors)
        rate = upload_rate(provider)
        value = "not reported for a stand-in" if rehearsing() else f"{rate:.1f} GB/s"
        yield row(f"{name}: page-locked upload of 64 MB", value, None if rehearsing() else True)


def there_and_back(provider: Any, seed: int, errors: list[str]) -> None:
    import numpy as np

    try:
        data = np.random.default_rng(seed).integers(0, 256, 1 << 20, np.uint8)
        with provider.active():
            stream, event = provider.stream(), provider.event()
            buffer = provider.buffer(data.shape, np.uint8)
            for turn in range(20):
                buffer.host[:] = data + np.uint8(turn)
                buffer.upload(stream)
                event.record(stream)
                event.wait()
                buffer.host[:] = 0
                buffer.download(stream)
                event.record(stream)
                event.wait()
                if not np.array_equal(buffer.host, data + np.uint8(turn)):
                    errors.append(f"turn {turn}: different bytes came back")
            buffer.free()
    except Exception as error:
        errors.append(f"{type(error).__name__}: {error}")


def upload_rate(provider: Any) -> float:
    import numpy as np

    with provider.active():
        stream, begin, end = provider.stream(), provider.event(), provider.event()
        buffer = provider.buffer((64 << 20,), np.uint8)
        rates = []
        for _ in range(5):
            begin.record(stream)
            buffer.upload(stream)
            end.record(stream)
            end.wait()
            rates.append((64 << 20) / end.ms_since(begin) / 1e6)
        buffer.free()
    return statistics.median(rates)


# ---- Does Python run while a thread waits?

WAIT_S = 0.1  # length of a wait: 20 times the interpreter's switch interval
TICK_S = 0.001
TRIES = 5


def gil() -> Iterator[Row]:
    """Check that waits release the GIL: otherwise reading, drawing and writing would stop while the
    GPU computes. First check the method on two waits with known results."""
    for name, library, released in (("CDLL", ctypes.CDLL, True), ("PyDLL", ctypes.PyDLL, False)):
        sleep = library(None).usleep
        result = runs_meanwhile(lambda sleep=sleep: sleep(int(WAIT_S * 1e6)))
        word = "lets Python run" if released else "stops Python"
        found = {True: "lets Python run", False: "stops Python", None: "wait too short to tell"}
        what = f"control of the method: usleep by ctypes.{name} (expected: {word})"
        yield row(what, found[result[0]], result[0] is released, real=True)
    for name, provider in each_provider(slow_copies=True):
        if isinstance(provider, dict):
            yield provider
            continue
        released, wait_s, gap_s = wait_for_copies(provider)
        value = f"a wait of {wait_s * 1e3:.0f} ms; Python paused for up to {gap_s * 1e3:.0f} ms"
        yield row(f"{name}: Python runs during a wait for an event", value, released)


def runs_meanwhile(
    wait: Callable[[], object], prepare: Callable[[], object] = lambda: None
) -> tuple[bool | None, float, float]:
    """Return whether another thread ran during the wait (None if the wait was too short), the
    wait's seconds, and the longest time without a tick of that thread.

    One tick in the middle of a wait proves that the thread ran. A wait without ticks proves little:
    other programs may use the cores. We then ``prepare`` and measure again, up to ``TRIES`` times.
    """
    for _ in range(TRIES):
        prepare()
        result = _one_wait(wait)
        if result[0] is not False:
            break
    return result


def _one_wait(wait: Callable[[], object]) -> tuple[bool | None, float, float]:
    ticks: list[float] = []
    stopped = threading.Event()

    def tick() -> None:
        while not stopped.is_set():
            ticks.append(time.perf_counter())
            time.sleep(TICK_S)

    # Let no other thread take the GIL between the end of the wait and the reading of the clock.
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        thread = threading.Thread(target=tick)
        thread.start()
        while len(ticks) < 5:
            time.sleep(TICK_S)
        begin = time.perf_counter()
        wait()
        end = time.perf_counter()
        stopped.set()
        thread.join()
    finally:
        sys.setswitchinterval(usual_s)
    inside = [begin, *(moment for moment in ticks if begin < moment < end), end]
    gap = max(after - before for before, after in pairwise(inside))
    took = end - begin
    middle = any(begin + took / 4 < moment < end - took / 4 for moment in inside)
    return (middle if took > WAIT_S / 2 else None), took, gap


def wait_for_copies(provider: Any) -> tuple[bool | None, float, float]:
    """Queue copies that together take twice ``WAIT_S``. Measure the wait for the last of them."""
    import numpy as np

    with provider.active():
        stream, begin, end = provider.stream(), provider.event(), provider.event()
        buffer = provider.buffer(((1 if rehearsing() else 64) << 20,), np.uint8)
        begin.record(stream)
        buffer.upload(stream)
        end.record(stream)
        end.wait()
        copy_s = 0.01 if rehearsing() else max(1e-4, end.ms_since(begin) / 1e3)

        def queue() -> None:
            for _ in range(int(2 * WAIT_S / copy_s) + 1):
                buffer.upload(stream)
            end.record(stream)

        result = runs_meanwhile(end.wait, queue)
        buffer.free()
    return result


# ---- Is all memory freed?

TURNS, SETTLED = 50, 5  # an engine is opened and closed 50 times; the first 5 fill caches
MOST_MB = 8  # GPU memory that the last 45 turns may add in all; one leaked network would add more


@dataclass(frozen=True)
class Held:
    gpu_bytes: int
    handles: int
    threads: int


def leaks() -> Iterator[Row]:
    if (why := here.torch_lacks()) is None:
        yield from opened_again("torch", here.device(), 12 if rehearsing() else TURNS)
    else:
        yield row("torch", why, None)
    if not rehearsing():
        if find_spec("tensorrt") is None:
            yield row("trt", "not installed", None)
        else:
            yield from opened_again("trt", "cuda:0", TURNS)
        return
    try:
        with fake_gpu() as fake:
            yield from opened_again("trt", "cuda:0", TURNS, lambda: fake.device.used)
            remaining = len(fake.device.allocations)
            yield row("trt: leaked allocations", remaining, remaining == 0)
    except AbsentError as error:
        yield row("trt", error, None)


def opened_again(
    engine: str, device: str, turns: int, used: Callable[[], int] | None = None
) -> Iterator[Row]:
    """Open the engine, run it once and close it, repeatedly."""
    from detector.core import engines

    used = used or (gpu_bytes if not rehearsing() else lambda: 0)
    with tempfile.TemporaryDirectory() as folder:
        machine = here.opened(engine, folder, device=device, concurrency=2)
        picture = here.pictures(machine, 1)[0]
        machine.engine.close()
        early = held(used)
        for turn in range(turns):
            with engines.open(engine, machine.network, machine.options) as engine_again:
                engine_again.requests[0].slot[:] = picture
                engine_again.requests[0].infer(machine.network.batch)
            if turn + 1 == SETTLED:
                early = held(used)
        late = held(used)
    grown = (late.gpu_bytes - early.gpu_bytes) / 1e6
    what = f"{engine}: opened and closed {turns} times"
    yield row(f"{what}, GPU memory", f"{grown:+.1f} MB (limit {MOST_MB})", grown <= MOST_MB)
    handles = late.handles - early.handles
    yield row(f"{what}, file handles", f"{early.handles}, then {late.handles}", handles <= 0)
    threads = late.threads - early.threads
    yield row(f"{what}, threads", f"{early.threads}, then {late.threads}", threads <= 0)


def held(used: Callable[[], int]) -> Held:
    gc.collect()
    if (torch := sys.modules.get("torch")) is not None and not rehearsing():
        torch.cuda.empty_cache()
    return Held(used(), len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")))


def gpu_bytes() -> int:
    """Return the bytes in use on the first GPU, by all processes."""
    from detector.core.engines.trt import driver

    return driver.gpus()[0].memory_bytes - driver.free_bytes(0)
