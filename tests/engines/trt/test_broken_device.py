"""After a failure, a device may refuse even calls that free its memory. We report the first error
and free what can still be freed.
"""

import sys

import pytest

from detector.core import engines
from detector.core.engines.base import EngineOptions
from detector.core.errors import EngineError
from tests.engines.trt.opening import opened
from tests.fakes.packages import Result
from tests.known_answers import plus_one

ILLEGAL = 700  # cudaErrorIllegalAddress, which stays until the process ends


def fail(monkeypatch, *names):
    runtime = sys.modules["cuda.bindings.runtime"]
    for name in names:
        monkeypatch.setattr(runtime, name, lambda *_: (Result(ILLEGAL), None))


@pytest.mark.parametrize("first", ["cudaStreamCreateWithFlags", "cudaHostAlloc", "cudaMalloc"])
def test_first_error_while_opening_is_reported(tensorrt, monkeypatch, first):
    """The error occurs after the first request was prepared, so there is memory to free."""
    runtime = sys.modules["cuda.bindings.runtime"]
    call, calls = getattr(runtime, first), []

    def failing(*arguments):
        calls.append(first)
        if len(calls) < 4:
            return call(*arguments)
        fail(monkeypatch, "cudaFree", "cudaEventDestroy", "cudaStreamDestroy")
        return Result(ILLEGAL), None

    monkeypatch.setattr(runtime, first, failing)
    with pytest.raises(EngineError, match=rf"{first}: .*error 700") as caught:
        engines.open("trt", plus_one(), EngineOptions(requests=5, concurrency=2))
    assert "cudaFree" not in str(caught.value)


def test_device_error_on_close_raises_once_and_frees_the_rest(tensorrt, monkeypatch):
    engine = engines.open("trt", plus_one(), EngineOptions(requests=2))
    assert len(tensorrt.device.streams) >= 2
    before = len(tensorrt.device.streams)
    fail(monkeypatch, "cudaFree")
    with pytest.raises(EngineError, match=r"cudaFree: .*error 700"):
        engine.close()
    assert len(tensorrt.device.streams) == before - 2  # the two requests' streams were freed
    engine.close()


def test_close_raises_once_if_the_device_cannot_be_selected(tensorrt, monkeypatch):
    engine = opened()
    fail(monkeypatch, "cudaGetDevice")
    with pytest.raises(EngineError, match="cudaGetDevice"):
        engine.close()
    assert engine.execution() == []
    engine.close()


def test_later_error_does_not_hide_the_first(tensorrt, monkeypatch):
    engine = opened()
    fail(monkeypatch, "cudaFree")

    def close(self):
        raise RuntimeError("the context is gone")

    monkeypatch.setattr(type(engine._memory), "close", close)
    with pytest.raises(EngineError, match="memory: cudaFree"):
        engine.close()
    engine.close()
