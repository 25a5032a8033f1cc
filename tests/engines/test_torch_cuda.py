"""The GPU code of our engine torch, without a GPU: fake streams and events log our calls.

Tensors are on the CPU, and no GPU kernel runs.
"""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor, wait

import numpy as np
import pytest

from detector.core import engines
from detector.core.engines.base import EngineOptions
from detector.core.errors import EngineError
from tests.known_answers import plus_one

torch = pytest.importorskip("torch", reason="machine: torch is not installed")

from detector.core.engines.torch import TorchEngine, abilities  # noqa: E402
from detector.core.engines.torch import requests as cuda  # noqa: E402
from detector.core.engines.torch.engine import OpenTorch, read_switches  # noqa: E402


class Fakes:
    def __init__(self) -> None:
        self.log: list[str] = []
        self.broken = ""  # if not empty, query() raises this error
        self.current: list[FakeStream] = []
        self.streams: list[FakeStream] = []

    def stream(self, _device: object = None) -> FakeStream:
        stream = FakeStream(self, len(self.streams))
        self.streams.append(stream)
        return stream

    def event(self, **options: bool) -> FakeEvent:
        return FakeEvent(self, options)

    @contextlib.contextmanager
    def on(self, stream: FakeStream):
        self.current.append(stream)
        yield
        self.current.pop()


class FakeStream:
    def __init__(self, fakes: Fakes, number: int) -> None:
        self.fakes, self.number = fakes, number

    def synchronize(self) -> None:
        self.fakes.log.append(f"stream {self.number} waited for")

    def query(self) -> bool:
        if self.fakes.broken:
            raise RuntimeError(self.fakes.broken)
        return True


class FakeEvent:
    def __init__(self, fakes: Fakes, options: dict[str, bool]) -> None:
        self.fakes, self.options, self.stream = fakes, options, -1

    def record(self) -> None:
        self.stream = self.fakes.current[-1].number
        self.fakes.log.append(f"event on stream {self.stream}")

    def synchronize(self) -> None:
        assert self.stream >= 0, "waited for an event that was never recorded"
        assert self.options == {"enable_timing": True, "blocking": True}
        self.fakes.log.append(f"event of stream {self.stream} waited for")

    def elapsed_time(self, end: FakeEvent) -> float:
        assert self.fakes.log[-1] == f"event of stream {end.stream} waited for", (
            "the time was read before the event was reached"
        )
        assert self.stream == end.stream
        return 1.5


class FakeGraph:
    """A CUDA graph whose replay is only logged."""

    def __init__(self, fakes: Fakes) -> None:
        self.fakes = fakes

    def replay(self) -> None:
        self.fakes.log.append(f"graph replayed on stream {self.fakes.current[-1].number}")


def refuse_device_wide(*_: object) -> None:
    raise AssertionError("waited for the whole device")


@pytest.fixture
def fakes(monkeypatch) -> Fakes:
    fakes = Fakes()

    @contextlib.contextmanager
    def capture(graph: FakeGraph, stream: FakeStream, capture_error_mode: str):
        assert capture_error_mode == "thread_local"
        fakes.log.append(f"captured on stream {stream.number}")
        yield

    monkeypatch.setattr(torch.cuda, "Stream", fakes.stream)
    monkeypatch.setattr(torch.cuda, "Event", fakes.event)
    monkeypatch.setattr(torch.cuda, "current_stream", fakes.stream)
    monkeypatch.setattr(torch.cuda, "stream", fakes.on)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: FakeGraph(fakes))
    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(torch.cuda, "synchronize", refuse_device_wide)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: fakes.log.append("cache emptied"))
    monkeypatch.setattr(
        cuda, "allocate_pinned", lambda shape, dtype: torch.zeros(shape, dtype=dtype)
    )
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    return fakes


def requests(fakes: Fakes, count: int, tf32: bool = False, run=None) -> list[cuda.CudaRequest]:
    from detector.core.engines.torch.graph import graph_module

    network = plus_one()
    run = run or graph_module(network.graph)
    return [cuda.CudaRequest(run, network, torch.device("cpu"), tf32) for _ in range(count)]


def test_request_has_its_own_stream_and_waits_only_for_its_event(fakes):
    one, two = requests(fakes, 2)
    for at, request in enumerate((one, two)):
        request.slot[:] = at
        np.testing.assert_array_equal(request.infer(1)[0], at + 1)
    assert fakes.log == [
        "event on stream 0",
        "event on stream 0",
        "event of stream 0 waited for",
        "event on stream 1",
        "event on stream 1",
        "event of stream 1 waited for",
    ]
    assert [one.device_ms, two.device_ms] == [1.5, 1.5]
    np.testing.assert_array_equal(one.infer(1)[0], 1)
    assert not np.shares_memory(one.infer(1)[0], two.infer(1)[0])


def test_run_happens_on_the_stream_of_its_request(fakes):
    seen = []

    def run(given):
        seen.append(fakes.current[-1].number)
        return torch.zeros(1, 3, 2, 3), torch.zeros(1, 3, 1, 1)

    one, two = requests(fakes, 2, run=run)
    two.infer(1)
    one.infer(1)
    assert seen == [1, 0]


def test_launch_waits_for_a_run_with_other_arithmetic_settings(fakes):
    """torch's arithmetic settings (such as TF32) apply to the whole process."""
    seen, network, cudnn = [], plus_one(), torch.backends.cudnn

    def look():
        seen.append((cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32, cudnn.benchmark))

    def launch_in_fp32():
        with cuda.arithmetic(False, False):
            look()

    def run(given):
        wait([pool.submit(launch_in_fp32)], 0.3)
        look()
        return RESULTS

    with ThreadPoolExecutor(1) as pool:
        cpu = torch.device("cpu")
        cuda.CudaRequest(run, network, cpu, True, benchmark=True).infer(1)
    assert seen == [(True, True, True), (False, False, False)]


def test_captured_graph_replays_into_the_buffers_of_its_request(fakes):
    static = torch.zeros(1, 3, 2, 3), torch.zeros(1, 3, 1, 1)
    addresses = []

    def run(given):
        addresses.append(given.data_ptr())
        return static

    (one,) = requests(fakes, 1, run=run)
    one.capture()
    assert len(addresses) == cuda.WARM_UPS + 1
    assert fakes.log == ["stream 0 waited for", "captured on stream 0"]
    static[0].fill_(7)  # a real replay writes into the captured tensors like this
    np.testing.assert_array_equal(one.infer(1)[0], 7)
    assert fakes.log[2:] == [
        "event on stream 0",
        "graph replayed on stream 0",
        "event on stream 0",
        "event of stream 0 waited for",
    ]
    assert len(set(addresses)) == 1
    assert len(addresses) == cuda.WARM_UPS + 1, "a replay runs no Python"


def opened(run, own: dict[str, str] | None = None, **options: int) -> OpenTorch:
    engine, own = object.__new__(OpenTorch), own or {}
    engine.precision, engine.concurrency, engine.notes, engine.captured = "fp32", 2, [], False
    engine._device = torch.device("cpu")
    engine_options = EngineOptions(own=own, **options)
    engine.requests = engine._cuda_requests(run, plus_one(), engine_options, read_switches(own))
    return engine


RESULTS = torch.zeros(1, 3, 2, 3), torch.zeros(1, 3, 1, 1)


@pytest.mark.parametrize(
    ("own", "captured"),
    [
        ({}, True),
        ({"graphs": "1"}, True),
        ({"graphs": "0"}, False),
        ({"compile": "1"}, False),
        ({"compile": "1", "graphs": "1"}, True),
    ],
)
def test_every_request_captures_a_cuda_graph_unless_turned_off(fakes, own, captured):
    engine = opened(lambda given: RESULTS, own)
    assert engine.captured is captured
    assert engine.notes == []
    captures = [line for line in fakes.log if line.startswith("captured")]
    assert len(captures) == len(set(captures)) == (len(engine.requests) if captured else 0)
    fakes.log.clear()
    engine.requests[1].infer(1)
    assert any("replayed" in line for line in fakes.log) is captured


def test_network_that_cannot_be_captured_runs_with_a_note(fakes, monkeypatch):
    @contextlib.contextmanager
    def refuse(*_, **__):
        yield
        raise RuntimeError("CUDA error: operation not permitted\nmore of it")

    monkeypatch.setattr(torch.cuda, "graph", refuse)
    engine = opened(lambda given: RESULTS)
    assert engine.captured is False
    (note,) = engine.notes
    assert note.endswith("without CUDA graphs: CUDA error: operation not permitted")
    engine.requests[0].infer(1)
    assert not any("replayed" in line for line in fakes.log)
    with pytest.raises(EngineError, match="operation not permitted"):
        opened(lambda given: RESULTS, {"graphs": "1"})


def test_graphs_that_take_too_much_memory_are_omitted(fakes, monkeypatch):
    """The graphs of two concurrent requests fit into memory, but the graphs of all four do not."""
    monkeypatch.setattr(cuda, "fits", lambda run, network, device, at_once, batch: at_once <= 2)
    engine = opened(lambda given: RESULTS, requests=4)
    assert (len(engine.requests), engine.captured) == (4, False)
    assert "4 requests take more memory" in engine.notes[0]


def test_cuda_error_is_reported_instead_of_the_error_of_the_library(fakes):
    def run(given):
        fakes.broken = "CUDA error: device-side assert triggered\nand how to debug it"
        raise RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR")

    (one,) = requests(fakes, 1, run=run)
    with pytest.raises(EngineError) as caught:
        one.infer(1)
    assert str(caught.value).endswith("run the network: CUDA error: device-side assert triggered")


def test_error_of_another_cause_is_reported_unchanged(fakes):
    def run(given):
        raise RuntimeError("shapes do not match")

    (one,) = requests(fakes, 1, run=run)
    with pytest.raises(EngineError, match=r"run the network: shapes do not match$"):
        one.infer(1)


def test_layer_times_are_measured_without_cuda_graphs(monkeypatch):
    """Layers inside a CUDA graph do not run separately, so they cannot be timed."""
    requested = []

    class StopError(Exception):
        pass

    def start(self, network, options):
        requested.append(options.own)
        raise StopError

    monkeypatch.setattr(OpenTorch, "__init__", start)
    with pytest.raises(StopError):
        OpenTorch.layer_profiler(plus_one(), EngineOptions(own={"benchmark": "1"}))
    assert requested == [{"benchmark": "1", "graphs": "0"}]


@pytest.mark.parametrize(
    ("batch", "limit", "message"),
    [
        (16, 5, "at batch 16; batch 4 fits: use --batch 4"),
        (2, 1, "at batch 2; batch 1 fits"),
        (8, 0, "at batch 8; not even batch 1 fits"),
        (1, 0, "at batch 1; not even batch 1 fits"),
    ],
)
def test_out_of_memory_error_names_the_batch_that_fits(fakes, batch, limit, message):
    tried = []

    def run(given):
        tried.append(len(given))
        if len(given) > limit:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate much")

    with pytest.raises(EngineError, match=f"^engine torch: .*memory {message}"):
        cuda.check_memory(run, plus_one(batch), torch.device("cpu"), 2)
    assert tried == sorted(tried, reverse=True)
    assert tried[0] == batch


def test_memory_trial_runs_on_every_concurrent_stream(fakes):
    tried = []
    cuda.check_memory(
        lambda given: tried.append(fakes.current[-1].number), plus_one(4), torch.device("cpu"), 3
    )
    assert tried == [0, 1, 2]


def test_memory_trial_and_run_use_the_same_kind_of_tensor(fakes):
    """torch.compile would compile the network again for a tensor made in inference mode."""
    kinds = []

    def run(given):
        kinds.append((given.is_inference(), torch.is_inference_mode_enabled()))
        return torch.zeros(1, 3, 2, 3), torch.zeros(1, 3, 1, 1)

    cuda.check_memory(run, plus_one(1), torch.device("cpu"), 2)
    (one,) = requests(fakes, 1, run=run)
    one.infer(1)
    assert kinds == [(False, True)] * 3


class FakeMemory:
    """Memory in bytes, as torch's allocator reports it. A picture needs ``need`` bytes at the peak
    of its run, and ``kept`` bytes after its run. Other streams can then use the difference."""

    def __init__(self, total: int, need: int, kept: int) -> None:
        self.total, self.need, self.kept = total, need, kept
        self.now = self.peak = self.highest = 0

    def take(self, size: int) -> None:
        if self.now + size > self.total:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate much")
        self.now += size
        self.peak = max(self.peak, self.now)
        self.highest = max(self.highest, self.now)

    def run(self, given):
        self.take(self.need * len(given))
        self.now -= (self.need - self.kept) * len(given)

    def begin(self, device) -> int:
        self.peak = self.now
        return self.now

    def hold(self, device, before: int) -> None:
        self.take(max(0, self.peak - max(before, self.now)))


@pytest.mark.parametrize(
    ("total", "at_once", "fits"),
    # Each run needs 100 bytes at its peak and keeps 10. Two peaks at the same time need 200.
    [(130, 1, True), (130, 2, False), (199, 2, False), (200, 2, True), (799, 8, False)],
)
def test_memory_trial_assumes_simultaneous_peaks(fakes, monkeypatch, total, at_once, fits):
    memory = FakeMemory(total, need=100, kept=10)
    monkeypatch.setattr(cuda, "begin_peak", memory.begin)
    monkeypatch.setattr(cuda, "hold_peak", memory.hold)
    network, device = plus_one(1), torch.device("cpu")
    assert cuda.fits(memory.run, network, device, at_once, 1) is fits
    if fits:
        assert memory.highest == 100 * at_once
        waited = [line for line in fakes.log if "waited" in line]
        assert waited == [f"stream {at} waited for" for at in range(at_once)]
        assert fakes.log.index(waited[0]) == 0, "waited before all runs were started"
    assert fakes.log[-1] == "cache emptied"


def test_freed_peak_memory_is_held_on_a_gpu(monkeypatch):
    """A run frees memory after its peak. The trial takes this memory, so no other run uses it."""
    device, calls = torch.device("cuda:1"), []
    statistics = {"memory_allocated": 700, "max_memory_allocated": 1000}
    for name, value in statistics.items():
        monkeypatch.setattr(torch.cuda, name, lambda where, v=value: calls.append(where) or v)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", calls.append)
    allocated = []
    monkeypatch.setattr(
        torch, "empty", lambda size, **more: allocated.append((size, more["device"]))
    )
    assert cuda.begin_peak(device) == 700
    cuda.hold_peak(device, 650)
    assert allocated == [(300, device)]
    assert set(calls) == {device}


@pytest.mark.parametrize(("precision", "tf32"), [("fp32", False), ("tf32", True)])
def test_arithmetic_is_set_before_anything_is_compiled(fakes, monkeypatch, precision, tf32):
    """A graph compiled with another setting would be wrong, or would be compiled again."""
    seen = []
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", not tf32)
    engine = object.__new__(OpenTorch)
    engine.precision, engine.threads, engine.concurrency = precision, 1, 2
    engine.module, engine._device = (lambda given: []), torch.device("cuda:0")

    def note(what):
        cudnn = torch.backends.cudnn
        seen.append((what, cudnn.allow_tf32, cudnn.benchmark))

    monkeypatch.setattr(engine, "_compile", lambda: note("compiled"), raising=False)
    monkeypatch.setattr(engine, "_cuda_requests", lambda *_: note("requests"), raising=False)
    wanted = {"compile": True, "graphs": False, "benchmark": True}
    threads = torch.get_num_threads()
    try:
        engine._requests(plus_one(), EngineOptions(precision=precision), wanted)
    finally:
        torch.set_num_threads(threads)
        with cuda.arithmetic(False, False):
            pass
    assert seen == [("compiled", tf32, True), ("requests", tf32, True)]


@pytest.mark.parametrize("option", ["graphs", "benchmark"])
def test_gpu_options_are_refused_on_a_cpu(option):
    from detector.core.errors import UsageError

    with pytest.raises(UsageError, match=f"--engine-options {option}: .* a GPU"):
        engines.open("torch", plus_one(), EngineOptions(device="cpu", own={option: "1"}))


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Tesla T4")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))


def test_auto_chooses_the_gpu_with_a_note(gpu):
    device, note = abilities.device_of("auto")
    assert str(device) == "cuda:0"
    assert note.endswith("cuda:0, Tesla T4")
    assert engines.find("torch").best_concurrency(EngineOptions()) == 2
    assert engines.find("torch").best_concurrency(EngineOptions(device="cpu")) == 1
    assert str(abilities.device_of("cuda")[0]) == "cuda:0"


@pytest.mark.parametrize(
    ("precision", "device", "message"),
    [
        ("fp32", "cuda:1", "--device cuda:1: .*cuda:0"),
        ("tf32", "cuda", r"Tesla T4 .*7\.5.*8\.0"),
        ("bf16", "auto", r"Tesla T4 .*7\.5"),
    ],
)
def test_unsupported_device_or_precision_is_refused_with_the_reason(
    gpu, precision, device, message
):
    for call in (
        lambda: engines.graph_precision_for("torch", precision, device),
        lambda: engines.open(
            "torch", plus_one(), EngineOptions(precision=precision, device=device)
        ),
    ):
        with pytest.raises(EngineError, match=message):
            call()


def test_every_gpu_runs_fp16(gpu):
    assert engines.graph_precision_for("torch", "fp16", "cuda") == "fp32"


@pytest.mark.parametrize(
    ("built", "message"),
    [
        (
            None,
            r"--device cuda: this torch \(.*\) is built without CUDA; use --device cpu, or "
            r"install one with CUDA: pip",
        ),
        (
            "13.0",
            r"--device cuda: torch finds no GPU, or no driver for it \(check with nvidia-smi\); "
            r"use --device cpu",
        ),
    ],
)
def test_missing_gpu_is_an_error_with_advice(monkeypatch, built, message):
    monkeypatch.setattr(torch.version, "cuda", built)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(EngineError, match=message):
        engines.open("torch", plus_one(), EngineOptions(device="cuda"))
    assert TorchEngine.refusal("fp32", "cuda").startswith("--device cuda: t")
    with engines.open("torch", plus_one()) as engine:
        assert engine.device == "cpu"
        assert "on the CPU: t" in engine.notes[0]
    with engines.open("torch", plus_one(), EngineOptions(device="cpu")) as engine:
        assert list(engine.notes) == []
