"""A device that fails once refuses every later call, the freeing of its memory among them. What is
reported is the first error; what can still be freed is.
"""

from __future__ import annotations

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
def test_the_error_of_opening_is_the_one_that_is_reported(eleven, monkeypatch, first):
    """After the first request was prepared: there is memory to free."""
    runtime = sys.modules["cuda.bindings.runtime"]
    call, done = getattr(runtime, first), []

    def failing(*arguments):
        done.append(first)
        if len(done) < 4:
            return call(*arguments)
        fail(monkeypatch, "cudaFree", "cudaEventDestroy", "cudaStreamDestroy")
        return Result(ILLEGAL), None

    monkeypatch.setattr(runtime, first, failing)
    with pytest.raises(EngineError, match=rf"{first}: .*error 700") as caught:
        engines.open("trt", plus_one(), EngineOptions(requests=5, concurrency=2))
    assert "error 700" in str(caught.value)
    assert "cudaFree" not in str(caught.value)


def test_device_error_on_close_raises_once_and_frees_the_rest(eleven, monkeypatch):
    engine = engines.open("trt", plus_one(), EngineOptions(requests=2))
    assert len(eleven.device.streams) >= 2
    before = len(eleven.device.streams)
    fail(monkeypatch, "cudaFree")
    with pytest.raises(EngineError, match=r"cudaFree: .*error 700"):
        engine.close()
    assert len(eleven.device.streams) == before - 2  # streams and events went all the same
    engine.close()


def test_a_device_that_cannot_even_be_chosen_lets_go(eleven, monkeypatch):
    engine = opened()
    fail(monkeypatch, "cudaGetDevice")
    with pytest.raises(EngineError, match="cudaGetDevice"):
        engine.close()
    assert engine.execution() == []
    engine.close()


def test_what_fails_last_does_not_hide_what_failed_first(eleven, monkeypatch):
    engine = opened()
    fail(monkeypatch, "cudaFree")

    def close(self):
        raise RuntimeError("the context is gone")

    monkeypatch.setattr(type(engine._memory), "close", close)
    with pytest.raises(EngineError, match="memory: cudaFree"):
        engine.close()
    engine.close()
