"""Engine trt at run time: streams, devices and memory."""

import re

import pytest

from detector.core import engines
from detector.core.engines.base import EngineOptions
from detector.core.engines.trt import memory
from detector.core.errors import EngineError
from tests.conformance import test_engines as conformance
from tests.engines.trt.opening import opened
from tests.fakes.install import install_fake_tensorrt
from tests.known_answers import plus_one


def test_closed_engine_leaves_no_allocation_or_context(machine):
    with opened() as engine:
        for seed in range(3):
            engine.requests[0].slot[:] = conformance.pictures(seed)
            engine.requests[0].infer(1)
        assert engine.requests[0].device_ms > 0
        assert machine.device.allocations
        with engine._memory.active():
            engine.requests[0].release()  # closing the engine releases it again
    assert machine.device.allocations == {}
    assert machine.device.depth == 0
    assert machine.libcuda.retained == 0


@pytest.mark.slow
def test_each_request_has_a_stream_of_its_own(machine):
    with engines.open("trt", plus_one(), EngineOptions(requests=3, concurrency=2)) as engine:
        for request in engine.requests:
            request.infer(1)
    assert len(set(machine.fake.runs)) == 3
    assert 0 not in machine.fake.runs


@pytest.mark.slow
def test_request_waits_only_for_its_own_stream(machine):
    """When the first request's result is ready, the second request's upload is still pending."""
    with engines.open("trt", plus_one(), EngineOptions(requests=2)) as engine:
        first, second = engine.requests
        with first._memory.active():
            second._input.upload(second._stream)
        first.infer(1)
        other = machine.device.streams[second._stream.handle]
        assert len(other.waiting) == 1
        second.infer(1)


def test_nvtx_ranges_hold_names_only(machine):
    with opened() as engine:
        assert (
            engine.requests[0].context.nvtx_verbosity
            is machine.trt.ProfilingVerbosity.LAYER_NAMES_ONLY
        )


@pytest.mark.slow
def test_requested_device_is_used(monkeypatch):
    machine = install_fake_tensorrt(monkeypatch, gpus=(("Fake L4", (8, 9)), ("Fake L4", (8, 9))))
    opened_on, open_it = [], memory.open_memory
    monkeypatch.setattr(
        memory,
        "open_memory",
        lambda name, device: opened_on.append(device) or open_it(name, device),
    )
    with opened(device="cuda:1") as engine:
        assert engine.device == "cuda:1"
    assert opened_on == [1]
    assert machine.libcuda.retained == 0


@pytest.mark.slow
def test_outputs_outlive_the_engine(machine):
    engine = opened()
    inputs = conformance.pictures(3)
    engine.requests[0].slot[:] = inputs
    outputs = engine.requests[0].infer(1)
    engine.close()
    conformance.assert_answers(outputs, inputs)


def test_out_of_memory_error_names_a_batch_that_fits(machine, monkeypatch):
    options = EngineOptions(batch=8, requests=4, device_memory="auto")
    machine.device.total = 9 << 20  # one context of 8 pictures fits, at 1 MB a picture
    with pytest.raises(EngineError) as caught:
        engines.open("trt", plus_one(8), options)
    advice = re.findall(r"batch 8|\d+ MB|--\w+ \d", str(caught.value))
    assert advice == ["batch 8", "32 MB", "9 MB", "--batch 2", "--concurrency 1"]
    assert machine.device.allocations == {}
    machine.device.total = 1 << 10
    with pytest.raises(EngineError, match=r"--concurrency 1, .*--size"):
        opened()
