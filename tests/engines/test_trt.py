"""The engine trt against a fake TensorRT that computes: both majors, all three kinds of device memory, no GPU."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from detector import engines
from detector.engines import trt
from detector.engines.base import EngineOptions
from detector.errors import EngineError, UsageError
from tests.conformance import test_engines as conformance
from tests.fakes.install import MAJORS, install
from tests.fakes.packages import PACKAGES
from tests.known_answers import plus_one

EVERY = [(major, memory) for major in MAJORS for memory in PACKAGES]


@pytest.fixture(params=EVERY, ids=[f"trt{major}-{memory}" for major, memory in EVERY])
def machine(request, monkeypatch):
    return install(monkeypatch, *request.param)


@pytest.fixture
def name(machine) -> str:
    return "trt"


@pytest.fixture
def computing(machine) -> str:
    return "trt"


# What every engine must do, trt does on each of the fakes.
test_known_answers = conformance.test_known_answers_at_every_filling_of_a_batch
test_shapes_types_and_slots = conformance.test_shapes_types_and_slots
test_the_slot_is_untouched_by_infer = conformance.test_the_slot_is_untouched_by_infer
test_outputs_stay = conformance.test_outputs_stay_until_that_requests_next_infer
test_requests_in_several_threads_do_not_mix = conformance.test_requests_in_several_threads_do_not_mix
test_close_twice_and_infer_after_it = conformance.test_close_twice_and_infer_after_it
test_no_thread_is_left_behind = conformance.test_no_thread_is_left_behind
test_a_graph_that_is_no_graph_is_our_error = conformance.test_a_graph_that_is_no_graph_is_our_error
test_a_description_that_is_not_the_graphs = conformance.test_a_description_that_is_not_the_graphs_is_our_error
test_options_that_cannot_be_are_refused = conformance.test_options_that_cannot_be_are_refused
test_an_absent_library_names_its_cure = conformance.test_an_absent_library_names_its_cure


def opened(network=None, **options):
    network = network or plus_one(options.get("batch", 1))
    return engines.open("trt", network, EngineOptions(requests=1, **options))


def test_nothing_is_left_on_the_device_and_nobody_waited_for_all_of_it(machine):
    with opened() as engine:
        for seed in range(3):
            engine.requests[0].slot[:] = conformance.pictures(seed)
            engine.requests[0].infer(1)
        assert engine.device_ms() > 0
        assert machine.device.allocations
    assert machine.device.allocations == {}
    assert machine.device.depth == 0
    assert machine.libcuda.retained == 0


def test_each_request_has_a_stream_of_its_own(machine):
    with engines.open("trt", plus_one(), EngineOptions(requests=3, concurrency=2)) as engine:
        for request in engine.requests:
            request.infer(1)
    assert len(set(machine.fake.runs)) == 3
    assert 0 not in machine.fake.runs


def test_a_request_waits_for_its_own_stream_only(machine):
    """What another stream has to do is still waiting when this one's result is there."""
    with engines.open("trt", plus_one(), EngineOptions(requests=2)) as engine:
        first, second = engine.requests
        with first._memory.active():
            second._given.upload(second._stream)
        first.infer(1)
        other = machine.device.streams[second._stream.handle]
        assert len(other.waiting) == 1
        second.infer(1)


def test_outputs_outlive_the_engine(machine):
    engine = opened()
    given = conformance.pictures(3)
    engine.requests[0].slot[:] = given
    outputs = engine.requests[0].infer(1)
    engine.close()
    conformance.assert_answers(outputs, given)


# Each of these breaks one thing that a GPU would not forgive. If the fake did not notice, it would be worth nothing.
def no_address(machine, monkeypatch):
    monkeypatch.setattr(machine.trt.IExecutionContext, "set_tensor_address", lambda *_: True)


def no_wait(machine, monkeypatch):
    """The read-back is looked at before the stream's event has happened."""
    from detector.engines.tensorrt_parts import cuda_python_memory, pycuda_memory, torch_memory

    for event in (pycuda_memory.PycudaEvent, torch_memory.TorchEvent, cuda_python_memory.CudaEvent):
        monkeypatch.setattr(event, "wait", lambda self: None)
        monkeypatch.setattr(event, "ms_since", lambda self, earlier: 1.0)


def buffer_class(machine):
    from detector.engines.tensorrt_parts import cuda_python_memory, pycuda_memory, torch_memory

    classes = {
        "pycuda": pycuda_memory.PycudaBuffer,
        "torch": torch_memory.TorchBuffer,
        "cuda-python": cuda_python_memory.CudaBuffer,
    }
    return classes[machine.memory]


def no_upload(machine, monkeypatch):
    monkeypatch.setattr(buffer_class(machine), "upload", lambda self, stream: None)


def no_download(machine, monkeypatch):
    monkeypatch.setattr(buffer_class(machine), "download", lambda self, stream: None)


def default_stream(machine, monkeypatch):
    run = machine.trt.IExecutionContext.execute_async_v3
    monkeypatch.setattr(machine.trt.IExecutionContext, "execute_async_v3", lambda self, stream_handle: run(self, 0))


def another_stream(machine, monkeypatch):
    """The run is put on a stream that nobody waits for."""
    run = machine.trt.IExecutionContext.execute_async_v3
    other = machine.device.stream().handle
    monkeypatch.setattr(machine.trt.IExecutionContext, "execute_async_v3", lambda self, handle: run(self, other))


def no_run(machine, monkeypatch):
    monkeypatch.setattr(machine.trt.IExecutionContext, "execute_async_v3", lambda self, handle: True)


def too_small(machine, monkeypatch):
    allocate = machine.device.allocate
    monkeypatch.setattr(machine.device, "allocate", lambda size: allocate(size - 1))


def outputs_swapped(machine, monkeypatch):
    """The addresses of the two outputs are exchanged: one of them is too small."""
    put = machine.trt.IExecutionContext.set_tensor_address
    names = {"0.conv": "1.conv", "1.conv": "0.conv"}
    monkeypatch.setattr(
        machine.trt.IExecutionContext,
        "set_tensor_address",
        lambda self, name, memory: put(self, names.get(name, name), memory),
    )


def tf32_left_on(machine, monkeypatch):
    monkeypatch.setattr(machine.trt.IBuilderConfig, "clear_flag", lambda self, flag: None)


BREAKAGES = [
    no_address, no_wait, no_upload, no_download, default_stream, another_stream, no_run, too_small, outputs_swapped,
    tf32_left_on,
]  # fmt: skip


def right(machine) -> bool:
    """Does the engine give the right answers? Errors of ours count as no."""
    given = conformance.pictures(7, 1, 64, 96)
    try:
        with opened(plus_one(1, 64, 96), device_memory=machine.memory) as engine:
            for _ in range(2):
                engine.requests[0].slot[:] = given
                conformance.assert_answers(engine.requests[0].infer(1), given)
    except (EngineError, AssertionError):
        return False
    return True


@pytest.mark.parametrize("breakage", [None, *BREAKAGES], ids=lambda b: b.__name__ if b else "whole")
@pytest.mark.parametrize(("major", "memory"), EVERY)
def test_what_a_gpu_would_not_forgive_is_noticed(monkeypatch, major, memory, breakage):
    machine = install(monkeypatch, major, memory)
    machine.memory = memory
    if breakage is not None:
        breakage(machine, monkeypatch)
    assert right(machine) is (breakage is None)


def test_pycudas_context_must_be_current_in_the_thread(monkeypatch):
    from contextlib import nullcontext

    from detector.engines.tensorrt_parts.pycuda_memory import Memory

    install(monkeypatch, 11, "pycuda")
    with opened() as engine:
        with monkeypatch.context() as broken:
            broken.setattr(Memory, "active", lambda self: nullcontext())
            with pytest.raises(EngineError, match="none is current in this thread"):
                engine.requests[0].infer(1)


def test_u8_into_anything_but_a_cast_is_refused_by_name(machine):
    network = plus_one()
    nodes = network.graph.graph.node
    nodes[0].op_type, nodes[1].op_type = "Transpose", "Cast"
    nodes[0].attribute[0].CopyFrom(nodes[1].attribute[0])
    del nodes[1].attribute[:]
    nodes[1].attribute.add(name="to", i=1, type=2)
    with pytest.raises(EngineError, match=r"Transpose at input\.cast: UINT8 can only be converted by a Cast"):
        opened(network)


def test_weak_typing_would_not_build(monkeypatch):
    machine = install(monkeypatch, 10)
    make = machine.trt.Builder.create_network
    monkeypatch.setattr(machine.trt.Builder, "create_network", lambda self, flags: make(self, 0))
    with pytest.raises(EngineError, match="weakly typed"):
        opened()


def test_an_operator_that_tensorrt_lacks_is_named_with_the_engines_that_can(machine):
    network = plus_one()
    network.graph.graph.node.add(op_type="Unique", name="9.odd", input=["0.conv"], output=["9.odd"])
    with pytest.raises(EngineError, match=r"Unique at 9\.odd: No importer .*; use --engine ort"):
        opened(network)
