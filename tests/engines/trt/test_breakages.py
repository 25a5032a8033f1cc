"""Each of these breaks one thing that a GPU would not forgive.

A fake that did not notice would be worth nothing.
"""

from __future__ import annotations

from contextlib import nullcontext
from importlib import import_module

import pytest

from detector.core.errors import EngineError
from tests.conformance import test_engines as conformance
from tests.covering import covering
from tests.engines.trt.opening import opened
from tests.fakes.install import MAJORS, install
from tests.fakes.packages import PACKAGES
from tests.known_answers import plus_one

CLASSES = {"pycuda": "Pycuda", "torch": "Torch", "cuda-python": "Cuda"}


def patched(machine, monkeypatch, name, does):
    """A method of the machine's kind of device memory does something else."""
    kind, _, method = name.partition(".")
    module = import_module(f"detector.core.engines.trt.memory.{machine.memory.replace('-', '_')}")
    monkeypatch.setattr(getattr(module, CLASSES[machine.memory] + kind), method, does)


def no_address(machine, monkeypatch):
    monkeypatch.setattr(machine.trt.IExecutionContext, "set_tensor_address", lambda *_: True)


def no_wait(machine, monkeypatch):
    """The read-back is looked at before the stream's event has happened."""
    patched(machine, monkeypatch, "Event.wait", lambda self: None)
    patched(machine, monkeypatch, "Event.ms_since", lambda self, earlier: 1.0)


def no_upload(machine, monkeypatch):
    patched(machine, monkeypatch, "Buffer.upload", lambda self, stream: None)


def no_download(machine, monkeypatch):
    patched(machine, monkeypatch, "Buffer.download", lambda self, stream: None)


def default_stream(machine, monkeypatch):
    context = machine.trt.IExecutionContext
    run = context.execute_async_v3
    monkeypatch.setattr(context, "execute_async_v3", lambda self, stream_handle: run(self, 0))


def another_stream(machine, monkeypatch):
    """The run is put on a stream that nobody waits for."""
    context, other = machine.trt.IExecutionContext, machine.device.stream().handle
    run = context.execute_async_v3
    monkeypatch.setattr(context, "execute_async_v3", lambda self, handle: run(self, other))


def no_run(machine, monkeypatch):
    context = machine.trt.IExecutionContext
    monkeypatch.setattr(context, "execute_async_v3", lambda self, handle: True)


def too_small(machine, monkeypatch):
    allocate = machine.device.allocate
    monkeypatch.setattr(machine.device, "allocate", lambda size: allocate(size - 1))


def outputs_swapped(machine, monkeypatch):
    """The addresses of the two outputs are exchanged: one of them is too small."""
    context, names = machine.trt.IExecutionContext, {"0.conv": "1.conv", "1.conv": "0.conv"}
    put = context.set_tensor_address
    swapped = lambda self, name, memory: put(self, names.get(name, name), memory)  # noqa: E731
    monkeypatch.setattr(context, "set_tensor_address", swapped)


def tf32_left_on(machine, monkeypatch):
    monkeypatch.setattr(machine.trt.IBuilderConfig, "clear_flag", lambda self, flag: None)


BREAKAGES = [no_address, no_wait, no_upload, no_download, default_stream, another_stream, no_run]
BREAKAGES += [too_small, outputs_swapped, tf32_left_on]


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
    from detector.core.engines.trt.memory.pycuda import Memory

    install(monkeypatch, 11, "pycuda")
    with opened() as engine, monkeypatch.context() as broken:
        broken.setattr(Memory, "active", lambda self: nullcontext())
        with pytest.raises(EngineError, match="none is current"):
            engine.requests[0].infer(1)
        broken.undo()  # close needs it again


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
