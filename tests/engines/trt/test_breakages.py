"""Each of these breaks one thing that a GPU would not forgive.

A fake that did not notice would be worth nothing.
"""

from __future__ import annotations

import pytest

from detector.core.errors import EngineError
from tests.conformance import test_engines as conformance
from tests.covering import covering
from tests.engines.trt.opening import opened
from tests.fakes.install import MAJORS, install
from tests.fakes.packages import PACKAGES
from tests.known_answers import plus_one


def no_address(machine, monkeypatch):
    monkeypatch.setattr(machine.trt.IExecutionContext, "set_tensor_address", lambda *_: True)


def no_wait(machine, monkeypatch):
    """The read-back is looked at before the stream's event has happened."""
    from detector.core.engines.trt.memory import cuda_python as cuda_python_memory
    from detector.core.engines.trt.memory import pycuda as pycuda_memory
    from detector.core.engines.trt.memory import torch as torch_memory

    for event in (pycuda_memory.PycudaEvent, torch_memory.TorchEvent, cuda_python_memory.CudaEvent):
        monkeypatch.setattr(event, "wait", lambda self: None)
        monkeypatch.setattr(event, "ms_since", lambda self, earlier: 1.0)


def buffer_class(machine):
    from detector.core.engines.trt.memory import cuda_python as cuda_python_memory
    from detector.core.engines.trt.memory import pycuda as pycuda_memory
    from detector.core.engines.trt.memory import torch as torch_memory

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
    monkeypatch.setattr(
        machine.trt.IExecutionContext, "execute_async_v3", lambda self, stream_handle: run(self, 0)
    )


def another_stream(machine, monkeypatch):
    """The run is put on a stream that nobody waits for."""
    run = machine.trt.IExecutionContext.execute_async_v3
    other = machine.device.stream().handle
    monkeypatch.setattr(
        machine.trt.IExecutionContext, "execute_async_v3", lambda self, handle: run(self, other)
    )


def no_run(machine, monkeypatch):
    monkeypatch.setattr(
        machine.trt.IExecutionContext, "execute_async_v3", lambda self, handle: True
    )


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
    no_address,
    no_wait,
    no_upload,
    no_download,
    default_stream,
    another_stream,
    no_run,
    too_small,
    outputs_swapped,
    tf32_left_on,
]


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("breakage", "major", "memory"), covering([None, *BREAKAGES], MAJORS, PACKAGES)
)
def test_what_a_gpu_would_not_forgive_is_noticed(monkeypatch, major, memory, breakage):
    machine = install(monkeypatch, major, memory)
    machine.memory = memory
    if breakage is not None:
        breakage(machine, monkeypatch)
    assert right(machine) is (breakage is None)


def test_pycudas_context_must_be_current_in_the_thread(monkeypatch):
    from contextlib import nullcontext

    from detector.core.engines.trt.memory.pycuda import Memory

    install(monkeypatch, 11, "pycuda")
    with opened() as engine, monkeypatch.context() as broken:
        broken.setattr(Memory, "active", lambda self: nullcontext())
        with pytest.raises(EngineError, match="none is current"):
            engine.requests[0].infer(1)
        broken.undo()  # close needs it again


@pytest.mark.slow
def test_u8_into_anything_but_a_cast_is_refused_by_name(machine):
    network = plus_one()
    nodes = network.graph.graph.node
    nodes[0].op_type, nodes[1].op_type = "Transpose", "Cast"
    nodes[0].attribute[0].CopyFrom(nodes[1].attribute[0])
    del nodes[1].attribute[:]
    nodes[1].attribute.add(name="to", i=1, type=2)
    del network.graph.graph.value_info[:]
    with pytest.raises(EngineError, match=r"input\.cast: UINT8"):
        opened(network)


def test_weak_typing_would_not_build(monkeypatch):
    machine = install(monkeypatch, 10)
    make = machine.trt.Builder.create_network
    monkeypatch.setattr(machine.trt.Builder, "create_network", lambda self, flags: make(self, 0))
    with pytest.raises(EngineError, match="weakly typed"):
        opened()


@pytest.mark.parametrize("named", [True, False])
def test_an_operator_that_tensorrt_lacks_is_named_with_the_engines_that_can(machine, named):
    if not named:  # as for ScatterElements, where the parser's function is all that tells
        error = machine.trt.ParserError
        error.node_name = error.node_operator = lambda self: ""
        error.func = lambda self: "importUnique"
    network = plus_one()
    network.graph.graph.node.add(op_type="Unique", name="9.odd", input=["0.conv"], output=["9.odd"])
    with pytest.raises(EngineError, match=r"Unique .*9\.odd: .*--engine ort"):
        opened(network)
