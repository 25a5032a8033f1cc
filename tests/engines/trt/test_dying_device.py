"""A GPU that dies in the middle of a run: from one call on, every call of its package fails, the
freeing of memory among them. The run ends with exit code 5 and keeps all frames before that.
"""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from functools import wraps

import pytest

from detector import Detector
from detector.core.config.levels import resolve_config
from detector.core.errors import EXIT_ENGINE, EngineError
from detector.core.run.detect import Hooks, detect
from detector.lab.session.read import read_session
from tests.conftest import CHECKOUT
from tests.fakes.install import install
from tests.fakes.packages import Result

STREET = CHECKOUT / "videos/street.mp4"
ILLEGAL = 700
BEFORE, FRAMES = 3, 6  # frames before the death; frames of the run

# What an inference calls, by package: the first call after ``BEFORE`` frames ends the device.
RUNNING = {
    "pycuda": [
        "Context.push",
        "Context.pop",
        "Event.record",
        "memcpy_htod_async",
        "memcpy_dtoh_async",
        "Event.synchronize",
        "Event.time_since",
    ],
    "cuda-python": [
        "cudaGetDevice",
        "cudaSetDevice",
        "cudaEventRecord",
        "cudaMemcpyAsync",
        "cudaEventSynchronize",
        "cudaEventElapsedTime",
    ],
    "torch": [
        "cuda.device",
        "cuda.Event.record",
        "cuda.stream",
        "Tensor.copy_",
        "cuda.Event.synchronize",
        "cuda.Event.elapsed_time",
    ],
}
# What only closing calls.
CLOSING = {
    "pycuda": ["DeviceAllocation.free"],
    "cuda-python": ["cudaFree", "cudaEventDestroy", "cudaStreamDestroy"],
    "torch": [],  # its tensors go with the last reference
}
# What opening calls.
OPENING = {
    "pycuda": ["Device.retain_primary_context", "Stream", "Event", "pagelocked_empty", "mem_alloc"],
    "cuda-python": [
        "cudaStreamCreateWithFlags",
        "cudaEventCreateWithFlags",
        "cudaHostAlloc",
        "cudaMalloc",
    ],
    "torch": ["cuda.Stream", "cuda.Event", "zeros", "empty"],
}

PLAIN = Hooks()


def rows(table):
    return [(package, name) for package, names in table.items() for name in names]


class Death:
    """Ends all calls that it wraps, from the one called ``name`` on, once it is armed."""

    def __init__(self, name: str, armed: bool) -> None:
        self.name, self.armed, self.dead, self.wrapped = name, armed, False, set()

    def wrap(self, name, call, refuse):
        self.wrapped.add(name)

        @wraps(call)
        def wrapped(*args, **kwargs):
            self.dead = self.dead or (self.armed and name == self.name)
            return refuse(name) if self.dead else call(*args, **kwargs)

        return wrapped


def illegal(name):
    raise RuntimeError(f"{name} failed: an illegal memory access was encountered")


def wrap_methods(death, monkeypatch, kind, title, *names):
    for name in names:
        refused = title if name == "__init__" else f"{title}.{name}"
        monkeypatch.setattr(kind, name, death.wrap(refused, getattr(kind, name), illegal))


def watch_cuda_python(death, monkeypatch):
    runtime = sys.modules["cuda.bindings.runtime"]
    for name in [one for one in vars(runtime) if one.startswith("cuda")]:
        call = getattr(runtime, name)
        if callable(call) and name not in ("cudaGetErrorString", "cudaFreeHost"):
            refuse = lambda _: (Result(ILLEGAL), None)  # noqa: E731
            monkeypatch.setattr(runtime, name, death.wrap(name, call, refuse))


def watch_pycuda(death, monkeypatch):
    driver = sys.modules["pycuda.driver"]
    wrap_methods(death, monkeypatch, driver.Event, "Event", "__init__", "record", "synchronize")
    wrap_methods(death, monkeypatch, driver.Event, "Event", "time_since")
    wrap_methods(death, monkeypatch, driver.Stream, "Stream", "__init__")
    wrap_methods(death, monkeypatch, driver.Device, "Device", "retain_primary_context")
    wrap_methods(death, monkeypatch, driver.Context, "Context", "push")
    pop = staticmethod(death.wrap("Context.pop", driver.Context.pop, illegal))
    monkeypatch.setattr(driver.Context, "pop", pop)
    allocate = driver.mem_alloc

    def mem_alloc(size):
        made = allocate(size)
        if not hasattr(type(made).free, "__wrapped__"):
            wrap_methods(death, monkeypatch, type(made), "DeviceAllocation", "free")
        return made

    monkeypatch.setattr(driver, "mem_alloc", death.wrap("mem_alloc", mem_alloc, illegal))
    for name in ("pagelocked_empty", "memcpy_htod_async", "memcpy_dtoh_async"):
        monkeypatch.setattr(driver, name, death.wrap(name, getattr(driver, name), illegal))


def watch_torch(death, monkeypatch):
    torch = sys.modules["torch"]
    wrap_methods(death, monkeypatch, torch.cuda.Stream, "cuda.Stream", "__init__")
    names = ("__init__", "record", "synchronize", "elapsed_time")
    wrap_methods(death, monkeypatch, torch.cuda.Event, "cuda.Event", *names)
    wrap_methods(death, monkeypatch, type(torch.zeros(1)), "Tensor", "copy_")
    for name in ("stream", "device"):
        call = death.wrap(f"cuda.{name}", getattr(torch.cuda, name), illegal)
        monkeypatch.setattr(torch.cuda, name, call)
    for name in ("zeros", "empty"):
        monkeypatch.setattr(torch, name, death.wrap(name, getattr(torch, name), illegal))


WATCH = {"pycuda": watch_pycuda, "cuda-python": watch_cuda_python, "torch": watch_torch}


def machine(monkeypatch, package, name, armed=False):
    install(monkeypatch, 11, package)
    death = Death(name, armed)
    WATCH[package](death, monkeypatch)
    return death


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    """Built once."""
    return str(tmp_path_factory.mktemp("plans"))


def options(package, plans):
    return {"engine": "trt", "device_memory": package, "size": "64x64", "engines_dir": plans}


def run(place, package, plans, hooks=PLAIN, **more):
    flags = {**options(package, plans), "frames": FRAMES, "no_video": True, **more}
    where = {"output": f"{place}/out/", "run_dir": f"{place}/run"}
    return detect([str(STREET)], resolve_config(None, {**flags, **where}), hooks=hooks)


def kill_after(death, count):
    seen = []

    def detected(frame, detections):
        seen.append(frame)
        death.armed = len(seen) >= count

    return Hooks(detected=detected)


def read_rows(place):
    (file,) = (place / "out").glob("*.jsonl")
    return [json.loads(line)["frame"] for line in file.read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize(("package", "name"), rows(RUNNING))
def test_an_inference_that_fails_keeps_the_frames_before(
    tmp_path, monkeypatch, plans, package, name
):
    death = machine(monkeypatch, package, name)
    result = run(tmp_path, package, plans, kill_after(death, BEFORE), sync=True)
    assert death.dead
    assert result.exit_code == EXIT_ENGINE
    (error,) = result.errors
    assert isinstance(error, EngineError)
    assert str(error).startswith("engine trt: failed")
    session = read_session(tmp_path / "run")
    assert session.document.exit.reason == str(error)
    assert session.document.frames.written == BEFORE
    assert read_rows(tmp_path) == list(range(BEFORE))
    writes = session.spans["stage_names"].tolist().index("write")
    frames = session.spans["index"][session.spans["stage"] == writes]
    assert set(frames.tolist()) >= set(range(BEFORE))
    if package != "torch":  # which has nothing to call for that, but its context
        assert any("closing it" in note for note in session.document.notes)


@pytest.mark.slow
@pytest.mark.parametrize(("package", "name"), rows(CLOSING))
def test_a_device_that_fails_at_the_end_keeps_all(tmp_path, monkeypatch, plans, package, name):
    death = machine(monkeypatch, package, name, armed=True)
    result = run(tmp_path, package, plans)
    assert death.dead
    assert result.exit_code == EXIT_ENGINE
    assert ["GPU's memory" in str(error) for error in result.errors] == [True]
    assert read_session(tmp_path / "run").document.frames.written == FRAMES
    assert read_rows(tmp_path) == list(range(FRAMES))


@pytest.mark.parametrize(("package", "name"), rows(OPENING))
def test_a_device_that_fails_at_the_start_says_which_call(
    tmp_path, monkeypatch, plans, package, name
):
    machine(monkeypatch, package, name, armed=True)
    with pytest.raises(EngineError, match=f"(?i){name.rpartition('.')[2]}") as caught:
        run(tmp_path, package, plans)
    assert caught.value.exit_code == EXIT_ENGINE
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("package", RUNNING)
def test_every_call_of_the_package_is_in_the_table(monkeypatch, plans, tmp_path, package):
    death = machine(monkeypatch, package, "")
    run(tmp_path, package, plans)
    named = {*RUNNING[package], *CLOSING[package], *OPENING[package]}
    assert death.wrapped - {"cudaMemcpyKind"} == named


@contextmanager
def detector_of(package, plans):
    with Detector("street", **options(package, plans)) as found:
        yield found


# Which call it is makes no difference here: the engine's answers are those of the runs above.
@pytest.mark.parametrize(("package", "name"), [(one, RUNNING[one][0]) for one in RUNNING])
def test_the_python_api_raises_the_first_error(monkeypatch, plans, package, name):
    death = machine(monkeypatch, package, name)
    seen = []

    def watch():
        with detector_of(package, plans) as detector:
            for frame, _ in detector.stream(str(STREET)):
                seen.append(frame.index)
                death.armed = len(seen) >= BEFORE

    with pytest.raises(EngineError, match="failed to run"):
        watch()
    assert seen[:BEFORE] == list(range(BEFORE))
